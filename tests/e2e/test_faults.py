"""Whatever is killed, stopped or cut off: after a lease is over nothing comes in its name, nothing is left running, and
the profile and the job are where the rules put them, with the reason (I2, I6, I7)."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import ReleasePolicy
from tests.conformance.world import profile
from tests.e2e.arena import TIMES, Arena, arena, late
from tests.runtime.stage import stop

LONGER_THAN_A_LEASE = float(TIMES["lease_ttl"]) + 3.0
Hurt = Callable[[Arena], list[int]]


def kill(*pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


KILLS: dict[str, Callable[[Arena], None]] = {
    "worker": lambda a: kill(a.workers[0].pid),
    "worker_and_driver": lambda a: kill(a.driver(a.workers[0]), a.workers[0].pid),
    "process_group": lambda a: os.killpg(a.workers[0].pid, signal.SIGKILL),
}


# Daily: each kill once, each policy once, each store once. The policies themselves are the conformance suite's.
@pytest.mark.release_if(
    when=lambda chosen: (
        (chosen["what"] != "worker" and (chosen["policy"], chosen["store_url"]) != (ReleasePolicy.RECOVER, "sqlite"))
        or (chosen["policy"], chosen["store_url"]) == (ReleasePolicy.QUARANTINE, "postgres")
    )
)
@pytest.mark.parametrize("what", KILLS)
@pytest.mark.parametrize("policy", [ReleasePolicy.RECOVER, ReleasePolicy.QUARANTINE])
async def test_a_worker_that_is_killed(store_url: str, tmp_path: Path, what: str, policy: ReleasePolicy) -> None:
    async with arena(store_url, tmp_path, profile("p1", release_policy=policy)) as a:
        a.start("first")
        job = await a.submit()
        run = await a.at_work(job)
        KILLS[what](a)
        lease = await a.ended(run)
        assert late(a, lease) == []
        lost = await a.job_when(job, lambda j: j.losses == 1)
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert lost.stop_reason == "WORKER_LOST"
        await _has_report(a, run)
        if policy is ReleasePolicy.QUARANTINE:
            assert (lane.state, "quarantine" in lane.state_reason) == ("quarantined", True)
        else:
            assert "recovered after safe step page_open" in lane.state_reason
            a.start("second")
            again = await a.job_when(job, lambda j: j.state == "completed")
            assert again.attempt == 2
            await _remembers(a, f"p1:{lane.token + 1}")


async def _has_report(a: Arena, run: RunRecord) -> None:
    """The lost run has evidence: where it was, what it looked like, what was done last."""

    async def reported() -> RunRecord | None:
        found = await a.store.get(RunRecord, run.run_id)
        return found if "keeper" in found.evidence else None

    from tests.runtime.stage import until

    found = await until(reported)
    assert found is not None
    assert found.final_url == f"{a.shop.url}/ticking"
    assert (a.data / "runs" / run.run_id / "last.png").stat().st_size > 100
    assert any(c["method"].startswith("Input.") for c in found.evidence["keeper"]["commands"])  # type: ignore[index] # the keeper's own record


async def _remembers(a: Arena, name: str) -> None:
    job = await a.submit(task="recall")
    await a.job_when(job, lambda j: j.state == "completed")
    (run,) = (await a.store.find(RunRecord, {"job_id": job.job_id})).items
    assert run.output == {"cookie": name, "local": name, "indexed": name}


@pytest.mark.release_if(when=lambda chosen: chosen["store_url"] == "postgres")  # the keeper knows no store
async def test_a_worker_that_dies_inside_a_section(store_url: str, tmp_path: Path) -> None:
    async with arena(store_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        a.start("first")
        job = await a.submit(section=True)
        run = await a.at_work(job, section=True)
        KILLS["worker"](a)
        assert late(a, await a.ended(run)) == []
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert lane.state == "quarantined"
        assert "died inside buy" in lane.state_reason
        assert (await a.job_when(job, lambda j: j.state == "review")).stop_reason == "WORKER_LOST"
        await _has_report(a, run)


async def test_a_driver_that_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    async with arena(sqlite_url, tmp_path, profile("p1")) as a:
        a.start("first")
        job = await a.submit()
        run = await a.at_work(job)
        kill(a.driver(a.workers[0]))
        assert late(a, await a.ended(run)) == []
        ended = await a.store.get(RunRecord, run.run_id)
        assert ended.stop_reason == "BROWSER_CRASHED"
        again = await a.job_when(job, lambda j: j.state == "completed")
        assert again.attempt == 2
        lane = await a.lane_when(lambda lane: lane.state == "available")
        await _remembers(a, f"p1:{lane.token}")


# Daily: both stops on SQLite, one on PostgreSQL.
@pytest.mark.release_if(when=lambda chosen: (chosen["store_url"], chosen["what"]) == ("postgres", "worker"))
@pytest.mark.parametrize("what", ["worker", "worker_and_driver"])
async def test_a_worker_that_is_stopped_for_longer_than_its_lease(store_url: str, tmp_path: Path, what: str) -> None:
    async with arena(store_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        first = a.start("first")
        job = await a.submit()
        run = await a.at_work(job)
        stopped = [first.pid, *([a.driver(first)] if what == "worker_and_driver" else [])]
        stop(store_url, *stopped)
        lease = await a.ended(run)
        assert a.browsers() == []
        a.start("second")
        await a.job_when(job, lambda j: j.state == "completed")
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(2)  # waits: what woke up would act now
        assert late(a, lease) == []
        assert first.poll() is None
        after = await a.submit(clicks=1)
        assert (await a.job_when(after, lambda j: j.state == "completed")).attempt == 1


async def test_a_driver_that_is_stopped_for_a_while_loses_nothing(sqlite_url: str, tmp_path: Path) -> None:
    async with arena(sqlite_url, tmp_path, profile("p1")) as a:
        first = a.start("first")
        job = await a.submit(clicks=40)
        await a.at_work(job)
        driver = a.driver(first)
        os.kill(driver, signal.SIGSTOP)
        await asyncio.sleep(LONGER_THAN_A_LEASE)  # waits: the lease must outlive this, since the worker is alive
        os.kill(driver, signal.SIGCONT)
        assert (await a.job_when(job, lambda j: j.state == "completed")).attempt == 1


async def test_a_keeper_that_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    async with arena(sqlite_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        a.start("first")
        job = await a.submit()
        run = await a.at_work(job)
        kill(a.keeper())
        assert late(a, await a.ended(run)) == []
        ended = await a.store.get(RunRecord, run.run_id)
        assert ended.stop_reason == "BROWSER_CRASHED"
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        left = "the browser could not be proven closed: the keeper left no report"
        assert (lane.state, lane.state_reason) == ("quarantined", f"the final URL is unknown; {left}")
        await a.no_browser_left()


async def test_a_browser_that_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    async with arena(sqlite_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        a.start("first")
        job = await a.submit()
        run = await a.at_work(job)
        kill(*a.browsers())
        assert late(a, await a.ended(run)) == []
        ended = await a.store.get(RunRecord, run.run_id)
        assert ended.stop_reason == "BROWSER_CRASHED"
        again = await a.job_when(job, lambda j: j.state == "completed")
        assert again.attempt == 2
