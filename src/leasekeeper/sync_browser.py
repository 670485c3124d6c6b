"""A leased browser for plain `with` and Playwright's sync API: the async client, in a thread with a loop of its own.

with leasekeeper.browser("store_us_018") as browser:
    browser.page.goto("https://shop.example")

Knows no rules: every guarantee is the async client's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leasekeeper.app import HUMAN_TIMEOUT, HumanAnswer
from leasekeeper.client import Client
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.ports import Grant
from leasekeeper.sync_block import SyncBlock

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from leasekeeper.runtime.leased_browser import LeasedBrowser
    from leasekeeper.runtime.session_terms import SessionEnd
    from leasekeeper.runtime.sync_connection import SyncConnection


def browser(
    profile: str | None = None,
    *,
    pool: str | None = None,
    labels: Mapping[str, str] | None = None,
    store: str | None = None,
    wait: timedelta | float | None = None,
    ttl: timedelta | float | None = None,
    headless: bool = True,
    max_duration: timedelta | float | None = None,
    **settings: str | float,
) -> "SyncBrowser":
    """A leased profile with its browser open, for a plain `with` block. `store` and further settings are those of
    `connect`, the rest those of `Client.browser`."""
    options = {
        "pool": pool,
        "labels": labels,
        "wait": wait,
        "ttl": ttl,
        "headless": headless,
        "max_duration": max_duration,
    }
    return SyncBrowser(profile, options, store, settings)


class SyncBrowser(SyncBlock["LeasedBrowser"]):
    """A leased browser, as `LeasedBrowser`, without `await`."""

    _function = "browser"
    _connection: "SyncConnection | None" = None

    def _lease_by(self, client: Client) -> "LeasedBrowser":
        return client.browser(self._profile, **self._options)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._connection = self._connect()
        except BaseException as error:
            with suppress(Exception):
                self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disconnect()
        super().__exit__(kind, error, trace)

    def _connect(self) -> "SyncConnection":
        from leasekeeper.runtime.sync_connection import SyncConnection

        return SyncConnection(self._loop_thread.call(self._held.cdp_url()))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the browser may be gone, and what matters is its own end
                connection.close()

    @property
    def _connected(self) -> "SyncConnection":
        if self._connection is None:
            raise self._not_held(f"profile {self._profile} has a browser inside the 'with' block only")
        return self._connection

    @property
    def page(self) -> "Page":
        """The page that is open at the start."""
        return self._connected.page

    @property
    def context(self) -> "BrowserContext":
        """Playwright's context: the profile."""
        return self._connected.context

    @property
    def grant(self) -> Grant:
        """The lease with its profile, account and proxy."""
        return self._held.grant

    @property
    def lease(self) -> Lease:
        return self._held.lease

    @property
    def token(self) -> int:
        """The fencing token: pass it to whatever should refuse a late writer."""
        return self._held.token

    @property
    def end(self) -> "SessionEnd | None":
        """How the session ended; None before the end of the block."""
        return self._held.end

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more."""
        self._held.check()

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """End the run before the end of the block: completed with an output, or for a reason."""
        self._loop_thread.call(self._release(reason, message, output))

    async def _release(self, reason: str | None, message: str, output: Mapping[str, object] | None) -> None:
        self._held.release(reason, message, output=output)

    def checkpoint(self, step: str, *, flush: bool = True) -> None:
        """Record the last safe step, with the session's cookies on disk."""
        self._loop_thread.call(self._held.checkpoint(step, flush=flush))

    def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on its account."""
        self._loop_thread.call(self._held.note(text, about=about))

    def request_human(self, what: str, *, timeout: timedelta | float = HUMAN_TIMEOUT) -> HumanAnswer:
        """Ask for a person in a review, and wait for the answer. If a person takes the browser and hands it back,
        `page` and `context` are new objects then. Raises Fail (HUMAN_REVIEW_REQUIRED) if nobody comes, or LeaseLost."""
        before = self.lease
        answer = self._loop_thread.call(self._held.request_human(what, timeout=timeout))
        if self.lease is not before:
            self._disconnect()  # it was closed when the browser was taken
            self._connection = self._connect()
        return answer

    @contextmanager
    def mutating(self, name: str, *, idempotent: bool = False) -> Iterator[None]:
        """A section that changes something for good. It is left only if the block ends normally."""
        section = self._held.mutating(name, idempotent=idempotent)
        self._loop_thread.call(section.__aenter__())
        yield  # after an exception the section stays open: nobody knows what was submitted
        self._loop_thread.call(section.__aexit__(None, None, None))
