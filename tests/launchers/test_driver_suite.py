"""The driver suite, the same over every driver: whoever is killed, stopped or silent, after a lease is over nothing is
done in its name, and no browser is left."""

import asyncio
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.core.jobs import Job
from leasekeeper.core.launchers import VENDORS as ALL_LAUNCHERS
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Lane, ReleasePolicy
from tests.e2e.arena import Arena, arena, late
from tests.launchers.stands import DRIVERS, LAUNCHERS, Stand, over
from tests.runtime.stage import until

# Not `cdp`: its browsers were started by others, so that nobody can say whether they are busy.
STARTED = tuple(name for name in DRIVERS if name != "cdp")
RECOVER = ReleasePolicy.RECOVER


def test_every_driver_is_in_this_suite() -> None:
    assert {"local", *ALL_LAUNCHERS} == set(DRIVERS)


async def settle_in(a: Arena, stand: Stand, *workers: str, ids: tuple[str, ...] = ("p1",), **more: Any) -> None:
    await a.store.apply(stand.fleet(*ids, release_policy=RECOVER, **more), actor="test")
    for name in workers or ("first",):
        a.start(name, **stand.environ)


async def true(holds: Callable[[], bool]) -> None:
    async def look() -> bool:
        return await asyncio.to_thread(holds)

    await until(look)


async def nothing_left(a: Arena, stand: Stand) -> None:
    """No browser is left, and no lease did anything after its end."""
    await true(lambda: not stand.browsers())
    for run in (await a.store.find(RunRecord, limit=100)).items:
        lease = await a.store.get(Lease, run.lease_id)
        assert lease.ended_at is None or late(a, lease) == []


async def decided(a: Arena) -> Lane:
    return await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))


async def done(a: Arena, *jobs: Job) -> list[str]:
    return [(await a.job_when(job, lambda j: j.state in ("completed", "dead", "review"))).state for job in jobs]


# Daily the tests below start and stop a browser of every launcher, and `tests/e2e` local ones.
@over(DRIVERS, "cdp")
async def test_start_status_stop(sqlite_url: str, tmp_path: Path, stand: Stand) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        job = await a.submit(clicks=3)
        assert await done(a, job) == ["completed"]
        assert (await decided(a)).state == "available"
        run: Any = (await a.store.find(RunRecord, {"job_id": job.job_id})).items[0]
        assert run.evidence["keeper"]["clean_close"]
        await nothing_left(a, stand)


@over(STARTED, "local")
async def test_a_profile_that_somebody_else_has_open_is_left_alone(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        stand.occupy()
        await settle_in(a, stand)
        job = await a.submit()
        lane = await a.lane_when(lambda lane: lane.state == "review_required")
        (run,) = (await a.store.find(RunRecord, {"job_id": job.job_id})).items
        assert run.stop_reason == "PROFILE_IN_USE_ELSEWHERE", lane.state_reason
        stand.leave()
        await nothing_left(a, stand)


@over(DRIVERS, "adspower")
async def test_a_browser_that_crashes_ends_the_run_and_the_profile_is_decided_on(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        job = await a.submit()
        run = await a.at_work(job)
        stand.crash()
        await a.ended(run)
        ended = await a.store.get(RunRecord, run.run_id)
        assert ended.stop_reason == "BROWSER_CRASHED"
        assert await done(a, job) == ["dead" if stand.driver == "cdp" else "completed"]
        assert (await decided(a)).state == "available"
        await nothing_left(a, stand)


@over(DRIVERS, "gologin")
async def test_a_worker_that_is_stopped_past_its_deadline_cannot_click(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        run = await a.at_work(await a.submit())
        a.workers[0].send_signal(signal.SIGSTOP)
        await a.ended(run)
        await true(lambda: not stand.browsers())
        a.workers[0].send_signal(signal.SIGCONT)
        await decided(a)
        await nothing_left(a, stand)


# Daily also in the next test, for `http`.
@over(DRIVERS, "kameleo")
async def test_a_worker_that_is_killed_leaves_no_browser(sqlite_url: str, tmp_path: Path, stand: Stand) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        run = await a.at_work(await a.submit())
        a.workers[0].kill()
        await a.ended(run)
        lane = await decided(a)
        assert (lane.state, "recovered after safe step page_open" in lane.state_reason) == ("available", True)
        await nothing_left(a, stand)


# Daily `test_keeper_end` asks about such a browser.
@over(LAUNCHERS)
async def test_a_browser_that_outlives_its_worker_and_its_keeper_is_stopped(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        run = await a.at_work(await a.submit())
        a.workers[0].kill()
        for pid in a.processes():
            os.kill(pid, signal.SIGKILL)
        assert stand.browsers()
        await a.ended(run)
        lane = await decided(a)
        # Nobody took evidence. GoLogin cannot say that a profile is idle, so not even the end is proven.
        said = "the final URL is unknown" if stand.driver != "gologin" else "its launcher cannot say"
        assert said in lane.state_reason
        await true(lambda: not stand.browsers())


@over(LAUNCHERS, "dolphin")
async def test_a_browser_whose_keeper_is_killed_is_stopped_by_its_worker(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        run = await a.at_work(await a.submit())
        os.kill(a.keeper(), signal.SIGKILL)
        await a.ended(run)
        await true(lambda: not stand.browsers())
        assert a.workers[0].poll() is None
        assert (await decided(a)).state_reason


@over(LAUNCHERS, "http")
async def test_a_launcher_that_is_killed_is_asked_again_until_it_is_back(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    """The browser closes over DevTools, but nobody confirms: the profile is stale, and says why, until it is known."""
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        await a.at_work(await a.submit())
        stand.launcher.kill()
        a.workers[0].kill()
        lane = await a.lane_when(lambda lane: "it is asked again until it does" in lane.state_reason)
        assert (lane.state, "Connection refused" in lane.state_reason) == ("stale", True)
        await a.nothing_left()  # the keeper has given up, and reported where the browser was
        stand.launcher.restart()
        lane = await decided(a)
        # GoLogin cannot say that a profile is idle, so nothing is proven.
        said = "recovered after safe step" if stand.driver != "gologin" else "its launcher cannot say"
        assert said in lane.state_reason
        await nothing_left(a, stand)


@over(LAUNCHERS, "multilogin")
async def test_a_launcher_that_is_restarted_during_a_run_is_asked_at_its_end(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    """It has forgotten the browser, which lives on: closed over DevTools all the same, its address gone."""
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        job = await a.submit(clicks=60)
        await a.at_work(job)
        stand.launcher.kill()
        stand.launcher.restart()
        await done(a, job)
        await decided(a)
        await nothing_left(a, stand)


@pytest.mark.parametrize("step", ["start", "stop"])
@over(LAUNCHERS, "dolphin")
async def test_an_answer_that_is_lost_is_found_out_by_asking(
    sqlite_url: str, tmp_path: Path, stand: Stand, step: str
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        stand.launcher.fault(step, "lost")
        await settle_in(a, stand)
        job = await a.submit(clicks=3)
        assert await done(a, job) == ["completed"]
        assert (await decided(a)).state == "available"
        assert stand.launcher.calls(step) >= 2
        await nothing_left(a, stand)


@pytest.mark.release  # daily `test_keeper_end` has such a browser, and `test_asking` what is asked about it
@over(("http",))
async def test_a_browser_that_hangs_where_the_stop_does_nothing_stays_stale_until_it_has_gone(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand)
        await a.at_work(await a.submit())
        stand.launcher.fault("stop", "nothing")
        pids = stand.browsers()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        a.workers[0].kill()
        await a.lane_when(lambda lane: lane.state == "stale")
        stand.launcher.fault("stop", "")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        await decided(a)
        await nothing_left(a, stand)


@over((*STARTED, "cdp"), "http")
async def test_two_workers_at_once_never_share_a_profile_nor_exceed_the_plan(
    sqlite_url: str, tmp_path: Path, stand: Stand
) -> None:
    """Three profiles, two workers, a plan for one browser: at no time do two run."""
    ids = ("p1", "p2", "p3")
    async with arena(sqlite_url, tmp_path) as a:
        await settle_in(a, stand, "first", "second", ids=ids, cap=1, warm=False)
        # A browser of `cdp` can be attached to once.
        jobs = [await a.submit(name, clicks=2) for name in (ids if stand.driver == "cdp" else (*ids, "p1"))]
        assert await done(a, *jobs) == ["completed"] * len(jobs)
        runs = [run for job in jobs for run in (await a.store.find(RunRecord, {"job_id": job.job_id})).items]
        spans = sorted((run.acquired_at, run.ended_at) for run in runs if run.ended_at is not None)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        if stand.driver in LAUNCHERS:
            assert stand.launcher.peak == 1
        await nothing_left(a, stand)
