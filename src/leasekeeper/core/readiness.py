"""The gate before anything is launched: facts → ready, or blocked with a reason. Blocked is not failed.

Two gates. `job_gate` checks what only this job asks for (environment, approval): such a job leaves its
lane until the fact changes. `lane_gate` checks what blocks the whole profile (pause, state, lease): the
lane is blocked once, and each job behind it shows the lane's reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.jobs import Job, Risk
from leasekeeper.core.profiles import Profile, ProfileState


class Blocked(StrEnum):
    PROFILE_LEASE = "blocked_by_profile_lease"
    ACCOUNT_PAUSE = "blocked_by_account_pause"
    PAUSE = "blocked_by_pause"
    PROXY_MISMATCH = "blocked_by_proxy_mismatch"
    PROXY_UNREACHABLE = "blocked_by_proxy_unreachable"
    ENVIRONMENT_MISMATCH = "blocked_by_environment_mismatch"
    REVIEW_REQUIRED = "blocked_by_review_required"
    PROFILE_STATE = "blocked_by_profile_state"
    CAPACITY = "blocked_by_capacity"
    APPROVAL = "blocked_by_approval"
    NO_WORKER = "blocked_by_no_worker"
    HOME = "blocked_by_home"
    DUPLICATE = "blocked_by_duplicate_idempotency_key"


WAITS_FOR_PERSON: Final = frozenset({ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED})


class NoWorker(StrEnum):
    """Why no worker can run a job."""

    NEVER_OFFERED = "never_offered"
    NOT_OFFERED_NOW = "not_offered_now"
    BROWSER_TOO_OLD = "browser_too_old"


class Expected(StrEnum):
    """What a job may expect of its profile."""

    PROXY_ID = "proxy_id"
    PROXY_REGION = "proxy_region"
    LANGUAGE = "language"
    TIMEZONE = "timezone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What exactly blocks a job by its reason.

    `field` is what the job expects to be `wanted` and is `actual` (None: the profile has none). If no worker can run
    the job, `no_worker` says why, and `engine` the browser's version that a worker needs. `home` is the machine that
    has the profile's directory.
    """

    reason: Blocked
    field: Expected | None = None
    wanted: str | None = None
    actual: str | None = None
    no_worker: NoWorker | None = None
    engine: int | None = None
    home: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """Why a queued job still waits, though no fact of its own blocks it. In `waits_as`, None means either way.

    `lane_blocked_by` is its lane's reason. `paused`: a person paused its pool, or everything. `full`: its pool has no
    room. `unserved`: no live worker can run it. `away`: no worker on the machine with its profile's directory can run
    it.
    """

    lane_blocked_by: str | None = None
    paused: bool | None = False
    full: bool | None = False
    unserved: bool | None = False
    away: bool | None = False


def shown_reason(facts: WaitFacts) -> str | None:
    """Why a queued job is shown as blocked: lane, then pause, pool, workers, home. None: it may run now."""
    if facts.lane_blocked_by is not None:
        return facts.lane_blocked_by
    if facts.paused:
        return Blocked.PAUSE
    if facts.full:
        return Blocked.CAPACITY
    if facts.unserved:
        return Blocked.NO_WORKER
    return Blocked.HOME if facts.away else None


def waits_as(reason: str) -> WaitFacts:
    """The facts for which `shown_reason` gives this reason: for a store that has to find such jobs."""
    if reason == Blocked.PAUSE:
        return WaitFacts(paused=True, full=None, unserved=None, away=None)
    if reason == Blocked.CAPACITY:
        return WaitFacts(full=True, unserved=None, away=None)
    if reason == Blocked.NO_WORKER:
        return WaitFacts(unserved=True, away=None)
    if reason == Blocked.HOME:
        return WaitFacts(away=True)
    return WaitFacts(lane_blocked_by=reason, paused=None, full=None, unserved=None, away=None)


def job_gate(job: Job, profile: Profile, proxy: Proxy | None, task_known: bool) -> Block | None:
    """Compare what this job expects with what the profile is: what blocks the job itself; None if nothing does."""
    if job.risk_level is Risk.REVIEW_REQUIRED and not job.approved:
        return Block(reason=Blocked.APPROVAL)
    region = proxy.region if proxy is not None else None
    for reason, field, wanted, actual in (
        (Blocked.PROXY_MISMATCH, Expected.PROXY_ID, job.proxy_id, profile.proxy_id),
        (Blocked.PROXY_MISMATCH, Expected.PROXY_REGION, job.expected_proxy_region, region),
        (Blocked.ENVIRONMENT_MISMATCH, Expected.LANGUAGE, job.expected_language, profile.language),
        (Blocked.ENVIRONMENT_MISMATCH, Expected.TIMEZONE, job.expected_timezone, profile.timezone),
    ):
        if wanted is not None and not _as_wanted(field, wanted, actual):
            return Block(reason=reason, field=field, wanted=wanted, actual=actual)
    if not task_known:
        return Block(reason=Blocked.NO_WORKER, no_worker=NoWorker.NEVER_OFFERED)
    return None


def _as_wanted(field: Expected, wanted: str, actual: str | None) -> bool:
    if field is Expected.PROXY_REGION and actual is not None:
        return wanted.casefold() == actual.casefold()
    return wanted == actual


def can_share(profile: Profile, *, shared: bool) -> bool:
    """Whether a run of this mode may run beside others: read-only ones, and all on a disposable profile."""
    return shared or profile.disposable


# Why a profile's state alone blocks a lane. A leased profile may still be shared.
BLOCKED_BY_STATE: Final[Mapping[ProfileState, Blocked | None]] = {
    ProfileState.AVAILABLE: None,
    ProfileState.LEASED: Blocked.PROFILE_LEASE,
    ProfileState.STALE: Blocked.PROFILE_STATE,
    ProfileState.REVIEW_REQUIRED: Blocked.REVIEW_REQUIRED,
    ProfileState.QUARANTINED: Blocked.PROFILE_STATE,
    ProfileState.DISABLED: Blocked.PROFILE_STATE,
}


_BLOCKED_BY_TROUBLE: Final[Mapping[ProxyTrouble, Blocked]] = {
    ProxyTrouble.MISMATCH: Blocked.PROXY_MISMATCH,
    ProxyTrouble.UNREACHABLE: Blocked.PROXY_UNREACHABLE,
}


def lane_gate(
    *,
    state: ProfileState,
    paused: bool,
    proxy: Proxy | None,
    profile: Profile,
    live: int,
    live_exclusive: int,
    head_shared: bool,
    ending: bool,
) -> Blocked | None:
    """What blocks a whole lane; None if nothing does. `ending`: a verdict, a drain or an unresolved ending waits for
    the end of the sharers.

    The proxy's trouble comes last: it blocks only what could run otherwise.
    """
    if paused:
        return Blocked.ACCOUNT_PAUSE
    reason = BLOCKED_BY_STATE[state]
    if reason is not None and reason is not Blocked.PROFILE_LEASE:
        return reason
    free = live < profile.max_active_runs and live_exclusive == 0 and not ending
    if reason is not None and not (free and can_share(profile, shared=head_shared)):
        return reason
    return _BLOCKED_BY_TROUBLE[proxy.trouble] if proxy is not None and proxy.trouble is not None else None
