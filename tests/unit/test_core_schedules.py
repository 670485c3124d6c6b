"""Rules of schedules: which times count, what overlaps, and that a job is the same whoever makes it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProfileId, ScheduleId
from leasekeeper.core.jobs import FINAL, JobSpec, JobState
from leasekeeper.core.schedules import (
    MAX_CAUGHT_UP,
    CatchUp,
    OnOverlap,
    Plan,
    Schedule,
    ScheduleState,
    Selection,
    Skipped,
    handled_until,
    jitter,
    job_key,
    job_of,
    keys_of,
    plan,
    schedule_decided,
    why_skipped,
)
from leasekeeper.errors import Conflict

NOW = datetime(2031, 5, 6, 12, tzinfo=UTC)
GRACE = timedelta(minutes=5)
SCHEDULE = Schedule(
    schedule_id=ScheduleId("s"),
    cron="0 * * * *",
    jitter_seconds=60,
    select=Selection(profile_id=ProfileId("p")),
    job=JobSpec(task="visit", labels={"team": "a"}),
)


def ago(*minutes: int) -> tuple[datetime, ...]:
    return tuple(NOW - timedelta(minutes=each) for each in minutes)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_one_time_that_is_on_time_is_made_whatever_the_policy(catch_up: CatchUp) -> None:
    assert plan(catch_up, [], NOW, GRACE) == Plan()
    assert plan(catch_up, ago(0), NOW, GRACE) == Plan(times=ago(0))
    assert plan(catch_up, ago(5), NOW, GRACE) == Plan(times=ago(5))


def test_missed_times_follow_the_policy() -> None:
    due = ago(30, 20, 10)
    assert plan(CatchUp.NONE, due, NOW, GRACE) == Plan(missed=due)
    assert plan(CatchUp.LAST, due, NOW, GRACE) == Plan(times=ago(10), missed=ago(30, 20))
    assert plan(CatchUp.ALL, due, NOW, GRACE) == Plan(times=due)
    assert plan(CatchUp.NONE, ago(20, 10, 4, 1), NOW, GRACE) == Plan(times=ago(1), missed=ago(20, 10, 4))


def test_what_is_caught_up_is_bounded_and_the_newest_are_kept() -> None:
    due = ago(*range(MAX_CAUGHT_UP + 3, 0, -1))
    made = plan(CatchUp.ALL, due, NOW, GRACE)
    assert (made.times, made.missed) == (due[3:], due[:3])


def test_times_count_from_when_they_came_into_force_and_never_from_the_future() -> None:
    early, late, future = ago(60)[0], ago(10)[0], NOW + GRACE
    assert handled_until(None, early, NOW) == early
    assert handled_until(late, early, NOW) == late
    assert handled_until(early, late, NOW) == late
    assert handled_until(future, early, NOW) == NOW
    assert handled_until(early, future, NOW) == NOW


@pytest.mark.parametrize("state", JobState)
def test_only_a_job_that_has_not_ended_overlaps(state: JobState) -> None:
    assert why_skipped(OnOverlap.SKIP, state) is (None if state in FINAL else Skipped.PREVIOUS_JOB_OPEN)
    assert why_skipped(OnOverlap.QUEUE, state) is None
    assert why_skipped(OnOverlap.SKIP, None) is None


def test_a_key_is_one_schedule_time_and_profile() -> None:
    key = job_key("s", NOW, "p")
    assert key == "schedule:s:20310506T120000Z:p"
    others = [job_key("s", NOW, "q"), job_key("t", NOW, "p"), job_key("s", NOW + timedelta(microseconds=1), "p")]
    assert len({key, *others}) == 4
    assert job_key("s", NOW.astimezone(), "p") == key
    first, end = keys_of("s")
    assert first < key < end
    assert not any(first < job_key(other, NOW, "p") < end for other in ("s.x", "s-", "s0", "sa", "r", "t"))


def test_jitter_is_always_the_same_and_within_bounds() -> None:
    delays = {jitter("s", NOW, f"p{n}", 60) for n in range(500)}
    assert len(delays) > 490
    assert timedelta() <= min(delays) < timedelta(seconds=2)
    assert timedelta(seconds=58) < max(delays) <= timedelta(seconds=60)
    assert jitter("s", NOW, "p1", 60) == timedelta(seconds=21, milliseconds=537)
    assert jitter("s", NOW, "p1", 0) == timedelta()


def test_the_job_of_a_time() -> None:
    job = job_of(SCHEDULE, NOW, ProfileId("p"))
    assert (job.profile_id, job.idempotency_key) == ("p", job_key("s", NOW, "p"))
    assert job.run_at == NOW + jitter("s", NOW, "p", 60)
    assert job.labels == {"team": "a", "schedule": "s", "schedule_time": "2031-05-06T12:00:00Z"}
    by_hand = job_of(SCHEDULE, NOW, ProfileId("p"), by_hand=True)
    assert by_hand == replace(job, run_at=NOW)


def test_a_selection_wants_all_of_its_labels() -> None:
    select = Selection(labels={"tier": "gold", "team": "a"})
    assert select.has({"tier": "gold", "team": "a", "more": "x"}, None)
    assert select.has({"team": "a"}, "gold")
    assert not select.has({"team": "a"}, "tin")
    assert not select.has({"tier": "gold"}, None)
    assert Selection().has({}, None)


HOUR = timedelta(hours=1)
STATE = ScheduleState(
    schedule_id=ScheduleId("s"),
    last_at=NOW - 2 * HOUR,
    next_at=NOW + HOUR,
    firing_at=NOW - HOUR,
    firing_after="p7",
    fired_at=NOW - 2 * HOUR,
    version=4,
)
PAUSED = replace(STATE, paused=True, pause_note="night")
BEGINS_ANEW = {"last_at": NOW, "next_at": None, "firing_at": None, "firing_after": ""}


def about_schedule(action: Action) -> Decision:
    return Decision(target=Target.SCHEDULE, id="s", action=action, note="odd", actor="ann")


@pytest.mark.parametrize(
    ("state", "action", "changes", "event"),
    [
        (STATE, Action.PAUSE, {"paused": True, "pause_note": "odd"}, EventType.SCHEDULE_PAUSED),
        (PAUSED, Action.PAUSE, {"pause_note": "odd"}, EventType.SCHEDULE_PAUSED),
        (STATE, Action.RESUME, {}, EventType.SCHEDULE_RESUMED),
        (PAUSED, Action.RESUME, {"paused": False, "pause_note": "", **BEGINS_ANEW}, EventType.SCHEDULE_RESUMED),
        (STATE, Action.RUN, {"run_at": NOW, "run_by": "ann"}, EventType.SCHEDULE_RUN),
        (PAUSED, Action.RUN, {"run_at": NOW, "run_by": "ann"}, EventType.SCHEDULE_RUN),
    ],
)
def test_what_is_decided_about_a_schedule(
    state: ScheduleState, action: Action, changes: dict[str, object], event: EventType
) -> None:
    decided = schedule_decided(state, about_schedule(action), NOW)
    assert decided.state == replace(state, version=5, **changes)  # type: ignore[arg-type] # the fields that change
    assert (decided.event, decided.at) == (event, NOW if action is Action.RUN else None)


def test_a_schedule_that_is_being_run_is_not_run_beside() -> None:
    running = replace(STATE, run_at=NOW - HOUR, run_by="bob")
    with pytest.raises(Conflict, match="asked for by bob") as refused:
        schedule_decided(running, about_schedule(Action.RUN), NOW)
    assert refused.value.cause is ConflictReason.SCHEDULE_RUNNING
