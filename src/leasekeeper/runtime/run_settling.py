"""How a worker ends a run: close with proof, evidence, and one commit. See `runner` for what comes before."""

import logging
from contextlib import suppress
from dataclasses import replace

from leasekeeper.app import App
from leasekeeper.core.failures import Reason
from leasekeeper.core.settle import EndFacts, Ending
from leasekeeper.driver_port import works_in_copy
from leasekeeper.errors import LeaseLost, safe_str
from leasekeeper.ports import Store
from leasekeeper.runtime import run_log, tracing
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import Outcome, end_facts, unopened_facts
from leasekeeper.runtime.evidence import report_summary
from leasekeeper.runtime.heartbeat import settle_with_retries
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.not_opened import NotOpened
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.run_state import RunState
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger("leasekeeper.runtime.runner")


class RunSettling:
    """Ends the runs of one worker."""

    def __init__(self, app: App, store: Store, opener: BrowserOpener, ledger: Ledger) -> None:
        self._app = app
        self._store = store
        self._opener = opener
        self._ledger = ledger

    async def close(self, current: RunState, outcome: Outcome) -> None:
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

    async def settle(self, current: RunState, outcome: Outcome) -> None:
        """Settle the run. If the lease is not ours any more, the keeper's report is left for the sweeper."""
        report, evidence = current.report, current.evidence
        if report is not None:
            await evidence.adopt(report, reason=outcome.reason)
        await evidence.saved()
        if evidence.unsaved is not None:
            self._opener.machine.blame(evidence.failure or evidence.unsaved)
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
        ending = self.ending(current, outcome, facts)
        with tracing.step("save"):
            ending = await self._opener.snapshots.saved(
                ending, current.grant, current.guard.kept, verdict=current.verdict
            )
        await self._write(current, ending)

    async def settle_unopened(self, current: RunState, refused: NotOpened) -> None:
        """Settle a run whose task did not start. If a browser did, the keeper's report says how it ended; if none did,
        there is nothing to prove."""
        saved = refused.reason != Reason.EVIDENCE_NOT_SAVED
        report = current.report or refused.report
        if report is not None and not report.no_browser:
            current.evidence.notes["keeper"] = report_summary(report, completed=False)
        outcome = Outcome(reason=refused.reason, message=self._opener.redactor.text(refused.message))
        facts = unopened_facts(
            report,
            begun=refused.begun or current.opened is not None or bool(current.unproven),
            final_url=current.final_url,
            throwaway=works_in_copy(current.grant),
            evidence_saved=saved,
        )
        ending = self.ending(current, outcome, facts)
        engine = refused.engine or ending.engine
        unstarted = replace(
            ending, not_started=refused.give_back, engine=engine, directory_token=refused.directory_token
        )
        await self._write(current, unstarted)

    def ending(self, current: RunState, outcome: Outcome, facts: EndFacts) -> Ending:
        """The ending of a run, as the store gets it."""
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

    async def _write(self, current: RunState, ending: Ending) -> None:
        lease = current.grant.lease
        if ending.reason is not None:
            current.trace.fail(ending.reason)
        try:
            with tracing.step("settle") as traced:
                settled = await settle_with_retries(self._store, ending, current.guard.kept)
                traced.note(job_state=settled.job_state, profile_state=settled.profile_state, refused=settled.refused)
        except LeaseLost as lost:
            _LOG.warning("run %s: not settled, its lease is lost: %s", lease.run_id, lost)
        except Exception as error:  # noqa: BLE001 - the lease then expires, and is resolved
            _LOG.error("run %s: could not be settled: %s", lease.run_id, safe_str(error))
        else:
            run_log.ended(current, ending, settled)
            if settled.refused is None:
                with suppress(OSError):  # the data directory cannot be used: the machine is unwell by then
                    self._ledger.strike(lease.run_id)
                await run_in_thread(current.evidence.discard)
