"""What tests of the Redis store share: a store that is ready, a server that loses writes, and what follows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import ClaimRequest, Grant, Store
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.redis.urls import clean_url
from tests.conformance.world import fleet, profile, spec
from tests.redis_store import DurableRedis

CLAIM = ClaimRequest(worker_id=WorkerId("w"), incarnation="w", tasks=("visit",), limit=1)
DONE = EndFacts(browser=Browser.CLOSED, final_url="https://site.test/done")


def client(url: str) -> Any:
    return redis.Redis.from_url(clean_url(url), decode_responses=True)


async def ready(url: str, profiles: int = 1, jobs: int = 1, **options: Any) -> Store:
    """An open store with a fleet and jobs, whose task a worker offers."""
    await migrate(url)
    store = await open_store(url, **options)
    await store.apply(fleet(*(profile(f"p{n}") for n in range(profiles))), actor="ann")
    await store.report(WorkerReport(worker_id=WorkerId("w"), incarnation="w", pool="default", tasks=("visit",)))
    if jobs:
        await store.submit([spec(f"p{n % profiles}") for n in range(jobs)])
    return store


@contextmanager
def lost_writes(server: DurableRedis) -> Iterator[None]:
    """The server dies, and comes back without what was written meanwhile: with the append-only file of before."""
    own, before = server.directory / "appendonlydir", server.directory / "before"
    shutil.copytree(own, before)
    yield
    server.kill()
    shutil.rmtree(own)
    before.rename(own)
    server.start()


async def looked_after(store: Store, forgotten: Grant) -> None:
    """Its holder came back and nobody knows what it did: the profile waits for a person, who clears it."""
    profile_id = forgotten.lease.profile_id
    lane = await store.get(Lane, profile_id)
    assert (lane.state, forgotten.lease.run_id in lane.state_reason) == (ProfileState.REVIEW_REQUIRED, True)
    assert await store.claim(CLAIM) == []
    note = "looked inside"
    await store.decide(Decision(target=Target.PROFILE, id=profile_id, action=Action.CLEAR, note=note, actor="ann"))
