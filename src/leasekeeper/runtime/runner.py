"""One run, from its grant to its settlement: browser, task, evidence, close, proof, release. Never in another order.

A run ends exactly once, whatever comes first: the task, its time limit, the lease, the browser, or the worker's stop.
"""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta

from leasekeeper.app import App, Run, Signal, SyncRun
from leasekeeper.browsers.probe import ProbeResult
from leasekeeper.core.browsers import BrowserReport
from leasekeeper.core.classify import Facts, kind_of, says_closed
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Mode
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import Fail, LeaseLost, safe_str
from leasekeeper.evidence.redact import MAX_MESSAGE
from leasekeeper.ports import ClaimRequest, Grant, Store
from leasekeeper.runtime import log_fields, run_log, tracing
from leasekeeper.runtime.browser_launches import run_mode
from leasekeeper.runtime.canary import verdict_at_end
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import (
    Outcome,
    outcome_of_error,
    outcome_of_result,
    strictest,
    traceback_of,
)
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.live_runs import LiveRun, shown
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.memory import Budget
from leasekeeper.runtime.not_opened import NotOpened
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.runtime.person_control import GoesOn, PersonControl
from leasekeeper.runtime.run_api import RunApi
from leasekeeper.runtime.run_settling import RunSettling
from leasekeeper.runtime.run_state import RunState
from leasekeeper.runtime.run_watch import RunWatch
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.warm import WarmHandOver
from leasekeeper.threads import run_in_thread
from leasekeeper.wording.browsers import gone_text

_LOG = logging.getLogger(__name__)

UNWIND_SECONDS = 5.0
REPORT_SECONDS = 3.0


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
    ) -> None:
        self._app = app
        self._store = store
        self._opener = opener
        self._ledger = Ledger(opener.data_dir)
        self._settling = RunSettling(app, store, opener, self._ledger)
        self._human = PersonControl(store, opener, self._settling, stop)
        self._heartbeat = heartbeat
        self._stop = stop
        self._warm = WarmHandOver(app, store, opener, self._ledger, stop, request)

    async def run(self, grant: Grant, sent_at: float) -> None:
        """Run a grant, then the grants that its browser is handed over to."""
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
        run_log.started(current)
        try:
            with tracing.step("launch"):
                await self._get_ready(current)
        except NotOpened as refused:
            await self._settling.settle_unopened(current, refused)
            return None
        if current.opened is None:
            raise RuntimeError("a task needs a browser")
        live = LiveRun(current.grant.lease, current.opened.browser)
        with self._opener.memory.watch(current.opened.browser, current.opened.session) as budget, shown(live):
            return await self._work(current, current.opened, budget, live)

    async def _work(self, current: RunState, opened: Opened, budget: Budget, live: LiveRun) -> "RunState | None":
        """Run the task, collect its evidence, then hand the browser over or close it. Returns the next run, if there is
        one."""
        with tracing.step(f"task {current.task.name}") as traced:
            outcome, run = await self._perform(current, opened, budget, live)
            if outcome.reason is not None:
                traced.fail(outcome.reason)
        live.close_orders("its task has just ended")
        if current.given_away:
            return None
        if current.guard.kept.lost is None:
            try:
                with tracing.step("evidence"):
                    outcome = await self._collect_evidence(current, outcome, run)
                following = None if budget.exceeded.is_set() else await self._hand_over(current, outcome)
                if following is None:
                    await self._ask_canary(current, opened)
            except Exception:  # noqa: BLE001 - whatever it is, the browser is still closed and the run settled
                _LOG.exception("run %s: its evidence is not complete", current.grant.lease.run_id)
                following, current.evidence.unsaved = None, "an error of Leasekeeper's own; see the worker's log"
            if following is not None:
                return following
        elif run is not None:
            outcome = self._redacted(strictest(outcome, run.signals, self._app.reasons))
        await self._settling.close(current, outcome)
        await self._settling.settle(current, outcome)
        return None

    async def _get_ready(self, current: RunState) -> None:
        """Get a browser under this lease: the one that was handed over, or a new one. Raises NotOpened."""
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
        except Exception as error:
            if current.opened is not None:
                seen = current.opened.session.url()
                current.final_url = None if seen is None else self._opener.redactor.url(seen)
                await self._settling.close(current, Outcome(reason=Reason.BROWSER_LAUNCH_FAILED))
            raise await self._opener.refusal(error) from error
        self._opener.machine.works()
        current.record_time("open", since)

    async def _check_environment(self, current: RunState) -> None:
        """Raise NotOpened if the page sees another language or time zone than the job expects: such a profile is not
        touched.

        If the job expects neither, the page is read at the end of the run: a browser that has just started takes ten
        times as long to answer. A plain `def` task is the exception: a page that hangs would block the task's thread at
        the end, so it is read now.
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
        """Record what the page sees, and how the browser runs. `untouched`: no site was opened in the page yet."""
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
        self, current: RunState, opened: Opened, budget: Budget, live: LiveRun
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
            self._opener.config.secrets,
            url=session.url,
            flush=session.flush,
            live=live,
        )
        limit = task.timeout or self._opener.config.task_timeout
        run = session.run(current.grant, task, api)
        work = asyncio.ensure_future(session.perform(run, task))
        current.start_recording(opened)
        watch = RunWatch(current, opened, self._stop, budget, live, limit)
        try:
            while True:
                seen = await watch.until(work, self._report_now)
                if "taken" not in seen or work.done():
                    break
                watch.pause(paused=True)
                goes_on = await self._human.works(current, opened, live, run, api, work)
                if goes_on is GoesOn.NOT:
                    return Outcome(reason=Reason.TAKEN_OVER), run
                if goes_on is GoesOn.ANEW:
                    await session.page_again()
                    run = session.run(current.grant, task, api)
                    work = asyncio.ensure_future(session.perform(run, task))
                current.start_recording(opened)
                watch.pause(paused=False)
                watch.renew()
            outcome = await self._outcome(current, work, seen, limit)
            if budget.exceeded.is_set() and outcome.reason in (Reason.BROWSER_CRASHED, Reason.TIMEOUT):
                outcome = Outcome(reason=Reason.MEMORY_EXCEEDED, message=budget.message)
        finally:
            watch.end()
            await current.end_recording()
            api.person_left(LeaseLost("the run has ended"))
            work.cancel()
            await asyncio.wait({work}, timeout=UNWIND_SECONDS)
        current.record_time("task", since)
        return outcome, run

    async def _report_now(self, opened: Opened) -> BrowserReport | None:
        return await self._opener.report_of(opened.browser, 0.0)

    async def _outcome(
        self, current: RunState, work: "asyncio.Future[object]", seen: set[str], limit: timedelta | None
    ) -> Outcome:
        """What became of the task. If that cannot be judged, the outcome is TASK_ERROR: the run is closed and settled
        in any case."""
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

    async def _why_gone(self, opened: Opened | None, otherwise: str | None = None) -> str:
        """The message about a browser that is gone. The keeper may have ended it for a reason of its own."""
        report = None if opened is None else await self._opener.report_of(opened.browser, 0.0)
        return gone_text(None if report is None else report.cause, otherwise)

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
        """Hand the open browser over to the next job of this profile. Returns its run; None if there is no such job, or
        the browser may not be used again."""
        opened = current.opened
        if opened is None or not self._warm.possible(current, outcome):
            return None
        await current.evidence.saved()
        if current.evidence.unsaved is not None or current.final_url is None:
            return None
        if not await self._warm.nothing_left(current, opened):
            return None
        facts = EndFacts(browser=Browser.HANDED_OVER, final_url=current.final_url)
        with tracing.step("hand_over") as traced:
            found = await self._warm.next_grant(current, opened, self._settling.ending(current, outcome, facts))
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

    async def _ask_canary(self, current: RunState, opened: Opened) -> None:
        """Check whether the profile is still logged in, while its browser is open."""
        with tracing.step("canary"):
            current.verdict = await verdict_at_end(
                opened, current.grant, current.guard.kept, current.task.canary, self._app.login_canary
            )
