"""`async with client.browser("store_us_018") as browser`: a leased profile, its browser open behind a keeper, with
Playwright. The program does its work; lease, fence, evidence, clean close and release are taken care of."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leasekeeper.app import HUMAN_TIMEOUT, HumanAnswer
from leasekeeper.config import Config
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.classify import Facts, classify, kind_of, summary
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Conflict, Fail, LeaseLost, safe_str
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.direct_input import span_of
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.human_requests import AskEnd, AskState
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.session_endpoint import SessionEndpoint
from leasekeeper.runtime.session_host import HostedSession, SessionHost
from leasekeeper.runtime.session_offer import offered
from leasekeeper.runtime.session_opening import open_session
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionEnd, SessionTerms

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

_LOG = logging.getLogger(__name__)


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
        self._config = config
        self._opener = BrowserOpener(config.browsers, store)
        self._host = SessionHost(store, config, 0, worker_id=request.worker_id, machine=self._opener.machine)
        self._connection = AsyncExitStack()
        self._hosted: HostedSession | None = None
        self._endpoint: SessionEndpoint | None = None
        self._end: SessionEnd | None = None

    async def __aenter__(self) -> Self:
        if self._hosted is not None:
            raise self._conflict("this browser was used already: ask the client for another one")
        try:
            await self._opener.prepare()
            session = await open_session(
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
        self._hosted = self._host.keep(session)
        pool = session.lease.pool
        await self._connection.enter_async_context(offered(self._host, self._config, pool, quiet=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._open_session()
        session.release(*self._reason_of(error, session))
        try:
            self._end = await session.ended()
            await self._until_returned()
        finally:
            if self._endpoint is not None:
                await self._endpoint.close()
            await self._connection.aclose()
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

    async def _until_returned(self) -> None:
        """If a person has taken the browser, wait until they release it: it needs this process. The program's own
        request to a person ends, as the program has left."""
        hosted = self._last
        if hosted is None or not isinstance(hosted.run, SessionRun) or hosted.run.person is None:
            return
        if hosted.ask is not None:
            hosted.ask.settle(AskEnd(state=AskState.OVER, why="the program that asked has ended"))
        if not hosted.run.over:
            name, profile_id = hosted.run.person.name, hosted.run.lease.profile_id
            _LOG.warning("%s has control of %s: waiting until they release it", name, profile_id)
        await hosted.run.ended()

    def _reason_of(self, error: BaseException | None, session: SessionRun) -> tuple[str | None, str]:
        if error is None:
            return None, ""
        if isinstance(error, Fail):
            return error.reason, error.detail
        facts = Facts(browser_alive=not session.over, page_crashed=False, proxied=session.grant.proxy is not None)
        text = f"{type(error).__name__}: {summary(safe_str(error), self._opener.redactor.text)}"
        return classify(kind_of(error), safe_str(error), facts), text

    @property
    def _last(self) -> HostedSession | None:
        """The session that has the browser now: this program's, or a person's."""
        hosted = self._hosted
        while hosted is not None and hosted.passed_to is not None:
            hosted = hosted.passed_to
        return hosted

    @property
    def _own(self) -> HostedSession:
        """The last session of this program: a new one, after a person has handed the browser back."""
        found = hosted = self._hosted
        while hosted is not None:
            found = hosted if isinstance(hosted.run, SessionRun) and hosted.run.person is None else found
            hosted = hosted.passed_to
        if found is None:
            raise self._conflict(f"profile {self._request.profile_id} is not leased yet: use 'async with'")
        return found

    def _open_session(self) -> SessionRun:
        run = self._own.run
        if not isinstance(run, SessionRun):
            raise TypeError("the session of this program does not run in this process")
        return run

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
        """How the session ended; None before the end of the block."""
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

    async def request_human(self, what: str, *, timeout: timedelta | float = HUMAN_TIMEOUT) -> HumanAnswer:
        """Ask for a person in a review, and wait for the answer. A person may take the browser and hand it back to this
        program: `lease` is a new one then.

        Raises Fail (HUMAN_REVIEW_REQUIRED) if nobody comes, or LeaseLost if it is not handed back.
        """
        ask = await self._host.request_human(self._own, what, span_of("timeout", timeout))
        end = await ask.ended(None)
        if end is not None and end.state is AskState.ANSWERED and end.answer is not None:
            return end.answer
        if end is not None and end.state is AskState.NOBODY_CAME:
            raise Fail(Reason.HUMAN_REVIEW_REQUIRED, f"nobody came within {ask.timeout.total_seconds():g} s: {what}")
        why = end.why if end is not None else "its session has ended"
        raise LeaseLost(f"nobody answered: {why}", profile_id=self.lease.profile_id)

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
        """End the run before the end of the block: completed with an output, or for a reason."""
        self._open_session().release(reason, message, output=output)

    async def cdp_url(self) -> str:
        """A URL on this machine for one more DevTools client. It contains a token: do not log it."""
        session = self._open_session()
        if self._endpoint is not None and self._endpoint.session is not session:
            await self._endpoint.close()
            self._endpoint = None
        if self._endpoint is None:
            endpoint = SessionEndpoint(session)
            await endpoint.open()
            self._endpoint = endpoint
        return self._endpoint.url

    async def wait_ended(self) -> SessionEnd:
        """Wait until the session ends by itself: closed by a client, its lease lost, or taken by a person. If the
        program has asked for a person who hands it back, wait until the session after that has ended too."""
        while True:
            own = self._own
            end = await self._open_session().ended()
            if end.passed is not None and own.ask is not None:
                await own.ask.ended(None)
            if self._own is own:
                return end
