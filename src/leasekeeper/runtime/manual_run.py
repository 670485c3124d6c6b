"""A person opens a profile: take a lease, open a visible browser, renew the lease while it is open, release it with
proof of a clean close.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from leasekeeper.browsers.machine_name import machine_name
from leasekeeper.config import Config
from leasekeeper.core.browsers import BrowserReport, EndCause
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.leases import Purpose
from leasekeeper.core.settle import Ending
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import Grant, LeaseRequest, Settled, Store
from leasekeeper.runtime.browser_launches import run_mode
from leasekeeper.runtime.canary import verdict_at_end
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import end_facts
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.free_profile import acquire_any
from leasekeeper.runtime.heartbeat import Heartbeat, settle_with_retries
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lease_opening import check_machine, open_leased
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.memory import REVOKE_FACTOR, Budget
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRun:
    """How a manual run ended."""

    grant: Grant
    settled: Settled
    report: BrowserReport | None


async def run_manually(
    store: Store,
    config: Config,
    profile_id: str | ProfileChoice,
    *,
    who: str,
    heartbeat: Heartbeat,
    stop: Shutdown,
    url: str | None = None,
    ttl: timedelta | None = None,
    purpose: Purpose = Purpose.MANUAL,
    opened_as: Callable[[Grant, RunMode], None] = lambda _grant, _mode: None,
) -> ManualRun:
    """Open a profile for a person and wait until its window is closed, a stop is requested, or the lease is lost.

    `profile_id`: the profile, or a choice of which any free one is taken. `who` becomes the worker_id. `opened_as` is
    called once the browser is open. Raises LeaseLost.
    """
    opener = BrowserOpener(config.browsers, store)
    try:
        browser = await opener.prepare()
        check_machine(opener.machine, heartbeat)
        sent_at = boot_time()
        request = LeaseRequest(
            profile_id=ProfileId(profile_id if isinstance(profile_id, str) else ""),
            worker_id=WorkerId(who),
            incarnation=f"{who}-{sent_at:.6f}",
            purpose=purpose,
            ttl=ttl,
            engine=browser.engine,
            machine=await run_in_thread(machine_name, config.browsers),
        )
        lost_leases = LostLeases(store, config)
        if isinstance(profile_id, str):
            grant = await lost_leases.acquire(request)
        else:
            grant = await acquire_any(store, lost_leases, profile_id, request)
        guard = LeaseGuard(heartbeat, grant.lease, sent_at)
        try:
            return await _run(store, opener, grant, guard, stop, url, opened_as)
        finally:
            guard.release()
    finally:
        await opener.close()


async def _run(
    store: Store,
    opener: BrowserOpener,
    grant: Grant,
    guard: LeaseGuard,
    stop: Shutdown,
    url: str | None,
    opened_as: Callable[[Grant, RunMode], None],
) -> ManualRun:
    evidence, opened = await open_leased(store, opener, guard, grant, by_person=True)
    budget = None
    try:
        opened_as(grant, run_mode(grant))
        if url is not None:
            await opened.session.goto(url)
        with opener.memory.watch(opened.browser, opened.session) as budget:
            await _until_closed(opened, guard, stop, budget)
    finally:
        final_url = opened.session.url() or "about:blank"
        verdict = await verdict_at_end(opened, grant, guard.kept)
        report, ending = await _close(opener, grant, guard, evidence, opened, final_url)
        if budget is not None and report is not None:
            ending = _judged(ending, report, budget)
        ending = await opener.snapshots.saved(ending, grant, guard.kept, verdict=verdict)
        settled = await settle_with_retries(store, ending, guard.kept)
        if settled.refused is not None:
            raise LeaseLost(
                f"the lease of {grant.lease.profile_id} was lost while it was open: {REFUSALS[settled.refused]}",
                refusal=settled.refused,
                lease_id=settled.lease_id,
                profile_id=grant.lease.profile_id,
            )
        with suppress(OSError):  # the data directory cannot be used: the run is settled nevertheless
            Ledger(opener.data_dir).strike(grant.lease.run_id)
        await run_in_thread(evidence.discard)
    return ManualRun(grant=grant, settled=settled, report=report)


async def _close(
    opener: BrowserOpener, grant: Grant, guard: LeaseGuard, evidence: RunEvidence, opened: Opened, final_url: str
) -> tuple[BrowserReport | None, Ending]:
    """Close the browser. Returns its report, if there is one, and the ending of the run."""
    final_url = opener.redactor.url(final_url)
    lost = guard.kept.lost
    report = await opener.close_browser(opened, revoke=lost)
    if report is not None:
        await evidence.adopt(report, reason=Reason.LEASE_LOST if lost else None)
    await evidence.saved()
    ending = Ending(
        ref=grant.lease.ref,
        reason=Reason.LEASE_LOST if lost else None,
        message=lost or "",
        facts=end_facts(
            report,
            final_url=final_url,
            opened=True,
            throwaway=opened.throwaway,
            evidence_saved=evidence.unsaved is None,
            proxy_changed=False,
        ),
        evidence=evidence.as_json(),
        engine=opened.browser.engine,
    )
    return report, ending


def _judged(ending: Ending, report: BrowserReport, budget: Budget) -> Ending:
    """The ending, with the reason MEMORY_EXCEEDED if the browser was ended because it used too much memory."""
    if ending.reason is None and report.cause is EndCause.REVOKED and budget.exceeded.is_set():
        return replace(ending, reason=Reason.MEMORY_EXCEEDED, message=budget.message)
    return ending


async def _warn(budget: Budget) -> None:
    """Log once that the browser is above its memory limit: the person may still save their work."""
    await budget.exceeded.wait()
    _LOG.warning(
        "%s; at %d times the limit the browser is ended: close tabs that are not needed", budget.message, REVOKE_FACTOR
    )


async def _until_closed(opened: Opened, guard: LeaseGuard, stop: Shutdown, budget: Budget) -> None:
    warning = asyncio.ensure_future(_warn(budget))
    waits = {
        asyncio.ensure_future(opened.browser.ended(1e9)),
        asyncio.ensure_future(guard.lost.wait()),
        asyncio.ensure_future(stop.asked.wait()),
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in (*waits, warning):
            future.cancel()
        await asyncio.gather(*waits, warning, return_exceptions=True)
