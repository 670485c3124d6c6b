"""When a worker, its Playwright process and its keeper all stand still, any other worker or sweeper of the machine
ends the browser before its lease is over. It never touches the browser of a lease that is renewed."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import ReleasePolicy
from tests.conformance.world import profile
from tests.e2e.arena import TIMES, Arena, arena, late
from tests.runtime.stage import stop, until

# Between the keeper's time to end the browser and the end of the lease there must be seconds, also on a busy machine.
LONG = {"LEASEKEEPER_LEASE_TTL": "40"}
LONGER_THAN_A_LEASE = float(TIMES["lease_ttl"]) + 3.0


async def ended_late(a: Arena, run: RunRecord) -> Event:
    async def recorded() -> Event | None:
        found = await a.events(EventType.BROWSER_OUTLIVED_LEASE, run_id=run.run_id)
        return found[0] if found else None

    event = await until(recorded)
    assert event is not None
    return event


async def reported(a: Arena, run: RunRecord) -> RunRecord:
    async def look() -> RunRecord | None:
        found = await a.store.get(RunRecord, run.run_id)
        return found if "keeper" in found.evidence else None

    found = await until(look)
    assert found is not None
    return found


@pytest.mark.release_if(when=lambda chosen: chosen["store_url"] == "postgres")  # the rule is the same, and core's
async def test_worker_playwright_and_keeper_stopped_at_once(store_url: str, tmp_path: Path) -> None:
    async with arena(store_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        first = a.start("first", **LONG)
        job = await a.submit()
        run = await a.at_work(job)
        stop(store_url, first.pid, a.driver(first), a.keeper())
        event = await ended_late(a, run)
        assert a.browsers() == []
        lease = await a.ended(run)
        assert late(a, lease) == []
        assert event.data["keeper"] == "reported"
        assert event.data["all_gone"] is True
        told = await reported(a, run)
        assert told.final_url == f"{a.shop.url}/ticking"
        assert (await a.job_when(job, lambda j: j.losses == 1)).stop_reason == "WORKER_LOST"
        a.start("second")
        await a.job_when(job, lambda j: j.state == "completed")
        for pid in (first.pid, a.driver(first)):
            os.kill(pid, signal.SIGCONT)
        after = await a.submit(clicks=1)
        assert (await a.job_when(after, lambda j: j.state == "completed")).attempt == 1
        assert late(a, lease) == []
        assert len(await a.events(EventType.BROWSER_OUTLIVED_LEASE)) == 1


async def test_a_stopped_browser_without_a_keeper_is_killed_and_reported(sqlite_url: str, tmp_path: Path) -> None:
    """Nobody is left who knows its last page: the report says so, and the profile goes to a person."""
    async with arena(sqlite_url, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
        first = a.start("first", **LONG)
        job = await a.submit()
        run = await a.at_work(job)
        keeper = a.keeper()
        stop(sqlite_url, first.pid, a.driver(first), *a.browsers())
        os.kill(keeper, signal.SIGKILL)
        event = await ended_late(a, run)
        assert (event.data["keeper"], event.data["stopped_by"]) == ("gone", "SIGKILL")
        assert a.browsers() == []
        assert late(a, await a.ended(run)) == []
        told = await reported(a, run)
        assert told.evidence["report"] == {"by": "another_worker", "browser_dead": True, "proxy_changed": False}
        lane = await a.lane_when(lambda lane: lane.state not in ("leased", "stale"))
        assert lane.state in ("review_required", "quarantined")
        for pid in (first.pid, a.driver(first)):
            os.kill(pid, signal.SIGCONT)


async def test_a_keeper_that_stands_still_while_its_lease_is_renewed_keeps_its_browser(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with arena(sqlite_url, tmp_path, profile("p1")) as a:
        a.start("first")
        job = await a.submit(clicks=40)
        await a.at_work(job)
        keeper = a.keeper()
        os.kill(keeper, signal.SIGSTOP)
        await asyncio.sleep(LONGER_THAN_A_LEASE)  # waits: another worker would end the browser now
        assert len(a.browsers()) == 1
        os.kill(keeper, signal.SIGCONT)
        assert (await a.job_when(job, lambda j: j.state == "completed")).attempt == 1
        assert await a.events(EventType.BROWSER_OUTLIVED_LEASE) == []
