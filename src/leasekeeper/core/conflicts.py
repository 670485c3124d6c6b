"""Conflicts are signals: what to do with a job that becomes due while its profile is taken, and why it was."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from leasekeeper.core.jobs import Job, JobState, OnConflict
from leasekeeper.core.leases import Lease, Purpose, is_live


class ConflictCause(StrEnum):
    SAME_ACCOUNT_ROUTING = "same_account_routing"
    PREVIOUS_WORKER_LOST = "previous_worker_lost"
    LONG_RUN = "long_run"
    MANUAL_USE = "manual_use"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictDecision:
    """What becomes of the job, and when it is checked again."""

    state: JobState
    decision: str
    cause: ConflictCause
    next_check_seconds: int
    run_at: datetime | None


def conflict_cause(
    job: Job, holder: Lease, holder_priority: int | None, now: datetime, long_run: timedelta
) -> ConflictCause:
    """The most telling cause, from the one that needs a person first to the ordinary one."""
    if not is_live(holder, now):
        return ConflictCause.PREVIOUS_WORKER_LOST
    if holder.purpose in (Purpose.MANUAL, Purpose.INSPECT):
        return ConflictCause.MANUAL_USE
    if holder_priority is not None and holder_priority < job.priority:
        return ConflictCause.PRIORITY
    if now - holder.acquired_at >= long_run:
        return ConflictCause.LONG_RUN
    return ConflictCause.SAME_ACCOUNT_ROUTING


def decide_conflict(
    job: Job, holder: Lease, holder_priority: int | None, now: datetime, long_run: timedelta
) -> ConflictDecision:
    """Follow the job's `on_conflict`."""
    cause = conflict_cause(job, holder, holder_priority, now, long_run)
    until_release = max(0, int((holder.expires_at - now).total_seconds()))
    match job.on_conflict:
        case OnConflict.WAIT:
            return ConflictDecision(
                state=JobState.QUEUED,
                decision="wait",
                cause=cause,
                next_check_seconds=until_release,
                run_at=None,
            )
        case OnConflict.RESCHEDULE:
            delay = job.conflict_delay_seconds
            return ConflictDecision(
                state=JobState.SCHEDULED,
                decision="reschedule",
                cause=cause,
                next_check_seconds=delay,
                run_at=now + timedelta(seconds=delay),
            )
        case OnConflict.SKIP:
            return ConflictDecision(
                state=JobState.SKIPPED, decision="skip", cause=cause, next_check_seconds=0, run_at=None
            )
        case OnConflict.REVIEW:
            return ConflictDecision(
                state=JobState.REVIEW, decision="review", cause=cause, next_check_seconds=0, run_at=None
            )
