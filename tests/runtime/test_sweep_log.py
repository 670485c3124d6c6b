"""The log of a process that sweeps says what was decided about lost leases, with the ids."""

import logging
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper import config
from leasekeeper.client import Client
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.ports import LeaseRequest
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.stores import open_store
from tests.runtime.stage import furnish


async def test_expiry_and_resolution_have_a_line_each(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shift = timedelta(0)

    def clock(real: datetime) -> datetime:
        return real + shift

    settings = config.load({}, store=sqlite_url, data_dir=str(tmp_path))
    store = await open_store(sqlite_url, policy=settings.policy, clock=clock)
    client = Client(store, settings)
    try:
        await furnish(client)
        request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1")
        lease = (await store.acquire(request)).lease
        caplog.set_level(logging.DEBUG, "leasekeeper")
        shift = timedelta(hours=1)
        sweeper = Sweeper(store, settings)
        await sweeper.tick()  # has nothing yet to compare the clock with
        assert caplog.records == []
        await sweeper.tick()
    finally:
        await client.close()
    expired, resolved, silent, swept = caplog.records
    assert expired.getMessage().startswith(f"lease {lease.lease_id} expired, profile p1 is stale: no heartbeat of")
    assert resolved.getMessage().startswith(f"lease {lease.lease_id} resolved: profile p1 is quarantined, ")
    assert (swept.levelname, swept.getMessage()) == ("DEBUG", "sweep: expired 1, resolved 1, silent 1")
    assert silent.getMessage().startswith("worker w no longer reports")
    for line in (expired, resolved):
        said = vars(line)
        assert (said["run_id"], said["profile_id"], said["worker_id"]) == (lease.run_id, "p1", "w")
