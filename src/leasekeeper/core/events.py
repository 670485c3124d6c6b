"""The audit log: one immutable line for every decision and every state change.

An event carries the state that it led to (`job_state`, `profile_state`), so replaying a record's events
rebuilds its state. Payloads, secrets and cookies never enter an event.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, JobId, ProfileId, RunId, WorkerId
from leasekeeper.core.jobs import JobState
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ManualUse, Profile, ProfileState

MAX_REASONS: Final = 5


class EventType(StrEnum):
    JOB_SUBMITTED = "job_submitted"
    JOB_ALREADY_HANDLED = "job_already_handled"
    JOB_DUE = "job_due"
    JOB_BLOCKED = "job_blocked"
    JOB_UNBLOCKED = "job_unblocked"
    JOB_DECIDED = "job_decided"
    PROFILE_LOCK_CONFLICT = "profile_lock_conflict"
    LEASE_GRANTED = "lease_granted"
    CHECKPOINT_SAVED = "checkpoint_saved"
    SECTION_ENTERED = "section_entered"
    SECTION_LEFT = "section_left"
    HUMAN_REQUESTED = "human_requested"
    HUMAN_ANSWERED = "human_answered"
    HUMAN_REQUEST_WITHDRAWN = "human_request_withdrawn"
    CONTROL_PASSED = "control_passed"
    RUN_SETTLED = "run_settled"
    LEASE_EXPIRED = "lease_expired"
    LEASE_REVOKED = "lease_revoked"
    STALE_RESOLVED = "stale_resolved"
    LAUNCHER_SILENT = "launcher_silent"
    STALE_WORKER_WRITE_REJECTED = "stale_worker_write_rejected"
    BROWSER_OUTLIVED_LEASE = "browser_outlived_lease"
    MANUAL_USE_DETECTED = "manual_use_detected"
    PROFILE_ADDED = "profile_added"
    PROFILE_ADOPTED = "profile_adopted"
    PROFILE_IMPORTED = "profile_imported"
    PROFILE_EXPORTED = "profile_exported"
    PROFILE_RESTORED = "profile_restored"
    PROFILE_NOT_SAVED = "profile_not_saved"
    PROFILE_TOO_LARGE = "profile_too_large"
    SNAPSHOT_SAVED = "snapshot_saved"
    SNAPSHOT_DELETED = "snapshot_deleted"
    PROFILE_DECIDED = "profile_decided"
    PAUSED = "paused"
    RESUMED = "resumed"
    ACCOUNT_PAUSED = "account_paused"
    ACCOUNT_RESUMED = "account_resumed"
    ACCOUNT_BAN_CHANGED = "account_ban_changed"
    NOTE_ADDED = "note_added"
    SCHEDULE_FIRED = "schedule_fired"
    SCHEDULE_SKIPPED = "schedule_skipped"
    SCHEDULE_MISSED = "schedule_missed"
    SCHEDULE_RUN = "schedule_run"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_RESUMED = "schedule_resumed"
    PROXY_MISMATCH = "proxy_mismatch"
    PROXY_UNREACHABLE = "proxy_unreachable"
    PROXY_RECOVERED = "proxy_recovered"
    PROXY_ASKED_AGAIN = "proxy_asked_again"
    FLEET_APPLIED = "fleet_applied"
    WORKER_STARTED = "worker_started"
    WORKER_STOPPED = "worker_stopped"
    WORKER_SILENT = "worker_silent"
    WORKER_RETURNED = "worker_returned"
    WORKER_UNWELL = "worker_unwell"
    WORKER_WELL = "worker_well"
    CLOCK_JUMPED = "clock_jumped"
    MESSAGES_REJECTED = "messages_rejected"
    WEBHOOK_DELIVERED = "webhook_delivered"
    WEBHOOK_EXHAUSTED = "webhook_exhausted"
    WEBHOOK_REPLAYED = "webhook_replayed"
    ENDPOINT_ADDED = "endpoint_added"
    ENDPOINT_ENABLED = "endpoint_enabled"
    ENDPOINT_DISABLED = "endpoint_disabled"
    ENDPOINT_REMOVED = "endpoint_removed"
    ENDPOINT_PINGED = "endpoint_pinged"
    TOKEN_CREATED = "token_created"  # noqa: S105 - the name of an event
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - the name of an event
    SECRET_STORED = "secret_stored"  # noqa: S105 - the name of an event
    SECRET_REMOVED = "secret_removed"  # noqa: S105 - the name of an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log. `seq` is given by the store and grows with the order of commits of a record."""

    seq: int = 0
    at: datetime
    type: EventType
    account_id: AccountId | None = None
    profile_id: ProfileId | None = None
    job_id: JobId | None = None
    run_id: RunId | None = None
    worker_id: WorkerId | None = None
    actor: str = ""
    job_state: JobState | None = None
    profile_state: ProfileState | None = None
    data: Mapping[str, object] = field(default_factory=dict)


def manual_use(lease: Lease, found: str, policy: ManualUse, at: datetime) -> Event:
    """The event for manual use: the holder of this lease found that somebody used the profile outside a lease."""
    return Event(
        at=at,
        type=EventType.MANUAL_USE_DETECTED,
        account_id=lease.account_id,
        profile_id=lease.profile_id,
        run_id=lease.run_id,
        worker_id=lease.worker_id,
        data={"found": found, "policy": policy.value},
    )


def browser_outlived_lease(lease: Lease, at: datetime, **found: object) -> Event:
    """The event for a browser that another program of its machine ended, because its keeper had not done so in time."""
    return Event(
        at=at,
        type=EventType.BROWSER_OUTLIVED_LEASE,
        account_id=lease.account_id,
        profile_id=lease.profile_id,
        job_id=lease.job_id,
        run_id=lease.run_id,
        worker_id=lease.worker_id,
        data={"lease_id": lease.lease_id, **found},
    )


def messages_rejected(bridge: str, source: str, reasons: Sequence[str], at: datetime) -> Event:
    """The event for messages that are no jobs: a bridge received them and put them apart."""
    shown = list(dict.fromkeys(reasons))[:MAX_REASONS]
    return Event(
        at=at,
        type=EventType.MESSAGES_REJECTED,
        actor=f"bridge {bridge}",
        data={"bridge": bridge, "source": source, "messages": len(reasons), "reasons": shown},
    )


def adopted(profile: Profile, directory: str, engine: int | None, actor: str, at: datetime) -> Event:
    """The event for an adoption: a person said that the used profile in this directory is this one, as it is."""
    return Event(
        at=at,
        type=EventType.PROFILE_ADOPTED,
        account_id=profile.account_id,
        profile_id=profile.profile_id,
        actor=actor,
        data={"directory": directory, "engine": engine},
    )


def imported(profile: Profile, source: str, engine: int | None, token: int, actor: str, at: datetime) -> Event:
    """The event for an import: a person makes what is in the source this profile's session."""
    return Event(
        at=at,
        type=EventType.PROFILE_IMPORTED,
        account_id=profile.account_id,
        profile_id=profile.profile_id,
        actor=actor,
        data={"source": source, "engine": engine, "token": token},
    )


def exported(lease: Lease, target: str, actor: str, at: datetime) -> Event:
    """The event for an export: a person took a copy of the profile's session away. Whoever has it is logged in."""
    return Event(
        at=at,
        type=EventType.PROFILE_EXPORTED,
        account_id=lease.account_id,
        profile_id=lease.profile_id,
        run_id=lease.run_id,
        actor=actor,
        data={"target": target, "token": lease.token},
    )


def replay_job(events: Iterable[Event]) -> JobState | None:
    """The state that a job's events, in order, lead to."""
    state = None
    for event in events:
        state = event.job_state or state
    return state


def replay_profile(events: Iterable[Event]) -> ProfileState | None:
    """The state that a profile's events, in order, lead to."""
    state = None
    for event in events:
        state = event.profile_state or state
    return state
