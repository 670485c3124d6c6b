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


@dataclass(frozen=True, slots=True)
class Block:
    """Why a job cannot run now, for programs (`reason`) and for people (`detail`)."""

    reason: Blocked
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What keeps a queued job waiting that nothing of its own blocks; in `waits_as`, None means either way.

    `lane_blocked_by` is its lane's reason. `paused`: a person paused its pool, or everything. `full`: its pool has no
    room. `unserved`: no live worker can run it. `away`: none on the machine that has its profile's directory can.
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
    """What this job asks for against what the profile is. None: nothing of its own stops it."""
    if job.risk_level is Risk.REVIEW_REQUIRED and not job.approved:
        return Block(Blocked.APPROVAL, "risk_level is review_required and nobody has approved it yet")
    if job.proxy_id is not None and job.proxy_id != profile.proxy_id:
        return Block(
            Blocked.PROXY_MISMATCH,
            f"the job wants proxy {job.proxy_id}, profile {profile.profile_id} has {profile.proxy_id or 'none'}",
        )
    region = proxy.region if proxy is not None else None
    wanted_region = job.expected_proxy_region
    if wanted_region is not None and (region is None or wanted_region.casefold() != region.casefold()):
        return Block(
            Blocked.PROXY_MISMATCH,
            f"the job expects proxy region {job.expected_proxy_region}, "
            f"the proxy of profile {profile.profile_id} is in {region or 'no known region'}",
        )
    for name, wanted, actual in (
        ("language", job.expected_language, profile.language),
        ("timezone", job.expected_timezone, profile.timezone),
    ):
        if wanted is not None and wanted != actual:
            return Block(
                Blocked.ENVIRONMENT_MISMATCH,
                f"the job expects {name} {wanted}, profile {profile.profile_id} has {actual or 'none'}",
            )
    if not task_known:
        return Block(Blocked.NO_WORKER, f"no worker of pool {job.pool} has ever offered task {job.task}")
    return None


def can_share(profile: Profile, *, shared: bool) -> bool:
    """Whether a run of this mode may run beside others: read-only ones, and all on a disposable profile."""
    return shared or profile.disposable


# What a profile's state alone keeps out: a leased one may be shared.
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
    """What blocks a whole lane. `ending`: a verdict, a drain or an unresolved ending waits for the sharers.

    What is wrong with the proxy comes last: it blocks only what could run otherwise.
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
