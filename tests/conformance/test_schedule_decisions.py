"""Schedules that people pause, resume, run now, change and remove."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.fleet import ChangeKind
from leasekeeper.core.jobs import Job
from leasekeeper.core.schedules import CatchUp, OnOverlap, Schedule, ScheduleState
from leasekeeper.errors import Conflict, InputError, NotFound, VersionConflict
from tests.conformance.schedule_steps import EIGHT, end_all, fire, fire_at, of_type, state, times
from tests.conformance.world import NewWorld, World, profile, schedule


async def decide(world: World, action: Action, schedule_id: str = "nightly", **more: Any) -> Any:
    return await world.decide(Target.SCHEDULE, schedule_id, action, **more)


async def test_times_that_pass_during_a_pause_are_not_made_up_for(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(catch_up=CatchUp.ALL, on_overlap=OnOverlap.QUEUE)) as world:
        await fire(world)
        decided = await decide(world, Action.PAUSE)
        assert decided.state == "paused"
        await fire_at(world, EIGHT)
        assert await world.all(Job) == []
        paused = await state(world)
        assert (paused.paused, bool(paused.pause_note), paused.version) == (True, True, decided.version)
        assert [one.schedule_id for one in await world.all(ScheduleState, paused="1")] == ["nightly"]
        world.advance(1800)
        assert (await decide(world, Action.RESUME)).state == "active"
        await fire(world)
        assert await world.all(Job) == []
        await fire_at(world, EIGHT + timedelta(hours=1))
        assert await times(world) == ["2031-05-06T09:00:00Z"]
        kinds = [event.type for event in await world.events() if event.actor == "ann" or event.data.get("note")]
        assert EventType.SCHEDULE_PAUSED in kinds
        assert EventType.SCHEDULE_RESUMED in kinds


async def test_resuming_what_is_not_paused_loses_no_time(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        world.clock.now = EIGHT
        await decide(world, Action.RESUME)
        await fire(world)
        assert await times(world) == ["2031-05-06T08:00:00Z"]


async def test_run_now_makes_the_jobs_of_all_selected_profiles_paused_or_not(new_world: NewWorld) -> None:
    several = [profile(f"p{n}") for n in range(5)]
    async with new_world(*several, schedule(pool="default", jitter_seconds=600)) as world:
        await decide(world, Action.PAUSE)
        await decide(world, Action.RUN)
        fired = await fire(world, limit=2)
        jobs = await world.all(Job)
        assert sorted(job.profile_id for job in jobs) == [f"p{n}" for n in range(5)]
        assert {job.run_at for job in jobs} == {world.now}
        assert {one.at for one in fired} == {world.now}
        after = await state(world)
        assert (after.run_at, after.run_by, after.paused) == (None, "", True)
        (event,) = await of_type(world, EventType.SCHEDULE_RUN)
        assert event.data["at"] == "2031-05-06T07:08:09Z"
        assert event.actor


async def test_a_run_does_not_take_the_place_of_the_next_time(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        await decide(world, Action.RUN)
        await fire(world)
        await end_all(world)
        await fire_at(world, EIGHT)
        assert await times(world) == ["2031-05-06T07:08:09Z", "2031-05-06T08:00:00Z"]


async def test_a_run_shares_the_room_of_a_commit_with_a_time_that_is_being_fired(new_world: NewWorld) -> None:
    several = [profile(f"p{n}") for n in range(3)]
    async with new_world(*several, schedule(pool="default", on_overlap=OnOverlap.QUEUE)) as world:
        world.clock.now = EIGHT
        assert [one.made for one in await world.store.fire(2)] == [2]
        world.advance(1)
        await decide(world, Action.RUN)
        assert [(one.at, one.made) for one in await world.store.fire(2)] == [(world.now, 2)]
        await fire(world)
        assert Counter(await times(world)) == {"2031-05-06T08:00:00Z": 3, "2031-05-06T08:00:01Z": 3}


async def test_a_second_run_is_refused_until_the_first_has_its_jobs(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(on_overlap=OnOverlap.QUEUE)) as world:
        await decide(world, Action.RUN)
        with pytest.raises(Conflict, match="asked for by"):
            await decide(world, Action.RUN)
        await fire(world)
        world.advance(1)
        await decide(world, Action.RUN)
        await fire(world)
        assert len(await world.all(Job)) == 2


async def test_decisions_about_schedules_are_checked(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        with pytest.raises(NotFound, match="there is no schedule nothing"):
            await decide(world, Action.PAUSE, "nothing")
        decided = await decide(world, Action.PAUSE, version=1)
        with pytest.raises(VersionConflict):
            await decide(world, Action.RESUME, version=1)
        await decide(world, Action.RESUME, version=decided.version)
        with pytest.raises(InputError, match="pause, resume, run"):
            await decide(world, Action.CLEAR)


async def test_a_changed_expression_brings_no_old_times_and_keeps_the_pause(new_world: NewWorld) -> None:
    catching = {"catch_up": CatchUp.ALL, "on_overlap": OnOverlap.QUEUE}
    async with new_world(profile(), schedule(**catching)) as world:
        await fire_at(world, EIGHT + timedelta(minutes=1))
        world.advance(timedelta(minutes=50))
        (change,) = await world.declare(schedule(cron="* * * * *", **catching))
        assert (change.what, change.kind, set(change.fields)) == ("schedule", ChangeKind.CHANGE, {"cron"})
        await fire(world)
        assert await times(world) == ["2031-05-06T08:00:00Z"]
        world.advance(60)
        await fire(world)
        assert await times(world) == ["2031-05-06T08:00:00Z", "2031-05-06T08:52:00Z"]
        await decide(world, Action.PAUSE)
        before = await state(world)
        await world.declare(schedule(cron="*/5 * * * *", job={"priority": 3}, **catching))
        assert await state(world) == before


async def test_another_change_than_of_times_loses_none(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        await fire(world)
        world.clock.now = EIGHT
        (change,) = await world.declare(schedule(job={"payload": {"secret": "hunter2"}}))
        assert change.fields == {"payload": ("(not shown)", "(not shown)")}
        assert await world.declare(schedule(job={"payload": {"secret": "hunter2"}})) == []
        await fire(world)
        (job,) = await world.all(Job)
        assert job.payload == {"secret": "hunter2"}


async def test_a_removed_schedule_leaves_its_jobs_and_begins_anew_when_it_comes_back(new_world: NewWorld) -> None:
    catching = schedule(catch_up=CatchUp.ALL, on_overlap=OnOverlap.QUEUE)
    async with new_world(profile(), catching) as world:
        await fire_at(world, EIGHT)
        (change,) = await world.declare(profile(), prune=True)
        assert (change.what, change.kind, change.id) == ("schedule", ChangeKind.REMOVE, "nightly")
        assert await fire_at(world, EIGHT + timedelta(hours=2)) == []
        assert await world.all(ScheduleState) == []
        with pytest.raises(NotFound):
            await world.store.get(Schedule, "nightly")
        await world.declare(catching)
        await fire(world)
        assert await times(world) == ["2031-05-06T08:00:00Z"]
        await end_all(world)
        await fire_at(world, EIGHT + timedelta(hours=3))
        assert await times(world) == ["2031-05-06T08:00:00Z", "2031-05-06T11:00:00Z"]


async def test_a_pause_outlives_the_removal_of_its_schedule_but_what_was_being_made_does_not(
    new_world: NewWorld,
) -> None:
    several = [profile(f"p{n}") for n in range(3)]
    async with new_world(*several, schedule(pool="default")) as world:
        world.clock.now = EIGHT
        await world.store.fire(1)
        await decide(world, Action.PAUSE)
        await decide(world, Action.RUN)
        await world.declare(*several, prune=True)
        await world.declare(schedule(pool="default"))
        assert await fire(world) == []
        again = await state(world)
        assert (again.paused, again.firing_at, again.run_at) == (True, None, None)
        await decide(world, Action.RESUME)
        await fire(world)
        assert len(await world.all(Job)) == 1


async def test_without_prune_a_schedule_that_the_file_does_not_name_stays(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule()) as world:
        assert await world.declare(profile()) == []
        assert [one.schedule_id for one in await world.all(Schedule)] == ["nightly"]
