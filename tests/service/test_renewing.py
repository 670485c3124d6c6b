"""A lease over HTTP whose server stands still, or moves: neither costs it before its time."""

import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Timing
from leasekeeper.ports import LeaseRequest
from leasekeeper.runtime import heartbeat as heartbeat_module
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.stores import open_store
from leasekeeper.threads import run_in_thread
from tests.conformance.world import fleet, profile
from tests.runtime.stage import until
from tests.service.restarts import ServerProcess, lossy

# Shorter than the timeout of one call.
TIMING = Timing(renew_every=timedelta(seconds=0.2), holder_stops_after=timedelta(seconds=12))


async def test_neither_a_server_that_stands_still_nor_one_that_moves_costs_a_lease(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "PATIENCE", 0.05)
    lost: list[str] = []
    with ServerProcess(sqlite_url, tmp_path) as server:
        async with lossy(server.port) as (wire, url):
            opening = partial(open_store, url, token=server.token)
            store, heartbeat = await opening(), Heartbeat(opening, TIMING)
            await store.apply(fleet(profile("p1", driver="null")), actor="ann")
            granted_at = boot_time()
            request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w1"), incarnation="i1")
            grant = await store.acquire(request)
            kept = heartbeat.keep(grant.lease, granted_at, lost.append)

            async def renewed(since: float) -> bool:
                return kept.deadline > since + TIMING.holder_stops_after.total_seconds()

            async def asks_again() -> bool:
                return len(heartbeat._unanswered) > 1

            try:
                await until(partial(renewed, granted_at))
                server.send(signal.SIGSTOP)
                await until(asks_again)
                server.send(signal.SIGCONT)
                await until(partial(renewed, boot_time()))
                wire.moves += 1
                await until(partial(renewed, boot_time()))
            finally:
                server.send(signal.SIGCONT)
                await run_in_thread(heartbeat.close)
                await store.close()
    assert lost == []
