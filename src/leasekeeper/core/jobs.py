"""Jobs: the request, its states, and its record.

`JobSpec` is what somebody asks for; `Job` is what the store keeps. Waiting for a profile is not a state of
the job: a queued job behind a taken profile is shown as blocked, with the reason of its lane (see readiness).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, JobId, ProfileId, ProxyId, RunId
from leasekeeper.core.leases import Mode


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    BLOCKED = "blocked"
    RUNNING = "running"
    REVIEW = "review"
    COMPLETED = "completed"
    DEAD = "dead"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({JobState.COMPLETED, JobState.DEAD, JobState.SKIPPED, JobState.CANCELLED})

JOB_TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.SCHEDULED: frozenset(
        {
            JobState.QUEUED,
            JobState.BLOCKED,
            JobState.SCHEDULED,
            JobState.SKIPPED,
            JobState.REVIEW,
            JobState.CANCELLED,
        }
    ),
    JobState.QUEUED: frozenset(
        {
            JobState.RUNNING,
            JobState.BLOCKED,
            JobState.CANCELLED,
            JobState.SCHEDULED,
            JobState.SKIPPED,
            JobState.REVIEW,
        }
    ),
    JobState.BLOCKED: frozenset({JobState.QUEUED, JobState.BLOCKED, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {JobState.COMPLETED, JobState.SCHEDULED, JobState.REVIEW, JobState.DEAD, JobState.QUEUED}
    ),
    # Running: a person who took over its browser hands it back.
    JobState.REVIEW: frozenset({JobState.QUEUED, JobState.BLOCKED, JobState.CANCELLED, JobState.RUNNING}),
    JobState.DEAD: frozenset({JobState.QUEUED, JobState.BLOCKED}),
    JobState.COMPLETED: frozenset(),
    JobState.SKIPPED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class RunMode(StrEnum):
    HEADLESS = "headless"
    VISIBLE = "visible"


class Risk(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    REVIEW_REQUIRED = "review_required"


class SessionMode(StrEnum):
    """Where a run works: in the profile itself, or in a copy of it that is thrown away."""

    PERSISTENT = "persistent"
    ISOLATED = "isolated"


class OnConflict(StrEnum):
    WAIT = "wait"
    RESCHEDULE = "reschedule"
    SKIP = "skip"
    REVIEW = "review"


def attempt_text(attempt: int, limit: int) -> str:
    """'attempt 2 of 3'. Above the limit, it says that a person reopened the job."""
    beyond = f", {attempt - limit} more than {limit} because a person reopened the job"
    return f"attempt {attempt} of {limit}" if attempt <= limit else f"attempt {attempt}{beyond}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delay before attempt n+1: first × factor^(n-1), at most `max`, with jitter on its upper half."""

    first: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    max: timedelta = timedelta(minutes=15)

    def delay(self, attempt: int, jitter: float) -> timedelta:
        """The wait after the given attempt failed. `jitter` is in [0, 1)."""
        steps = min(max(attempt - 1, 0), 64)
        seconds = min(self.first.total_seconds() * self.factor**steps, self.max.total_seconds())
        return timedelta(seconds=seconds * (0.5 + jitter / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A job's own retry rule: which reasons may be retried (None: the table's), and the backoff (None: the fleet's)."""

    reasons: tuple[str, ...] | None = None
    backoff: Backoff | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One request, as submitted: run this task for this account, inside this profile, in this environment."""

    task: str
    account_id: AccountId | None = None
    profile_id: ProfileId | None = None
    job_id: JobId | None = None
    payload: Mapping[str, object] = field(default_factory=dict)
    attempt: int = 0
    max_attempts: int = 3
    idempotency_key: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    pool: str | None = None
    mode: Mode = Mode.EXCLUSIVE
    allowed_actions: tuple[str, ...] | None = None
    expected_proxy_region: str | None = None
    expected_language: str | None = None
    expected_timezone: str | None = None
    proxy_id: ProxyId | None = None
    run_mode: RunMode = RunMode.HEADLESS
    session_mode: SessionMode = SessionMode.PERSISTENT
    risk_level: Risk = Risk.LOW
    lock_timeout_seconds: int | None = None
    release_policy: str | None = None
    on_conflict: OnConflict = OnConflict.WAIT
    conflict_delay_seconds: int = 300
    retry: Retry | None = None
    callback_url: str | None = None
    traceparent: str | None = None
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as the store keeps it. The fields after `notes` belong to the runtime.

    `given_back`: how often in a row a worker gave it back before its task had begun.
    """

    seq: int = 0
    job_id: JobId
    account_id: AccountId
    profile_id: ProfileId
    task: str
    payload: Mapping[str, object]
    pool: str
    attempt: int = 0
    max_attempts: int = 3
    idempotency_key: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    mode: Mode = Mode.EXCLUSIVE
    allowed_actions: tuple[str, ...] | None = None
    expected_proxy_region: str | None = None
    expected_language: str | None = None
    expected_timezone: str | None = None
    proxy_id: ProxyId | None = None
    run_mode: RunMode = RunMode.HEADLESS
    session_mode: SessionMode = SessionMode.PERSISTENT
    risk_level: Risk = Risk.LOW
    lock_timeout_seconds: int | None = None
    release_policy: str | None = None
    on_conflict: OnConflict = OnConflict.WAIT
    conflict_delay_seconds: int = 300
    retry: Retry | None = None
    callback_url: str | None = None
    traceparent: str | None = None
    created_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    state: JobState = JobState.QUEUED
    blocked_reason: str | None = None
    detail: str = ""
    losses: int = 0
    given_back: int = 0
    approved: bool = False
    dropped: bool = False
    run_id: RunId | None = None
    stop_reason: str | None = None
    finished_at: datetime | None = None
    version: int = 1

    @property
    def shared(self) -> bool:
        return self.mode is Mode.SHARED

    @property
    def isolated(self) -> bool:
        return self.session_mode is SessionMode.ISOLATED
