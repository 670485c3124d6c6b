"""A call whose answer is lost is answered as the first time, and nothing is done twice; over a real connection."""

import asyncio
from typing import cast

import pytest

from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.policy import Policy
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import InputError, LeaseOfAnotherToken, NotAuthenticated, StoreUnavailable
from leasekeeper.ports import ClaimRequest, Store
from leasekeeper.service.answers import KEPT_SECONDS, Answers
from leasekeeper.stores import open_store
from leasekeeper.stores.http import HttpStore
from tests.conformance.world import end, fleet, profile, spec
from tests.servers import closed_port
from tests.serving import Served

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i1", tasks=("visit",), limit=1)


WRONG = "lk_wrong"


class Forgetful(HttpStore):
    """Loses the first answer to every call after the server gave it."""

    lost = 0

    async def _until_answered(self, name: str, content: bytes, waits: float) -> object:
        await super()._until_answered(name, content, waits)
        self.lost += 1
        return await super()._until_answered(name, content, waits)


async def prepared(store: Store, count: int = 2) -> None:
    declared: Fleet = fleet(*(profile(f"p{number}") for number in range(count)))
    await store.apply(declared, actor="ann")
    await store.report(WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="default", tasks=("visit",)))


async def test_no_lost_answer_does_anything_twice(served: Served) -> None:
    forgetful = Forgetful(served.url, served.token, Policy())
    store = cast(Store, forgetful)
    await prepared(store)
    await store.submit([spec("p0"), spec("p1")])
    assert len((await store.find(Job)).items) == 2
    (grant,) = await store.claim(CLAIM)
    assert [lease.lease_id for lease in (await store.find(Lease, {"live": "1"})).items] == [grant.lease.lease_id]
    await store.enter_section(grant.lease.ref, "pay")
    await store.leave_section(grant.lease.ref, "pay")
    (settled,) = await store.settle([end(grant.lease.ref)])
    assert settled.refused is None
    assert forgetful.lost >= 8
    await store.close()


async def test_a_lease_of_another_token_is_not_touched(served: Served) -> None:
    mine = await open_store(served.url, token=served.token)
    await prepared(mine)
    await mine.submit([spec("p0")])
    (grant,) = await mine.claim(CLAIM)
    text = await asyncio.to_thread(served.new_token, "work", "read")
    other = await open_store(served.url, token=text)
    for call in (other.settle([end(grant.lease.ref)]), other.checkpoint(grant.lease.ref, "safe")):
        with pytest.raises(LeaseOfAnotherToken):
            await call
    assert (await mine.settle([end(grant.lease.ref)]))[0].refused is None
    await other.close()
    await mine.close()


async def test_a_server_that_is_away_and_a_wrong_token_are_said(served: Served) -> None:
    with closed_port() as port, pytest.raises(StoreUnavailable, match="no response"):
        await open_store(f"http://127.0.0.1:{port}", token=WRONG, policy=quick())
    with pytest.raises(NotAuthenticated):
        await open_store(served.url, token=WRONG)
    for url in ("http://leases.example.com", "https://user:pw@leases.example.com", "https://leases.example.com?x=1"):
        with pytest.raises(InputError, match="not usable"):
            await open_store(url, token=WRONG)


def quick() -> Policy:
    from datetime import timedelta

    return Policy(store_timeout=timedelta(seconds=0.2))


async def test_answers_are_kept_for_a_while_and_errors_are_not() -> None:
    now = [0.0]
    answers, done = Answers(lambda: now[0]), []

    async def work() -> bytes:
        done.append(1)
        return b"answer %d" % len(done)

    async def fail() -> bytes:
        done.append(1)
        raise InputError("no")

    assert await answers.once("a", work) == await answers.once("a", work) == b"answer 1"
    for _ in range(2):
        with pytest.raises(InputError):
            await answers.once("b", fail)
    assert len(done) == 3
    now[0] += KEPT_SECONDS
    assert await answers.once("a", work) == b"answer 4"
