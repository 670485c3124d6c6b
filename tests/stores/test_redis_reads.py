"""What reads of the Redis store cost: as much as they show, however many jobs wait and however long a history is."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import redis

from leasekeeper.core.events import Event
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.settle import Ending
from leasekeeper.ports import LeaseRequest
from leasekeeper.stores.redis import fleet_loads, records
from leasekeeper.stores.redis.engine import RedisEngine
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import clean_url
from leasekeeper.stores.sql.engine import Tx
from tests.conformance.world import spec
from tests.stores.redis_steps import CLAIM, DONE, ready


async def sent_by(url: str, read: Callable[[], Awaitable[object]]) -> int:
    """How many bytes the server answers to a read, whose thread is connected already."""
    for _ in range(6):
        await read()
    with redis.Redis.from_url(clean_url(url)) as client:
        before = client.info("stats")["total_net_output_bytes"]
        await read()
        return int(client.info("stats")["total_net_output_bytes"]) - int(before)


async def test_counts_cost_the_same_however_many_jobs_wait(redis_url: str) -> None:
    store = await ready(redis_url, profiles=3, jobs=0)
    await store.submit([spec(f"p{n % 3}") for n in range(3)])
    few = await sent_by(redis_url, store.stats)
    await store.submit([spec(f"p{n % 3}") for n in range(120)])
    assert (await store.stats()).jobs == {"queued": 123}
    assert await sent_by(redis_url, store.stats) < few + 1_000
    await store.close()


async def test_counts_are_read_group_by_group(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await ready(redis_url, profiles=3, jobs=0)
    monkeypatch.setattr(fleet_loads, "CHUNK", 2)
    await store.submit([spec(f"p{n % 3}", task=task) for n in range(9) for task in ("visit", "unknown")])
    (held,) = await store.claim(CLAIM)
    stats = await store.stats()
    assert stats.jobs == {"queued": 6, "blocked": 11, "running": 1}
    assert stats.blocked == {"blocked_by_no_worker": 9, "blocked_by_profile_lease": 2}
    assert stats.leases == {"default": 1}
    await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
    assert (await store.stats()).leases == {}
    await store.close()


async def test_a_view_of_many_records_that_changed_meanwhile_is_read_again(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are read and compared in parts; what changed is in the last one."""
    monkeypatch.setattr(records, "AT_ONCE", 2)
    store = await ready(redis_url, jobs=0)
    jobs = [each.job.job_id for each in await store.submit([spec("p0") for _ in range(5)])]
    engine = RedisEngine(redis_url)
    await engine.open()
    found = []

    def read(tx: Tx) -> None:
        (rows,) = tx.read(("jobs_by_id", {"ids": jobs}))
        found.append({row["job_id"] for row in rows})
        if len(found) == 1:
            with redis.Redis.from_url(clean_url(redis_url)) as client:
                client.hdel(f"{PREFIX}jobs", jobs[-1])

    await engine.view(read)
    assert found == [set(jobs), set(jobs[:-1])]
    await engine.close()
    await store.close()


async def test_events_of_a_run_cost_the_same_however_long_the_history_of_its_profile_is(redis_url: str) -> None:
    store = await ready(redis_url, profiles=3, jobs=0)

    async def events(run_id: str) -> list[str]:
        page = await store.find(Event, {"run_id": run_id})
        return [str(event.type) for event in reversed(page.items)]

    async def run() -> str:
        await store.submit([spec("p0")])
        (held,) = await store.claim(CLAIM)
        await store.checkpoint(held.lease.ref, "cart")
        await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
        return held.lease.run_id

    async def lease() -> str:
        grant = await store.acquire(LeaseRequest(profile_id=ProfileId("p0"), worker_id=WorkerId("w"), incarnation="w"))
        await store.checkpoint(grant.lease.ref, "cart")
        await store.settle([Ending(ref=grant.lease.ref, facts=DONE)])
        return grant.lease.run_id

    first = [await run(), await lease()]
    few = [await sent_by(redis_url, partial(events, run_id)) for run_id in first]
    for _ in range(30):
        await run()
        await lease()
    for run_id, cost in zip(first, few, strict=True):
        assert await events(run_id) == ["lease_granted", "checkpoint_saved", "run_settled"]
        assert await sent_by(redis_url, partial(events, run_id)) < cost + 1_000
    await store.close()
