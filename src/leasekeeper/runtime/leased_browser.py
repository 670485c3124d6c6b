"""`async with client.browser("store_us_018") as browser`: a leased profile, its browser open behind a keeper, with
Playwright. The program does its work; lease, fence, evidence, clean close and release are taken care of."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leasekeeper.config import Config
from leasekeeper.core.classify import Facts, classify, kind_of, summary
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Conflict, ConflictReason, Fail, LeaseLost, safe_str
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.session_endpoint import SessionEndpoint
from leasekeeper.runtime.session_opening import open_session
from leasekeeper.runtime.session_run import SessionEnd, SessionRun, SessionTerms

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page


class LeasedBrowser:
    """A session for a program in this process. Use it once, as a context manager.

    Leaving the block ends the run: completed, or for the reason of a `Fail`; any other exception is classified as a
    task's is. The browser is closed with proof either way, so an exception alone does not take the profile out of
    rotation.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        heartbeat: Heartbeat,
        lost_leases: LostLeases,
        request: LeaseRequest,
        *,
        choice: ProfileChoice | None,
        wait: timedelta,
        terms: SessionTerms,
    ) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._lost_leases = lost_leases
        self._request = request
        self._choice = choice
        self._wait = wait
        self._terms = terms
        self._opener = BrowserOpener(config.browsers, store)
        self._session: SessionRun | None = None
        self._endpoint: SessionEndpoint | None = None
        self._end: SessionEnd | None = None

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise self._conflict("this browser was used already: ask the client for another one")
        try:
            await self._opener.prepare()
            self._session = await open_session(
                self._store,
                self._opener,
                self._heartbeat,
                self._lost_leases,
                self._request,
                choice=self._choice,
                wait=self._wait,
                terms=self._terms,
            )
        except BaseException:
            await self._opener.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._open_session()
        session.release(*self._reason_of(error, session))
        try:
            self._end = await session.ended()
        finally:
            if self._endpoint is not None:
                await self._endpoint.close()
            await self._opener.close()
        if self._end.settled is None:
            lost = LeaseLost(
                f"the lease of {session.lease.profile_id} was lost while its browser was open: {self._end.message}",
                lease_id=session.lease.lease_id,
                profile_id=session.lease.profile_id,
            )
            if error is None:
                raise lost
            error.add_note(str(lost))

    def _reason_of(self, error: BaseException | None, session: SessionRun) -> tuple[str | None, str]:
        if error is None:
            return None, ""
        if isinstance(error, Fail):
            return error.reason, error.detail
        facts = Facts(browser_alive=not session.over, page_crashed=False, proxied=session.grant.proxy is not None)
        text = f"{type(error).__name__}: {summary(safe_str(error), self._opener.redactor.text)}"
        return classify(kind_of(error), safe_str(error), facts), text

    def _open_session(self) -> SessionRun:
        if self._session is None:
            raise self._conflict(f"profile {self._request.profile_id} is not leased yet: use 'async with'")
        return self._session

    def _conflict(self, message: str) -> Conflict:
        return Conflict(message, cause=ConflictReason.LEASE_NOT_HELD, profile_id=self._request.profile_id)

    @property
    def page(self) -> "Page":
        """The page that is open at the start."""
        page: Page = self._open_session().playwright_objects[0]
        return page

    @property
    def context(self) -> "BrowserContext":
        """Playwright's context: the profile. Closing it ends the session."""
        context: BrowserContext = self._open_session().playwright_objects[1]
        return context

    @property
    def grant(self) -> Grant:
        """The lease with its profile, account and proxy."""
        return self._open_session().grant

    @property
    def lease(self) -> Lease:
        return self.grant.lease

    @property
    def token(self) -> int:
        """The fencing token: pass it to whatever should refuse a late writer."""
        return self.lease.token

    @property
    def end(self) -> SessionEnd | None:
        """How it ended, after the block."""
        return self._end

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more."""
        self._open_session().check()

    async def checkpoint(self, step: str, *, flush: bool = True) -> None:
        """Record the last safe step, with the session's cookies on disk."""
        await self._open_session().checkpoint(step, flush=flush)

    async def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on its account."""
        await self._open_session().note(text, NoteAbout(about))

    @asynccontextmanager
    async def mutating(self, name: str, *, idempotent: bool = False) -> AsyncIterator[None]:
        """A section that changes something for good. It is left only if the block ends normally."""
        session = self._open_session()
        await session.enter(name, idempotent=idempotent)
        yield
        await session.leave(name)

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Say how the run ends, before the block does: completed with an output, or for a reason."""
        self._open_session().release(reason, message, output=output)

    async def cdp_url(self) -> str:
        """An address on this machine for one more DevTools client, with its token: do not log it."""
        if self._endpoint is None:
            endpoint = SessionEndpoint(self._open_session())
            await endpoint.open()
            self._endpoint = endpoint
        return self._endpoint.url

    async def wait_ended(self) -> SessionEnd:
        """Wait until the session ends by itself: closed by a client, or its lease lost."""
        return await self._open_session().ended()
