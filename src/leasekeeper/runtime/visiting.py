"""A person opens a profile: a manual lease, a browser they can see, renewed while it is open, released with proof."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from leasekeeper.aside import aside
from leasekeeper.browsers.link import KeeperReport, read_report
from leasekeeper.browsers.reports import ReportUnreadable
from leasekeeper.config import Config
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.leases import Purpose
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict, LeasekeeperError, LeaseLost
from leasekeeper.ports import Grant, LeaseRequest, Settled, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import end_facts, unopened_facts
from leasekeeper.runtime.gathering import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat, settle_held
from leasekeeper.runtime.lifeline import Lifeline
from leasekeeper.runtime.opening import Kit, NotOpened, Opened, run_mode
from leasekeeper.runtime.stopping import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """How a visit ended."""

    grant: Grant
    settled: Settled
    report: KeeperReport | None


async def visit(
    store: Store,
    config: Config,
    profile_id: str,
    *,
    who: str,
    heartbeat: Heartbeat,
    stop: Stop,
    url: str | None = None,
    ttl: timedelta | None = None,
    opened_as: Callable[[Grant, RunMode], None] = lambda _grant, _mode: None,
) -> Visit:
    """Open the profile until its window is closed, a stop is asked for, or the lease is lost."""
    kit = Kit(config.browsers, store)
    try:
        browser = await kit.prepare()
        sent_at = boot_time()
        grant = await store.acquire(
            LeaseRequest(
                profile_id=ProfileId(profile_id),
                worker_id=WorkerId(who),
                incarnation=f"{who}-{sent_at:.6f}",
                purpose=Purpose.MANUAL,
                ttl=ttl,
                engine=browser.engine,
            )
        )
        lifeline = Lifeline(heartbeat, grant.lease, sent_at)
        try:
            return await _stay(kit, grant, lifeline, stop, url, opened_as)
        finally:
            lifeline.let_go()
    finally:
        await kit.close()


async def _stay(
    kit: Kit,
    grant: Grant,
    lifeline: Lifeline,
    stop: Stop,
    url: str | None,
    opened_as: Callable[[Grant, RunMode], None],
) -> Visit:
    evidence = RunEvidence(kit.runs_dir, grant.lease.run_id)
    try:
        await evidence.create()
        await aside(kit.ledger.note, grant.lease.run_id, grant.lease.lease_id)
        opened = await kit.open(grant, lifeline, evidence, sync=False, by_person=True)
    except (NotOpened, LeasekeeperError, OSError) as refused:
        await _settle_unopened(kit, grant, lifeline, evidence, refused)
        message = getattr(refused, "message", str(refused))
        raise Conflict(f"profile {grant.lease.profile_id} was not opened: {message}") from refused
    try:
        opened_as(grant, run_mode(grant))
        if url is not None:
            await opened.session.visit(url)
        await _until_closed(opened, lifeline, stop)
    finally:
        ended = await _give_back(kit, grant, lifeline, evidence, opened)
    return ended


async def _settle_unopened(
    kit: Kit, grant: Grant, lifeline: Lifeline, evidence: RunEvidence, refused: Exception
) -> None:
    """There was no visit. If a browser was started all the same, its keeper says how it ended."""
    report, begun = None, getattr(refused, "begun", False)
    if begun:
        with suppress(ReportUnreadable, OSError):
            report = read_report(evidence.folder)
    facts = unopened_facts(report, begun=begun, final_url=None, throwaway=False, evidence_saved=True)
    reason = getattr(refused, "reason", "BROWSER_LAUNCH_FAILED")
    ending = Ending(
        ref=grant.lease.ref,
        reason=reason,
        message=kit.redactor.text(str(refused)),
        facts=facts,
        fence=getattr(refused, "fence", None),
    )
    await settle_held(kit.store, ending, lifeline.hold)
    kit.ledger.strike(grant.lease.run_id)


async def _give_back(kit: Kit, grant: Grant, lifeline: Lifeline, evidence: RunEvidence, opened: Opened) -> Visit:
    final_url = kit.redactor.url(opened.session.url() or "about:blank")
    lost = lifeline.hold.lost
    report = await kit.close_browser(opened, fence=lost)
    if report is not None:
        await evidence.adopt(report)
    ending = Ending(
        ref=grant.lease.ref,
        reason="LEASE_LOST" if lost else None,
        message=lost or "",
        facts=end_facts(
            report,
            final_url=final_url,
            opened=True,
            throwaway=opened.copy is not None,
            evidence_saved=evidence.unsaved is None,
            proxy_changed=False,
        ),
        evidence=evidence.as_json(),
        engine=opened.engine,
    )
    settled = await settle_held(kit.store, ending, lifeline.hold)
    if settled.refused is not None:
        raise LeaseLost(f"the lease of {grant.lease.profile_id} was lost while it was open: {settled.refused}")
    kit.ledger.strike(grant.lease.run_id)
    return Visit(grant=grant, settled=settled, report=report)


async def _until_closed(opened: Opened, lifeline: Lifeline, stop: Stop) -> None:
    waits = {
        asyncio.ensure_future(opened.link.ended(1e9)),
        asyncio.ensure_future(lifeline.lost.wait()),
        asyncio.ensure_future(stop.asked.wait()),
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waits:
            future.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
