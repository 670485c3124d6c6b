"""A store that cannot be reached: the holder stops by itself before anybody else may have the profile (I2)."""

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.stores import migrate
from tests.chaos.wire import Wire
from tests.conformance.world import profile
from tests.e2e.arena import arena, late
from tests.servers import new_database, postgres_server


async def test_a_worker_that_cannot_reach_its_store_loses_its_browser_in_time(tmp_path: Path) -> None:
    with postgres_server() as server, Wire(server.address, seed=1) as wire:
        direct = new_database(server)
        await migrate(direct)
        through = wire.url(str(conninfo_to_dict(direct)["dbname"]))
        async with arena(direct, tmp_path, profile("p1", release_policy=ReleasePolicy.RECOVER)) as a:
            a.start("first", store=through)
            job = await a.submit()
            run = await a.at_work(job)
            with wire.silence():
                lease = await a.ended(run)
                assert late(a, lease) == []
                assert a.browsers() == []
            await a.job_when(job, lambda j: j.state == "completed")
            ended = await a.store.get(RunRecord, run.run_id)
            assert ended.stop_reason == "WORKER_LOST"
            assert ended.evidence["keeper"]["cause"] in ("revoked", "deadline")  # type: ignore[index] # the keeper's own record
