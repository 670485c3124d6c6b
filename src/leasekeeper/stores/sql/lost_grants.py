"""Leases that the store granted and forgot: a server that lost its last writes, a restored backup.

Whoever holds one has worked in the profile, and nobody else can say what was done. So the profile waits for a person.
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
    """A late write: recorded, and looked into if the lease was forgotten."""
    log.refused(ref, what, why, lease or writer_of(tx, ref))
    if why is Refusal.NO_SUCH_LEASE:
        review(tx, log, work, ref, log.now)


def review_forgotten(tx: Tx, log: Log, refs: Sequence[LeaseRef], now: datetime) -> None:
    """Send the profiles of those that were forgotten to review. Their lanes are locked already."""
    if not refs:
        return
    wanted = {"ids": sorted({ref.profile_id for ref in refs})}
    lanes, runs = tx.read(("lock_lanes", wanted), ("open_runs", wanted))
    works = works_from(tx, lanes, map(read_lease, runs))
    for ref in refs:
        review(tx, log, works.get(ref.profile_id), ref, now)
    save(tx, works.values())


def review(tx: Tx, log: Log, work: Work | None, ref: LeaseRef, now: datetime) -> None:
    """The profile waits for a person, if nobody has it, and the store must have granted this lease."""
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
