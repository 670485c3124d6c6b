"""The rules of a lane: what blocks it, which job is at its head, and what an ending makes of its profile.

Pure. A store reads `LaneFacts` at one moment (under a lock, or at one revision), calls these functions, and writes the
changes that they return, in order: each function must see the lane with the earlier changes applied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from leasekeeper.core.accounts import Account, BanStatus, Proxy
from leasekeeper.core.homes import reserved_for
from leasekeeper.core.ids import JobId, Token
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, LeaseStatus, silence, silent_seconds
from leasekeeper.core.profiles import (
    Because,
    Cause,
    Lane,
    Profile,
    ProfileState,
    StateCause,
    check_transition,
    settle_state,
    worse,
)
from leasekeeper.core.readiness import WAITS_FOR_PERSON, Blocked, can_share, lane_gate
from leasekeeper.core.resolving import unexplained
from leasekeeper.core.routing import routing_key
from leasekeeper.core.settle import ProfileVerdict

Changes = Mapping[str, object]
NOTHING: Final[Changes] = {}

# What decisions of people are based on: a change of one of these gives the lane a new version. Jobs that come and go
# change none of them.
DECIDED_ON: Final = ("state", "state_reason", "state_at", "clean", "drain", "verdict", "ban_status", "home", "snapshot")

# Clears verdict and drain: no new state waits for the end of a lease any more.
NOWHERE: Final[Changes] = {
    "verdict": None,
    "verdict_reason": "",
    "verdict_cause": None,
    "verdict_data": {},
    "drain": None,
    "drain_reason": "",
    "drain_cause": None,
    "drain_data": {},
}

_TRIGGERED: Final = {
    ProfileState.QUARANTINED: Cause.QUARANTINE_TRIGGER,
    ProfileState.REVIEW_REQUIRED: Cause.NEEDS_PERSON,
}


@dataclass(slots=True)
class LaneFacts:
    """One profile with everything that decisions about it depend on. `open` are its leases that are live or unresolved,
    oldest first. `profile_store` is the fleet's."""

    lane: Lane
    profile: Profile
    account: Account
    proxy: Proxy | None
    open: list[Lease]
    profile_store: str | None = field(default=None, kw_only=True)

    @property
    def live(self) -> list[Lease]:
        return [lease for lease in self.open if lease.ended_at is None]

    @property
    def unresolved(self) -> int:
        return sum(1 for lease in self.open if lease.unresolved)


class Head(NamedTuple):
    """What a lane stores of the job at its head."""

    job_id: JobId
    pool: str
    task: str
    priority: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredLane:
    """What is kept of a profile after it was removed."""

    token: Token
    state: ProfileState
    state_reason: str
    state_cause: StateCause | None
    state_data: Mapping[str, object]
    clean: bool
    engine: int | None
    ban_status: BanStatus
    home: str
    snapshot: Token | None
    saved: bool
    unsaved_reason: str
    revision: int


class Ended(NamedTuple):
    """The changes of a lane after an ending. `review`: why a person has to check the profile; None if nobody has to."""

    changes: Changes
    review: str | None = None


def key_of(facts: LaneFacts, *, task: str | None, shared: bool) -> str:
    """The routing key that a run of this task must hold."""
    return routing_key(
        facts.account.routing,
        account_id=facts.account.account_id,
        profile_id=facts.profile.profile_id,
        task=task,
        shared=shared,
    )


def gate(facts: LaneFacts, *, shared: bool, even_paused: bool = False) -> Blocked | None:
    """Why a run of this mode cannot have the profile now; None if it can. `even_paused` ignores the account's pause and
    the proxy's trouble: a person may use the profile then, and find out what is wrong."""
    lane, live = facts.lane, facts.live if facts.open else []
    return lane_gate(
        state=lane.state,
        paused=facts.account.paused and not even_paused,
        proxy=None if even_paused else facts.proxy,
        profile=facts.profile,
        live=len(live),
        live_exclusive=len([1 for lease in live if not can_share(facts.profile, shared=lease.shared)]) if live else 0,
        head_shared=shared,
        ending=bool(lane.verdict or lane.drain or (facts.open and facts.unresolved)),
    )


def refreshed(facts: LaneFacts, now: datetime) -> Changes:
    """The changes after what blocks the lane was computed again. A lane that becomes ready starts to wait now."""
    lane = facts.lane
    reason = gate(facts, shared=lane.head_shared)
    waits_on = None if reason is not None else lane.waits_on
    blocked_by = reason or (Blocked.PROFILE_LEASE if waits_on else None)
    if blocked_by == lane.blocked_by and waits_on == lane.waits_on:
        return NOTHING
    return {
        "blocked_by": blocked_by,
        "waits_on": waits_on,
        "waiting_at": now if blocked_by is None else lane.waiting_at,
    }


def parked(key: str) -> Changes:
    """The lane waits for an account's key that other leases hold."""
    return {"blocked_by": Blocked.PROFILE_LEASE, "waits_on": key}


def unparked(lane: Lane) -> Changes:
    """Unblock a lane that waits for an account's key, to check it again. It keeps its place: it has
    waited all along."""
    return NOTHING if lane.waits_on is None else {"waits_on": None, "blocked_by": None}


def offered(lane: Lane, job: Job, now: datetime) -> Changes:
    """A job enters the lane: it is the head if the lane was empty, or if it is more urgent than the head."""
    if lane.head_job_id is None or job.priority > lane.head_priority:
        return _with_head(lane, job, now if lane.head_job_id is None else lane.waiting_at)
    return NOTHING


def may_be_older_than_head(lane: Lane, job: Job) -> bool:
    """Whether a job that comes back into the lane may belong before its head: then the store reads
    the first jobs again."""
    return bool(job.seq) and job.priority == lane.head_priority and job.job_id != lane.head_job_id


def next_head(lane: Lane, heads: Iterable[Head], gone: JobId | None, waiting_at: datetime) -> Changes:
    """The head left the lane: the next of `heads` (the first two of the lane) takes its place.

    `waiting_at` is when the lane started to wait: now if the head was granted, unchanged if it was blocked or
    cancelled.
    """
    following = next((head for head in heads if head.job_id != gone), None)
    if following is not None:
        return _with_head(lane, following, waiting_at)
    return {"head_job_id": None, "head_pool": None, "head_task": None, "head_priority": 0, "head_shared": False}


def _with_head(lane: Lane, job: Job | Head, waiting_at: datetime) -> Changes:
    return {
        **unparked(lane),
        "head_job_id": job.job_id,
        "head_pool": job.pool,
        "head_task": job.task,
        "head_priority": job.priority,
        "head_shared": job.shared,
        "waiting_at": waiting_at,
    }


def explained(why: Because) -> Changes:
    """Why the profile is in its state."""
    return {"state_reason": why.reason, "state_cause": why.cause, "state_data": why.data}


def moved(lane: Lane, state: ProfileState, cause: Cause, why: Because, now: datetime) -> Changes:
    """The changes that give the profile this state. Raises IllegalTransition unless the table of
    transitions allows it."""
    if state is lane.state:
        return NOTHING
    check_transition(lane.profile_id, lane.state, state, cause)
    return {"state": state, **explained(why), "state_at": now}


def judged(state: ProfileState | None, why: Because) -> Changes:
    """The changes that set where the profile goes when its last sharer ends, by what one of them found."""
    return {"verdict": state, "verdict_reason": why.reason, "verdict_cause": why.cause, "verdict_data": why.data}


def draining(state: ProfileState | None, why: Because) -> Changes:
    """The changes that set where a person sends the profile when its last lease ends."""
    return {"drain": state, "drain_reason": why.reason, "drain_cause": why.cause, "drain_data": why.data}


def profile_ended(facts: LaneFacts, verdict: ProfileVerdict, now: datetime) -> Ended:
    """Apply a verdict to the profile: at once, or when the last sharer ends. The caller has taken the ended lease out
    of `facts.open`, unless it is unresolved."""
    lane = facts.lane
    if lane.state not in (ProfileState.LEASED, ProfileState.STALE):
        return Ended(NOTHING)
    worst, worst_because = lane.verdict, Because(lane.verdict_reason, lane.verdict_cause, lane.verdict_data)
    changes: dict[str, object] = {}
    if (after_all := worse(worst, verdict.state)) is not worst:
        worst, worst_because = after_all, verdict.because
        changes = {**judged(worst, worst_because)}
    after = settle_state(live=len(facts.live), unresolved=facts.unresolved, verdict=worst, drain=lane.drain)
    if after is ProfileState.LEASED or after is lane.state:
        return Ended(changes)
    drained = Because(lane.drain_reason, lane.drain_cause, lane.drain_data)
    why = worst_because if worst_because.reason else drained if drained.reason else verdict.because
    if after is ProfileState.STALE:
        lost = next(lease for lease in facts.open if lease.unresolved)
        why = verdict.because if verdict.unresolved else lease_over(lost, now)
    cause = cause_of(lane.state, after, verdict.cause, drained=after is lane.drain and after is not worst)
    changes |= moved(lane, after, cause, why, now)
    if after is ProfileState.STALE:
        changes["clean"] = False
    elif worst is not None or lane.drain or not lane.clean:
        changes |= {**NOWHERE, "clean": worst is None}
    return Ended(changes, why.reason if after in WAITS_FOR_PERSON else None)


def opened_by(lane: Lane, engine: int | None) -> Changes:
    """Record the browser version that had the profile open (None: no browser had): no older browser
    may open it any more."""
    return NOTHING if engine is None or engine <= (lane.engine or 0) else {"engine": engine}


def cause_of(before: ProfileState, after: ProfileState, cause: Cause, *, drained: bool = False) -> Cause:
    """The cause under which the table of transitions has this move. If several sharers end one after another, the
    verdict's own `cause` may not be the right one.

    `drained`: a person sends the profile there, not an ending.
    """
    if after is ProfileState.DISABLED or (drained and before is ProfileState.LEASED):
        return Cause.DRAINED
    if before is ProfileState.STALE:
        return Cause.RESOLVED
    if after is ProfileState.STALE:
        return cause if cause in (Cause.EXPIRED, Cause.NOT_PROVEN_CLOSED) else Cause.EXPIRED
    if after is ProfileState.AVAILABLE:
        return Cause.CLEAN_RELEASE
    if after is ProfileState.REVIEW_REQUIRED and cause is Cause.EVIDENCE_NOT_SAVED:
        return cause
    return _TRIGGERED[after]


def lease_over(ended: Lease, now: datetime) -> Because:
    """Why the profile of this ended lease is stale."""
    if ended.status is LeaseStatus.RELEASED:
        return Because(unexplained(ended), StateCause.NOT_PROVEN_CLOSED)
    cause = StateCause.LEASE_REVOKED if ended.status is LeaseStatus.REVOKED else StateCause.LEASE_EXPIRED
    data = {"silent_seconds": silent_seconds(ended, now)}
    return Because(f"lease {ended.status}: {silence(ended, now)}", cause, data)


def profile_expired(facts: LaneFacts, why: Because, now: datetime) -> Changes:
    """A lease ended without an explanation, and is marked so in `facts.open`: the profile becomes stale once nobody
    shares it."""
    if facts.lane.state is not ProfileState.LEASED or facts.live:
        return NOTHING
    return {**moved(facts.lane, ProfileState.STALE, Cause.EXPIRED, why, now), "clean": False}


def new_lane(profile: Profile, before: RetiredLane | None, now: datetime) -> Lane:
    """The lane of a profile that was added. `before` is what was kept of it if it was removed earlier: tokens and
    revisions never repeat, a profile that waited for a person still does, and no older browser opens it."""
    again = before is not None and before.state is not ProfileState.AVAILABLE
    return Lane(
        profile_id=profile.profile_id,
        account_id=profile.account_id,
        state_at=now,
        waiting_at=now,
        token=before.token if before else Token(0),
        engine=before.engine if before else None,
        tier=profile.tier,
        ban_status=before.ban_status if before else BanStatus.NONE,
        home=before.home if before else "",
        reserved_for=reserved_for(before.home, saved=before.saved) if before else "",
        snapshot=before.snapshot if before else None,
        saved=before.saved if before else False,
        unsaved_reason=before.unsaved_reason if before else "",
        state=before.state if before and again else ProfileState.AVAILABLE,
        state_reason=before.state_reason if before and again else "added to the fleet",
        state_cause=before.state_cause if before and again else StateCause.ADDED,
        state_data=before.state_data if before and again else {},
        clean=before.clean if before and again else True,
        revision=before.revision + 1 if before else 0,
    )
