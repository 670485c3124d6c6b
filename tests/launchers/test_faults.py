"""Worker, Playwright, launcher: whoever is killed or stopped, after the lease is over nothing comes in its name, and no
browser of the launcher is left that somebody could have stopped."""

import asyncio
import signal
from pathlib import Path

import pytest

from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import ReleasePolicy
from tests.e2e.arena import Arena, arena, late
from tests.launchers.stage import Fake, launched, launched_fleet
from tests.runtime.stage import until


async def _settle_in(a: Arena, fake: Fake, policy: ReleasePolicy = ReleasePolicy.RECOVER) -> None:
    await a.store.apply(launched_fleet(fake.record, launched(release_policy=policy)), actor="test")
    a.start("first", LEASEKEEPER_DRIVERS="launcher")


async def _no_browser(fake: Fake) -> None:
    async def gone() -> bool:
        return not await asyncio.to_thread(fake.browsers)

    await until(gone)


# Daily: the recipe's launcher, and the one whose address outlives its browser. What differs between others is data.
@pytest.mark.release_if(when=lambda chosen: chosen["fake"] not in ("http", "kameleo"))
async def test_a_worker_that_is_killed_leaves_no_browser_in_the_launcher(
    sqlite_url: str, tmp_path: Path, fake: Fake
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await _settle_in(a, fake)
        job = await a.submit()
        run = await a.at_work(job)
        a.workers[0].kill()
        lease = await a.ended(run)
        assert late(a, lease) == []
        await _no_browser(fake)
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert (lane.state, "recovered after safe step page_open" in lane.state_reason) == ("available", True)
        assert fake.calls("stop") >= 1


async def test_a_worker_that_is_stopped_past_its_lease_cannot_click(
    sqlite_url: str, tmp_path: Path, recipe: Fake
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        await _settle_in(a, recipe)
        job = await a.submit()
        run = await a.at_work(job)
        a.workers[0].send_signal(signal.SIGSTOP)
        lease = await a.ended(run)
        await _no_browser(recipe)
        a.workers[0].send_signal(signal.SIGCONT)
        await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert late(a, lease) == []


async def test_a_launcher_that_is_killed_leaves_the_profile_to_a_rule_and_says_so(
    sqlite_url: str, tmp_path: Path, recipe: Fake
) -> None:
    """The browser closes over DevTools, but nobody confirms: that is not a clean close."""
    async with arena(sqlite_url, tmp_path) as a:
        await _settle_in(a, recipe, ReleasePolicy.REVIEW)
        job = await a.submit(clicks=40)
        await a.at_work(job)
        recipe.kill()
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale", "available"))
        assert lane.state == "review_required"
        (run,) = (await a.store.find(RunRecord, {"job_id": job.job_id})).items
        assert "the launcher did not confirm the stop" in str(run.evidence["keeper"])


@pytest.mark.parametrize("step", ["start", "stop"])
async def test_an_answer_that_is_lost_is_found_out_by_asking(
    sqlite_url: str, tmp_path: Path, recipe: Fake, step: str
) -> None:
    async with arena(sqlite_url, tmp_path) as a:
        recipe.fault(step, "silent")
        await _settle_in(a, recipe)
        job = await a.submit(clicks=3)

        async def asked() -> bool:
            return await asyncio.to_thread(recipe.calls, step) >= 1

        await until(asked)
        recipe.fault(step, "")
        done = await a.job_when(job, lambda j: j.state in ("completed", "dead"))
        assert done.state == "completed"
        await _no_browser(recipe)
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert lane.state == "available"
