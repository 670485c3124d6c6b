"""The answer of `why`, as data: codes, ids and times. `core.why` finds it, `wording` makes sentences of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from leasekeeper.core.accounts import BanStatus, ProxyTrouble
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import DeliveryState
from leasekeeper.core.ids import AccountId, JobId, LeaseId, ProfileId, ProxyId, RunId, Token, WorkerId
from leasekeeper.core.leases import LeaseStatus, Purpose, RunResult
from leasekeeper.core.notes import Note
from leasekeeper.core.pauses import Pause
from leasekeeper.core.profiles import ProfileState, StateCause
from leasekeeper.core.readiness import Block, Blocked


class Next(StrEnum):
    """What happens next. Each code says which fields of its step are set."""

    OVER = "over"
    RUN_ENDS = "run_ends"
    PERSON_DECIDES = "person_decides"
    DUE = "due"  # at
    SWEEP_TAKES_JOB = "sweep_takes_job"  # at: since when it is due
    WORKER_TAKES_JOB = "worker_takes_job"
    UNBLOCKED = "unblocked"  # reason
    LEASE_REVOKED = "lease_revoked"  # lease_id, at: when it expires
    OTHER_RUNS_GO_ON = "other_runs_go_on"
    SILENT_LEASE_EXPIRES = "silent_lease_expires"  # lease_id, at: its holder is not heard of
    SWEEP_ENDS_LEASE = "sweep_ends_lease"
    SWEEP_QUARANTINES = "sweep_quarantines"  # lease_id, section: the open one; without it by the release policy
    SWEEP_SENDS_TO_REVIEW = "sweep_sends_to_review"  # lease_id
    SWEEP_RESTORES = "sweep_restores"  # lease_id, at: not before
    SWEEP_RECOVERS = "sweep_recovers"  # lease_id, at: not before
    ACCOUNT_RESUMED = "account_resumed"
    ACCOUNT_RUN_ENDS = "account_run_ends"  # run_id
    BROWSER_UPGRADED = "browser_upgraded"  # engine: the version that opened the profile last
    NEXT_JOB_UNBLOCKED = "next_job_unblocked"  # job_id, task, pool, reason
    NEXT_JOB_STARTS = "next_job_starts"
    NOTHING_WAITS = "nothing_waits"
    WEBHOOK_SENT = "webhook_sent"  # at
    WEBHOOK_WAITS_ITS_TURN = "webhook_waits_its_turn"  # at, host
    WEBHOOK_SENT_BY_NOBODY = "webhook_sent_by_nobody"  # at


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happens by itself, or does not: a code, its time, and what it is about."""

    code: Next
    at: datetime | None = None
    reason: Blocked | None = None
    lease_id: LeaseId | None = None
    run_id: RunId | None = None
    job_id: JobId | None = None
    task: str | None = None
    pool: str | None = None
    section: str | None = None
    engine: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """A decision that a person may take now. `section`: it was open at the end, and may have been done."""

    target: Target
    id: str
    action: Action
    section: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What matters about the job."""

    job_id: JobId
    task: str
    pool: str
    attempt: int
    max_attempts: int
    priority: int
    losses: int
    ahead: int
    detail: str
    run_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """What matters about the profile, and about its account."""

    profile_id: ProfileId
    account_id: AccountId
    state: ProfileState
    state_reason: str
    state_cause: StateCause | None
    state_data: Mapping[str, object]
    since_at: datetime
    waiting: int
    drain: ProfileState | None
    drain_reason: str
    drain_cause: StateCause | None
    drain_data: Mapping[str, object]
    tier: str | None
    ban_status: BanStatus
    paused: bool
    pause_note: str
    account_ban_status: BanStatus
    home: str = ""
    snapshot: Token | None = None
    saved: bool = False
    unsaved_reason: str = ""
    size_bytes: int | None = None
    max_size_mb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has the profile, or the account's key: one lease that the store has not ended.

    `silent_seconds` is set once its worker has been silent for longer than it should be.
    """

    lease_id: LeaseId
    worker_id: WorkerId
    run_id: RunId
    profile_id: ProfileId
    purpose: Purpose
    job_id: JobId | None
    task: str | None
    token: Token
    status: LeaseStatus
    acquired_at: datetime
    heartbeat_at: datetime
    expires_at: datetime
    last_safe_step: str | None
    last_safe_at: datetime | None
    open_section: str | None
    silent_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last run: of the job if the answer is about a job, else of the profile."""

    run_id: RunId
    worker_id: WorkerId
    result: RunResult
    stop_reason: str | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwellWorker:
    """A worker that would take the job if its machine could run jobs."""

    worker_id: WorkerId
    reason: str
    since_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyView:
    """The profile's proxy, while something is wrong with it."""

    proxy_id: ProxyId
    trouble: ProxyTrouble
    detail: str
    since_at: datetime | None
    asked: int
    ask_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How full a pool with a limit is."""

    pool: str
    leases: int
    max_leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One message to the job's callback URL."""

    delivery_id: str
    type: str
    state: DeliveryState
    tries: int
    replayed: bool
    answer: str
    due_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer about one job (`job` is set) or one profile, as it was at `now`.

    `state` is the job's or the profile's; `reason` is why a job is blocked, and `block` what exactly blocks it, if
    there is more to say. `evidence`: the runs to read before deciding. `notes`: the newest on the profile and on its
    account.
    """

    now: datetime
    target: Target
    id: str
    state: str
    reason: Blocked | None = None
    block: Block | None = None
    job: JobView | None = None
    profile: ProfileView
    holders: tuple[Holder, ...] = ()
    last_run: LastRun | None = None
    pauses: tuple[Pause, ...] = ()
    unwell: tuple[UnwellWorker, ...] = ()
    proxy: ProxyView | None = None
    pool: PoolUse | None = None
    webhooks: tuple[Webhook, ...] = ()
    notes: tuple[Note, ...] = ()
    next: tuple[Step, ...]
    evidence: tuple[RunId, ...] = ()
    possible: tuple[Possible, ...] = ()
