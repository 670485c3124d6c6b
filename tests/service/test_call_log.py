"""The log of a server: a line for what callers did, with ids as fields, and nothing that is secret."""

import asyncio
import logging

import httpx2
import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import ClaimRequest, Store
from leasekeeper.stores import open_store
from tests.conformance.world import end, fleet, profile, spec
from tests.serving import Served

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i1", tasks=("visit",), limit=1)


async def work(store: Store) -> str:
    """A job from submit to its end, a late write, and what a person does. The id of the job."""
    await store.apply(fleet(profile("p1")), actor="ann")
    await store.report(WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="default", tasks=("visit",)))
    (submitted,) = await store.submit([spec("p1", payload={"password": "hunter2"})])
    (grant,) = await store.claim(CLAIM)
    assert await store.hand_over(end(grant.lease.ref), CLAIM) is None
    (settled,) = await store.settle([end(grant.lease.ref)])
    assert settled.refused is None
    (late,) = await store.settle([end(grant.lease.ref, "TIMEOUT")])
    assert late.refused is not None
    with pytest.raises(LeaseLost):
        await store.checkpoint(grant.lease.ref, "late")
    return str(submitted.job.job_id)


async def test_what_callers_did_is_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasekeeper.service.call_log")
    store = await open_store(served.url, token=served.token)
    job_id = await work(store)
    await store.close()
    note = {"note": "hunter2"}
    url = f"{served.url}/v1/profiles/p1/quarantine"
    answer = await asyncio.to_thread(httpx2.post, url, headers=served.headers, json=note)
    assert answer.status_code == 200, answer.text
    lines = caplog.records
    said = [(record.levelname, record.getMessage()) for record in lines if record.name.endswith("call_log")]
    levels, texts = zip(*said, strict=True)
    assert levels == ("INFO", "INFO", "INFO", "WARNING", "WARNING", "INFO")
    applied, submitted, ended, refused, late, decided = texts
    assert applied.endswith("a fleet was applied, 2 changes")
    assert submitted == f"job {job_id} was submitted and is queued: task visit, profile p1"
    assert "ended: completed; profile p1 is available, its job is completed" in ended
    assert "its ending was refused: " in refused
    assert late.startswith("a late checkpoint was refused: ")
    assert decided.endswith(": quarantine profile p1, which is now quarantined")
    assert decided.startswith("tests (")
    assert "hunter2" not in repr([vars(record) for record in lines])
    fields = next(vars(record) for record in lines if record.getMessage() == ended)
    assert {"run_id", "profile_id", "lease_id", "token", "result"} <= set(fields)
