"""Conflicts are signals: what to do with a job that is due while its profile is taken, and why it was taken.

It does not matter which came first, the job or the lease. A job with `on_conflict: wait` meets its conflict once, when
it arrives or becomes due; any other job meets one whenever its profile is leased to another run.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.jobs import Job, JobState, OnConflict
from leasekeeper.core.leases import BY_PERSON, Lease, is_live


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


REFUSED: Final = "refused"  # the decision that a refused direct lease records
MAX_MET: Final = 16  # jobs of a lane that follow `on_conflict` in the commit of a grant; a sweep handles the rest


def follows_conflict(job: Job) -> bool:
    """Whether a job in its lane follows its `on_conflict` when the profile is leased to another run. A job that a
    person approved or put back does not: that person decided that it shall run, so it waits."""
    return job.on_conflict is not OnConflict.WAIT and not job.approved


def conflict_cause(
    priority: int | None, holder: Lease, holder_priority: int | None, now: datetime, long_run: timedelta
) -> ConflictCause:
    """The first cause that applies, those that need a person before the ordinary ones. `priority` is that of the job
    that cannot run; None for a direct lease."""
    if not is_live(holder, now):
        return ConflictCause.PREVIOUS_WORKER_LOST
    if holder.purpose in BY_PERSON:
        return ConflictCause.MANUAL_USE
    if priority is not None and holder_priority is not None and holder_priority < priority:
        return ConflictCause.PRIORITY
    if now - holder.acquired_at >= long_run:
        return ConflictCause.LONG_RUN
    return ConflictCause.SAME_ACCOUNT_ROUTING


def seconds_left(holder: Lease, now: datetime) -> int:
    return max(0, int((holder.expires_at - now).total_seconds()))


def decide_conflict(
    job: Job, holder: Lease, holder_priority: int | None, now: datetime, long_run: timedelta
) -> ConflictDecision:
    """Follow the job's `on_conflict`."""
    cause = conflict_cause(job.priority, holder, holder_priority, now, long_run)
    until_release = seconds_left(holder, now)
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
