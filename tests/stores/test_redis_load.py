"""Redis under load: records that change all the time, and a server that is killed again and again."""

import asyncio
from datetime import timedelta

import pytest

from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.policy import Retention
from leasekeeper.core.settle import Ending
from leasekeeper.errors import StoreError
from leasekeeper.ports import Store
from leasekeeper.stores import open_store
from leasekeeper.stores.redis.tables import PREFIX
from tests.conformance.world import fleet, profile, spec
from tests.redis_store import DurableRedis
from tests.stores.redis_steps import CLAIM, DONE, client, ready


async def test_what_meets_many_records_is_done_while_they_change_all_the_time(own_server: DurableRedis) -> None:
    """Retention and a new configuration rest on many lanes, of which one is always being claimed or settled: whoever
    loses too many races has the turn."""
    stores = [await ready(own_server.url, profiles=6, jobs=0)]
    stores += [await open_store(own_server.url) for _ in range(3)]
    load = Load(stores)
    running = [asyncio.ensure_future(each) for each in (load.submit(), load.work(stores[1]), load.work(stores[2]))]
    for _ in range(20):
        await load.ended.acquire()
    for n in range(3):
        assert await stores[3].prune(Retention(jobs=timedelta(0), events=timedelta(0)))
        await stores[3].apply(fleet(*(profile(f"p{i}", tier=f"t{n}") for i in range(6 + 80 * n))), actor="ann")
    for _ in range(20):
        await load.ended.acquire()
    load.over.set()
    await asyncio.gather(*running)
    with client(own_server.url) as connection:
        assert connection.exists(f"{PREFIX}turn") == 0
    for store in stores:
        await store.close()


async def test_a_server_that_is_killed_under_load_loses_nothing_that_it_acknowledged(own_server: DurableRedis) -> None:
    await kill_under_load(own_server, 3)


@pytest.mark.release
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_under_load(own_server: DurableRedis) -> None:
    await kill_under_load(own_server, 200)


class Load:
    """Jobs that are submitted, claimed and settled, and what was answered."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores
        self.submitted: set[str] = set()
        self.settled: set[str] = set()
        self.tokens: list[tuple[str, int]] = []
        self.over = asyncio.Event()
        self.ended = asyncio.Semaphore(0)

    async def submit(self) -> None:
        while not self.over.is_set():
            try:
                answers = await self.stores[0].submit([spec(f"p{n}") for n in range(6)])
                self.submitted.update(answer.job.job_id for answer in answers)
            except StoreError:
                await asyncio.sleep(0.05)  # waits: as a program would before it tries again

    async def work(self, store: Store) -> None:
        while not self.over.is_set():
            try:
                for grant in await store.claim(CLAIM):
                    self.tokens.append((grant.lease.profile_id, grant.lease.token))
                    (answer,) = await store.settle([Ending(ref=grant.lease.ref, facts=DONE)])
                    if answer.refused is None and grant.job is not None:
                        self.settled.add(grant.job.job_id)
                        self.ended.release()
            except StoreError:
                await asyncio.sleep(0.05)  # waits: as a program would before it tries again


async def kill_under_load(server: DurableRedis, rounds: int) -> None:
    """The server dies and comes back while it is used: what was answered is so."""
    stores = [await ready(server.url, profiles=6, jobs=0)]
    stores += [await open_store(server.url) for _ in range(2)]
    load = Load(stores)
    running = [asyncio.ensure_future(each) for each in (load.submit(), load.work(stores[1]), load.work(stores[2]))]
    for _ in range(rounds):
        for _ in range(10):
            await load.ended.acquire()
        server.kill()
        await asyncio.to_thread(server.start)
    load.over.set()
    await asyncio.gather(*running)
    known = await all_jobs(stores[0])
    assert load.submitted <= known.keys(), "a job that was acknowledged is lost"
    assert {known[job] for job in load.settled} <= {JobState.COMPLETED}, "an ending that was acknowledged is lost"
    assert len(load.tokens) == len(set(load.tokens)), "a token came twice"
    live = (await stores[0].find(RunRecord, {"live": "true"}, limit=200)).items
    assert len({run.profile_id for run in live}) == len(live), "two live leases of one profile"
    for store in stores:
        await store.close()


async def all_jobs(store: Store) -> dict[str, JobState]:
    known: dict[str, JobState] = {}
    after = None
    while True:
        page = await store.find(Job, {}, after=after, limit=200)
        known.update((job.job_id, job.state) for job in page.items)
        if (after := page.after) is None:
            return known
