"""What a person may decide, about what, in which state. Tables as data; the store checks the version and applies.

Every decision carries a note and the name of who decided: an unexplained decision is not accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from leasekeeper.core.ids import AccountId, JobId, ProfileId, ReviewId, RunId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import Changes, LaneFacts, moved
from leasekeeper.core.profiles import Cause, ProfileState
from leasekeeper.core.readiness import WAITS_FOR_PERSON
from leasekeeper.core.records import evolve
from leasekeeper.errors import IllegalTransition


class Target(StrEnum):
    PROFILE = "profile"
    JOB = "job"
    ACCOUNT = "account"
    LEASE = "lease"
    WEBHOOK = "webhook"
    TOKEN = "token"  # noqa: S105 - the name of a kind of record
    SCHEDULE = "schedule"


class Action(StrEnum):
    CLEAR = "clear"
    QUARANTINE = "quarantine"
    REVIEW = "review"
    DISABLE = "disable"
    ENABLE = "enable"
    APPROVE = "approve"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    RETRY = "retry"
    DROP = "drop"
    PAUSE = "pause"
    RESUME = "resume"
    REVOKE = "revoke"
    REPLAY = "replay"
    RUN = "run"


_P = ProfileState

PROFILE_ACTIONS: Final[Mapping[Action, Mapping[ProfileState, ProfileState]]] = {
    Action.CLEAR: {_P.REVIEW_REQUIRED: _P.AVAILABLE, _P.QUARANTINED: _P.AVAILABLE},
    Action.QUARANTINE: {_P.REVIEW_REQUIRED: _P.QUARANTINED},
    Action.REVIEW: {_P.QUARANTINED: _P.REVIEW_REQUIRED},
    Action.DISABLE: {
        _P.AVAILABLE: _P.DISABLED,
        _P.STALE: _P.DISABLED,
        _P.REVIEW_REQUIRED: _P.DISABLED,
        _P.QUARANTINED: _P.DISABLED,
    },
    Action.ENABLE: {_P.DISABLED: _P.AVAILABLE},
}

_J = JobState

JOB_ACTIONS: Final[Mapping[Action, frozenset[JobState]]] = {
    Action.APPROVE: frozenset({_J.SCHEDULED, _J.QUEUED, _J.BLOCKED}),
    Action.REQUEUE: frozenset({_J.REVIEW}),
    Action.CANCEL: frozenset({_J.SCHEDULED, _J.QUEUED, _J.BLOCKED, _J.REVIEW}),
    Action.RETRY: frozenset({_J.DEAD}),
    Action.DROP: frozenset({_J.DEAD}),
}

ACTIONS: Final[Mapping[Target, tuple[Action, ...]]] = {
    Target.PROFILE: tuple(PROFILE_ACTIONS),
    Target.JOB: tuple(JOB_ACTIONS),
    Target.ACCOUNT: (Action.PAUSE, Action.RESUME),
    Target.LEASE: (Action.REVOKE,),
    Target.WEBHOOK: (Action.REPLAY,),
    Target.TOKEN: (Action.REVOKE,),
    Target.SCHEDULE: (Action.PAUSE, Action.RESUME, Action.RUN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A person's word about one record. `version` is the one they looked at; None skips that check."""

    target: Target
    id: str
    action: Action
    note: str
    actor: str
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """An item in the human inbox: a profile or a job that waits for a person."""

    review_id: ReviewId
    target: Target
    account_id: AccountId
    profile_id: ProfileId
    job_id: JobId | None
    run_id: RunId | None
    reason: str
    summary: str
    opened_at: datetime
    decided_at: datetime | None = None
    decision: Action | None = None
    note: str = ""
    actor: str = ""


def profile_after(profile_id: str, state: ProfileState, action: Action, *, clean: bool) -> ProfileState:
    """Where the decision takes the profile, or IllegalTransition with what is allowed instead."""
    after = PROFILE_ACTIONS.get(action, {}).get(state)
    if after is None:
        allowed = [a.value for a, moves in PROFILE_ACTIONS.items() if state in moves]
        raise IllegalTransition(
            f"profile {profile_id} is {state}: cannot {action} it; "
            f"allowed now: {', '.join(allowed) or 'disable (drains)'}",
            profile_id=profile_id,
            state=state,
            allowed=tuple(allowed),
        )
    if action is Action.ENABLE and not clean:
        return ProfileState.REVIEW_REQUIRED
    return after


def check_job_action(job_id: str, state: JobState, action: Action) -> None:
    """Raise IllegalTransition unless a job in this state can be decided so."""
    if state in JOB_ACTIONS.get(action, frozenset()):
        return
    allowed = [a.value for a, states in JOB_ACTIONS.items() if state in states]
    hint = "wait for its run to end, or revoke its lease" if state is JobState.RUNNING else "nothing: it is over"
    raise IllegalTransition(
        f"job {job_id} is {state}: cannot {action} it; allowed now: {', '.join(allowed) or hint}",
        job_id=job_id,
        state=state,
        allowed=tuple(allowed),
    )


class ProfileDecided(NamedTuple):
    """What a decision makes of a lane. `drains`: it takes effect when the lease ends. `review`: what a person has to
    look at after it."""

    changes: Changes
    drains: bool = False
    review: str | None = None


def profile_decided(
    facts: LaneFacts, decision: Decision, now: datetime, *, about_empty_directory: bool
) -> ProfileDecided:
    """Decide about a profile, or raise IllegalTransition.

    `about_empty_directory`: what the person was asked is whether the profile's directory may be empty.
    """
    lane, action = facts.lane, decision.action
    takes_back = action is Action.ENABLE and lane.drain
    if lane.state is ProfileState.LEASED and (action is Action.DISABLE or takes_back):
        return ProfileDecided({"drain": not takes_back}, drains=True)
    after = profile_after(decision.id, lane.state, action, clean=lane.clean)
    if facts.unresolved and after is ProfileState.AVAILABLE:
        raise IllegalTransition(
            f"profile {decision.id}: a lease of it ended without an explanation and is not resolved yet; "
            "the next sweep does it, then decide"
        )
    reason = f"{action} by {decision.actor}: {decision.note}"
    changes = {
        **moved(lane, after, Cause.DECIDED, reason, now),
        "clean": lane.clean or after is ProfileState.AVAILABLE,
        "drain": False,
        "verdict": None,
        "verdict_reason": "",
    }
    if action is Action.CLEAR and about_empty_directory:
        changes["engine"] = None  # a person vouches for the directory that is there, and for its empty session
    return ProfileDecided(changes, review=reason if after in WAITS_FOR_PERSON else None)


def job_decided(job: Job, decision: Decision, now: datetime) -> Job:
    """The job as a decision leaves it, before it is placed again (see `placed_again`)."""
    match decision.action:
        case Action.DROP:
            return evolve(job, dropped=True)
        case Action.CANCEL:
            return evolve(job, state=JobState.CANCELLED, finished_at=now, blocked_reason=None, detail=decision.note)
        case Action.APPROVE:
            return evolve(job, approved=True)
        case _:
            return evolve(
                job, run_at=None, finished_at=None, stop_reason=None, dropped=False, approved=True, given_back=0
            )


def placed_again(job: Job, action: Action) -> bool:
    """Whether a job in this state finds its place anew after the decision."""
    return action in (Action.REQUEUE, Action.RETRY) or (action is Action.APPROVE and job.state is JobState.BLOCKED)
