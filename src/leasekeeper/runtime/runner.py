"""One run, from its grant to its settlement: browser, task, evidence, close, proof, release. Never in another order.

A run ends exactly once, whatever comes first: the task, its time limit, the lease, the browser, or the worker's stop.
"""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

from leasekeeper.app import App, Run, Signal, SyncRun
from leasekeeper.browsers.probe import ProbeResult
from leasekeeper.core.browsers import ENDED_BY_KEEPER
from leasekeeper.core.classify import Facts, kind_of, says_closed
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import attempt_text
from leasekeeper.core.leases import Mode
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.driver_port import works_in_copy
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, safe_str
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.redact import MAX_MESSAGE
from leasekeeper.ports import ClaimRequest, Grant, Store
from leasekeeper.runtime import log_fields, tracing
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import (
    Outcome,
    end_facts,
    outcome_of_error,
    outcome_of_result,
    strictest,
    traceback_of,
    unopened_facts,
)
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat, settle_kept
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.live_runs import LiveRun, shown
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.machine import Machine
from leasekeeper.runtime.memory import Budget, MemoryWatch
from leasekeeper.runtime.opening import BrowserOpener, NotOpened, Opened, as_not_opened, given_back, run_mode
from leasekeeper.runtime.run_api import RunApi
from leasekeeper.runtime.run_state import RunState
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.warm import WarmHandOver
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger(__name__)

UNWIND_SECONDS = 5.0
REPORT_SECONDS = 3.0
# A task whose time is over and that blocks the event loop loses its lease this much later.
BLOCKED_SECONDS = 15.0


class Runner:
    """Runs grants of one worker."""

    def __init__(
        self,
        app: App,
        store: Store,
        opener: BrowserOpener,
        heartbeat: Heartbeat,
        stop: Shutdown,
        request: ClaimRequest,
        machine: Machine,
        memory: MemoryWatch,
    ) -> None:
        self._app = app
        self._memory = memory
        self._machine = machine
        self._store = store
        self._opener = opener
        self._ledger = Ledger(opener.data_dir)
        self._heartbeat = heartbeat
        self._stop = stop
        self._warm = WarmHandOver(app, store, opener, self._ledger, stop, request)

    async def run(self, grant: Grant, sent_at: float) -> None:
        """Run a grant, and then whatever its browser is handed over to."""
        current: RunState | None = self._begin(grant, sent_at)
        while current is not None:
            try:
                with tracing.leased(current.grant) as current.trace:
                    following = await self._one(current)
            finally:
                current.guard.release()
            current = following

    def _begin(self, grant: Grant, sent_at: float) -> RunState:
        if grant.job is None:
            raise ValueError("a worker runs jobs")
        return RunState(
            grant=grant,
            task=self._app.tasks[grant.job.task],
            guard=LeaseGuard(self._heartbeat, grant.lease, sent_at),
            evidence=RunEvidence(
                self._ledger.runs_dir, grant.lease.run_id, place=self._opener.place, under=grant.lease.ref
            ),
        )

    async def _one(self, current: RunState) -> "RunState | None":
        """One run to its end. Returns the next one, if the browser was handed over to it."""
        log_fields.bind(current.grant.lease, current.grant.job)
        self._log_start(current)
        try:
            with tracing.step("launch"):
                await self._get_ready(current)
        except NotOpened as refused:
            await self._settle_unopened(current, refused)
            return None
        if current.opened is None:
            raise RuntimeError("a task needs a browser")
        live = LiveRun(current.grant.lease, current.opened.browser)
        with self._memory.watch(current.opened.browser) as budget, shown(live):
            return await self._work(current, current.opened, budget)

    @staticmethod
    def _log_start(current: RunState) -> None:
        lease, job = current.grant.lease, current.grant.job
        _LOG.info(
            "run %s started: task %s, job %s, %s, profile %s, worker %s, lease %s",
            lease.run_id,
            lease.task,
            lease.job_id,
            attempt_text(job.attempt, job.max_attempts) if job else "attempt 1",
            lease.profile_id,
            lease.worker_id,
            lease.lease_id,
        )

    async def _work(self, current: RunState, opened: Opened, budget: Budget) -> "RunState | None":
        """The task, its evidence, and what becomes of the browser."""
        with tracing.step(f"task {current.task.name}") as traced:
            outcome, run = await self._perform(current, opened, budget)
            if outcome.reason is not None:
                traced.fail(outcome.reason)
        if current.guard.kept.lost is None:
            try:
                with tracing.step("evidence"):
                    outcome = await self._collect_evidence(current, outcome, run)
                following = None if budget.exceeded.is_set() else await self._hand_over(current, outcome)
            except Exception:  # noqa: BLE001 - whatever it is, the browser is still closed and the run settled
                _LOG.exception("run %s: its evidence is not complete", current.grant.lease.run_id)
                following, current.evidence.unsaved = None, "an error of Leasekeeper's own; see the worker's log"
            if following is not None:
                return following
        elif run is not None:
            outcome = self._redacted(strictest(outcome, run.signals, self._app.reasons))
        await self._close(current, outcome)
        await self._settle(current, outcome)
        return None

    async def _get_ready(self, current: RunState) -> None:
        """A browser under this lease: the one that was handed over, or a new one."""
        since = boot_time()
        grant, mode = current.grant, current.task.mode
        try:
            await current.evidence.create()
            await run_in_thread(self._ledger.note, grant.lease.run_id, grant.lease.lease_id)
            if current.unproven:
                raise NotOpened(Reason.BROWSER_CRASHED, f"its browser was lost in the hand-over: {current.unproven}")
            current.report, current.final_url = None, None
            if mode is Mode.EXCLUSIVE and grant.lease.shared and not grant.profile.disposable:
                raise NotOpened(Reason.ACTION_NOT_ALLOWED, f"task {current.task.name} is exclusive, the job is shared")
            if current.opened is None:
                current.opened = await self._opener.open(grant, current.guard, current.evidence, sync=current.task.sync)
            await self._check_environment(current)
            if self._stop.asked.is_set():
                raise NotOpened(
                    Reason.WORKER_STOPPED, "the worker was asked to stop before the task began", give_back=True
                )
        except (NotOpened, EvidenceNotSaved, LeasekeeperError, OSError) as error:
            if current.opened is not None:
                seen = current.opened.session.url()
                current.final_url = None if seen is None else self._opener.redactor.url(seen)
                await self._close(current, Outcome(reason=Reason.BROWSER_LAUNCH_FAILED))
            raise as_not_opened(error) from error
        self._machine.works()
        current.record_time("open", since)

    async def _check_environment(self, current: RunState) -> None:
        """What the page sees must be what the job expects: a profile that answers otherwise is not touched.

        Where nothing is expected, the page is asked at the end of the run: a browser that has just started takes ten
        times as long to answer. But a thread that asks a page which hangs would hang with it: there it is asked now.
        """
        job, opened = current.grant.job, current.opened
        if job is None or opened is None:
            return
        if not opened.sync and job.expected_language is None and job.expected_timezone is None:
            return
        await self._read_environment(current, untouched=True)
        for name, expected in (("language", job.expected_language), ("timezone", job.expected_timezone)):
            seen = current.actual.get(name)
            if expected is not None and seen is not None and seen.casefold() != expected.casefold():
                raise NotOpened(Reason.PROFILE_MISMATCH, f"the page sees {name} {seen}, the job expects {expected}")

    async def _read_environment(self, current: RunState, *, untouched: bool) -> None:
        """What the page sees, and how it is run. `untouched`: no site has had the page yet."""
        opened, job = current.opened, current.grant.job
        if opened is None or job is None:
            return
        timezone = current.grant.profile.timezone or job.expected_timezone
        seen, mode = await opened.environment(timezone, untouched=untouched), run_mode(current.grant).value
        current.actual = {**seen, "browser": opened.version, "run_mode": mode}
        if opened.probed is not None and opened.probed.seen:
            current.actual["proxy"] = opened.probed.seen
            current.actual["proxy_region"] = opened.probed.region

    async def _perform(
        self, current: RunState, opened: Opened, budget: Budget
    ) -> tuple[Outcome, "Run | SyncRun | None"]:
        """Run the task until the first of: its end, its limit of time or memory, a lost lease, a dead browser, a
        stop."""
        task, session, since = current.task, opened.session, boot_time()
        api = RunApi(
            self._store,
            current.guard.kept,
            self._stop,
            current.evidence,
            self._opener.redactor,
            url=session.url,
            flush=session.flush,
        )
        run = session.run(current.grant, task, api)
        work = asyncio.ensure_future(session.perform(run, task))
        limit = task.timeout or self._opener.config.task_timeout
        watchers: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(current.guard.lost.wait()): "lost",
            asyncio.ensure_future(opened.browser.ended(1e9)): "gone",
            asyncio.ensure_future(self._stop.now.wait()): "stop",
            asyncio.ensure_future(budget.exceeded.wait()): "memory",
        }
        kept = current.guard.kept
        kept.stop_at = since + limit.total_seconds() + BLOCKED_SECONDS if limit else None
        try:
            seen = await self._until(work, watchers, opened, since + limit.total_seconds() if limit else None)
            outcome = await self._outcome(current, work, seen, limit)
            if budget.exceeded.is_set() and outcome.reason in (Reason.BROWSER_CRASHED, Reason.TIMEOUT):
                outcome = Outcome(reason=Reason.MEMORY_EXCEEDED, message=budget.message)
        finally:
            kept.stop_at = None
            for future in (work, *watchers):
                future.cancel()
            await asyncio.wait({work, *watchers}, timeout=UNWIND_SECONDS)
        current.record_time("task", since)
        return outcome, run

    async def _until(
        self,
        work: "asyncio.Future[object]",
        watchers: "dict[asyncio.Future[Any], str]",
        opened: Opened,
        deadline: float | None,
    ) -> set[str]:
        """Wait for the task or for what ends it before its time. A task that closed its browser itself may go on."""
        pending = {work, *watchers}
        while True:
            left = None if deadline is None else max(0.0, deadline - boot_time())
            done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            seen = {watchers[w] for w in done if w in watchers}
            if seen != {"gone"} or work in done:
                return seen
            report = await self._opener.report_of(opened.browser, 0.0)
            if report is None or report.cause != "closed":
                await asyncio.wait({work}, timeout=1.0)
                return seen
            pending -= done

    async def _outcome(
        self, current: RunState, work: "asyncio.Future[object]", seen: set[str], limit: timedelta | None
    ) -> Outcome:
        """What became of the task. Whatever it left behind that cannot be judged: the run is closed and settled."""
        try:
            return await self._judge(current, work, seen, limit)
        except Exception as error:  # noqa: BLE001 - other people's objects may raise anything
            _LOG.exception("run %s: its outcome could not be judged", current.grant.lease.run_id)
            message = f"the task's outcome could not be judged: {type(error).__name__}"
            return Outcome(reason=Reason.TASK_ERROR, message=message)

    async def _judge(
        self, current: RunState, work: "asyncio.Future[object]", seen: set[str], limit: timedelta | None
    ) -> Outcome:
        kept, opened = current.guard.kept, current.opened
        if "lost" in seen or kept.lost is not None:
            lost = Outcome(reason=Reason.LEASE_LOST, message=kept.lost or "the lease is lost")
            said = work.exception() if work.done() and not work.cancelled() else None
            noticed = [Signal(said.reason, said.detail)] if isinstance(said, Fail) else []
            return self._redacted(strictest(lost, noticed, self._app.reasons))
        if work.done() and not work.cancelled():
            error = work.exception()
            if error is None:
                return outcome_of_result(work.result())
            facts = Facts(
                browser_alive=opened is not None and await self._is_alive(opened, error),
                page_crashed=opened is not None and opened.session.recorder.page_crashed,
                proxied=current.grant.proxy is not None,
            )
            found = outcome_of_error(error, current.task, facts=facts, redact=self._opener.redactor.text)
            if found.reason == Reason.BROWSER_CRASHED and opened is not None and opened.browser.over:
                found = replace(found, message=await self._why_gone(opened, found.message))
            if not isinstance(error, LeaseLost):
                where = current.evidence.notes["traceback"] = traceback_of(error, self._opener.redactor.text)
                if found.reason == Reason.TASK_ERROR:
                    _LOG.warning("run %s: task %s failed\n%s", current.grant.lease.run_id, current.task.name, where)
            return self._redacted(found)
        if "gone" in seen:
            return Outcome(reason=Reason.BROWSER_CRASHED, message=await self._why_gone(opened))
        if "stop" in seen:
            return Outcome(
                reason=Reason.WORKER_STOPPED, message="the worker was stopped before the task came to its end"
            )
        # Also if its memory is exceeded: `_perform` knows by how much.
        seconds = limit.total_seconds() if limit else 0.0
        return Outcome(reason=Reason.TIMEOUT, message=f"the task took longer than {seconds:g} s")

    async def _why_gone(self, opened: Opened | None, otherwise: str = "the browser ended by itself") -> str:
        """What to say of a browser that is gone: the keeper may have ended it for a reason of its own."""
        report = None if opened is None else await self._opener.report_of(opened.browser, 0.0)
        return otherwise if report is None else ENDED_BY_KEEPER.get(report.cause, otherwise)

    async def _is_alive(self, opened: Opened, error: BaseException) -> bool:
        """Whether the browser is still there. An error can arrive before the report of the browser's end."""
        if says_closed(kind_of(error), safe_str(error)):
            await self._opener.report_of(opened.browser, REPORT_SECONDS)
            return not (opened.browser.over or await self._opener.sessions.playwright_is_dead())
        return not opened.browser.over

    async def _collect_evidence(self, current: RunState, outcome: Outcome, run: "Run | SyncRun | None") -> Outcome:
        """Final URL, screenshot, summaries; then what the page and the task's signals say about the outcome."""
        opened, since = current.opened, boot_time()
        if opened is None:
            return outcome
        signals = list(run.signals) if run is not None else []
        if opened.runs > 1 and self._warm.possible(current, outcome):
            opened.session.expect_next()
        reading = asyncio.ensure_future(self._read_environment(current, untouched=False))
        if not opened.browser.over:
            captured = await opened.session.capture()
            current.final_url = captured.final_url
            if captured.screenshot is not None:
                current.evidence.save_soon("final.png", captured.screenshot)
            elif captured.problem:
                current.evidence.notes["no_screenshot"] = captured.problem
            detectors = (*current.task.detectors, *self._app.detectors)
            if detectors:
                for facts in await opened.session.inspect_page(detectors):
                    found = [detector for detector in detectors if detector.matches(facts)]
                    signals += [Signal(detector.reason, "a detector matched the page") for detector in found]
        await reading
        current.evidence.notes.update(opened.session.recorder.summary())
        probed = await self._opener.proxies.probe(current.grant.proxy, opened.credentials)
        if probed is not None and probed.result is ProbeResult.CHANGED:
            signals.append(Signal(Reason.PROXY_CHANGED, probed.detail))
            current.evidence.notes["proxy_changed"] = probed.detail
        if outcome.reason == Reason.PROXY_UNREACHABLE:
            fault = await self._opener.proxies.confirm_unreachable(current.grant.proxy, opened.credentials)
            current.evidence.notes.update({"proxy_trouble": fault} if fault is not None else {})
        current.record_time("evidence", since)
        return self._redacted(strictest(outcome, signals, self._app.reasons))

    def _redacted(self, outcome: Outcome) -> Outcome:
        return replace(outcome, message=self._opener.redactor.short(outcome.message, MAX_MESSAGE))

    async def _hand_over(self, current: RunState, outcome: Outcome) -> "RunState | None":
        """The next job of this profile in the browser that is open, if there is one and the browser may go on."""
        opened = current.opened
        if opened is None or not self._warm.possible(current, outcome):
            return None
        await current.evidence.saved()
        if current.evidence.unsaved is not None or current.final_url is None:
            return None
        if (kept := await opened.session.kept_reference()) is not None:
            _LOG.info("run %s: no hand-over: its task kept a %s", current.grant.lease.run_id, kept)
            return None
        facts = EndFacts(browser=Browser.HANDED_OVER, final_url=current.final_url)
        with tracing.step("hand_over") as traced:
            found = await self._warm.next_grant(current, opened, self._ending(current, outcome, facts))
            traced.note(next_run_id=None if found is None else found[0].lease.run_id)
        if found is None:
            return None
        current.guard.release()
        following = self._begin(*found)
        try:
            await self._warm.take_over(current, following, opened)
        except BaseException:
            following.guard.release()
            raise
        return following

    async def _close(self, current: RunState, outcome: Outcome) -> None:
        """Close the browser and keep the report on how it ended."""
        opened, since = current.opened, boot_time()
        if opened is None:
            return
        revoke = outcome.message if outcome.reason == Reason.LEASE_LOST else None
        # A page that gave the worker no screenshot, say since it is navigating, may give the keeper one.
        missing = "no_screenshot" in current.evidence.notes
        with tracing.step("close"):
            current.report = await self._opener.close_browser(opened, revoke=revoke, with_evidence=missing)
        current.record_time("close", since)

    async def _settle(self, current: RunState, outcome: Outcome) -> None:
        """Settle the run. If the lease is not ours any more, the keeper's report is left for the sweeper."""
        report, evidence = current.report, current.evidence
        if report is not None:
            await evidence.adopt(report)
        await evidence.saved()
        if evidence.unsaved is not None:
            self._machine.blame(evidence.failure or evidence.unsaved)
        if outcome.reason is None and evidence.unsaved is not None:
            outcome = Outcome(reason=Reason.EVIDENCE_NOT_SAVED, message=evidence.unsaved)
        facts = end_facts(
            report,
            final_url=current.final_url,
            opened=current.opened is not None,
            throwaway=current.opened is not None and current.opened.throwaway,
            evidence_saved=current.evidence.unsaved is None,
            proxy_changed="proxy_changed" in current.evidence.notes,
        )
        facts = replace(facts, proxy_trouble="proxy_trouble" in current.evidence.notes)
        await self._settle_ending(current, self._ending(current, outcome, facts))

    async def _settle_unopened(self, current: RunState, refused: NotOpened) -> None:
        """The task did not start. If a browser did, the keeper says how it ended; if none did, nothing is to prove."""
        unwell = None if refused.reason == Reason.LEASE_LOST else self._machine.blame(refused)
        if unwell is not None:
            refused = given_back(refused, Reason.MACHINE_UNWELL, unwell.message)
        saved = refused.reason != Reason.EVIDENCE_NOT_SAVED
        outcome = Outcome(reason=refused.reason, message=self._opener.redactor.text(refused.message))
        facts = unopened_facts(
            current.report or refused.report,
            begun=refused.begun or current.opened is not None or bool(current.unproven),
            final_url=current.final_url,
            throwaway=works_in_copy(current.grant),
            evidence_saved=saved,
        )
        ending = self._ending(current, outcome, facts)
        engine = refused.engine or ending.engine
        unstarted = replace(ending, not_started=refused.give_back, engine=engine, fence=refused.fence)
        await self._settle_ending(current, unstarted)

    def _ending(self, current: RunState, outcome: Outcome, facts: EndFacts) -> Ending:
        return Ending(
            ref=current.grant.lease.ref,
            reason=outcome.reason,
            message=outcome.full_message(self._app.reasons),
            retry=outcome.retry,
            facts=facts,
            registered=outcome.row(self._app.reasons),
            output=outcome.output,
            evidence=current.evidence.as_json(),
            actual=current.actual,
            timings=current.timings,
            engine=current.opened.browser.engine if current.opened is not None else None,
            # A driver without a browser has no use for a proxy.
            proxy_used=current.opened is None or current.opened.browser.info.playwright,
        )

    async def _settle_ending(self, current: RunState, ending: Ending) -> None:
        lease = current.grant.lease
        if ending.reason is not None:
            current.trace.fail(ending.reason)
        try:
            with tracing.step("settle") as traced:
                settled = await settle_kept(self._store, ending, current.guard.kept)
                traced.note(job_state=settled.job_state, profile_state=settled.profile_state, refused=settled.refused)
        except LeaseLost as lost:
            _LOG.warning("run %s: not settled, its lease is lost: %s", lease.run_id, lost)
        except Exception as error:  # noqa: BLE001 - the lease then expires, and is resolved
            _LOG.error("run %s: could not be settled: %s", lease.run_id, safe_str(error))
        else:
            if settled.refused is not None:
                _LOG.warning("run %s: the ending was refused: %s", lease.run_id, REFUSALS[settled.refused])
            else:
                self._ledger.strike(lease.run_id)
                await run_in_thread(current.evidence.discard)
                _LOG.info(
                    "run %s ended: %s after %.1f s; task %s, job %s is %s, profile %s is %s, worker %s, lease %s",
                    lease.run_id,
                    ending.reason or "completed",
                    boot_time() - current.began,
                    lease.task,
                    lease.job_id,
                    settled.job_state,
                    lease.profile_id,
                    settled.profile_state,
                    lease.worker_id,
                    lease.lease_id,
                    extra={"reason": ending.reason, "seconds": round(boot_time() - current.began, 3)},
                )
