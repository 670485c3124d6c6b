"""A server that keeps its connections open and says nothing: what it was asked is found out over new ones (I4, I8)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from psycopg.conninfo import conninfo_to_dict

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.errors import StoreUnavailable
from leasekeeper.ports import ClaimRequest, Renewal, Store
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres import connections
from tests.conformance.places import Place
from tests.conformance.world import POLICY, Clock, World, end, profile, seconds, spec
from tests.servers import PostgresServer
from tests.stores.cutter import Cutter, Frozen, cutter
from tests.stores.test_wakeups import listening

# Long enough that a busy machine does not count as a silent one, twice in a row.
PATIENT = replace(POLICY, store_timeout=timedelta(seconds=3))
# Far longer than the store may take: whoever still waits then would wait for ever.
FOR_EVER = 120.0
CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i", tasks=("visit",))


@pytest.fixture
def door(postgres: PostgresServer) -> Iterator[Cutter]:
    with cutter(postgres) as opened:
        yield opened


@asynccontextmanager
async def through(door: Cutter, url: str) -> AsyncIterator[tuple[World, Store]]:
    """A world on the database itself, and a store that reaches it through the door."""
    await migrate(url)
    clock = Clock()
    world = World(url, await open_store(url, policy=POLICY, clock=clock), clock, POLICY, Place(url=url))
    await world.declare(profile("p1"), profile("p2"))
    await world.offer("visit")
    store = await open_store(door.url(str(conninfo_to_dict(url)["dbname"])), policy=PATIENT, clock=clock)
    try:
        async with asyncio.timeout(FOR_EVER):
            yield world, store
    finally:
        door.shut()
        await store.close()
        await world.store.close()


async def test_renewals_claims_settles_and_reads_go_on_after_all_connections_froze(
    postgres_url: str, door: Cutter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "leasekeeper")
    async with through(door, postgres_url) as (world, store):
        await world.submit(spec("p1"), spec("p2"))
        (first,) = await store.claim(CLAIM)
        await store.stats()
        door.freeze()
        world.advance(20)
        (renewed,) = await store.renew([Renewal(ref=first.lease.ref)])
        assert renewed.expires_at == world.now + seconds(60)
        assert (await store.stats()).jobs["running"] == 1
        door.freeze()
        (second,) = await store.claim(CLAIM)
        assert second.lease.profile_id == "p2"
        door.freeze()
        (settled,) = await store.settle([end(first.lease.ref)])
        assert (settled.refused, settled.job_state) == (None, "completed")
        assert (await store.check()).kind == "postgres"
    said = [record.getMessage() for record in caplog.records if "no response within 3 s" in record.getMessage()]
    assert len(said) >= 3
    assert all("the connection was dropped" in line for line in said)


@pytest.mark.parametrize("frozen", Frozen, ids=lambda frozen: frozen.name.lower())
async def test_a_commit_whose_answer_never_comes_is_done_once_and_answered(
    postgres_url: str, door: Cutter, frozen: Frozen
) -> None:
    async with through(door, postgres_url) as (world, store):
        door.cut(frozen)
        (submitted,) = await store.submit([spec("p1")])
        assert door.cut_off.is_set()
        assert [job.job_id for job in await world.all(Job)] == [submitted.job.job_id]
        door.cut(frozen)
        (grant,) = await store.claim(CLAIM)
        assert [lease.token for lease in await world.all(Lease)] == [grant.lease.token] == [1]
        granted = [event for event in await world.events() if event.type is EventType.LEASE_GRANTED]
        assert len(granted) == 1


async def test_a_migration_behind_a_frozen_proxy_says_what_it_waits_for(
    postgres_url: str, door: Cutter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REPORT_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, "leasekeeper")
    door.cut(Frozen.BEFORE)
    migrating = asyncio.create_task(migrate(door.url(str(conninfo_to_dict(postgres_url)["dbname"]))))
    async with asyncio.timeout(FOR_EVER):
        while caplog.text.count("waiting for the migration to schema") < 2:  # noqa: ASYNC110 - what is waited for happens in a thread
            await asyncio.sleep(0.05)  # waits: for what a thread of the store logs
    door.shut()
    with pytest.raises(StoreUnavailable):
        await migrating


async def test_who_listens_on_a_frozen_connection_hears_again_over_a_new_one(postgres_url: str, door: Cutter) -> None:
    async with through(door, postgres_url) as (world, store):
        waiting = asyncio.create_task(store.wait("default", timedelta(minutes=5)))
        await listening(postgres_url)
        door.freeze()
        while not waiting.done():
            await world.submit(spec("p1"))
            await asyncio.wait({waiting}, timeout=0.2)
