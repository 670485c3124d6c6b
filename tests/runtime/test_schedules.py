"""Schedules and processes: sweepers that die in the middle, several at once, and what a sweep does and says."""

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper.config import load
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ProfileId, ScheduleId
from leasekeeper.core.jobs import Job, JobSpec, JobState
from leasekeeper.core.policy import Policy
from leasekeeper.core.schedules import CatchUp, OnOverlap, Schedule, ScheduleState, Selection
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.stores import open_store
from tests.conformance.world import Clock, fleet, profile
from tests.runtime import sweeping

START = datetime(2031, 5, 6, 7, 0, 30, tzinfo=UTC)
PROFILES = 30
TIMES = 20
NOW = START + timedelta(minutes=TIMES)
WAIT_SECONDS = 120.0


def minutely(schedule_id: str = "minutely", **settings: object) -> Schedule:
    values: dict[str, object] = {"cron": "* * * * *", "job": JobSpec(task="visit"), **settings}
    values.setdefault("select", Selection(pool="default"))
    return Schedule(schedule_id=ScheduleId(schedule_id), **values)  # type: ignore[arg-type]  # as given by name


ALL = minutely(catch_up=CatchUp.ALL, on_overlap=OnOverlap.QUEUE, jitter_seconds=600)


@asynccontextmanager
async def opened(url: str, clock: Clock, *schedules: Schedule) -> AsyncIterator[Store]:
    """A store with profiles and these schedules, declared at START."""
    store = await open_store(url, policy=Policy(), clock=clock)
    try:
        records = [profile(f"p{n:02}") for n in range(PROFILES)]
        await store.apply(fleet(*records, *schedules), actor="ann")
        yield store
    finally:
        await store.close()


async def jobs_of(store: Store) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    while True:
        page = await store.find(Job, after=after, limit=MAX_IN_PAGE)
        found += page.items
        after = page.after
        if after is None:
            return found


async def until(store: Store, enough: Callable[[list[Job]], bool]) -> list[Job]:
    """The jobs, once there are enough."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            jobs = await jobs_of(store)
            if enough(jobs):
                return jobs
            await asyncio.sleep(0.02)  # waits: for another process, by looking at what it wrote


def check_each_once(jobs: list[Job]) -> None:
    expected = {
        f"schedule:minutely:{(START + timedelta(seconds=30, minutes=n)):%Y%m%dT%H%M%SZ}:p{p:02}"
        for n in range(TIMES)
        for p in range(PROFILES)
    }
    assert sorted(str(job.idempotency_key) for job in jobs) == sorted(expected)


async def test_a_sweeper_that_dies_before_its_commit_leaves_nothing(store_url: str) -> None:
    clock = Clock(START)
    async with opened(store_url, clock, ALL) as store:
        child = sweeping.start(store_url, NOW, 100, "die")
        assert await asyncio.to_thread(child.wait, WAIT_SECONDS) == -signal.SIGKILL
        assert await jobs_of(store) == []
        assert (await store.find(Event, {"type": EventType.SCHEDULE_FIRED.value})).items == []
        clock.now = NOW

        async def fire_all() -> None:
            while len(await jobs_of(store)) < PROFILES * TIMES:
                await store.fire()

        await asyncio.wait_for(fire_all(), WAIT_SECONDS)
        check_each_once(await jobs_of(store))


async def test_sweepers_that_are_killed_again_and_again_make_each_job_once(store_url: str) -> None:
    chance = random.Random(7)
    async with opened(store_url, Clock(START), ALL) as store:
        children = [sweeping.start(store_url, NOW, limit) for limit in (7, 11, 13)]
        try:
            for step in range(1, 6):
                before = len(await until(store, lambda jobs: len(jobs) >= 80 * step))  # noqa: B023 - awaited here
                assert before <= PROFILES * TIMES
                victim = chance.randrange(len(children))
                children[victim].kill()
                await asyncio.to_thread(children[victim].wait)
                children[victim] = sweeping.start(store_url, NOW, chance.randint(3, 20))
            jobs = await until(store, lambda jobs: len(jobs) >= PROFILES * TIMES)
        finally:
            for child in children:
                child.kill()
                child.wait()
        check_each_once(jobs)
        made = {(job.idempotency_key, job.run_at) for job in jobs}
        assert len(made) == len(jobs)
        assert (await store.get(ScheduleState, "minutely")).firing_at is None


async def test_a_sweep_makes_the_jobs_that_are_due(store_url: str, tmp_path: Path) -> None:
    clock = Clock(START)
    async with opened(store_url, clock, minutely(select=Selection(profile_id=ProfileId("p00")))) as store:
        sweeper = Sweeper(store, load({}, data_dir=str(tmp_path)))
        assert (await sweeper.tick()).fired == 0
        clock.now += timedelta(seconds=30)
        assert (await sweeper.tick()).fired == 1
        assert (await sweeper.tick()).fired == 0
        (job,) = await jobs_of(store)
        assert (job.profile_id, job.state) == ("p00", JobState.BLOCKED)


async def test_a_schedule_whose_time_zone_is_not_known_here_is_logged_and_stops_no_other(
    store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(START)
    async with opened(store_url, clock, minutely("lost", timezone="Mars/Olympus"), minutely()) as store:
        sweeper = Sweeper(store, load({}, data_dir=str(tmp_path)))
        clock.now += timedelta(seconds=30)
        with caplog.at_level(logging.WARNING):
            assert (await sweeper.tick()).fired == PROFILES
            assert (await sweeper.tick()).fired == 0
        said = [record.getMessage() for record in caplog.records if "schedule" in record.getMessage()]
        assert len(said) == 1
        assert "schedule lost makes no jobs" in said[0]
        assert "Mars/Olympus" in said[0]
