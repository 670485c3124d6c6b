"""One run, from its grant to its settlement: browser, task, evidence, close, proof, release. Never in another order.

A run ends exactly once, whatever comes first: the task, its time limit, the lease, the browser, or the worker's stop.
"""

import asyncio
import logging
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from leasekeeper.app import App, Run, Signal, SyncRun, Task
from leasekeeper.aside import aside
from leasekeeper.browsers.link import KeeperReport, read_report
from leasekeeper.browsers.probe import ProbeResult
from leasekeeper.browsers.reports import ReportUnreadable
from leasekeeper.core.classify import Facts, kind_of, says_closed
from leasekeeper.core.leases import Mode
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, StoreError, told
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.redact import MOST_MESSAGE
from leasekeeper.ports import ClaimRequest, Grant, HandedOver
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.desk import RunDesk
from leasekeeper.runtime.endings import (
    Outcome,
    end_facts,
    outcome_of_error,
    outcome_of_result,
    strictest,
    unopened_facts,
)
from leasekeeper.runtime.gathering import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat, settle_held
from leasekeeper.runtime.lifeline import Lifeline
from leasekeeper.runtime.opening import Kit, NotOpened, Opened, as_not_opened, run_mode
from leasekeeper.runtime.stopping import Stop

_LOG = logging.getLogger(__name__)

UNWIND_SECONDS = 5.0
NEWS_SECONDS = 3.0
# A task whose time is over and that blocks the event loop loses its lease this much later.
BLOCKED_SECONDS = 15.0
IDLE_POLL = timedelta(seconds=0.5)


@dataclass(slots=True, kw_only=True)
class _Current:
    """One run under way."""

    grant: Grant
    task: Task
    lifeline: Lifeline
    evidence: RunEvidence
    opened: Opened | None = None
    actual: dict[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    final_url: str | None = None
    report: KeeperReport | None = None
    unproven: str = ""

    def inherit(self, report: KeeperReport | None) -> None:
        """The browser that this run was to get has ended instead. If that was not clean, it is this run's to say so."""
        self.report = report
        if report is None or not report.proof.holds:
            self.unproven = report.proof.failing_clause if report else "the keeper left no report"

    def time(self, phase: str, since: float) -> None:
        self.timings[phase] = round(boot_time() - since, 4)


class Runner:
    """Runs grants of one worker."""

    def __init__(self, app: App, kit: Kit, heartbeat: Heartbeat, stop: Stop, request: ClaimRequest) -> None:
        self._app = app
        self._kit = kit
        self._store = kit.store
        self._heartbeat = heartbeat
        self._stop = stop
        self._request = request

    async def run(self, grant: Grant, sent_at: float) -> None:
        """Run a grant, and then whatever its browser is handed over to."""
        current: _Current | None = self._begin(grant, sent_at)
        while current is not None:
            try:
                following = await self._one(current)
            finally:
                current.lifeline.let_go()
            current = following

    def _begin(self, grant: Grant, sent_at: float) -> _Current:
        if grant.job is None:
            raise ValueError("a worker runs jobs")
        return _Current(
            grant=grant,
            task=self._app.tasks[grant.job.task],
            lifeline=Lifeline(self._heartbeat, grant.lease, sent_at),
            evidence=RunEvidence(self._kit.runs_dir, grant.lease.run_id),
        )

    async def _one(self, current: _Current) -> "_Current | None":
        """One run to its end. Returns the next one, if the browser was handed over to it."""
        try:
            await self._get_ready(current)
        except NotOpened as refused:
            await self._settle_unopened(current, refused)
            return None
        outcome, run = await self._perform(current)
        if current.lifeline.hold.lost is None:
            try:
                outcome = await self._gather(current, outcome, run)
                following = await self._hand_over(current, outcome)
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

    async def _get_ready(self, current: _Current) -> None:
        """A browser under this lease: the one that was handed over, or a new one."""
        since = boot_time()
        grant, mode = current.grant, current.task.mode
        try:
            await current.evidence.create()
            await aside(self._kit.ledger.note, grant.lease.run_id, grant.lease.lease_id)
            if current.unproven:
                raise NotOpened("BROWSER_CRASHED", f"its browser was lost in the hand-over: {current.unproven}")
            current.report, current.final_url = None, None
            if mode is Mode.EXCLUSIVE and grant.lease.shared and not grant.profile.disposable:
                raise NotOpened("ACTION_NOT_ALLOWED", f"task {current.task.name} is exclusive, the job is shared")
            if current.opened is None:
                current.opened = await self._kit.open(grant, current.lifeline, current.evidence, sync=current.task.sync)
            await self._check_environment(current)
            if self._stop.asked.is_set():
                raise NotOpened("WORKER_STOPPED", "the worker was asked to stop before the task began", give_back=True)
        except (NotOpened, EvidenceNotSaved, LeasekeeperError, OSError) as error:
            if current.opened is not None:
                seen = current.opened.session.url()
                current.final_url = None if seen is None else self._kit.redactor.url(seen)
                await self._close(current, Outcome(reason="BROWSER_LAUNCH_FAILED"))
            raise as_not_opened(error) from error
        current.time("open", since)

    async def _check_environment(self, current: _Current) -> None:
        """What the page sees must be what the job expects: a profile that answers otherwise is not touched.

        Where nothing is expected, the page is asked at the end of the run: a browser that has just started takes ten
        times as long to answer. But a thread that asks a page which hangs would hang with it: there it is asked now.
        """
        job, opened = current.grant.job, current.opened
        if job is None or opened is None:
            return
        if not opened.sync and job.expected_language is None and job.expected_timezone is None:
            return
        await self._note_environment(current, untouched=True)
        for name, expected in (("language", job.expected_language), ("timezone", job.expected_timezone)):
            seen = current.actual.get(name)
            if expected is not None and seen is not None and seen.casefold() != expected.casefold():
                raise NotOpened("PROFILE_MISMATCH", f"the page sees {name} {seen}, the job expects {expected}")

    async def _note_environment(self, current: _Current, *, untouched: bool) -> None:
        """What the page sees, and how it is run. `untouched`: no site has had the page yet."""
        opened, job = current.opened, current.grant.job
        if opened is None or job is None:
            return
        timezone = current.grant.profile.timezone or job.expected_timezone
        seen, mode = await opened.environment(timezone, untouched=untouched), run_mode(current.grant).value
        current.actual = {**seen, "browser": opened.browser.version, "run_mode": mode}
        if opened.probed is not None and opened.probed.seen:
            current.actual["proxy"] = opened.probed.seen

    async def _perform(self, current: _Current) -> tuple[Outcome, "Run | SyncRun | None"]:
        """Run the task until the first of: its end, its time limit, a lost lease, a dead browser, a stop."""
        opened, task, since = current.opened, current.task, boot_time()
        if opened is None:
            raise RuntimeError("a task needs a browser")
        session = opened.session
        desk = RunDesk(
            self._store,
            current.lifeline.hold,
            self._stop,
            current.evidence,
            self._kit.redactor,
            url=session.url,
            flush=session.flush,
        )
        run = session.run(current.grant, task, desk)
        work = asyncio.ensure_future(session.perform(run, task))
        limit = task.timeout or self._kit.config.task_timeout
        watchers: dict[asyncio.Future[Any], str] = {
            asyncio.ensure_future(current.lifeline.lost.wait()): "lost",
            asyncio.ensure_future(opened.link.ended(1e9)): "gone",
            asyncio.ensure_future(self._stop.now.wait()): "stop",
        }
        hold = current.lifeline.hold
        hold.stop_at = since + limit.total_seconds() + BLOCKED_SECONDS if limit else None
        try:
            seen = await self._until(work, watchers, opened, since + limit.total_seconds() if limit else None)
            outcome = await self._outcome(current, work, seen, limit)
        finally:
            hold.stop_at = None
            for future in (work, *watchers):
                future.cancel()
            await asyncio.wait({work, *watchers}, timeout=UNWIND_SECONDS)
        current.time("task", since)
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
            report = await self._kit.report_of(opened.link, 0.0)
            if report is None or report.cause != "closed":
                await asyncio.wait({work}, timeout=1.0)
                return seen
            pending -= done

    async def _outcome(
        self, current: _Current, work: "asyncio.Future[object]", seen: set[str], limit: timedelta | None
    ) -> Outcome:
        """What became of the task. Whatever it left behind that cannot be judged: the run is closed and settled."""
        try:
            return await self._judge(current, work, seen, limit)
        except Exception as error:  # noqa: BLE001 - other people's objects may raise anything
            _LOG.exception("run %s: its outcome could not be judged", current.grant.lease.run_id)
            message = f"the task's outcome could not be judged: {type(error).__name__}"
            return Outcome(reason="TASK_ERROR", message=message)

    async def _judge(
        self, current: _Current, work: "asyncio.Future[object]", seen: set[str], limit: timedelta | None
    ) -> Outcome:
        hold, opened = current.lifeline.hold, current.opened
        if "lost" in seen or hold.lost is not None:
            lost = Outcome(reason="LEASE_LOST", message=hold.lost or "the lease is lost")
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
            found = outcome_of_error(error, current.task, facts=facts, redact=self._kit.redactor.text)
            if found.reason == "TASK_ERROR":
                told = self._kit.redactor.text("".join(traceback.format_exception(error)))
                _LOG.warning("run %s: task %s failed\n%s", current.grant.lease.run_id, current.task.name, told)
            return self._redacted(found)
        if "gone" in seen:
            return Outcome(reason="BROWSER_CRASHED", message="the browser ended by itself")
        if "stop" in seen:
            return Outcome(reason="WORKER_STOPPED", message="the worker was stopped before the task came to its end")
        seconds = limit.total_seconds() if limit else 0.0
        return Outcome(reason="TIMEOUT", message=f"the task took longer than {seconds:g} s")

    async def _is_alive(self, opened: Opened, error: BaseException) -> bool:
        """Whether the browser is still there. An error can be quicker than the news of the browser's end."""
        if says_closed(kind_of(error), told(error)):
            await self._kit.report_of(opened.link, NEWS_SECONDS)
            return not (opened.link.over or await self._kit.driver_is_dead())
        return not opened.link.over

    async def _gather(self, current: _Current, outcome: Outcome, run: "Run | SyncRun | None") -> Outcome:
        """Final URL, screenshot, summaries; then what the page and the task's signals say about the outcome."""
        opened, since = current.opened, boot_time()
        if opened is None:
            return outcome
        signals = list(run.signals) if run is not None else []
        if opened.runs > 1 and self._may_stay_warm(current, outcome):
            opened.session.expect_next()
        noting = asyncio.ensure_future(self._note_environment(current, untouched=False))
        if not opened.link.over:
            captured = await opened.session.capture()
            current.final_url = captured.final_url
            if captured.screenshot is not None:
                current.evidence.save_soon("final.png", captured.screenshot)
            elif captured.problem:
                current.evidence.notes["no_screenshot"] = captured.problem
            detectors = (*current.task.detectors, *self._app.detectors)
            if detectors:
                for facts in await opened.session.look(detectors):
                    found = [detector for detector in detectors if detector.matches(facts)]
                    signals += [Signal(detector.reason, "a detector matched the page") for detector in found]
        await noting
        current.evidence.notes.update(opened.session.recorder.summary())
        probed = await self._kit.probe(current.grant, opened.credentials)
        if probed is not None and probed.result is ProbeResult.CHANGED:
            signals.append(Signal("PROXY_CHANGED", probed.detail))
            current.evidence.notes["proxy_changed"] = probed.detail
        current.time("evidence", since)
        return self._redacted(strictest(outcome, signals, self._app.reasons))

    def _redacted(self, outcome: Outcome) -> Outcome:
        return replace(outcome, message=self._kit.redactor.short(outcome.message, MOST_MESSAGE))

    async def _hand_over(self, current: _Current, outcome: Outcome) -> "_Current | None":
        """The next job of this profile in the browser that is open, if there is one and the browser may go on."""
        opened, config = current.opened, self._kit.config
        if opened is None or not self._may_stay_warm(current, outcome):
            return None
        await current.evidence.saved()
        if current.evidence.unsaved is not None or current.final_url is None:
            return None
        until = boot_time() + config.warm_idle.total_seconds()
        while True:
            sent_at = boot_time()
            handed = await self._ask_for_next(current, outcome, opened)
            if handed is not None or boot_time() >= until or self._stop.asked.is_set():
                break
            with suppress(StoreError):
                await self._store.wait(self._request.pool, min(IDLE_POLL, config.warm_idle))
        if handed is None or handed.grant is None:
            return None
        current.lifeline.let_go()
        following = self._begin(handed.grant, sent_at)
        try:
            await self._move_on(current, following, opened)
        except BaseException:
            following.lifeline.let_go()
            raise
        return following

    async def _move_on(self, current: _Current, following: _Current, opened: Opened) -> None:
        """One run is settled and the next one granted: the ledger says so, and the browser goes with it."""
        await aside(self._kit.ledger.pass_on, current.grant.lease, following.grant.lease)
        _LOG.info(
            "run %s of %s: completed, the next is run %s",
            current.grant.lease.run_id,
            current.grant.lease.profile_id,
            following.grant.lease.run_id,
        )
        await self._take_over(current, following, opened)

    async def _ask_for_next(self, current: _Current, outcome: Outcome, opened: Opened) -> HandedOver | None:
        """Settle and claim in one commit. Meanwhile what becomes of the old lease must not reach the browser."""
        tasks = tuple(t.name for t in self._app.tasks.values() if t.warm and t.sync == opened.sync)
        request = replace(self._request, most=1, engine=opened.browser.engine)
        ending = self._ending(current, outcome, EndFacts(browser=Browser.HANDED_OVER, final_url=current.final_url))
        current.lifeline.untie()
        await current.lifeline.hold.hush()
        try:
            handed = await self._store.hand_over(ending, request, among=tasks)
        except LeasekeeperError as error:
            _LOG.warning("run %s: no hand-over: %s", current.grant.lease.run_id, error)
            handed = None
        if handed is None:
            current.lifeline.hold.speak()
            current.lifeline.tie(opened.link)
        return handed

    def _may_stay_warm(self, current: _Current, outcome: Outcome) -> bool:
        opened, config, grant = current.opened, self._kit.config, current.grant
        return (
            opened is not None
            and outcome.reason is None
            and current.task.warm
            and grant.profile.warm
            and opened.copy is None
            and not opened.link.over
            and opened.session.clean
            and not self._stop.asked.is_set()
            and opened.runs < config.warm_runs
            and boot_time() - opened.opened_at < config.warm_age.total_seconds()
        )

    async def _take_over(self, current: _Current, following: _Current, opened: Opened) -> None:
        """Put the browser under the new lease. If that cannot be, it ends, and the next run opens one of its own."""
        lease, hold = following.grant.lease, following.lifeline.hold
        following.final_url = current.final_url
        if not _same_browser(current.grant, following.grant):
            following.inherit(await self._kit.close_browser(opened))
            return
        opened.runs += 1
        try:
            await opened.link.hand_over(
                lease_id=lease.lease_id,
                token=lease.token,
                run_id=lease.run_id,
                folder=str(self._kit.runs_dir / lease.run_id),
                deadline=hold.deadline,
                kill_at=hold.dead_by,
            )
            following.lifeline.tie(opened.link)
            await opened.session.fresh_page()
        except Exception as error:  # noqa: BLE001 - whatever it is, a browser that is not under the lease must end
            _LOG.warning("run %s: the browser could not be handed over: %s", lease.run_id, error)
            following.lifeline.untie()
            following.inherit(await self._kit.close_browser(opened, fence="the hand-over failed"))
        else:
            following.final_url = None
            following.opened = opened

    async def _close(self, current: _Current, outcome: Outcome) -> None:
        """Close the browser and wait for the keeper's word on how it ended."""
        opened, since = current.opened, boot_time()
        if opened is None:
            return
        fence = outcome.message if outcome.reason == "LEASE_LOST" else None
        # A page that gave the worker no picture, say since it is on its way elsewhere, may give the keeper one.
        missing = "no_screenshot" in current.evidence.notes
        current.report = await self._kit.close_browser(opened, fence=fence, with_evidence=missing)
        current.time("close", since)

    async def _settle(self, current: _Current, outcome: Outcome) -> None:
        """Hand in the ending. If the lease is not ours any more, the keeper's report is left for the sweeper."""
        report, evidence = current.report, current.evidence
        if report is not None:
            await evidence.adopt(report)
        await evidence.saved()
        if outcome.reason is None and evidence.unsaved is not None:
            outcome = Outcome(reason="EVIDENCE_NOT_SAVED", message=evidence.unsaved)
        facts = end_facts(
            report,
            final_url=current.final_url,
            opened=current.opened is not None,
            throwaway=current.opened is not None and current.opened.copy is not None,
            evidence_saved=current.evidence.unsaved is None,
            proxy_changed="proxy_changed" in current.evidence.notes,
        )
        await self._hand_in(current, self._ending(current, outcome, facts))

    async def _settle_unopened(self, current: _Current, refused: NotOpened) -> None:
        """The task did not start. If a browser did, the keeper says how it ended; if none did, nothing is to prove."""
        saved = refused.reason != "EVIDENCE_NOT_SAVED"
        outcome = Outcome(reason=refused.reason, message=self._kit.redactor.text(refused.message))
        report = current.report
        if report is None and refused.begun:
            with suppress(ReportUnreadable, OSError):
                report = read_report(current.evidence.folder)
        facts = unopened_facts(
            report,
            begun=refused.begun or current.opened is not None or bool(current.unproven),
            final_url=current.final_url,
            throwaway=current.grant.lease.shared or current.grant.profile.disposable,
            evidence_saved=saved,
        )
        ending = self._ending(current, outcome, facts)
        engine = refused.engine or ending.engine
        given_back = replace(ending, not_started=refused.give_back, engine=engine, fence=refused.fence)
        await self._hand_in(current, given_back)

    def _ending(self, current: _Current, outcome: Outcome, facts: EndFacts) -> Ending:
        return Ending(
            ref=current.grant.lease.ref,
            reason=outcome.reason,
            message=outcome.words(self._app.reasons),
            retry=outcome.retry,
            facts=facts,
            registered=outcome.row(self._app.reasons),
            output=outcome.output,
            evidence=current.evidence.as_json(),
            actual=current.actual,
            timings=current.timings,
            engine=current.opened.engine if current.opened is not None else None,
        )

    async def _hand_in(self, current: _Current, ending: Ending) -> None:
        lease = current.grant.lease
        try:
            settled = await settle_held(self._store, ending, current.lifeline.hold)
        except LeaseLost as lost:
            _LOG.warning("run %s: not settled, its lease is lost: %s", lease.run_id, lost)
        except Exception as error:  # noqa: BLE001 - the lease then expires, and is resolved
            _LOG.error("run %s: could not be settled: %s", lease.run_id, told(error))
        else:
            if settled.refused is not None:
                _LOG.warning("run %s: the ending was refused: %s", lease.run_id, settled.refused)
            else:
                self._kit.ledger.strike(lease.run_id)
                _LOG.info(
                    "run %s of %s: %s, job %s, profile %s",
                    lease.run_id,
                    lease.profile_id,
                    ending.reason or "completed",
                    settled.job_state,
                    settled.profile_state,
                )


def _same_browser(before: Grant, after: Grant) -> bool:
    """Whether the browser of one grant is what the other one would open: the fleet may have changed in between."""
    return (before.profile, before.proxy, run_mode(before)) == (after.profile, after.proxy, run_mode(after))
