"""A call whose answer is lost is answered as the first time, and nothing is done twice; over a real connection."""

import asyncio
from typing import cast

import httpx2
import pytest

from leasekeeper.core.calls import CallAttempt, Request
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.policy import Policy
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import InputError, LeaseOfAnotherToken, NotAuthenticated, StoreUnavailable
from leasekeeper.ports import ClaimRequest, Store
from leasekeeper.service.answers import CallsUnderWay
from leasekeeper.stores import open_store
from leasekeeper.stores.http import HttpStore
from tests.conformance.world import end, fleet, profile, spec
from tests.runtime.stage import until
from tests.servers import closed_port
from tests.serving import Served

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i1", tasks=("visit",), limit=1)


WRONG = "lk_wrong"


class Forgetful(HttpStore):
    """Loses the first answer to every call after the server gave it."""

    lost = 0

    async def _until_answered(self, name: str, content: bytes, waits: float, attempt: CallAttempt) -> object:
        await super()._until_answered(name, content, waits, attempt)
        self.lost += 1
        return await super()._until_answered(name, content, waits, CallAttempt.AGAIN)


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
    with pytest.raises(NotAuthenticated, match="has no token"):
        await open_store(served.url)
    for url in ("http://leases.example.com", "https://user:pw@leases.example.com", "https://leases.example.com?x=1"):
        with pytest.raises(InputError, match="not usable"):
            await open_store(url, token=WRONG)


def quick() -> Policy:
    from datetime import timedelta

    return Policy(store_timeout=timedelta(seconds=0.2))


@pytest.mark.parametrize("token", ["lk_with a space", "lk_line\n", "lk_naïve"])
async def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InputError) as refused:
        await open_store("http://127.0.0.1:9", token=token)
    assert [problem.where for problem in refused.value.problems] == ["token"]
    assert token.strip() not in str(refused.value)


async def test_a_call_that_is_sent_again_joins_the_one_under_way() -> None:
    under_way, done, go_on = CallsUnderWay(), [], asyncio.Event()

    async def work() -> bytes:
        done.append(1)
        await go_on.wait()
        return b"answer %d" % len(done)

    async def fail() -> bytes:
        raise InputError("no")

    first = Request(slot="a", attempt=CallAttempt.FIRST)
    calls = [asyncio.ensure_future(under_way.join(each, work)) for each in (first, Request(slot="a"))]
    await asyncio.sleep(0)  # waits: both calls begin
    go_on.set()
    assert await asyncio.gather(*calls) == [b"answer 1", b"answer 1"]
    assert await under_way.join(first, work) == b"answer 2"
    for _ in range(2):
        with pytest.raises(InputError):
            await under_way.join(Request(slot="b"), fail)


async def test_a_grant_whose_answer_never_came_is_given_back(served: Served) -> None:
    """The client gave up; the server had granted. The client asks what became of it, and nobody waits for expiry."""
    store = cast(Store, broken := Broken(served.url, served.token, Policy()))
    await prepared(store, 1)
    await store.submit([spec("p0")])
    broken.breaks = True
    with pytest.raises(StoreUnavailable):
        await store.claim(CLAIM)

    async def queued_again() -> bool:
        return (await store.find(Job)).items[0].state == "queued" and broken.asked

    await until(queued_again)
    assert (await store.find(Lease)).items[0].status == "released"
    (grant,) = await store.claim(CLAIM)
    await store.settle([end(grant.lease.ref)])
    await store.close()


class Broken(HttpStore):
    """While `breaks` is set, claims reach the server, and their answers do not come back until somebody asks."""

    breaks = False
    asked = False

    async def _until_answered(self, name: str, content: bytes, waits: float, attempt: CallAttempt) -> object:
        answer = await super()._until_answered(name, content, waits, attempt)
        if name == "claim" and self.breaks:
            if attempt is CallAttempt.ASK:
                self.asked, self.breaks = True, False
                return answer
            raise StoreUnavailable("no response")
        return answer


async def test_a_request_id_is_for_one_call(served: Served) -> None:
    """What a program of another language sends: the same call again is answered again, another one is refused."""
    async with httpx2.AsyncClient(headers=served.headers) as client:

        async def submit(task: str) -> httpx2.Response:
            call = {"version": 1, "request_id": "r1", "arguments": {"specs": [{"task": task, "profile_id": "p0"}]}}
            return await client.post(f"{served.url}/v1/store/submit", json=call)

        await prepared(store := await open_store(served.url, token=served.token))
        first, again, other = [await submit("visit"), await submit("visit"), await submit("buy")]
        assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
        assert (other.status_code, other.json()["data"]["cause"]) == (409, "request_reused")
        assert len((await store.find(Job)).items) == 1
        headers = {"Leasekeeper-Attempt": "maybe"}
        wrong = await client.post(f"{served.url}/v1/store/claim", json={"version": 1}, headers=headers)
        assert wrong.status_code == 400
        await store.close()
