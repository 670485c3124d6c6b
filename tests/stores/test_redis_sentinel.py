"""Redis with Sentinel: the primary is found, followed, and cannot grant beside its successor."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.policy import Policy
from leasekeeper.errors import InputError, StoreError, StoreNotWritable, StoreUnavailable
from leasekeeper.ports import ClaimRequest, Renewal, Store
from leasekeeper.stores import inspect, open_store
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import location, redact
from tests.stores.redis_steps import CLAIM, looked_after, ready
from tests.stores.sentinel_set import WAIT_SECONDS, SentinelSet, sentinel_set, until

IMPATIENT = Policy(store_timeout=timedelta(seconds=2))
OTHER = ClaimRequest(worker_id=WorkerId("other"), incarnation="other", tasks=("visit",), limit=5)


@pytest.mark.timeout(300)
async def test_a_primary_that_was_cut_off_grants_nothing_that_its_successor_may_grant(tmp_path: Path) -> None:
    """Two servers, and the link is cut: the grant after that is known to the old primary alone. It stops taking writes
    before anybody else could be granted that profile, and its token does not come again."""
    with sentinel_set(tmp_path) as servers:
        store = await ready(servers.url, profiles=2, jobs=2, policy=IMPATIENT)
        beside = await open_store(servers.primary.url)  # a program on the primary's side of the cut
        (copied,) = await store.claim(CLAIM)
        until(servers.is_level, "the replica has that grant")
        with servers.wire.silence():
            (late,) = await beside.claim(CLAIM)
            until(servers.has_taken_over, "the sentinel made the replica the primary")
            await refused_soon(beside, Renewal(ref=late.lease.ref))
            with pytest.raises(StoreError):
                await store.claim(OTHER)  # two servers without a link: neither may write
        servers.primary.call("REPLICAOF", "127.0.0.1", str(servers.beside.port))  # as the sentinel does a while later
        other = await opened_soon(servers)
        assert await other.claim(OTHER) == []  # for one TTL
        (kept, lost) = await other.renew([Renewal(ref=copied.lease.ref), Renewal(ref=late.lease.ref)])
        assert (kept.refused, lost.refused is None) == (None, False)
        await other.close()
        servers.replica.call("HSET", f"{PREFIX}server", "grants_resume_at", "1")
        other = await opened_soon(servers)
        await looked_after(other, late)
        (granted,) = await other.claim(OTHER)
        assert granted.lease.profile_id == late.lease.profile_id
        assert late.lease.token < granted.lease.token < 2**53
        (followed,) = await store.renew([Renewal(ref=copied.lease.ref)])  # the first store went along by itself
        assert followed.refused is None
        for each in (store, beside, other):
            await each.close()


async def refused_soon(store: Store, renewal: Renewal) -> None:
    """Return when the server takes no writes any more, having lost its replica."""
    for _ in range(5 * WAIT_SECONDS):
        try:
            await store.renew([renewal])
        except StoreNotWritable:
            return
        await asyncio.sleep(0.05)  # waits: for the lag that the server allows
    raise AssertionError("a primary without its replica goes on to write")


async def opened_soon(servers: SentinelSet) -> Store:
    """The store, once both servers are there again."""
    said = ""
    for _ in range(5 * WAIT_SECONDS):
        try:
            return await open_store(servers.url)
        except StoreError as error:
            said = str(error)
            await asyncio.sleep(0.05)  # waits: for the copy
    raise AssertionError(f"the set did not come back: {said}")


async def test_a_primary_that_would_go_on_alone_is_refused(tmp_path: Path) -> None:
    with sentinel_set(tmp_path) as servers:
        await (await ready(servers.url)).close()
        assert (await inspect(servers.url)).location == f"127.0.0.1:{servers.sentinel.port}/shop/0"
        for setting, value, found in (
            ("min-replicas-max-lag", "60", "min-replicas-max-lag over 20"),
            ("min-replicas-to-write", "0", "min-replicas-to-write 1"),
        ):
            servers.primary.call("CONFIG", "SET", setting, value)
            with pytest.raises(StoreError, match=found):
                await open_store(servers.url)
        await (await open_store(f"{servers.url}?durability=none")).close()
        with pytest.raises(StoreError, match="know no primary named shopping"):
            await open_store(servers.url.replace("/shop/", "/shopping/"))
    with pytest.raises(StoreUnavailable, match="none of the sentinels"):
        await open_store(servers.url)


@pytest.mark.parametrize("url", ["redis+sentinel://h:26379", "redis+sentinel://h,/shop", "redis+sentinel://h:x/shop/0"])
async def test_a_set_without_a_name_or_a_host_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="not usable"):
        await open_store(url)


def test_no_password_of_a_set_is_shown() -> None:
    url = "redis+sentinel://:s3cret@a:1,b:2/shop/0?sentinel_password=h1dden"
    assert location(url) == "a:1,b:2/shop/0"
    assert redact(url, "s3cret or h1dden") == "… or …"
