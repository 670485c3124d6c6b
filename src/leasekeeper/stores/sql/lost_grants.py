"""Leases that the store granted and lost, because a server lost its last writes or a backup was restored.

The holder of such a lease has worked in the profile, and the store cannot know what it did. So the profile goes to
review.
"""

from collections.abc import Sequence
from datetime import datetime

from leasekeeper.core.decisions import Action, Decision, ReviewReason, Target, profile_decided
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease, LeaseRef, Refusal, forgotten
from leasekeeper.core.profiles import ProfileState, StateCause, said_of_state
from leasekeeper.stores.sql.engine import Tx
from leasekeeper.stores.sql.lanes import Work, read_lease, refresh, save, works_from, writer_of
from leasekeeper.stores.sql.log import Log

ACTOR = "leasekeeper"


def refused(tx: Tx, log: Log, work: Work | None, lease: Lease | None, ref: LeaseRef, what: str, why: Refusal) -> None:
    """Log a refused write, and send the profile to review if the store lost the lease."""
    log.refused(ref, what, why, lease or writer_of(tx, ref))
    if why is Refusal.NO_SUCH_LEASE:
        review(tx, log, work, ref, log.now)


def review_forgotten(tx: Tx, log: Log, refs: Sequence[LeaseRef], now: datetime) -> None:
    """Send the profiles of leases that the store lost to review. The caller has locked their lanes."""
    if not refs:
        return
    wanted = {"ids": sorted({ref.profile_id for ref in refs})}
    lanes, runs = tx.read(("lock_lanes", wanted), ("open_runs", wanted))
    works = works_from(tx, lanes, map(read_lease, runs))
    for ref in refs:
        review(tx, log, works.get(ref.profile_id), ref, now)
    save(tx, works.values())


def review(tx: Tx, log: Log, work: Work | None, ref: LeaseRef, now: datetime) -> None:
    """Send the profile to review if it is available and the store must have granted this lease."""
    if work is None or work.lane.state is not ProfileState.AVAILABLE:
        return
    if not forgotten(ref, work.lane.token, tx.doubtful_up_to):
        return
    note = (
        f"a worker reported under lease {ref.lease_id}, which the store granted and does not know any more: it lost "
        f"its last writes, or a backup was restored. Find out what run {ref.run_id} did"
    )
    decision = Decision(target=Target.PROFILE, id=ref.profile_id, action=Action.REVIEW, note=note, actor=ACTOR)
    decided = profile_decided(
        work,
        decision,
        now,
        about_empty_directory=False,
        cause=StateCause.LEASE_FORGOTTEN,
        data={"lease_id": ref.lease_id, "run_id": ref.run_id},
    )
    before = work.lane.state
    work.change(decided.changes)
    log.review_profile(work.lane, None, ReviewReason.LEASE_FORGOTTEN, note)
    refresh(work, now)
    log.event(
        EventType.PROFILE_DECIDED,
        lane=work.lane,
        actor=ACTOR,
        profile_state=work.lane.state,
        data={
            "action": decision.action.value,
            "note": note,
            "from": before.value,
            "drain": None,
            **said_of_state(work.lane),
        },
    )
