"""A leased browser for plain `with` and Playwright's sync API: the async client, in a thread with a loop of its own.

with leasekeeper.browser("store_us_018") as browser:
    browser.page.goto("https://shop.example")

Knows no rules: every guarantee is the async client's.
"""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leasekeeper.app import HUMAN_TIMEOUT, HumanAnswer
from leasekeeper.client import connect
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Conflict
from leasekeeper.ports import Grant
from leasekeeper.threads import LoopThread

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


class SyncBrowser:
    """A leased browser, as `LeasedBrowser`, without `await`."""

    def __init__(
        self, profile: str | None, options: Mapping[str, Any], store: str | None, settings: Mapping[str, str | float]
    ) -> None:
        self._profile = profile
        self._options = options
        self._store = store
        self._settings = settings
        self._thread: LoopThread | None = None
        self._client = AsyncExitStack()
        self._leased: LeasedBrowser | None = None
        self._connection: SyncConnection | None = None

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise self._conflict("this browser was used already: call leasekeeper.browser again")
        self._thread = LoopThread()
        try:
            url = self._thread.call(self._open())
            from leasekeeper.runtime.sync_connection import SyncConnection

            self._connection = SyncConnection(url)
        except BaseException as error:
            if self._leased is not None:
                with suppress(Exception):
                    self.__exit__(type(error), error, error.__traceback__)
            else:
                self._thread.close()
            raise
        return self

    async def _open(self) -> str:
        async with AsyncExitStack() as opening:
            client = await opening.enter_async_context(connect(self._store, **self._settings))
            leased = client.browser(self._profile, **self._options)
            await leased.__aenter__()
            self._leased, self._client = leased, opening.pop_all()
        return await leased.cdp_url()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leased, thread = self._browser, self._loop_thread
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the browser may be gone, and what matters is its own end
                connection.close()
        try:
            thread.call(self._close(leased, kind, error, trace), to_the_end=True)
        finally:
            thread.close()

    async def _close(
        self,
        leased: "LeasedBrowser",
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await leased.__aexit__(kind, error, trace)
        finally:
            await self._client.aclose()

    @property
    def _browser(self) -> "LeasedBrowser":
        if self._leased is None:
            raise self._conflict(f"profile {self._profile} is not leased yet: use 'with'")
        return self._leased

    @property
    def _loop_thread(self) -> LoopThread:
        if self._thread is None:
            raise self._conflict(f"profile {self._profile} is not leased yet: use 'with'")
        return self._thread

    @property
    def _connected(self) -> "SyncConnection":
        if self._connection is None:
            raise self._conflict(f"profile {self._profile} has a browser inside the 'with' block only")
        return self._connection

    def _conflict(self, message: str) -> Conflict:
        return Conflict(message, cause=ConflictReason.LEASE_NOT_HELD, profile_id=self._profile)

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
        return self._browser.grant

    @property
    def lease(self) -> Lease:
        return self._browser.lease

    @property
    def token(self) -> int:
        """The fencing token: pass it to whatever should refuse a late writer."""
        return self._browser.token

    @property
    def end(self) -> "SessionEnd | None":
        """How it ended, after the block."""
        return self._browser.end

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more."""
        self._browser.check()

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Say how the run ends, before the block does: completed with an output, or for a reason. It ends it."""
        self._loop_thread.call(self._release(reason, message, output))

    async def _release(self, reason: str | None, message: str, output: Mapping[str, object] | None) -> None:
        self._browser.release(reason, message, output=output)

    def checkpoint(self, step: str, *, flush: bool = True) -> None:
        """Record the last safe step, with the session's cookies on disk."""
        self._loop_thread.call(self._browser.checkpoint(step, flush=flush))

    def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on its account."""
        self._loop_thread.call(self._browser.note(text, about=about))

    def request_human(self, what: str, *, timeout: timedelta | float = HUMAN_TIMEOUT) -> HumanAnswer:
        """Ask for a person in a review, and wait for what they say. After one has taken the browser and handed it back
        `page` and `context` are new objects. Raises Fail (HUMAN_REVIEW_REQUIRED) or LeaseLost."""
        from leasekeeper.runtime.sync_connection import SyncConnection

        before = self.lease
        answer = self._loop_thread.call(self._browser.request_human(what, timeout=timeout))
        if self.lease is not before:
            with suppress(Exception):  # it was cut when the browser was taken
                self._connected.close()
            self._connection = SyncConnection(self._loop_thread.call(self._browser.cdp_url()))
        return answer

    @contextmanager
    def mutating(self, name: str, *, idempotent: bool = False) -> Iterator[None]:
        """A section that changes something for good. It is left only if the block ends normally."""
        section = self._browser.mutating(name, idempotent=idempotent)
        self._loop_thread.call(section.__aenter__())
        yield  # after an exception the section stays open: nobody knows what was submitted
        self._loop_thread.call(section.__aexit__(None, None, None))
