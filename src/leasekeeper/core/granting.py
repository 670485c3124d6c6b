"""Granting: whether a job or a person may have a profile now, and the lease that they get.

Pure. The store locks and reads before, and writes the grants; what is granted is decided here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from leasekeeper.core.homes import is_away
from leasekeeper.core.ids import RunId, Token, WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import Changes, LaneFacts, draining, gate, key_of, moved
from leasekeeper.core.leases import BY_PERSON, Lease, Mode, Purpose, Timing, lease_id_of
from leasekeeper.core.profiles import (
    INSPECTABLE,
    Because,
    Cause,
    Lane,
    ProfileState,
    ReleasePolicy,
    StateCause,
    because,
    stricter,
)
from leasekeeper.core.readiness import BLOCKED_BY_STATE, Block, Blocked, can_share, job_gate
from leasekeeper.core.records import changer, evolve
from leasekeeper.core.resolving import waits_until
from leasekeeper.core.routing import is_taken

_MILLISECOND: Final = timedelta(milliseconds=1)
_started = changer(Job, "state", "attempt", "run_id", "detail", "version")


class HeadVerdict(NamedTuple):
    """What becomes of the job at the head of a lane: exactly one of these is set.

    `block`: the job itself is not ready and leaves the lane. `lane_blocked_by`: the lane is not ready. `waits_on`: the
    key of their account, which another lane has. `key`: the job is granted, under this key.
    """

    block: Block | None = None
    lane_blocked_by: Blocked | None = None
    waits_on: str | None = None
    key: str | None = None


def judge_head(facts: LaneFacts, job: Job, held: Mapping[str, int]) -> HeadVerdict:
    """Whether the head of a lane may run now. `held`: how many leases each account key has."""
    block = job_gate(job, facts.profile, facts.proxy, task_known=True)
    if block is not None:
        return HeadVerdict(block=block)
    reason = gate(facts, shared=job.shared)
    if reason is not None:
        return HeadVerdict(lane_blocked_by=reason)
    key = key_of(facts, task=job.task, shared=job.shared)
    return HeadVerdict(waits_on=key) if is_taken(key, held) else HeadVerdict(key=key)


def direct_gate(
    facts: LaneFacts,
    *,
    shared: bool,
    purpose: Purpose,
    key: str,
    held: Mapping[str, int],
    machine: str | None = None,
    resumed: bool = False,
) -> Blocked | None:
    """Why a direct lease (one without a job) of the profile is impossible now; None if it is possible. The pool's limit
    is not checked here.

    A person may lease a profile of a paused account, and with `inspect` also one that is out of rotation: but only once
    the endings of all earlier leases are explained. `resumed`: the account's pause is over, though no sweep has resumed
    it yet.
    """
    lane = facts.lane
    if purpose is Purpose.INSPECT and lane.state in INSPECTABLE:
        closed = BLOCKED_BY_STATE[lane.state] if facts.open else None
    else:
        closed = gate(facts, shared=shared, even_paused=resumed or purpose in BY_PERSON)
    if closed is not None:
        return closed
    if is_taken(key, held):
        return Blocked.PROFILE_LEASE
    if facts.live and lane.head_job_id and not can_share(facts.profile, shared=lane.head_shared):
        return Blocked.PROFILE_LEASE  # a job waits for these sharers to end: nobody joins them any more
    return Blocked.HOME if is_away(lane.home, machine, saved=lane.saved) else None


def engine_gate(lane: Lane, engine: int | None) -> Blocked | None:
    """Block a browser that is older than the one which opened the profile last: it would damage the profile. `engine`
    None: the version is unknown, and nothing is blocked."""
    older = engine is not None and lane.engine is not None and lane.engine > engine
    return Blocked.ENVIRONMENT_MISMATCH if older else None


def direct_refusal(
    gate: Blocked | None,
    lane: Lane,
    *,
    purpose: Purpose,
    paused: bool,
    engine: int | None,
    full: Callable[[], bool],
) -> Blocked | None:
    """Why a direct lease is refused; None if it is granted. The first reason counts: the profile (`gate`), a pause, a
    browser that is too old, the pool's limit.

    A pause stops programs but not people, so that they can check. `full` (has the pool reached its limit?) is called
    last, and only if nothing else is in the way: all other grants of the pool wait for it.
    """
    if gate is not None:
        return gate
    if paused and purpose not in BY_PERSON:
        return Blocked.PAUSE
    if (older := engine_gate(lane, engine)) is not None:
        return older
    return Blocked.CAPACITY if full() else None


def may_follow(
    lane: Lane,
    *,
    tasks: Collection[str],
    pool: str,
    machine: str | None,
    isolated: bool,
    paused: bool,
    elsewhere: Iterable[int],
) -> bool:
    """Whether a lane's next job may continue in the browser that is open in its profile, with a worker that offers
    these tasks in this pool on this machine.

    `isolated`: the job works in a copy, not in the profile itself. `elsewhere`: the priorities of jobs that wait for
    this worker, or for the account's key: a more urgent one goes first.
    """
    offered = lane.head_task in tasks and lane.head_pool == pool and not is_away(lane.home, machine, saved=lane.saved)
    alone = not lane.head_shared and not isolated
    return offered and alone and not paused and all(priority <= lane.head_priority for priority in elsewhere)


def purpose_of_visit(state: ProfileState, *, paused: bool) -> Purpose:
    """The purpose of a person's lease: INSPECT for a profile that no job may get, else MANUAL."""
    return Purpose.INSPECT if paused or state in INSPECTABLE else Purpose.MANUAL


def leased(lane: Lane, lease: Lease, now: datetime) -> Changes:
    """The changes of the lane under its new lease. A profile that was out of rotation returns to
    its state at the end."""
    why = granted_to(lease)
    if lease.purpose is not Purpose.INSPECT or lane.state not in INSPECTABLE:
        return {"token": lease.token, **moved(lane, ProfileState.LEASED, Cause.GRANTED, why, now)}
    return {
        "token": lease.token,
        **draining(lane.state, because(lane)),
        **moved(lane, ProfileState.LEASED, Cause.INSPECTED, why, now),
    }


def granted_to(lease: Lease) -> Because:
    """Why a profile is leased."""
    return Because(f"run {lease.run_id} by {lease.worker_id}", StateCause.GRANTED)


def changes_at(facts: LaneFacts) -> datetime | None:
    """When a taken profile changes without its holder: a lease expires unless renewed, or a lost one may be resolved.
    None: it has no such lease."""
    if facts.live:
        return min(lease.expires_at for lease in facts.live)
    lost = [lease for lease in facts.open if lease.unresolved]
    return min((waits_until(lease) or lease.ended_at or lease.expires_at for lease in lost), default=None)


def blocked_job(job: Job, block: Block, detail: str) -> Job:
    """The job, blocked by a fact of its own: it waits outside of its lane until that changes.
    `detail` is the fact as text."""
    return evolve(job, state=JobState.BLOCKED, blocked_reason=block.reason, detail=detail, version=job.version + 1)


def started(job: Job, run_id: RunId) -> Job:
    """The job, running under this run, with its attempt counted."""
    return _started(
        job, state=JobState.RUNNING, attempt=job.attempt + 1, run_id=run_id, detail="", version=job.version + 1
    )


def lease_for_job(
    facts: LaneFacts,
    job: Job,
    *,
    run_id: RunId,
    key: str,
    worker_id: WorkerId,
    incarnation: str,
    machine: str | None,
    timing: Timing,
    now: datetime,
) -> Lease:
    """The lease of a run of this job."""
    return new_lease(
        facts,
        job=job,
        run_id=run_id,
        key=key,
        worker_id=worker_id,
        incarnation=incarnation,
        machine=machine,
        pool=job.pool,
        mode=job.mode,
        purpose=Purpose.JOB,
        policy=ReleasePolicy(job.release_policy) if job.release_policy else None,
        ttl=timedelta(seconds=job.lock_timeout_seconds) if job.lock_timeout_seconds else None,
        timing=timing,
        now=now,
    )


def new_lease(
    facts: LaneFacts,
    *,
    job: Job | None,
    run_id: RunId,
    key: str,
    worker_id: WorkerId,
    incarnation: str,
    machine: str | None,
    pool: str,
    mode: Mode,
    purpose: Purpose,
    policy: ReleasePolicy | None,
    ttl: timedelta | None,
    timing: Timing,
    now: datetime,
) -> Lease:
    """A lease with the profile's next token. `policy` can only make the profile's release policy stricter, also if that
    was tightened after the job was submitted."""
    if ttl is not None:
        timing = timing.scaled(ttl)
    token = Token(facts.lane.token + 1)
    return Lease(
        lease_id=lease_id_of(facts.lane.profile_id, token),
        profile_id=facts.lane.profile_id,
        account_id=facts.lane.account_id,
        job_id=job.job_id if job else None,
        run_id=run_id,
        worker_id=worker_id,
        incarnation=incarnation,
        machine=machine,
        proxy_id=facts.profile.proxy_id,
        pool=pool,
        routing_key=key,
        mode=mode,
        token=token,
        acquired_at=now,
        heartbeat_at=now,
        expires_at=now + timing.ttl,
        ttl_ms=timing.ttl // _MILLISECOND,
        lock_delay_ms=timing.lock_delay // _MILLISECOND,
        renew_ms=timing.renew_every // _MILLISECOND,
        release_policy=stricter(facts.profile.release_policy, policy),
        purpose=purpose,
        priority=job.priority if job else None,
        task=job.task if job else None,
    )


def expected_environment(job: Job | None) -> dict[str, str]:
    """The environment that the job expects, as the run's record stores it."""
    if job is None:
        return {}
    wanted = {
        "proxy_region": job.expected_proxy_region,
        "language": job.expected_language,
        "timezone": job.expected_timezone,
    }
    return {name: value for name, value in wanted.items() if value is not None}
