"""Opens the browser of a lease without a job, or settles its run with the reason why not. For sessions and people.

A fault of this machine is not the profile's failure: no profile is leased while a fault is known, and one that was
leased just before is given back as it was.
"""

from contextlib import suppress

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.endings import unopened_facts
from leasekeeper.runtime.evidence import RunEvidence, report_summary
from leasekeeper.runtime.heartbeat import Heartbeat, settle_with_retries
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.machine import Machine, Unwell
from leasekeeper.runtime.not_opened import NotOpened
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.threads import run_in_thread


def check_machine(machine: Machine, heartbeat: Heartbeat) -> None:
    """Call this before a profile is leased. Raises Conflict if this machine cannot open a browser now, or cannot start
    the thread that renews the lease."""
    machine.check_room()
    try:
        heartbeat.start()
    except RuntimeError as error:
        if machine.blame(error) is None:
            raise
    if machine.unwell is not None:
        raise machine_unwell(machine.unwell)


def machine_unwell(unwell: Unwell) -> Conflict:
    """The error that says why this machine cannot open a browser now."""
    return Conflict(f"no browser can be opened on this machine: {unwell.message}", cause=ConflictReason.MACHINE_UNWELL)


async def open_leased(
    store: Store,
    opener: BrowserOpener,
    guard: LeaseGuard,
    grant: Grant,
    *,
    by_person: bool = False,
    mode: RunMode | None = None,
) -> tuple[RunEvidence, Opened]:
    """Open the browser of a lease, with its evidence. If it does not open, settle its run, then raise Conflict."""
    lease, ledger = grant.lease, Ledger(opener.data_dir)
    evidence = RunEvidence(ledger.runs_dir, lease.run_id, place=opener.place, under=lease.ref)
    try:
        await evidence.create()
        await run_in_thread(ledger.note, lease.run_id, lease.lease_id)
        opened = await opener.open(grant, guard, evidence, sync=False, by_person=by_person, mode=mode)
    except Exception as error:
        refused = await opener.refusal(error)
        await settle_with_retries(store, _unopened(opener, grant, refused), guard.kept)
        with suppress(OSError):  # the folder itself may be what failed
            ledger.strike(lease.run_id)
        unwell = refused.reason == Reason.MACHINE_UNWELL
        raise Conflict(
            f"profile {lease.profile_id} was not opened: {opener.redactor.text(refused.message)}",
            cause=ConflictReason.MACHINE_UNWELL if unwell else ConflictReason.PROFILE_NOT_OPENED,
            profile_id=lease.profile_id,
        ) from error
    opener.machine.works()
    return evidence, opened


def _unopened(opener: BrowserOpener, grant: Grant, refused: NotOpened) -> Ending:
    """The ending of a run whose browser did not open. If one was started nevertheless, its report says how it ended."""
    report = refused.report
    facts = unopened_facts(report, begun=refused.begun, final_url=None, throwaway=False, evidence_saved=True)
    return Ending(
        evidence={} if report is None or report.no_browser else {"keeper": report_summary(report, completed=False)},
        ref=grant.lease.ref,
        reason=refused.reason,
        message=opener.redactor.text(refused.message),
        not_started=refused.reason == Reason.MACHINE_UNWELL,
        facts=facts,
        directory_token=refused.directory_token,
    )
