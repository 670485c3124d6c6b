"""Take-over and hand-back: control of an open browser passes from a run to a person, or back to the run's job.

Pure. The browser stays open, so the profile is leased all the time: the old run ends, and a new one begins under a
token of its own. The new lease keeps the progress of the old one (last safe step, mutating section), so that it is
known if the new run ends without an explanation. Also here: a person's answer to a run that asks for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.failures import Reason, failure
from leasekeeper.core.granting import granted_to, new_lease
from leasekeeper.core.ids import JobId, RunId, WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import Changes, LaneFacts, explained, judged
from leasekeeper.core.leases import PROGRESS, Lease, Purpose, RunResult, Timing, may_have_been_done
from leasekeeper.core.profiles import Because, Cause, ProfileState, StateCause, worse
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import Ending, JobVerdict, Settlement, verdict_of
from leasekeeper.errors import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """Who gets an open browser. With `job_id`, that job, which was taken over before, continues in it.

    `incarnation` is unique for each transfer: a second call with the same one gets the result of the first.
    `begins_anew`: the job's task is called again from its start, instead of continuing where it waits.
    """

    worker_id: WorkerId
    incarnation: str
    purpose: Purpose = Purpose.MANUAL
    actor: str = ""
    note: str = ""
    job_id: JobId | None = None
    begins_anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAnswer:
    """A person's answer to a run that asks for one. `outcome` is one word. No two answers have the same `at`."""

    by: str
    note: str
    outcome: str
    at: datetime


def answered(lease: Lease, said: PersonAnswer) -> PersonAnswer:
    """The answer, if the run may get it: the first one counts. Raises Conflict if the run does not
    ask, or has an answer."""
    if lease.asks_person is None:
        raise Conflict(
            f"run {lease.run_id} does not ask for anybody, or not any more",
            cause=ConflictReason.LEASE_NOT_HELD,
            run_id=lease.run_id,
        )
    before = answer_of(lease)
    if before is not None:
        raise Conflict(
            f"{before.by} has answered run {lease.run_id} already: its task goes on with that",
            cause=ConflictReason.ANSWERED_ALREADY,
            run_id=lease.run_id,
        )
    return said


def kept_answer(said: PersonAnswer) -> Mapping[str, object]:
    """The answer in the form that a lease stores."""
    return {"by": said.by, "note": said.note, "outcome": said.outcome, "at": said.at.isoformat()}


def answer_of(lease: Lease) -> PersonAnswer | None:
    """The answer that a person gave to the run of this lease; None if there is none."""
    kept = lease.person_answer
    if kept is None:
        return None
    texts = {name: str(kept[name]) for name in ("by", "note", "outcome")}
    return PersonAnswer(**texts, at=datetime.fromisoformat(str(kept["at"])))


def request_is_over(lease: Lease, job: Job | None) -> bool:
    """Whether the end of a run closes the review by which it asked for a person. `job` is the run's job after that end:
    while it waits for a person, the review stays open."""
    return lease.asks_person is not None and (job is None or job.state is not JobState.REVIEW)


def transferred(lease: Lease, job: Job | None, ending: Ending) -> Settlement:
    """The settlement of a run whose browser passes to another run. Its job, if it has one, waits for a person now."""
    row = failure(ending.reason, ending.registered) if ending.reason is not None else None
    verdict = None
    if job is not None:
        done = may_have_been_done(lease)
        detail = f"{row.reason if row else RunResult.COMPLETED}: {ending.message}"
        verdict = JobVerdict(
            state=JobState.REVIEW, detail=f"{detail}; {done}: it may have been done" if done else detail
        )
    state, why = _verdict(ending)
    return Settlement(
        result=RunResult.COMPLETED if row is None else RunResult.FAILED,
        stop_reason=row.reason if row else None,
        belongs_to=row.belongs_to if row else None,
        job=verdict,
        profile=verdict_of(state, Cause.CLEAN_RELEASE, why),
    )


def _verdict(ending: Ending) -> tuple[ProfileState | None, Because]:
    if ending.facts.proxy_changed:
        why = Because("the proxy changed during the run", StateCause.PROXY_CHANGED)
        return ProfileState.QUARANTINED, why
    if not ending.facts.evidence_saved:
        why = Because("the run's evidence could not be saved", StateCause.EVIDENCE_NOT_SAVED)
        return ProfileState.REVIEW_REQUIRED, why
    return None, Because("its browser stayed open for the next run", StateCause.HANDED_OVER)


def lane_passed(facts: LaneFacts, settlement: Settlement, lease: Lease) -> Changes:
    """The changes of the lane under the new lease. A verdict against the profile takes effect when that lease ends."""
    lane, verdict = facts.lane, settlement.profile
    worst = worse(lane.verdict, verdict.state)
    changes = {"token": lease.token, **explained(granted_to(lease))}
    return changes if worst is lane.verdict else {**changes, **judged(worst, verdict.because)}


class NotResumed(StrEnum):
    """Why a job that was taken over cannot go on in its browser now."""

    NOT_WAITING = "not_waiting"
    PAUSED = "paused"
    PROFILE_LEAVES = "profile_leaves"
    MAY_BE_DONE_TWICE = "may_be_done_twice"


def why_not_resumed(facts: LaneFacts, job: Job, *, paused: bool, anew_after: Lease | None = None) -> NotResumed | None:
    """Why the job is not handed back: it does not wait for that, no job may run there, its profile leaves rotation when
    the lease ends, or its task would begin anew and might repeat a mutation. None: the job continues.

    `paused`: a person paused its pool or everything. `anew_after`: the lease that the person hands back, if the task
    begins anew.
    """
    lane = facts.lane
    if job.profile_id != lane.profile_id or job.state is not JobState.REVIEW or job.stop_reason != Reason.TAKEN_OVER:
        return NotResumed.NOT_WAITING
    if facts.account.paused or paused:
        return NotResumed.PAUSED
    if lane.drain is not None or lane.verdict is not None:
        return NotResumed.PROFILE_LEAVES
    if anew_after is not None and may_have_been_done(anew_after):
        return NotResumed.MAY_BE_DONE_TWICE
    return None


def resumed(job: Job, run_id: RunId) -> Job:
    """The job, running again under this run. It is the same attempt."""
    return evolve(job, state=JobState.RUNNING, run_id=run_id, detail="", stop_reason=None, version=job.version + 1)


def lease_after(
    facts: LaneFacts,
    before: Lease,
    to: TransferRequest,
    job: Job | None,
    *,
    run_id: RunId,
    timing: Timing,
    now: datetime,
) -> Lease:
    """The new lease: like the one before, but with another holder and the next token."""
    purpose = Purpose.INSPECT if before.purpose is Purpose.INSPECT else to.purpose
    lease = new_lease(
        facts,
        job=job,
        run_id=run_id,
        key=before.routing_key,
        worker_id=to.worker_id,
        incarnation=to.incarnation,
        machine=before.machine,
        pool=before.pool,
        mode=before.mode,
        purpose=purpose if job is None else Purpose.JOB,
        policy=before.release_policy,
        ttl=timedelta(milliseconds=before.ttl_ms),
        timing=timing,
        now=now,
    )
    return evolve(lease, **{name: getattr(before, name) for name in PROGRESS})
