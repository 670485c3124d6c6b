"""Decisions of people: which actions a record allows, in which state, and what follows from each.

Tables as data; the store checks the version and applies the result. Every decision carries a note and the name of who
decided: an unexplained decision is not accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from leasekeeper.core.accounts import Account, BanStatus, with_ban
from leasekeeper.core.homes import reserved_for
from leasekeeper.core.ids import AccountId, JobId, ProfileId, ProxyId, ReviewId, RunId, is_id, is_number
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import NOTHING, NOWHERE, Changes, LaneFacts, draining, explained, moved
from leasekeeper.core.profiles import Because, Cause, Lane, ProfileState, StateCause
from leasekeeper.core.readiness import WAITS_FOR_PERSON
from leasekeeper.core.records import evolve
from leasekeeper.errors import IllegalTransition, Problem


class Target(StrEnum):
    PROFILE = "profile"
    JOB = "job"
    ACCOUNT = "account"
    LEASE = "lease"
    WEBHOOK = "webhook"
    TOKEN = "token"  # noqa: S105 - the name of a kind of record
    SCHEDULE = "schedule"
    ENDPOINT = "endpoint"
    PROXY = "proxy"
    PAUSE = "pause"


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
    PRIORITIZE = "prioritize"
    PAUSE = "pause"
    RESUME = "resume"
    REVOKE = "revoke"
    REPLAY = "replay"
    RUN = "run"
    PING = "ping"
    REMOVE = "remove"
    BAN = "ban"
    SUSPECT = "suspect"
    UNBAN = "unban"
    MOVE = "move"
    RESTORE = "restore"
    NOTE = "note"
    ANSWER = "answer"


MAX_PRIORITY: Final = 1_000
MAX_OUTCOME: Final = 128

_P = ProfileState

PROFILE_ACTIONS: Final[Mapping[Action, Mapping[ProfileState, ProfileState]]] = {
    Action.CLEAR: {_P.REVIEW_REQUIRED: _P.AVAILABLE, _P.QUARANTINED: _P.AVAILABLE},
    Action.QUARANTINE: {
        _P.AVAILABLE: _P.QUARANTINED,
        _P.STALE: _P.QUARANTINED,
        _P.REVIEW_REQUIRED: _P.QUARANTINED,
    },
    Action.REVIEW: {
        _P.AVAILABLE: _P.REVIEW_REQUIRED,
        _P.STALE: _P.REVIEW_REQUIRED,
        _P.QUARANTINED: _P.REVIEW_REQUIRED,
    },
    Action.DISABLE: {
        _P.AVAILABLE: _P.DISABLED,
        _P.STALE: _P.DISABLED,
        _P.REVIEW_REQUIRED: _P.DISABLED,
        _P.QUARANTINED: _P.DISABLED,
    },
    Action.ENABLE: {_P.DISABLED: _P.AVAILABLE},
}

# A restored profile goes back into rotation, but one that is disabled stays so, and a stale one is resolved first.
RESTORED: Final[Mapping[ProfileState, ProfileState]] = {
    _P.AVAILABLE: _P.AVAILABLE,
    _P.REVIEW_REQUIRED: _P.AVAILABLE,
    _P.QUARANTINED: _P.AVAILABLE,
    _P.STALE: _P.STALE,
    _P.DISABLED: _P.DISABLED,
}

# Decisions about a ban, of an account or of one profile. They do not change the profile's state.
BAN_ACTIONS: Final[Mapping[Action, BanStatus]] = {
    Action.BAN: BanStatus.BANNED,
    Action.SUSPECT: BanStatus.SUSPECTED,
    Action.UNBAN: BanStatus.NONE,
}

_J = JobState

JOB_ACTIONS: Final[Mapping[Action, frozenset[JobState]]] = {
    Action.APPROVE: frozenset({_J.SCHEDULED, _J.QUEUED, _J.BLOCKED}),
    Action.REQUEUE: frozenset({_J.REVIEW}),
    Action.CANCEL: frozenset({_J.SCHEDULED, _J.QUEUED, _J.BLOCKED, _J.REVIEW}),
    Action.RETRY: frozenset({_J.DEAD}),
    Action.DROP: frozenset({_J.DEAD}),
    Action.PRIORITIZE: frozenset({_J.SCHEDULED, _J.QUEUED, _J.BLOCKED, _J.REVIEW}),
}

ACTIONS: Final[Mapping[Target, tuple[Action, ...]]] = {
    Target.PROFILE: (*PROFILE_ACTIONS, *BAN_ACTIONS, Action.MOVE, Action.RESTORE, Action.NOTE),
    Target.JOB: tuple(JOB_ACTIONS),
    Target.ACCOUNT: (Action.PAUSE, Action.RESUME, *BAN_ACTIONS, Action.NOTE),
    Target.LEASE: (Action.REVOKE, Action.ANSWER),
    Target.WEBHOOK: (Action.REPLAY,),
    Target.TOKEN: (Action.REVOKE,),
    Target.SCHEDULE: (Action.PAUSE, Action.RESUME, Action.RUN),
    Target.ENDPOINT: (Action.ENABLE, Action.DISABLE, Action.PING, Action.REMOVE),
    Target.PROXY: (Action.RETRY,),
    Target.PAUSE: (Action.PAUSE, Action.RESUME),
}

# Decisions that leave an open review of the record open. Every other decision about a profile or a job answers it.
LEAVES_REVIEW: Final = frozenset({*BAN_ACTIONS, Action.MOVE, Action.NOTE, Action.DROP, Action.PRIORITIZE})

# Decisions about an account that leave its pause alone. Every other decision drops the time at which a pause ends: an
# account that was banned meanwhile must not resume by itself.
LEAVES_PAUSE: Final = frozenset({Action.SUSPECT, Action.UNBAN, Action.NOTE})

# Decisions that are allowed about a job whose profile was removed.
NEEDS_NO_PROFILE: Final = frozenset({Action.DROP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A person's decision about one record. `version` is the one that the person saw; None skips that check.

    `until`: when a pause ends by itself, by the store's clock. `to` depends on the action. Move: the machine that has
    the profile's directory now. Prioritize: the job's new priority, as text. Restore: the token of the snapshot to go
    back to, as text, or None for the last one that is known to be good. Answer: the outcome, one word.
    """

    target: Target
    id: str
    action: Action
    note: str
    actor: str
    version: int | None = None
    until: datetime | None = None
    to: str | None = None


class ReviewReason(StrEnum):
    """Why a review is open, where it is neither the reason of an ending (`failures.Reason`, or a project's own) nor a
    person's decision."""

    APPROVAL = "approval"
    PROFILE_LOCK_CONFLICT = "profile_lock_conflict"
    LEASE_FORGOTTEN = "lease_forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """An item in the human inbox: a profile, a job or a proxy that waits for a person.

    A review of a proxy names the first of the proxy's profiles, and closes by itself when the proxy works again.
    """

    review_id: ReviewId
    target: Target
    account_id: AccountId
    profile_id: ProfileId
    job_id: JobId | None
    run_id: RunId | None
    reason: str
    summary: str
    opened_at: datetime
    proxy_id: ProxyId | None = None
    decided_at: datetime | None = None
    decision: Action | None = None
    note: str = ""
    actor: str = ""


def problems_of(decision: Decision) -> list[Problem]:
    """Every fault of a decision: no note, no actor, an action that its kind of record does not have, a wrong `to`."""
    problems = [
        Problem(name, "must not be empty: a decision is kept with who made it and why")
        for name, value in (("note", decision.note), ("actor", decision.actor))
        if not value.strip()
    ]
    allowed = ACTIONS[decision.target]
    if decision.action not in allowed:
        has = ", ".join(action.value for action in allowed)
        problems.append(Problem("action", f"a {decision.target} has no {decision.action}; it has: {has}"))
    if (fault := _fault_of_to(decision.action, decision.to)) is not None:
        problems.append(Problem("to", fault))
    return problems


def _fault_of_to(action: Action, to: str | None) -> str | None:
    """What is wrong with `to` for this action; None if nothing is."""
    match action:
        case Action.MOVE if not (to and is_id(to)):
            return "must be the name of the machine that has the profile's directory now"
        case Action.PRIORITIZE if not is_priority(to):
            return f"must be the new priority, from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        case Action.RESTORE if to and not is_number(to):
            return "must be the token of a snapshot"
        case Action.ANSWER if len(to or "") > MAX_OUTCOME:
            return f"must be the outcome, a word of at most {MAX_OUTCOME} characters"
        case _:
            return None


def profile_after(profile_id: str, state: ProfileState, action: Action, *, clean: bool) -> ProfileState:
    """The profile's state after the action. Raises IllegalTransition, with the actions that are allowed instead."""
    after = PROFILE_ACTIONS.get(action, {}).get(state)
    if after is None:
        allowed = [a.value for a, moves in PROFILE_ACTIONS.items() if state in moves]
        raise IllegalTransition(
            f"profile {profile_id} is {state}: cannot {action} it; allowed now: {', '.join(allowed)}",
            profile_id=profile_id,
            state=state,
            allowed=tuple(allowed),
        )
    if action is Action.ENABLE and not clean:
        return ProfileState.REVIEW_REQUIRED
    return after


def check_job_action(job_id: str, state: JobState, action: Action) -> None:
    """Raise IllegalTransition unless the action is allowed for a job in this state."""
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


def check_profile_of_job(job: Job, action: Action, *, declared: bool) -> None:
    """Raise IllegalTransition if the job's profile was removed and the decision would need it."""
    if declared or action in NEEDS_NO_PROFILE:
        return
    allowed = [a.value for a, states in JOB_ACTIONS.items() if a in NEEDS_NO_PROFILE and job.state in states]
    raise IllegalTransition(
        f"profile {job.profile_id} of job {job.job_id} was removed: declare it again first"
        f"{f', or {allowed[0]} the job' if allowed else ''}",
        job_id=job.job_id,
        profile_id=job.profile_id,
        state=job.state,
        allowed=tuple(allowed),
    )


class ProfileDecided(NamedTuple):
    """What a decision makes of a lane. `drains`: it takes effect when the lease ends. `review`: why a person has to
    check the profile after it; None if nobody has to."""

    changes: Changes
    drains: bool = False
    review: str | None = None


def profile_decided(
    facts: LaneFacts,
    decision: Decision,
    now: datetime,
    *,
    about_empty_directory: bool,
    cause: StateCause = StateCause.DECIDED,
    data: Mapping[str, object] | None = None,
) -> ProfileDecided:
    """Decide about a profile: the changes of its lane. Raises IllegalTransition if its state does not allow the action.

    `about_empty_directory`: the person was asked whether the profile's directory may be empty. `cause` and `data` say
    what led to the decision, if it was not a person.
    """
    lane, action = facts.lane, decision.action
    if action in BAN_ACTIONS:
        return ProfileDecided({"ban_status": BAN_ACTIONS[action]})
    if action is Action.MOVE:
        return ProfileDecided(_moved_home(facts, decision))
    said = {"action": action.value, "actor": decision.actor}
    why = Because(f"{action} by {decision.actor}: {decision.note}", cause, said if data is None else data)
    if action is Action.RESTORE:
        return _decided_to_restore(facts, decision, why, now)
    if lane.state is ProfileState.LEASED:
        return ProfileDecided(_drained(lane, decision, why), drains=True)
    after = profile_after(decision.id, lane.state, action, clean=lane.clean)
    if facts.unresolved and after is ProfileState.AVAILABLE:
        raise _unresolved(decision)
    changes = {
        **moved(lane, after, Cause.DECIDED, why, now),
        **NOWHERE,
        "clean": lane.clean or after is ProfileState.AVAILABLE,
    }
    if action is Action.CLEAR and about_empty_directory:
        changes["engine"] = None  # a person vouches for the directory that is there, and for its empty session
    return ProfileDecided(changes, review=why.reason if after in WAITS_FOR_PERSON else None)


def _unresolved(decision: Decision) -> IllegalTransition:
    return IllegalTransition(
        f"profile {decision.id}: a lease of it ended without an explanation and is not resolved yet; "
        "the next sweep resolves it, decide after that"
    )


def _decided_to_restore(facts: LaneFacts, decision: Decision, why: Because, now: datetime) -> ProfileDecided:
    """The changes of a lane whose profile goes back to a snapshot. `core.homes` says which directory is the newest."""
    lane = facts.lane
    if facts.live or lane.state is ProfileState.LEASED:
        raise IllegalTransition(
            f"profile {decision.id} is leased: its directory is in use. Restore it when its lease has ended, or revoke "
            "the lease first",
            profile_id=decision.id,
            state=lane.state,
        )
    after = RESTORED[lane.state]
    if after is ProfileState.STALE:
        return ProfileDecided(NOTHING)
    if facts.unresolved and after is ProfileState.AVAILABLE:
        raise _unresolved(decision)
    changes = {**explained(why), **moved(lane, after, Cause.DECIDED, why, now), **NOWHERE, "clean": True}
    return ProfileDecided(changes)


def _moved_home(facts: LaneFacts, decision: Decision) -> Changes:
    """A person took the directory to another machine. Not allowed while a browser may be open in
    it, or was lost there."""
    lane = facts.lane
    if facts.open or lane.state is ProfileState.LEASED:
        raise IllegalTransition(
            f"profile {decision.id} is {lane.state}: its directory may be in use"
            f"{f' on machine {lane.home}' if lane.home else ''}. Move it when its lease has ended and is explained",
            profile_id=decision.id,
            state=lane.state,
        )
    home = decision.to or lane.home
    return {"home": home, "reserved_for": reserved_for(home, saved=lane.saved)}


def _drained(lane: Lane, decision: Decision, why: Because) -> Changes:
    """A decision about a leased profile sets its state at the end of its last lease. It is judged as if the profile
    were already in the state that it drains to. Repeating a decision changes only the reason."""
    heading = lane.drain or ProfileState.AVAILABLE
    if lane.drain is not None and PROFILE_ACTIONS[decision.action].get(ProfileState.AVAILABLE) is lane.drain:
        return draining(lane.drain, why)
    try:
        after = profile_after(decision.id, heading, decision.action, clean=lane.clean)
    except IllegalTransition as refused:
        then = f" and will be {lane.drain} when its lease ends" if lane.drain is not None else ""
        allowed = ", ".join(refused.allowed or ())
        raise IllegalTransition(
            f"profile {decision.id} is leased{then}: cannot {decision.action} it; allowed now, to take effect at the "
            f"end of the lease: {allowed}",
            profile_id=decision.id,
            state=lane.state,
            allowed=refused.allowed,
        ) from None
    if after is ProfileState.AVAILABLE:
        return draining(None, Because("", None))
    return draining(after, why)


def account_decided(account: Account, decision: Decision) -> Account:
    """The account after a decision."""
    if decision.action in BAN_ACTIONS:
        return with_ban(account, BAN_ACTIONS[decision.action], f"banned, says {decision.actor}: {decision.note}")
    paused = decision.action is Action.PAUSE
    note = decision.note if paused else ""
    return evolve(account, paused=paused, pause_note=note, version=account.version + 1)


def job_decided(job: Job, decision: Decision, now: datetime) -> Job:
    """The job after a decision, before it is placed again (see `placed_again`)."""
    match decision.action:
        case Action.DROP:
            return evolve(job, dropped=True)
        case Action.CANCEL:
            return evolve(job, state=JobState.CANCELLED, finished_at=now, blocked_reason=None, detail=decision.note)
        case Action.APPROVE:
            return evolve(job, approved=True)
        case Action.PRIORITIZE:
            return evolve(job, priority=int(decision.to or job.priority))
        case _:
            return evolve(
                job, run_at=None, finished_at=None, stop_reason=None, dropped=False, approved=True, given_back=0
            )


def is_priority(text: str | None) -> bool:
    """Whether the text is a priority that a job may have."""
    digits = (text or "").removeprefix("-")
    a_number = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_PRIORITY))
    return a_number and int(digits) <= MAX_PRIORITY


def placed_again(job: Job, action: Action) -> bool:
    """Whether the store must place the job again after this decision (see `core.placing`)."""
    return action in (Action.REQUEUE, Action.RETRY) or (action is Action.APPROVE and job.state is JobState.BLOCKED)
