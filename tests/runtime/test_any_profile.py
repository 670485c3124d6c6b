"""Any free profile of a pool: the one that rested longest, under all limits, or how many are not free and why."""

import asyncio

import pytest

from leasekeeper import connect
from leasekeeper.client import Client
from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import Lease
from leasekeeper.errors import InputError, NotFound, ProfileBusy
from leasekeeper.sync_lease import lease as sync_lease
from tests.conformance.world import Record, account, fleet, limit, profile


async def declare(client: Client, *records: Record) -> None:
    await client.store.apply(fleet(*records), actor="ann")


async def test_leases_go_round_and_never_to_two(store_url: str) -> None:
    async with connect(store_url) as client:
        await declare(client, *(profile(name, pool="warm", tier="gold") for name in ("a", "b", "c")), profile("cold"))
        async with (
            client.lease(pool="warm", labels={"tier": "gold"}) as first,
            client.lease(pool="warm") as second,
        ):
            assert (first.lease.profile_id, second.lease.profile_id) == ("a", "b")
        async with client.lease(pool="warm") as third:
            assert third.lease.profile_id == "c"
            assert third.grant.profile.pool == "warm"


async def test_many_at_once_each_get_one_of_their_own(store_url: str) -> None:
    async with connect(store_url) as client:
        await declare(client, *(profile(f"p{n}", pool="warm") for n in range(6)))
        leases = [client.lease(pool="warm", wait=30) for _ in range(6)]
        held = await asyncio.gather(*(each.__aenter__() for each in leases))
        assert len({each.lease.profile_id for each in held}) == 6
        for each in held:
            await each.__aexit__(None, None, None)


async def test_who_waits_gets_the_first_that_is_given_back(store_url: str) -> None:
    async with connect(store_url) as client:
        await declare(client, profile("a", pool="warm"))
        holder = client.lease("a")
        await holder.__aenter__()
        waiting = asyncio.create_task(client.lease(pool="warm", wait=60).__aenter__())
        await holder.__aexit__(None, None, None)
        got = await waiting
        assert got.lease.profile_id == "a"
        await got.__aexit__(None, None, None)


async def test_if_none_is_free_the_error_counts_why(store_url: str) -> None:
    async with connect(store_url) as client:
        await declare(client, *(profile(name, pool="warm") for name in ("a", "b", "c")))
        await client.store.decide(
            Decision(target=Target.PROFILE, id="c", action=Action.QUARANTINE, note="odd", actor="ann")
        )
        async with client.lease("a"), client.lease("b"):
            with pytest.raises(ProfileBusy) as refused:
                await client.lease(pool="warm").__aenter__()
        assert "no profile of pool warm is free" in refused.value.message
        assert "2 blocked_by_profile_lease, 1 blocked_by_profile_state" in refused.value.message
        with pytest.raises(NotFound, match="no profile of pool warm with tier=gold is declared"):
            await client.lease(pool="warm", labels={"tier": "gold"}).__aenter__()
        with pytest.raises(InputError):
            client.lease()
        with pytest.raises(InputError):
            client.lease("a", pool="warm")


async def test_limits_of_pools_and_accounts_hold(store_url: str) -> None:
    async with connect(store_url) as client:
        alone = account("alone", routing=Routing.ACCOUNT)
        records = (*(profile(f"a{n}", account_id="alone", pool="warm") for n in range(3)), profile("b", pool="warm"))
        await declare(client, alone, *records, limit("warm", 2))
        async with client.lease("a2"), client.lease(pool="warm") as other:
            assert other.lease.profile_id == "b"
            with pytest.raises(ProfileBusy) as refused:
                await client.lease(pool="warm").__aenter__()
            assert "whose pool is full or whose account is in use" in refused.value.message
            assert len((await client.find(Lease, live="1")).items) == 2


def test_a_plain_script_takes_any_too(sqlite_url: str) -> None:
    async def prepare() -> None:
        async with connect(sqlite_url) as client:
            await declare(client, profile("a", pool="warm"))

    asyncio.run(prepare())
    with sync_lease(pool="warm", store=sqlite_url) as lease:
        assert lease.lease.profile_id == "a"
