"""What a person may decide, about what, in which state. Tables as data; the store checks the version and applies.

Every decision carries a note and the name of who decided: an unexplained decision is not accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, JobId, ProfileId, ReviewId, RunId
from leasekeeper.core.jobs import JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import IllegalTransition


class Target(StrEnum):
    PROFILE = "profile"
    JOB = "job"
    ACCOUNT = "account"
    LEASE = "lease"
    WEBHOOK = "webhook"


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
            f"allowed now: {', '.join(allowed) or 'disable (drains)'}"
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
    raise IllegalTransition(f"job {job_id} is {state}: cannot {action} it; allowed now: {', '.join(allowed) or hint}")
