"""Schedules: which due times become jobs, for which profiles, and what each of these jobs is.

Pure. The times of a cron expression arrive as a list (leasekeeper.cron finds them), the time as an argument. Jitter is
computed from schedule, time and profile, so that every program that makes a job makes the same one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import Action, Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.free_profiles import has_labels
from leasekeeper.core.ids import AccountId, ProfileId, ScheduleId
from leasekeeper.core.jobs import FINAL, JobSpec, JobState
from leasekeeper.errors import Conflict

# How many missed times `catch_up: all` makes up for; older ones are left out.
MAX_CAUGHT_UP: Final = 1_000

SCHEDULE_LABEL: Final = "schedule"
TIME_LABEL: Final = "schedule_time"
KEY_PREFIX: Final = "schedule:"
HIDDEN: Final = "(not shown)"


class OnOverlap(StrEnum):
    """What to do at a due time if the schedule's previous job in the same profile has not ended."""

    SKIP = "skip"
    QUEUE = "queue"


class Skipped(StrEnum):
    """Why a due time was skipped in a profile."""

    PREVIOUS_JOB_OPEN = "previous_job_open"


class CatchUp(StrEnum):
    """What to do about due times that passed while no sweeper ran."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which profiles: one by id, or all that have this account, this pool and these labels.

    A profile's tier counts as its label `tier`.
    """

    profile_id: ProfileId | None = None
    account_id: AccountId | None = None
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def has(self, labels: Mapping[str, str], tier: str | None) -> bool:
        """Whether a profile with these labels and this tier is selected. Its account and pool are not checked."""
        return has_labels(labels, tier, self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is made again and again, at the times of a cron expression. `since` is when these times last changed.

    `job` is the template: it names no profile, key or time.
    """

    schedule_id: ScheduleId
    cron: str
    timezone: str = "UTC"
    jitter_seconds: int = 0
    select: Selection
    on_overlap: OnOverlap = OnOverlap.SKIP
    catch_up: CatchUp = CatchUp.NONE
    job: JobSpec
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The running side of a schedule. A fleet file cannot change it.

    Times up to `last_at` are handled. `firing_at` is the time whose jobs are being made and `firing_after` the last
    profile that was reached; `run_at` and `run_after` are the same for a run that a person (`run_by`) asked for.
    `next_at` is the next time, for the times in force since `since`; None: not computed yet. `fired_at` is the last
    time whose jobs were made.
    """

    schedule_id: ScheduleId
    last_at: datetime
    next_at: datetime | None = None
    since: datetime | None = None
    fired_at: datetime | None = None
    firing_at: datetime | None = None
    firing_after: str = ""
    run_at: datetime | None = None
    run_after: str = ""
    run_by: str = ""
    paused: bool = False
    pause_note: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which due times become jobs, and which are left out."""

    times: tuple[datetime, ...] = ()
    missed: tuple[datetime, ...] = ()


def plan(catch_up: CatchUp, due: Sequence[datetime], now: datetime, grace: timedelta) -> Plan:
    """What becomes of the times that are due, oldest first. A time at most `grace` ago is on time, not missed."""
    if not due:
        return Plan()
    *earlier, last = due
    match catch_up:
        case CatchUp.ALL:
            return Plan(times=tuple(due[-MAX_CAUGHT_UP:]), missed=tuple(due[:-MAX_CAUGHT_UP]))
        case CatchUp.LAST:
            return Plan(times=(last,), missed=tuple(earlier))
        case CatchUp.NONE:
            if now - last <= grace:
                return Plan(times=(last,), missed=tuple(earlier))
            return Plan(missed=tuple(due))


def handled_until(last_at: datetime | None, since: datetime, now: datetime) -> datetime:
    """Due times up to this one are handled. A schedule whose times changed is handled up to `since`, the moment of the
    change.

    If the clock went back, it is handled up to now: a job that was made already is found by its key.
    """
    return min(max(last_at or since, since), now)


def why_skipped(on_overlap: OnOverlap, previous: JobState | None) -> Skipped | None:
    """Why a time is skipped in a profile, by the job that the schedule made there last; None: it becomes a job."""
    overlaps = previous is not None and previous not in FINAL
    return Skipped.PREVIOUS_JOB_OPEN if overlaps and on_overlap is OnOverlap.SKIP else None


class ScheduleDecided(NamedTuple):
    """The schedule after a decision, the event to write, and the time to run now (`at`) if the
    decision asks for that."""

    state: ScheduleState
    event: EventType
    at: datetime | None = None


def schedule_decided(state: ScheduleState, decision: Decision, now: datetime) -> ScheduleDecided:
    """Pause, resume, or run now. Raises Conflict while an earlier run by hand is still making its jobs.

    Times that pass during a pause are not made up for: a resumed schedule begins anew from now, also if it was making
    the jobs of a time. A run by hand replaces none of the due times.
    """
    state = replace(state, version=state.version + 1)
    match decision.action:
        case Action.PAUSE:
            return ScheduleDecided(replace(state, paused=True, pause_note=decision.note), EventType.SCHEDULE_PAUSED)
        case Action.RESUME:
            if state.paused:
                state = replace(state, last_at=now, firing_at=None, firing_after="", next_at=None)
            return ScheduleDecided(replace(state, paused=False, pause_note=""), EventType.SCHEDULE_RESUMED)
        case _:
            if state.run_at is not None:
                raise Conflict(
                    f"schedule {state.schedule_id} is being run already, asked for by {state.run_by}: its jobs are "
                    "still being made. Try again after the next sweep",
                    cause=ConflictReason.SCHEDULE_RUNNING,
                )
            run = replace(state, run_at=now, run_after="", run_by=decision.actor)
            return ScheduleDecided(run, EventType.SCHEDULE_RUN, now)


def job_key(schedule_id: str, at: datetime, profile_id: str) -> str:
    """The idempotency key of the one job of this schedule, time and profile. Ids hold no ':'."""
    return f"{KEY_PREFIX}{schedule_id}:{_compact(at)}:{profile_id}"


def keys_of(schedule_id: str) -> tuple[str, str]:
    """The range of keys of all jobs of a schedule: from the first text up to, but without, the second."""
    return f"{KEY_PREFIX}{schedule_id}:", f"{KEY_PREFIX}{schedule_id};"


def jitter(schedule_id: str, at: datetime, profile_id: str, jitter_seconds: int) -> timedelta:
    """A delay from 0 to `jitter_seconds`, the same whoever computes it."""
    if not jitter_seconds:
        return timedelta()
    from hashlib import sha256  # takes milliseconds to load, which every command would pay

    number = int.from_bytes(sha256(job_key(schedule_id, at, profile_id).encode()).digest()[:8])
    return timedelta(milliseconds=number % (jitter_seconds * 1_000 + 1))


def job_of(schedule: Schedule, at: datetime, profile_id: ProfileId, *, by_hand: bool = False) -> JobSpec:
    """The job of one due time in one profile. `by_hand`: a person asked for it, so it has no jitter."""
    spread = 0 if by_hand else schedule.jitter_seconds
    return replace(
        schedule.job,
        profile_id=profile_id,
        idempotency_key=job_key(schedule.schedule_id, at, profile_id),
        run_at=at + jitter(schedule.schedule_id, at, profile_id, spread),
        labels={**schedule.job.labels, SCHEDULE_LABEL: schedule.schedule_id, TIME_LABEL: shown_time(at)},
    )


def shown_time(at: datetime) -> str:
    """A time in the form of labels and events."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _compact(at: datetime) -> str:
    return shown_time(at).replace("-", "").replace(":", "")


def configured_fields(schedule: Schedule) -> dict[str, object]:
    """The fields that a fleet file owns, by their names in the file."""
    own = {f.name: getattr(schedule, f.name) for f in fields(schedule) if f.name not in {"select", "job", "since"}}
    template = {f.name: getattr(schedule.job, f.name) for f in fields(schedule.job)}
    select = schedule.select
    chosen = {"account": select.account_id, "pool": select.pool, "labels": dict(select.labels)}
    return {
        **template,
        **own,
        "profile": select.profile_id,
        "select": {name: value for name, value in chosen.items() if value},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What one commit did for one due time of a schedule. `done` False: the next call continues with further profiles.

    `skipped` counts profiles whose previous job had not ended. `fault`: why this machine cannot compute the due times.
    """

    schedule_id: ScheduleId
    at: datetime | None = None
    made: int = 0
    skipped: int = 0
    done: bool = False
    fault: str | None = None
