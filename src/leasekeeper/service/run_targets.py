"""The run that is meant by the id of a run, a profile or a job; why this server cannot show its browser; and answering
it through the store, which is still possible then.
"""

from typing import Final, TypeVar, assert_never

from leasekeeper.app import HumanAnswer
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, Purpose, RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Conflict, LeasekeeperError, NotFound, SessionEnded
from leasekeeper.ports import Store

T = TypeVar("T")

MAX_NAMED: Final = 8
CONNECT: Final = "start it with --store and the address of this server, and its browsers are shown and taken here"


async def named_run(store: Store, named: str) -> RunRecord:
    """The run of this id, the one that has this profile now, or that of this job. Raises NotFound, which says what the
    name is instead.
    """
    try:
        return await store.get(RunRecord, named)
    except NotFound:
        pass
    if (profile := await _found(store, Profile, named)) is not None:
        runs = (await store.find(RunRecord, {"profile_id": profile.profile_id, "live": "1"}, limit=1)).items
        return _the(runs[0] if runs else None, f"no browser is open in profile {named}: nobody has it", named)
    if (job := await _found(store, Job, named)) is not None:
        run = await _found(store, RunRecord, job.run_id) if job.run_id is not None else None
        return _the(run, f"job {named} is {job.state} and has no browser", named)
    if await _found(store, Account, named) is not None:
        profiles = (await store.find(Profile, {"account_id": named}, limit=MAX_NAMED)).items
        ids = ", ".join(profile.profile_id for profile in profiles) or "it has none"
        return _the(None, f"{named} is an account: name one of its profiles ({ids}), or a run", named)
    return _the(None, f"there is no run, profile or job {named}", named)


async def _found(store: Store, kind: type[T], record_id: str) -> T | None:
    try:
        return await store.get(kind, record_id)
    except NotFound:
        return None


def _the(run: RunRecord | None, otherwise: str, named: str) -> RunRecord:
    if run is None:
        raise NotFound(otherwise, what="run", id=named)
    return run


def not_open(run: RunRecord) -> LeasekeeperError:
    """The error for a request to see or take the browser of this run at this server."""
    if run.ended_at is None:
        return not_reached(run)
    why = f"{run.stop_reason}: {run.message}" if run.stop_reason else run.message or run.result.value
    return SessionEnded(
        f"run {run.run_id} is over ({why}): its browser is closed, or serves another run",
        session_id=run.run_id,
        reason=run.stop_reason,
        lease_id=run.lease_id,
        profile_id=run.profile_id,
    )


def not_reached(run: RunRecord | Lease) -> Conflict:
    """The same for a run that goes on: where its browser is, and what to do."""
    also = "; it asks for a person: answer it by hand-back, without taking it" if _asks(run) else ""
    return Conflict(
        f"{_why_away(run)}{also}",
        cause=ConflictReason.WORKER_AWAY,
        run_id=run.run_id,
        profile_id=run.profile_id,
    )


def _asks(run: RunRecord | Lease) -> bool:
    return isinstance(run, Lease) and asked(run) is not None


def _why_away(run: RunRecord | Lease) -> str:
    match run.purpose:
        case Purpose.JOB | Purpose.SESSION:
            return (
                f"the browser of run {run.run_id} is open on {run.worker_id}, which is not connected to this server: "
                f"{CONNECT}"
            )
        case Purpose.MANUAL | Purpose.INSPECT:
            return f"{run.worker_id} has profile {run.profile_id} open by hand: the window is on that machine"
        case Purpose.API:
            return f"{run.worker_id} has leased profile {run.profile_id} and opens its browser itself: nobody else can"
    assert_never(run.purpose)


def asked(lease: Lease) -> str | None:
    """What the run of a lease asks a person to do, from the store."""
    return lease.asks_person if lease.person_answer is None and lease.ended_at is None else None


async def answer_in_store(store: Store, lease: Lease, answer: HumanAnswer) -> Lease:
    """Answer a run that asks, wherever it is: its worker finds it with the next renewal. Returns the lease."""
    note = answer.note or answer.outcome or "answered"
    lease_id, outcome = lease.lease_id, answer.outcome or None
    await store.decide(
        Decision(target=Target.LEASE, id=lease_id, action=Action.ANSWER, note=note, actor=answer.by, to=outcome)
    )
    return await store.get(Lease, lease_id)
