"""The store's clock is set while browsers run: the keeper counts for itself, and the log says what happened."""

import asyncio
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper.app import App, Run
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.runtime import lost_runs
from leasekeeper.runtime.sweeper import Sweeper
from tests.conformance.world import profile
from tests.runtime.browsing import house
from tests.runtime.shop import Shop
from tests.runtime.stage import until


class Setting:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.by = timedelta(0)

    def __call__(self, real: datetime) -> datetime:
        return real + self.by


def new_app() -> App:
    app = App(lease_ttl=9.0, renew_every=0.5, holder_stops_after=7.5, lock_delay=0.5, clock_tolerance=2.0)

    @app.task("tick")
    async def tick(run: Run) -> None:
        await run.page.goto(f"{run.payload['url']}/ticking?title={run.lease.lease_id}")
        await run.safe("there")
        await asyncio.sleep(10)  # waits: longer than a lease lasts

    return app


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_clock_that_is_set_frees_nothing_and_leaves_nothing(
    sqlite_url: str, tmp_path: Path, hours: int
) -> None:
    clock = Setting()
    with Shop() as shop:
        record = profile("p1", release_policy=ReleasePolicy.RECOVER)
        async with house(new_app(), sqlite_url, tmp_path, record, clock=clock) as home:
            stop = asyncio.Event()
            sweeper = Sweeper(home.store, home.config, reports=lost_runs.LostRunReports(home.data))
            sweeping = asyncio.create_task(sweeper.run(stop))
            job = await home.submit("tick", payload={"url": shop.url})
            async with home.worker():

                async def ticking() -> bool:
                    return len(shop.of("p1:1", "/tick")) > 2

                await until(ticking)
                clock.by = timedelta(hours=hours)

                async def over() -> bool:
                    return (await home.store.get(Lease, "p1:1")).ended_at is not None

                await until(over)
                ended = time.time()

                async def free() -> bool:
                    return (await home.lane()).state not in ("leased", "stale")

                await until(free)
                await home.settled(job)
            stop.set()
            await sweeping
            assert [hit for hit in shop.of("p1:1") if hit.at > ended] == []
            assert len(await home.events(type=EventType.CLOCK_JUMPED)) == 1
            assert (await home.lane()).state == "available"
