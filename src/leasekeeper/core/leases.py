"""Lease arithmetic. Pure: time arrives as an argument, and it is always the store's.

A lease is live iff its status is live and `expires_at > now`; the token, not the holder's name, proves
ownership. The holder's own deadline, the renewal period and the lock-delay scale with the TTL, up to a limit: the
holder of a long lease still renews often, so that its silence shows long before the lease is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, JobId, LeaseId, ProfileId, ProxyId, RunId, Token, WorkerId
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.records import evolve, quick_init


class LeaseStatus(StrEnum):
    RUNNING = "running"
    RELEASING = "releasing"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"


MAX_TOKEN_DIGITS: Final = 18
MAX_DIRECTORY_TOKEN: Final = 10**12

# A holder's browser is gone after this share of the time between the holder's deadline and the expiry. A little later
# it is overdue: another program of the machine ends it.
DEAD_BY: Final = 0.75
OVERDUE_BY: Final = 0.8

LIVE: Final = frozenset({LeaseStatus.RUNNING, LeaseStatus.RELEASING})


class Refusal(StrEnum):
    """Why a write under a lease is refused."""

    NO_SUCH_LEASE = "no_such_lease"
    WRONG_TOKEN = "wrong_token"  # noqa: S105 - no secret, but a code
    OTHER_RUN = "other_run"
    WRONG_ROUTING_KEY = "wrong_routing_key"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"
    OVERDUE = "overdue"  # it expired by the store's clock, and nobody has ended it yet


_ENDED: Final = {
    LeaseStatus.RELEASED: Refusal.RELEASED,
    LeaseStatus.EXPIRED: Refusal.EXPIRED,
    LeaseStatus.REVOKED: Refusal.REVOKED,
}


class Purpose(StrEnum):
    JOB = "job"
    MANUAL = "manual"
    API = "api"
    INSPECT = "inspect"
    SESSION = "session"


BY_PERSON: Final = frozenset({Purpose.MANUAL, Purpose.INSPECT})


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"


# A holder counts as silent after this many renewal periods without a heartbeat.
SILENT_AFTER: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The four durations of a lease. `scaled` gives them for another TTL.

    A lease is renewed at least every `renew_at_least_every`, however long it is, unless `renew_every` itself is longer.
    The holder's deadline and the lock-delay then grow no further either.
    """

    ttl: timedelta = timedelta(seconds=60)
    renew_every: timedelta = timedelta(seconds=15)
    holder_stops_after: timedelta = timedelta(seconds=40)
    lock_delay: timedelta = timedelta(seconds=15)
    renew_at_least_every: timedelta = timedelta(seconds=60)

    @property
    def overdue_after(self) -> timedelta:
        """How long after its last renewal a browser is overdue: its keeper had to end it by then,
        and the lease still runs."""
        return self.holder_stops_after + (self.ttl - self.holder_stops_after) * OVERDUE_BY

    def scaled(self, ttl: timedelta) -> "Timing":
        share = min(ttl / self.ttl, max(1.0, self.renew_at_least_every / self.renew_every))
        return replace(
            self,
            ttl=ttl,
            renew_every=self.renew_every * share,
            holder_stops_after=self.holder_stops_after * share,
            lock_delay=self.lock_delay * share,
        )


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one worker to use one profile for one run, for a limited time.

    `open_section` is the mutating section that the run is in, since `section_at`; `left_section` the last one that it
    left since its last safe step. A section that was declared idempotent is not remembered when it is left. `machine`
    is where the holder works, if it said so. `asks_person` is what the run asks a person to do, `person_answer` what a
    person answered (see `core.control`).
    """

    lease_id: LeaseId
    profile_id: ProfileId
    account_id: AccountId
    job_id: JobId | None
    run_id: RunId
    worker_id: WorkerId
    incarnation: str
    proxy_id: ProxyId | None
    pool: str
    routing_key: str
    mode: Mode
    token: Token
    acquired_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    ttl_ms: int
    lock_delay_ms: int
    renew_ms: int
    last_safe_step: str | None = None
    last_safe_at: datetime | None = None
    last_url: str | None = None
    open_section: str | None = None
    section_at: datetime | None = None
    section_idempotent: bool = False
    left_section: str | None = None
    release_policy: ReleasePolicy = ReleasePolicy.QUARANTINE
    status: LeaseStatus = LeaseStatus.RUNNING
    purpose: Purpose = Purpose.JOB
    priority: int | None = None
    task: str | None = None
    unresolved: bool = False
    ended_at: datetime | None = None
    machine: str | None = None
    asks_person: str | None = None
    person_answer: Mapping[str, object] | None = None

    @property
    def shared(self) -> bool:
        return self.mode is Mode.SHARED

    @property
    def ref(self) -> "LeaseRef":
        return LeaseRef(
            lease_id=self.lease_id,
            profile_id=self.profile_id,
            run_id=self.run_id,
            token=self.token,
            routing_key=self.routing_key,
        )


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRef:
    """What every write under a lease must carry: which lease, and the token that proves it.

    `run_id` tells two grants with one token apart: a store that was restored from a backup grants a token again.
    """

    lease_id: LeaseId
    profile_id: ProfileId
    run_id: RunId
    token: Token
    routing_key: str


# What the holder writes about its run. The next lease keeps it if it continues in the same browser.
PROGRESS: Final = (
    "last_safe_step",
    "last_safe_at",
    "last_url",
    "open_section",
    "section_at",
    "section_idempotent",
    "left_section",
)
# The same, with what the run asks a person and the answer: these two end with the run.
STEPS: Final = (*PROGRESS, "asks_person", "person_answer")
# All that can change in a lease after it was granted.
MOVING: Final = ("heartbeat_at", "expires_at", *STEPS, "status", "unresolved", "ended_at")


def lease_id_of(profile_id: ProfileId, token: Token) -> LeaseId:
    """A lease is named by its profile and its token: 'store_us_018:42'. No two grants share one."""
    return LeaseId(f"{profile_id}:{token}")


def may_have_been_done(lease: Lease) -> str | None:
    """Why the run must not be repeated without a person: it made, or may have made, a change that is not declared
    idempotent, and no safe step followed. None: it may be repeated."""
    if lease.open_section is not None and not lease.section_idempotent:
        return f"mutating section {lease.open_section} was open"
    if lease.left_section is not None:
        return f"mutating section {lease.left_section} was left, and no safe step followed"
    return None


def renewed(lease: Lease, status: LeaseStatus, now: datetime) -> Lease:
    """The lease after a heartbeat that says `status`: it expires one TTL from now, and stays RELEASING once it was."""
    releasing = LeaseStatus.RELEASING in (lease.status, status)
    return evolve(
        lease,
        heartbeat_at=now,
        expires_at=now + timedelta(milliseconds=lease.ttl_ms),
        status=LeaseStatus.RELEASING if releasing else lease.status,
    )


def expired(lease: Lease) -> Lease:
    """The lease, ended at its expiry because nobody had released it. A revoked lease stays revoked."""
    status = lease.status if lease.status is LeaseStatus.REVOKED else LeaseStatus.EXPIRED
    return evolve(lease, status=status, ended_at=lease.expires_at, unresolved=True)


def silent_for(lease: Lease, now: datetime) -> timedelta | None:
    """How long the holder has sent no heartbeat, if that is longer than it should be and the lease
    is not over; else None."""
    quiet = now - lease.heartbeat_at
    overdue = quiet > timedelta(milliseconds=lease.renew_ms) * SILENT_AFTER
    return quiet if overdue and lease.ended_at is None else None


def silence(lease: Lease, at: datetime) -> str:
    """The sentence about a silent holder. It does not say that the holder is gone, only that no heartbeat arrived."""
    return f"no heartbeat of worker {lease.worker_id} reached the store for {silent_seconds(lease, at)} s"


def silent_seconds(lease: Lease, at: datetime) -> int:
    """Seconds since the holder's last heartbeat."""
    return max(0, int((at - lease.heartbeat_at).total_seconds()))


def raised(token: Token, directory_token: int | None) -> Token:
    """The last token of a profile whose directory was opened under `directory_token`: the next tokens are above both.

    A directory's token that is higher than leases ever reach is ignored: tokens must not run out.
    """
    return (
        Token(directory_token)
        if directory_token is not None and token < directory_token <= MAX_DIRECTORY_TOKEN
        else token
    )


def lease_key(lease_id: str) -> tuple[ProfileId, Token] | None:
    """The profile and token that a lease id names, or None if it is not a lease id."""
    profile_id, _, token = lease_id.rpartition(":")
    a_number = token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_DIGITS
    return (ProfileId(profile_id), Token(int(token))) if profile_id and a_number else None


class RunResult(StrEnum):
    BLOCKED = "blocked"
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One attempt of a job, or one manual or API use of a profile: what it was, and how it ended."""

    run_id: RunId
    job_id: JobId | None
    task: str | None
    attempt: int
    routing_key: str
    account_id: AccountId
    profile_id: ProfileId
    proxy_id: ProxyId | None
    worker_id: WorkerId
    lease_id: LeaseId
    token: Token
    purpose: Purpose
    status: LeaseStatus
    run_mode: str | None = None
    expected: Mapping[str, str] = field(default_factory=dict)
    actual: Mapping[str, str] = field(default_factory=dict)
    result: RunResult = RunResult.STARTED
    stop_reason: str | None = None
    message: str = ""
    belongs_to: str | None = None
    last_safe_step: str | None = None
    open_section: str | None = None
    final_url: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    output: Mapping[str, object] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    acquired_at: datetime
    ended_at: datetime | None = None
    machine: str | None = None


def is_live(lease: Lease, now: datetime) -> bool:
    """Whether the lease may still write. An expired lease is dead before any sweeper has seen it."""
    return lease.status in LIVE and lease.expires_at > now


def browser_overdue(lease: Lease, now: datetime, timing: Timing) -> bool:
    """Whether the lease's browser should be gone, by what the store knows: the lease has ended, or was not renewed for
    so long that the holder's keeper had to end it."""
    overdue_after = timing.scaled(timedelta(milliseconds=lease.ttl_ms)).overdue_after
    return lease.status not in LIVE or lease.heartbeat_at + overdue_after <= now


def lock_delay_over_at(lease: Lease) -> datetime:
    """When the lock-delay of a lease that has ended has passed."""
    return (lease.ended_at or lease.expires_at) + timedelta(milliseconds=lease.lock_delay_ms)


def forgotten(ref: LeaseRef, highest: Token, doubtful_up_to: int) -> bool:
    """Whether this store must have granted a lease that it does not know any more.

    True if the lease's token is above the highest one that the store knows of this profile, or at most
    `doubtful_up_to`: where tokens continued from a higher number, because a server may have lost its last writes.
    """
    whole = ref.lease_id == lease_id_of(ref.profile_id, ref.token)
    return whole and (ref.token > highest or 0 < ref.token <= doubtful_up_to)


def refusal(lease: Lease | None, ref: LeaseRef, now: datetime, *, lenient: bool = False) -> Refusal | None:
    """Why a write under `ref` must be refused, or None if the lease is live and the token is its own.

    `lenient` while expiry pauses: the store's clock jumped, so nobody knows which leases have expired.
    """
    if lease is None:
        return Refusal.NO_SUCH_LEASE
    if (lease.token, lease.profile_id, lease.lease_id) != (ref.token, ref.profile_id, ref.lease_id):
        return Refusal.WRONG_TOKEN
    if lease.run_id != ref.run_id:
        return Refusal.OTHER_RUN
    if lease.routing_key != ref.routing_key:
        return Refusal.WRONG_ROUTING_KEY
    if lease.status not in LIVE:
        return _ENDED[lease.status]
    if lease.expires_at <= now and not lenient:
        return Refusal.OVERDUE
    return None


def clock_jump(store_elapsed: timedelta, least: timedelta, limit: timedelta, tolerance: timedelta) -> timedelta | None:
    """How far the store's clock jumped against the observer's own, or None if they agree.

    By the observer's own clock, between `least` and `limit` has passed: reading the store's clock takes time.
    """
    gap = store_elapsed - min(max(store_elapsed, least), limit)
    return gap if abs(gap) > tolerance else None
