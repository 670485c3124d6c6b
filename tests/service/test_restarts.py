"""A server that is killed after it committed and before it answered: the next one answers as it would have."""

from datetime import timedelta
from pathlib import Path

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.policy import Policy
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import ClaimRequest
from leasekeeper.stores import open_store
from tests.conformance.world import end, fleet, profile, spec
from tests.service.restarts import ServerProcess, lossy

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i1", tasks=("visit",), limit=5)
PATIENT = Policy(store_timeout=timedelta(seconds=60))


async def test_a_server_killed_between_commit_and_answer_answers_after_its_restart(
    store_url: str, tmp_path: Path
) -> None:
    with ServerProcess(store_url, tmp_path) as server:
        async with lossy(server.port) as (wire, url):
            store = await open_store(url, policy=PATIENT, token=server.token)

            def restart() -> None:
                server.kill()
                server.start()

            await store.apply(fleet(profile("p1")), actor="ann")
            await store.report(
                WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="default", tasks=("visit",))
            )
            wire.lose = restart
            (submitted,) = await store.submit([spec("p1", payload={"order": 7})])
            wire.lose = restart
            (grant,) = await store.claim(CLAIM)
            assert grant.job is not None
            assert grant.job.payload == {"order": 7}
            assert grant.lease.incarnation == "i1"
            await store.enter_section(grant.lease.ref, "pay")
            wire.lose = restart
            await store.leave_section(grant.lease.ref, "pay")
            wire.lose = restart
            (settled,) = await store.settle([end(grant.lease.ref)])
            assert settled.refused is None
            assert (wire.lost, server.starts) == (4, 5)
            assert [job.job_id for job in (await store.find(Job)).items] == [submitted.job.job_id]
            assert len((await store.find(Lease)).items) == 1
            assert not (await store.find(Event, {"type": EventType.STALE_WORKER_WRITE_REJECTED})).items
            await store.close()
