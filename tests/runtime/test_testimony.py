"""What a keeper's report is taken for: the word on the run that it was left for, and on no other."""

from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper import RunRecord
from leasekeeper.browsers.keeper.report import write_report
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.ports import LeaseRequest
from leasekeeper.runtime import testimony
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile

PROOF = {"graceful": True, "processes_gone": True, "lock_gone": True, "exit_type": "Normal", "failing_clause": ""}
REQUEST = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1", purpose=Purpose.API)


def reported(data: Path, run_id: str, lease: Lease) -> testimony.Testimony:
    """A machine on which a keeper has reported on this run."""
    told = testimony.Testimony(data)
    told.ledger.note(run_id, lease.lease_id)
    folder = data / "runs" / run_id
    folder.mkdir(parents=True)
    names = {"run_id": run_id, "lease_id": lease.lease_id, "token": lease.token}
    write_report(str(folder), **names, started_at=1.0, cause="worker_gone", proof=PROOF)
    return told


@pytest.mark.parametrize("ours", [True, False])
async def test_a_report_counts_for_its_run_and_not_for_the_name_of_its_lease(
    store_url: str, tmp_path: Path, ours: bool
) -> None:
    """A store that was made anew, or restored, gives out the names of leases a second time."""
    ahead = timedelta(0)
    store = await open_store(store_url, clock=lambda real: real + ahead)
    try:
        await store.apply(fleet(profile("p1")), actor="test")
        lease = (await store.acquire(REQUEST)).lease
        ahead = timedelta(hours=1)
        assert len(await store.expire(seen=(await store.check()).now)) == 1
        told = reported(tmp_path, lease.run_id if ours else "01a1e1a7-d9fa-7081-988b-181cbd6564a8", lease)
        assert await told.deliver(store) == int(ours)
        assert ("keeper" in (await store.get(RunRecord, lease.run_id)).evidence) is ours
    finally:
        await store.close()
