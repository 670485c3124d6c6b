"""Schedules: each time gives one job per profile, once, not before it is due, whatever happens in between."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import AccountId, ProfileId, ScheduleId
from leasekeeper.core.jobs import Backoff, Job, JobState, OnConflict, Retry
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.schedules import CatchUp, Fired, OnOverlap, Schedule, ScheduleState, job_key
from leasekeeper.errors import InputError
from tests.conformance.schedule_steps import EIGHT, fire, fire_at, of_type, state, times
from tests.conformance.world import START, NewWorld, account, fleet, profile, schedule


async def test_a_time_gives_one_job_when_it_has_come_and_not_before(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        assert await fire_at(world, EIGHT - timedelta(microseconds=1)) == []
        assert await world.all(Job) == []
        (fired,) = await fire_at(world, EIGHT)
        assert (fired.schedule_id, fired.at, fired.made, fired.skipped, fired.done) == ("nightly", EIGHT, 1, 0, True)
        assert await fire_at(world, EIGHT + timedelta(minutes=59)) == []
        (job,) = await world.all(Job)
        assert (job.task, job.profile_id, job.state, job.run_at) == ("visit", "p1", JobState.QUEUED, EIGHT)
        assert job.idempotency_key == "schedule:nightly:20310506T080000Z:p1"
        assert job.labels == {"schedule": "nightly", "schedule_time": "2031-05-06T08:00:00Z"}
        (event,) = await of_type(world, EventType.SCHEDULE_FIRED)
        assert event.data == {
            "schedule_id": "nightly", "at": "2031-05-06T08:00:00Z", "jobs": 1, "skipped": 0, "done": True,
        }  # fmt: skip
        now = await state(world)
        assert (now.next_at, now.fired_at) == (EIGHT + timedelta(hours=1), EIGHT)


async def test_a_job_has_everything_that_its_schedule_says(new_world: NewWorld) -> None:
    template = {
        "payload": {"depth": [1, 2.5, {"ü": None}]},
        "priority": 7,
        "max_attempts": 5,
        "on_conflict": OnConflict.SKIP,
        "retry": Retry(reasons=("TIMEOUT",), backoff=Backoff(first=timedelta(seconds=3))),
        "labels": {"team": "a"},
        "notes": "by night",
        "callback_url": "https://hook.test/x",
        "lock_timeout_seconds": 900,
        "allowed_actions": ("read",),
        "release_policy": "quarantine",
    }
    declared = schedule(job=template, jitter_seconds=0)
    async with new_world(profile(), declared) as world:
        stored = await world.store.get(Schedule, "nightly")
        assert stored == Schedule(**{**as_dict(declared), "since": START})
        await fire_at(world, EIGHT)
        (job,) = await world.all(Job)
        assert job.labels == {"team": "a", "schedule": "nightly", "schedule_time": "2031-05-06T08:00:00Z"}
        for name, value in template.items():
            if name != "labels":
                assert getattr(job, name) == value, name


def as_dict(declared: Schedule) -> dict[str, Any]:
    return {name: getattr(declared, name) for name in Schedule.__slots__}


async def test_a_release_policy_that_is_more_lenient_than_the_profiles_does_not_hold(new_world: NewWorld) -> None:
    strict = profile(release_policy=ReleasePolicy.QUARANTINE)
    async with new_world(strict, schedule(job={"release_policy": "recover"})) as world:
        await fire_at(world, EIGHT)
        assert (await world.take()).lease.release_policy is ReleasePolicy.QUARANTINE


async def test_jitter_is_the_same_for_everybody_and_within_its_bounds(new_world: NewWorld) -> None:
    profiles = [profile(f"p{n:02}") for n in range(20)]
    async with new_world(*profiles, schedule(labels={}, pool="default", jitter_seconds=600)) as world:
        await fire_at(world, EIGHT)
        jobs = {job.profile_id: job for job in await world.all(Job)}
        delays = [job.run_at - EIGHT for job in jobs.values() if job.run_at is not None]
        assert len(jobs) == len(delays) == 20
        assert all(timedelta() <= delay <= timedelta(seconds=600) for delay in delays)
        assert len(set(delays)) > 15
        assert all(job.state is JobState.SCHEDULED for job in jobs.values() if job.run_at and job.run_at > EIGHT)
        world.advance(600)
        await world.store.promote()
        assert {job.state for job in await world.all(Job)} == {JobState.QUEUED}


async def test_a_selection_is_made_when_the_time_comes(new_world: NewWorld) -> None:
    records = (
        account("a"),
        account("b"),
        profile("a1", "a", labels={"tier": "gold", "x": "y"}),
        profile("a2", "a", labels={"tier": "tin"}),
        profile("b1", "b", tier="gold", pool="warm"),
    )
    schedules = (
        schedule("gold", labels={"tier": "gold"}),
        schedule("of_a", account_id=AccountId("a")),
        schedule("warm_gold", labels={"tier": "gold"}, pool="warm"),
        schedule("nobody", labels={"tier": "iron"}),
    )
    async with new_world(*records, *schedules) as world:

        async def made() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for job in await world.all(Job):
                found.setdefault(job.labels["schedule"], []).append(job.profile_id)
            return {name: sorted(ids) for name, ids in found.items()}

        fired = await fire_at(world, EIGHT)
        assert await made() == {"gold": ["a1", "b1"], "of_a": ["a1", "a2"], "warm_gold": ["b1"]}
        assert {one.schedule_id: one.made for one in fired} == {"gold": 2, "of_a": 2, "warm_gold": 1, "nobody": 0}
        await world.declare(profile("a2", "a", labels={"tier": "gold"}), profile("a1", "a"))
        await fire_at(world, EIGHT + timedelta(hours=1))
        nine = [job for job in await world.all(Job) if job.labels["schedule_time"].startswith("2031-05-06T09")]
        assert [job.profile_id for job in nine if job.labels["schedule"] == "gold"] == ["a2"]


async def test_a_time_is_skipped_where_the_previous_job_has_not_ended(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), schedule(pool="default")) as world:
        await fire_at(world, EIGHT)
        grants = {grant.lease.profile_id: grant for grant in await world.claim(2)}
        await world.finish(grants[ProfileId("p2")])
        (fired,) = await fire_at(world, EIGHT + timedelta(hours=1))
        assert (fired.made, fired.skipped) == (1, 1)
        assert await times(world, "p1") == ["2031-05-06T08:00:00Z"]
        assert await times(world, "p2") == ["2031-05-06T08:00:00Z", "2031-05-06T09:00:00Z"]
        (event,) = await of_type(world, EventType.SCHEDULE_SKIPPED)
        assert event.profile_id == "p1"
        assert event.data == {"schedule_id": "nightly", "at": "2031-05-06T09:00:00Z", "why": "previous_job_open"}


@pytest.mark.parametrize("ending", ["review", "dead"])
async def test_a_job_that_waits_for_a_person_has_not_ended_a_dead_one_has(new_world: NewWorld, ending: str) -> None:
    async with new_world(profile(), schedule(job={"max_attempts": 1})) as world:
        await fire_at(world, EIGHT)
        grant = await world.take()
        await world.finish(grant, "ACTION_NOT_ALLOWED" if ending == "review" else "TIMEOUT")
        assert (await world.job(grant)).state == ending
        await fire_at(world, EIGHT + timedelta(hours=1))
        assert len(await world.all(Job)) == (1 if ending == "review" else 2)


async def test_with_queue_every_time_gives_a_job(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(on_overlap=OnOverlap.QUEUE)) as world:
        for hour in range(3):
            await fire_at(world, EIGHT + timedelta(hours=hour))
        assert len(await world.all(Job)) == 3


@pytest.mark.parametrize(
    ("catch_up", "late", "made", "missed"),
    [
        (CatchUp.NONE, timedelta(minutes=4), [11], 3),
        (CatchUp.NONE, timedelta(minutes=6), [], 4),
        (CatchUp.LAST, timedelta(minutes=6), [11], 3),
        (CatchUp.ALL, timedelta(minutes=6), [8, 9, 10, 11], 0),
    ],
)
async def test_after_an_outage_times_are_made_up_for_as_declared(
    new_world: NewWorld, catch_up: CatchUp, late: timedelta, made: list[int], missed: int
) -> None:
    async with new_world(profile(), schedule(catch_up=catch_up, on_overlap=OnOverlap.QUEUE)) as world:
        await fire(world)
        await fire_at(world, EIGHT + timedelta(hours=3) + late)
        assert await times(world) == [f"2031-05-06T{hour:02}:00:00Z" for hour in made]
        events = await of_type(world, EventType.SCHEDULE_MISSED)
        assert [event.data["times"] for event in events] == ([missed] if missed else [])
        assert (await state(world)).next_at == EIGHT + timedelta(hours=4)
        await fire_at(world, EIGHT + timedelta(hours=4))
        assert len(await world.all(Job)) == len(made) + 1


async def test_a_schedule_that_nobody_swept_yet_counts_from_when_it_was_declared(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(catch_up=CatchUp.ALL, on_overlap=OnOverlap.QUEUE)) as world:
        await fire_at(world, EIGHT + timedelta(hours=1))
        assert await times(world) == ["2031-05-06T08:00:00Z", "2031-05-06T09:00:00Z"]


async def test_a_leap_of_a_day_makes_no_burst_and_a_leap_back_runs_nothing_twice(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(on_overlap=OnOverlap.QUEUE)) as world:
        await fire_at(world, EIGHT)
        await fire_at(world, EIGHT + timedelta(days=1, minutes=30))
        assert await times(world) == ["2031-05-06T08:00:00Z"]
        # The clock is set right: times go on from there, and those that were made stay the only ones.
        await fire_at(world, EIGHT - timedelta(seconds=1))
        await fire_at(world, EIGHT)
        await fire_at(world, EIGHT + timedelta(hours=1))
        assert await times(world) == ["2031-05-06T08:00:00Z", "2031-05-06T09:00:00Z"]


async def test_catching_up_has_a_limit_and_says_so(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasekeeper.core.schedules.MAX_CAUGHT_UP", 5)
    monkeypatch.setattr("leasekeeper.stores.sql.scheduling.MAX_CAUGHT_UP", 5)
    minutely = schedule(cron="* * * * *", catch_up=CatchUp.ALL, on_overlap=OnOverlap.QUEUE)
    async with new_world(profile(), minutely) as world:
        await fire(world)
        await fire_at(world, EIGHT)
        assert await times(world) == [f"2031-05-06T07:{minute}:00Z" for minute in (56, 57, 58, 59)] + [
            "2031-05-06T08:00:00Z"
        ]
        (event,) = await of_type(world, EventType.SCHEDULE_MISSED)
        assert event.data["last"] == "2031-05-06T07:55:00Z"


async def test_a_large_selection_is_bounded_per_commit_and_goes_on_where_it_stopped(new_world: NewWorld) -> None:
    profiles = [profile(f"p{n:02}", labels={"even": str(n % 2 == 0)}) for n in range(25)]
    several = (schedule("all", pool="default"), schedule("even", labels={"even": "True"}))
    async with new_world(*profiles, *several) as world:
        world.clock.now = EIGHT
        fired: list[Fired] = []
        while step := await world.store.fire(4):
            assert sum(one.made for one in step) <= 4
            fired += step
            world.advance(60)
        assert Counter(job.labels["schedule"] for job in await world.all(Job)) == {"all": 25, "even": 13}
        assert {one.at for one in fired} == {EIGHT}
        assert len({job.idempotency_key for job in await world.all(Job)}) == 38
        assert (await state(world, "all")).firing_at is None
        done = [
            event.data["schedule_id"] for event in await of_type(world, EventType.SCHEDULE_FIRED) if event.data["done"]
        ]
        assert sorted(map(str, done)) == ["all", "even"]


async def test_a_selection_that_is_one_full_page_ends(new_world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasekeeper.stores.sql.scheduling.PAGE", 4)
    monkeypatch.setattr("leasekeeper.stores.sql.scheduling.MAX_SCANNED", 4)
    async with new_world(*(profile(f"p{n}") for n in range(8)), schedule(pool="default")) as world:
        await fire_at(world, EIGHT)
        assert len(await world.all(Job)) == 8
        assert (await state(world)).last_at == EIGHT


async def test_many_who_fire_at_once_make_each_job_once(new_world: NewWorld) -> None:
    profiles = [profile(f"p{n:02}") for n in range(12)]
    every = [schedule(f"s{n}", pool="default", on_overlap=OnOverlap.QUEUE) for n in range(4)]
    async with new_world(*profiles, *every) as world:
        stores = [world.store, await world.another(), await world.another()]
        for hour in range(3):
            world.clock.now = EIGHT + timedelta(hours=hour)
            await asyncio.gather(*(store.fire(5) for _ in range(15) for store in stores))
            await fire(world)
        jobs = await world.all(Job)
        assert len(jobs) == 12 * 4 * 3
        assert len({job.idempotency_key for job in jobs}) == len(jobs)
        assert await of_type(world, EventType.JOB_ALREADY_HANDLED) == []


async def test_a_paused_account_lets_one_job_wait_and_skips_the_rest(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        await world.decide_account(Action.PAUSE)
        for hour in range(3):
            await fire_at(world, EIGHT + timedelta(hours=hour))
        (job,) = await world.all(Job)
        assert (job.state, job.blocked_reason) == (JobState.BLOCKED, "blocked_by_account_pause")
        assert len(await of_type(world, EventType.SCHEDULE_SKIPPED)) == 2


async def test_a_schedule_must_name_what_is_there(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        with pytest.raises(InputError, match=r"schedules\.a\.profile: no profile p9; declared: p1"):
            await world.declare(schedule("a", profile_id="p9"))
        with pytest.raises(InputError, match=r"schedules\.a\.select\.account: no account x"):
            await world.declare(schedule("a", account_id=AccountId("x")))
        await world.declare(schedule())
        with pytest.raises(InputError, match="no profile p1"):
            await world.store.apply(fleet(profile("p2"), schedule()), actor="ann", prune=True)


async def test_a_time_zone_that_this_machine_lacks_stops_nobody_else(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule("lost", timezone="Mars/Olympus"), schedule()) as world:
        world.clock.now = EIGHT
        fired = {one.schedule_id: one for one in await world.store.fire()}
        assert fired[ScheduleId("nightly")].made == 1
        assert "does not know the time zone Mars/Olympus" in str(fired[ScheduleId("lost")].fault)
        assert (await state(world, "lost")).next_at is None


async def test_daylight_saving_in_the_store(new_world: NewWorld) -> None:
    """Clocks in Berlin skip 02:00 to 03:00 on 2031-03-30, and show it twice on 2031-10-26."""
    half_past_two = schedule(cron="30 2 * * *", timezone="Europe/Berlin", on_overlap=OnOverlap.QUEUE)
    async with new_world(profile(), half_past_two) as world:
        world.clock.now = datetime(2031, 10, 25, 12, tzinfo=UTC)
        await fire(world)
        for _ in range(24 * 4):
            world.advance(1800)
            await fire(world)
        assert await times(world) == ["2031-10-26T00:30:00Z", "2031-10-27T01:30:00Z"]
        world.clock.now = datetime(2032, 3, 27, 12, tzinfo=UTC)
        await fire(world)
        for _ in range(24 * 4):
            world.advance(1800)
            await fire(world)
        assert (await times(world))[2:] == ["2032-03-28T01:00:00Z", "2032-03-29T00:30:00Z"]


async def test_lists_of_schedules_are_paged(new_world: NewWorld) -> None:
    async with new_world(profile(), *(schedule(f"s{n}") for n in range(5))) as world:
        for kind in (Schedule, ScheduleState):
            found: Sequence[Any] = await world.paged(kind, 2, {})
            assert [one.schedule_id for one in found] == [f"s{n}" for n in range(5)]


async def test_jobs_are_listed_by_their_schedule(new_world: NewWorld) -> None:
    async with new_world(profile(), *(schedule(name) for name in ("s", "s.x", "s-", "t"))) as world:
        await world.add()
        await fire_at(world, EIGHT)
        assert [job.labels["schedule"] for job in await world.all(Job, schedule="s")] == ["s"]
        assert await world.all(Job, schedule="sch") == []


async def test_the_limit_is_checked(new_world: NewWorld) -> None:
    async with new_world() as world:
        for limit in (0, 1001):
            with pytest.raises(InputError):
                await world.store.fire(limit)


async def test_a_job_that_somebody_submitted_under_the_key_is_the_one(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        await world.add(idempotency_key=job_key("nightly", EIGHT, "p1"), labels={"schedule_time": "mine"})
        (fired,) = await fire_at(world, EIGHT)
        assert fired.made == 0
        assert await times(world) == ["mine"]
