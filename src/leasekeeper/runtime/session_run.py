"""A session: one run of a profile whose work is done by other programs, over DevTools, behind the keeper.

It owns the browser and the lease from the grant to the settlement, and ends exactly once: by a release, by a client's
Browser.close, by its idle or maximum time, by its memory limit, by the browser's end, or because the lease is lost. The
order of an ending is that of any run: evidence, close, proof, settle.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from leasekeeper.browsers.probe import ProbeResult
from leasekeeper.core.browsers import BrowserReport, EndCause
from leasekeeper.core.control import PersonAnswer, TransferRequest
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.settle import Ending
from leasekeeper.core.snapshots import Verdict
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.errors import LeaseLost, safe_str
from leasekeeper.evidence.redact import MAX_MESSAGE
from leasekeeper.ports import Grant, Settled, Store
from leasekeeper.runtime.browser_launches import run_mode
from leasekeeper.runtime.canary import verdict_at_end
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.control_transfer import Passed, PassOrder, pass_on, seen_evidence
from leasekeeper.runtime.endings import Outcome, end_facts, outcome_of_result
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import (
    checkpoint_with_retries,
    enter_section_with_retries,
    leave_section_with_retries,
    note_with_retries,
    request_person_with_retries,
    settle_with_retries,
)
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.memory import Budget
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.recording import NAME, Recording
from leasekeeper.runtime.session_terms import OnDisconnect, SessionEnd, SessionTerms
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS
from leasekeeper.wording.browsers import gone_text

_LOG = logging.getLogger(__name__)


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
        *,
        person: Person | None = None,
    ) -> None:
        self.grant = grant
        self.terms = terms
        self.person = person
        self._store = store
        self._opener = opener
        self._guard = guard
        self._evidence = evidence
        self._opened = opened
        self._ledger = Ledger(opener.data_dir)
        self._clients = 0
        self._viewers = 0
        self._acting = 0
        self._dialogs = asyncio.Lock()
        self._asks = False
        self._closing = False
        self._used_at = boot_time()
        self._changed = asyncio.Event()
        self.on_change: Callable[[], None] | None = None
        """Called when something that others see of the session has changed: its clients, that it is ending, that it has
        ended."""
        self._released: asyncio.Future[Outcome | PassOrder] = asyncio.get_running_loop().create_future()
        self._recording = Recording(opened.browser) if grant.profile.record else None
        if self._recording is not None:
            self._recording.start()
        self._ending = asyncio.ensure_future(self._supervise())
        self._ending.add_done_callback(lambda _: self._notify())

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
    def profile_state(self) -> str | None:
        """The profile's state, once the run is settled."""
        settled = self.end.settled if self.end else None
        return settled.profile_state if settled else None

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
            await self._leave_dialogs()
            yield client
        finally:
            await client.close()
            self._clients -= 1
            self._touch()
            await self._leave_dialogs()
            if not self._clients and self.terms.on_disconnect is OnDisconnect.RELEASE:
                self.release()

    @asynccontextmanager
    async def viewer(self, *, acts: bool = False) -> AsyncIterator[DevToolsClient]:
        """A DevTools client that shows the browser to a person. A session that is watched is not idle. Raises
        ClientRefused."""
        client = await self._opened.browser.add_client()
        self._viewers += 1
        self._acting += acts
        self._touch()
        try:
            await self._leave_dialogs()
            yield client
        finally:
            await client.close()
            self._viewers -= 1
            self._acting -= acts
            self._touch()
            await self._leave_dialogs()

    async def _leave_dialogs(self) -> None:
        """Leave JavaScript dialogs to clients and to people who act here. If there are none, Playwright dismisses
        dialogs."""
        async with self._dialogs:
            others = bool(self._clients or self._acting or self.person) and not self._closing
            await self._opened.session.leave_dialogs(to_others=others)

    async def checkpoint(self, step: str, *, flush: bool = True, url: str | None = None) -> None:
        """Record the last safe step; `flush` writes cookies to disk first."""
        self._touch()
        self.check()
        if flush:
            await self._opened.session.flush()
        await checkpoint_with_retries(
            self._store, self._guard.kept, step, self._opener.redactor.url(url) if url else None
        )

    async def note(self, text: str, about: NoteAbout) -> None:
        """Write a note on the profile or its account."""
        self._touch()
        await note_with_retries(self._store, self._guard.kept, self._opener.redactor.text(text), about)

    async def ask_person(self, what: str, on_answer: Callable[[PersonAnswer], None]) -> str:
        """Open a review that asks for a person; returns its text. Until it is closed the session is not idle."""
        self._touch()
        said = self._opener.redactor.text(what)
        await request_person_with_retries(self._store, self._guard.kept, said)
        self._asks = True
        self._touch()
        self._guard.kept.hear_answers(on_answer)
        return said

    async def stop_asking(self) -> None:
        """Close that review."""
        self._asks = False
        self._guard.kept.on_answer = None
        self._touch()
        await request_person_with_retries(self._store, self._guard.kept, None)

    async def enter(self, name: str, *, idempotent: bool = False) -> None:
        """Enter a mutating section."""
        self._touch()
        await enter_section_with_retries(self._store, self._guard.kept, name, idempotent=idempotent)

    async def leave(self, name: str) -> None:
        """Leave a mutating section."""
        self._touch()
        await leave_section_with_retries(self._store, self._guard.kept, name)

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Ask for the end: completed, or stopped for a reason. `ended` waits for it. A second call changes nothing."""
        if not self._released.done():
            found = outcome_of_result(output) if reason is None else Outcome(reason=reason, message=message, said=True)
            self._released.set_result(replace(found, message=message or found.message))
            self._notify()

    async def pass_on(self, to: TransferRequest, *, reason: str | None, message: str) -> Passed:
        """End this run and pass its open browser to the next. Raises LeasekeeperError if that failed: then the browser
        is still this run's, or is being closed."""
        if self.closing:
            raise LeaseLost(f"run {self.lease.run_id} is over: {self.why_over}", lease_id=self.lease.lease_id)
        answer: asyncio.Future[Passed] = asyncio.get_running_loop().create_future()
        self._released.set_result(PassOrder(to=to, reason=reason, message=message, answer=answer))
        return await asyncio.shield(answer)

    def next_run(self, passed: Passed, terms: SessionTerms, *, person: Person | None = None) -> "SessionRun":
        """The run that goes on in the browser that this one has passed on. Without a person, paused programs go on."""
        if person is None:
            self._opened.browser.resume()
        return SessionRun(
            self._store,
            self._opener,
            passed.guard,
            passed.grant,
            passed.evidence,
            self._opened,
            terms,
            person=person,
        )

    async def ended(self) -> SessionEnd:
        """Wait until everything is closed and settled."""
        return await asyncio.shield(self._ending)

    def _touch(self) -> None:
        self._used_at = boot_time()
        self._changed.set()
        self._notify()

    def _notify(self) -> None:
        if self.on_change is not None:
            self.on_change()

    async def _supervise(self) -> SessionEnd:
        try:
            with self._opener.memory.watch(self._opened.browser, self._opened.session) as budget:
                await self._leave_dialogs()
                while isinstance(outcome := await self._outcome(budget), PassOrder):
                    end = await self._pass_on(outcome)
                    if end is not None:
                        return end
                self._closing = True
                self._notify()
                await self._leave_dialogs()
                await self._end_recording()
                await self._collect()
                verdict = await self._verdict()
                report = await self._opener.close_browser(self._opened, revoke=self.lost, with_evidence=True)
            return await self._settle(outcome, report, verdict)
        finally:
            self._guard.release()

    async def _end_recording(self) -> None:
        recording, self._recording = self._recording, None
        found = await recording.stop() if recording is not None else None
        if found is not None:
            self._evidence.save_soon(NAME, found)

    async def _pass_on(self, order: PassOrder) -> SessionEnd | None:
        """Pass the browser to the next run. Returns how this run ended; None if that failed and the browser stays
        here."""
        self._closing = True
        try:
            await self._leave_dialogs()
            await self._opened.browser.pause(order.message or "control passed")
            await self._end_recording()
            facts = await seen_evidence(self._opener, self._opened, self._evidence)
            ending = Ending(
                ref=self.lease.ref,
                reason=order.reason,
                message=self._opener.redactor.short(order.message, MAX_MESSAGE),
                facts=facts,
                evidence=self._evidence.as_json(),
                actual={"browser": self._opened.version},
                engine=self._opened.browser.engine,
            )
            passed = await pass_on(
                self._store, self._opener, self._opened, self._guard, self._evidence, ending, order.to
            )
        except Exception as error:  # noqa: BLE001 - the caller of `pass_on` gets it
            self._closing = False
            await self._leave_dialogs()
            self._released = asyncio.get_running_loop().create_future()
            order.answer.set_exception(error)
            order.answer.exception()  # the caller may have left
            return None
        order.answer.set_result(passed)
        return SessionEnd(reason=order.reason, message=order.message, settled=None, report=None, passed=passed)

    async def _outcome(self, budget: Budget) -> Outcome | PassOrder:
        """The first thing that ends the session."""
        waits: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(self._guard.lost.wait()): "lost",
            self._released: "released",
            asyncio.ensure_future(self._opened.browser.ended(1e9)): "gone",
            asyncio.ensure_future(self._opened.browser.close_asked()): "closed",
            asyncio.ensure_future(self._idle()): "idle",
            asyncio.ensure_future(self._too_long()): "too long",
            asyncio.ensure_future(budget.exceeded.wait()): "memory",
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            others = [future for future in waits if future is not self._released]
            for future in others:
                future.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        seen = {waits[future] for future in done}
        return await self._judge(seen, budget)

    async def _judge(self, seen: set[str], budget: Budget) -> Outcome | PassOrder:
        if self.lost is not None:
            return Outcome(reason=Reason.LEASE_LOST, message=self.lost)
        if "released" in seen:
            return self._released.result()
        if budget.exceeded.is_set():
            return Outcome(reason=Reason.MEMORY_EXCEEDED, message=budget.message)
        if "gone" in seen or self._opened.browser.over:
            report = await self._opener.report_of(self._opened.browser, 0.0)
            if report is not None and report.cause is EndCause.CLOSED:
                return Outcome()
            why = gone_text(None if report is None else report.cause)
            return Outcome(reason=Reason.BROWSER_CRASHED, message=why)
        if "closed" in seen:
            return Outcome(message="a client closed the browser")
        limit = self.terms.idle_timeout if "idle" in seen else self.terms.max_duration
        seconds = limit.total_seconds() if limit else 0.0
        if "idle" in seen:
            return Outcome(reason=Reason.TIMEOUT, message=f"no client for {seconds:g} s")
        return Outcome(reason=Reason.TIMEOUT, message=f"the session was open for {seconds:g} s")

    @property
    def _used_now(self) -> bool:
        return self._clients > 0 or self._viewers > 0 or self._asks

    async def _idle(self) -> None:
        """Return after the idle time without clients, viewers and requests for a person."""
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
        """Collect summaries, and probe the proxy. The keeper takes the final URL and the screenshot: it knows which
        page was used last."""
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

    async def _verdict(self) -> Verdict:
        """Whether the profile is still logged in. Not asked in a browser that a person took, where commands of programs
        wait."""
        if self.person is not None:
            return Verdict.NOT_ASKED
        return await verdict_at_end(self._opened, self.grant, self._guard.kept)

    async def _settle(self, outcome: Outcome, report: BrowserReport | None, verdict: Verdict) -> SessionEnd:
        evidence, lease, opened = self._evidence, self.lease, self._opened
        if report is not None:
            await evidence.adopt(report, reason=outcome.reason)
        await evidence.saved()
        if evidence.unsaved is not None:
            self._opener.machine.blame(evidence.failure or evidence.unsaved)
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
        ending = await self._opener.snapshots.saved(ending, self.grant, self._guard.kept, verdict=verdict)
        settled = await self._settle_ending(ending)
        reason, decided = outcome.reason, settled.settlement if settled else None
        if decided is not None and decided.stop_reason != reason:  # for instance, a run reported as completed is not
            reason, message = decided.stop_reason, message or decided.profile.reason
        return SessionEnd(reason=reason, message=message, settled=settled, report=report)

    async def _settle_ending(self, ending: Ending) -> Settled | None:
        run_id = self.lease.run_id
        try:
            settled = await settle_with_retries(self._store, ending, self._guard.kept)
        except LeaseLost as lost:
            _LOG.warning("run %s: not settled, its lease is lost: %s", run_id, lost)
            return None
        except Exception as error:  # noqa: BLE001 - the lease then expires, and is resolved
            _LOG.error("run %s: could not be settled: %s", run_id, safe_str(error))
            return None
        if settled.refused is not None:
            _LOG.warning("run %s: the ending was refused: %s", run_id, REFUSALS[settled.refused])
            return None
        with suppress(OSError):  # the data directory cannot be used: the run is settled nevertheless
            self._ledger.strike(run_id)
        await run_in_thread(self._evidence.discard)
        return settled
