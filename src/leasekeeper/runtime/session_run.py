"""A session: one run of a profile whose work is done by other programs, over DevTools, behind the keeper.

It owns the browser and the lease from the grant to the settlement, and ends exactly once: by a release, by a client's
Browser.close, by its idle or maximum time, by the browser's end, or since the lease is lost. The order of an ending is
that of any run: evidence, close, proof, settle.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from leasekeeper.browsers.probe import ProbeResult
from leasekeeper.core.browsers import ENDED_BY_KEEPER, BrowserReport
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.settle import Ending
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.errors import Conflict, ConflictReason, LeasekeeperError, LeaseLost, safe_str
from leasekeeper.evidence.redact import MAX_MESSAGE
from leasekeeper.ports import Grant, LeaseRequest, Settled, Store
from leasekeeper.runtime.acquiring import acquire_waiting
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import Outcome, end_facts, outcome_of_result
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat, checkpoint_kept, enter_kept, leave_kept, note_kept, settle_kept
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.opening import BrowserOpener, NotOpened, Opened, as_not_opened, run_mode, unopened
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger(__name__)

NOBODY_WAITED: Final = "whoever asked for the session did not wait for it"


class OnDisconnect(StrEnum):
    """What the end of the last client means: nothing until the session is idle for too long, or a release."""

    KEEP = "keep"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """How a session is opened and when it ends by itself. None: never, or as the machine has a display."""

    idle_timeout: timedelta | None = None
    max_duration: timedelta | None = None
    on_disconnect: OnDisconnect = OnDisconnect.KEEP
    headless: bool | None = None

    @property
    def run_mode(self) -> RunMode | None:
        if self.headless is None:
            return None
        return RunMode.HEADLESS if self.headless else RunMode.VISIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """How a session ended. `settled` is None if the lease was lost: then the sweeper resolves the profile."""

    reason: str | None
    message: str
    settled: Settled | None
    report: BrowserReport | None


class SessionRun:
    """An open session. Its methods raise LeaseLost once the lease is lost."""

    def __init__(
        self,
        store: Store,
        opener: BrowserOpener,
        guard: LeaseGuard,
        grant: Grant,
        evidence: RunEvidence,
        opened: Opened,
        terms: SessionTerms,
    ) -> None:
        self.grant = grant
        self.terms = terms
        self._store = store
        self._opener = opener
        self._guard = guard
        self._evidence = evidence
        self._opened = opened
        self._ledger = Ledger(opener.data_dir)
        self._clients = 0
        self._viewers = 0
        self._closing = False
        self._used_at = boot_time()
        self._changed = asyncio.Event()
        self._released: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.ensure_future(self._supervise())

    @property
    def lease(self) -> Lease:
        return self.grant.lease

    @property
    def lost(self) -> str | None:
        """Why the lease is lost, if it is."""
        return self._guard.kept.lost

    @property
    def why_over(self) -> str:
        """Why it is over, once it is."""
        end = self.end
        if end is not None:
            return f"{end.reason}: {end.message}" if end.reason else end.message or "released"
        return self.lost or "it is being closed"

    @property
    def end(self) -> SessionEnd | None:
        """How it ended, once it has."""
        done = self._ending.done() and not self._ending.cancelled() and self._ending.exception() is None
        return self._ending.result() if done else None

    @property
    def clients(self) -> int:
        """How many DevTools clients are connected."""
        return self._clients

    @property
    def over(self) -> bool:
        """Whether it is closed and settled."""
        return self._ending.done()

    @property
    def closing(self) -> bool:
        """Whether its end was asked for, or has come: nothing new may begin in it."""
        return self._released.done() or self._closing or self.over

    @property
    def playwright_objects(self) -> tuple[Any, Any]:
        """The first page and the context, for a program in this process."""
        return self._opened.session.playwright_objects

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more."""
        self._guard.kept.check()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[DevToolsClient]:
        """One DevTools client, for as long as the block lasts. Raises ClientRefused."""
        client = await self._opened.browser.add_client()
        self._clients += 1
        self._touch()
        try:
            yield client
        finally:
            await client.close()
            self._clients -= 1
            self._touch()
            if not self._clients and self.terms.on_disconnect is OnDisconnect.RELEASE:
                self.release()

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[DevToolsClient]:
        """A DevTools client that shows the browser to a person. A session that is watched is not idle."""
        client = await self._opened.browser.add_client()
        self._viewers += 1
        self._touch()
        try:
            yield client
        finally:
            await client.close()
            self._viewers -= 1
            self._touch()

    async def checkpoint(self, step: str, *, flush: bool = True, url: str | None = None) -> None:
        """Record the last safe step; `flush` writes cookies to disk first."""
        self._touch()
        self.check()
        if flush:
            await self._opened.session.flush()
        await checkpoint_kept(self._store, self._guard.kept, step, self._opener.redactor.url(url) if url else None)

    async def note(self, text: str, about: NoteAbout) -> None:
        """Write a note on the profile or its account."""
        self._touch()
        await note_kept(self._store, self._guard.kept, self._opener.redactor.text(text), about)

    async def enter(self, name: str, *, idempotent: bool = False) -> None:
        """Enter a mutating section."""
        self._touch()
        await enter_kept(self._store, self._guard.kept, name, idempotent=idempotent)

    async def leave(self, name: str) -> None:
        """Leave a mutating section."""
        self._touch()
        await leave_kept(self._store, self._guard.kept, name)

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Ask for the end: completed, or stopped for a reason. `ended` waits for it. A second call changes nothing."""
        if not self._released.done():
            found = outcome_of_result(output) if reason is None else Outcome(reason=reason, message=message, said=True)
            self._released.set_result(replace(found, message=message or found.message))

    async def ended(self) -> SessionEnd:
        """Wait until everything is closed and settled."""
        return await asyncio.shield(self._ending)

    def _touch(self) -> None:
        self._used_at = boot_time()
        self._changed.set()

    async def _supervise(self) -> SessionEnd:
        try:
            outcome = await self._outcome()
            self._closing = True
            await self._collect()
            report = await self._opener.close_browser(self._opened, revoke=self.lost, with_evidence=True)
            return await self._settle(outcome, report)
        finally:
            self._guard.release()

    async def _outcome(self) -> Outcome:
        """The first thing that ends the session."""
        waits: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(self._guard.lost.wait()): "lost",
            self._released: "released",
            asyncio.ensure_future(self._opened.browser.ended(1e9)): "gone",
            asyncio.ensure_future(self._opened.browser.close_asked()): "closed",
            asyncio.ensure_future(self._idle()): "idle",
            asyncio.ensure_future(self._too_long()): "too long",
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            others = [future for future in waits if future is not self._released]
            for future in others:
                future.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        seen = {waits[future] for future in done}
        return await self._judge(seen)

    async def _judge(self, seen: set[str]) -> Outcome:
        if self.lost is not None:
            return Outcome(reason=Reason.LEASE_LOST, message=self.lost)
        if "released" in seen:
            return self._released.result()
        if "gone" in seen or self._opened.browser.over:
            report = await self._opener.report_of(self._opened.browser, 0.0)
            if report is not None and report.cause == "closed":
                return Outcome()
            ended = "the browser ended by itself"
            return Outcome(
                reason=Reason.BROWSER_CRASHED,
                message=ended if report is None else ENDED_BY_KEEPER.get(report.cause, ended),
            )
        if "closed" in seen:
            return Outcome(message="a client closed the browser")
        limit = self.terms.idle_timeout if "idle" in seen else self.terms.max_duration
        seconds = limit.total_seconds() if limit else 0.0
        if "idle" in seen:
            return Outcome(reason=Reason.TIMEOUT, message=f"no client for {seconds:g} s")
        return Outcome(reason=Reason.TIMEOUT, message=f"the session was open for {seconds:g} s")

    @property
    def _used_now(self) -> bool:
        return self._clients > 0 or self._viewers > 0

    async def _idle(self) -> None:
        """Return once nobody was connected, and nothing was asked, for the idle time."""
        limit = self.terms.idle_timeout
        while limit is None or self._used_now or (left := self._used_at + limit.total_seconds() - boot_time()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if limit is None or self._used_now else left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _too_long(self) -> None:
        limit = self.terms.max_duration
        await (asyncio.Event().wait() if limit is None else asyncio.sleep(limit.total_seconds()))

    async def _collect(self) -> None:
        """Summaries and the proxy's exit. Final URL and screenshot are the keeper's: it knows the page last used."""
        notes = self._evidence.notes
        try:
            notes.update(self._opened.session.recorder.summary())
            if self.lost is None:
                probed = await self._opener.proxies.probe(self.grant.proxy, self._opened.credentials)
                if probed is not None and probed.result is ProbeResult.CHANGED:
                    notes["proxy_changed"] = probed.detail
        except Exception:  # noqa: BLE001 - whatever it is, the browser is still closed and the run settled
            _LOG.exception("run %s: its evidence is not complete", self.lease.run_id)
            self._evidence.unsaved = "an error of Leasekeeper's own; see the worker's log"

    async def _settle(self, outcome: Outcome, report: BrowserReport | None) -> SessionEnd:
        evidence, lease, opened = self._evidence, self.lease, self._opened
        if report is not None:
            await evidence.adopt(report)
        await evidence.saved()
        if outcome.reason is None and evidence.unsaved is not None:
            outcome = Outcome(reason=Reason.EVIDENCE_NOT_SAVED, message=evidence.unsaved)
        if "proxy_changed" in evidence.notes and outcome.reason is None:
            outcome = Outcome(reason=Reason.PROXY_CHANGED, message=str(evidence.notes["proxy_changed"]))
        message = self._opener.redactor.short(outcome.full_message({}), MAX_MESSAGE)
        ending = Ending(
            ref=lease.ref,
            reason=outcome.reason,
            message=message,
            facts=end_facts(
                report,
                final_url=None,
                opened=True,
                throwaway=opened.throwaway,
                evidence_saved=evidence.unsaved is None,
                proxy_changed="proxy_changed" in evidence.notes,
            ),
            registered=outcome.row({}),
            output=outcome.output,
            evidence=evidence.as_json(),
            actual={"browser": opened.version, "run_mode": run_mode(self.grant, self.terms.run_mode).value},
            engine=opened.browser.engine,
        )
        settled = await self._settle_ending(ending)
        reason, verdict = outcome.reason, settled.settlement if settled else None
        if verdict is not None and verdict.stop_reason != reason:  # what was said to be completed is not
            reason, message = verdict.stop_reason, message or verdict.profile.reason
        return SessionEnd(reason=reason, message=message, settled=settled, report=report)

    async def _settle_ending(self, ending: Ending) -> Settled | None:
        run_id = self.lease.run_id
        try:
            settled = await settle_kept(self._store, ending, self._guard.kept)
        except LeaseLost as lost:
            _LOG.warning("run %s: not settled, its lease is lost: %s", run_id, lost)
            return None
        except Exception as error:  # noqa: BLE001 - the lease then expires, and is resolved
            _LOG.error("run %s: could not be settled: %s", run_id, safe_str(error))
            return None
        if settled.refused is not None:
            _LOG.warning("run %s: the ending was refused: %s", run_id, REFUSALS[settled.refused])
            return None
        self._ledger.strike(run_id)
        await run_in_thread(self._evidence.discard)
        return settled


async def open_session(
    store: Store,
    opener: BrowserOpener,
    heartbeat: Heartbeat,
    lost_leases: LostLeases,
    request: LeaseRequest,
    *,
    choice: ProfileChoice | None = None,
    wait: timedelta = timedelta(0),
    terms: SessionTerms | None = None,
) -> SessionRun:
    """Lease a profile and open its browser. Raises ProfileBusy, or Conflict if the profile cannot be opened here.

    Whoever is cancelled meanwhile leaves nothing behind: a lease is given back, a browser closed and settled.
    """
    terms = terms or SessionTerms()
    request = replace(request, engine=opener.info.engine)
    grant, sent_at = await acquire_waiting(store, lost_leases, request, choice, wait)
    opening = asyncio.ensure_future(_open(store, opener, LeaseGuard(heartbeat, grant.lease, sent_at), grant, terms))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(LeasekeeperError):
            session = await opening
            session.release(Reason.TASK_ERROR, NOBODY_WAITED)
            await session.ended()
        raise


async def _open(
    store: Store, opener: BrowserOpener, guard: LeaseGuard, grant: Grant, terms: SessionTerms
) -> SessionRun:
    lease, ledger = grant.lease, Ledger(opener.data_dir)
    evidence = RunEvidence(ledger.runs_dir, lease.run_id, place=opener.place, under=lease.ref)
    try:
        await evidence.create()
        await run_in_thread(ledger.note, lease.run_id, lease.lease_id)
        opened = await opener.open(grant, guard, evidence, sync=False, mode=terms.run_mode)
    except (NotOpened, LeasekeeperError, OSError) as error:
        refused = as_not_opened(error)
        try:
            await settle_kept(store, unopened(opener, grant, refused), guard.kept)
        finally:
            guard.release()
        ledger.strike(lease.run_id)
        raise Conflict(
            f"profile {lease.profile_id} was not opened: {refused.message}",
            cause=ConflictReason.PROFILE_NOT_OPENED,
            profile_id=lease.profile_id,
        ) from error
    except BaseException:
        guard.release()
        raise
    return SessionRun(store, opener, guard, grant, evidence, opened, terms)
