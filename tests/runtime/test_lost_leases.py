"""Scripts without a sweeper: whoever asks for a profile whose lease is over ends and resolves that lease."""

import signal
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper import Event, ProfileBusy, connect
from leasekeeper.client import Client
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import InputError
from tests.conformance.world import account, fleet, profile
from tests.runtime.stage import CALM, TIMES, furnish, state_of, until
from tests.runtime.test_processes import holder


async def refusal(client: Client, profile_id: str = "p1") -> ProfileBusy | None:
    """Ask once, as a script does each time it runs."""
    try:
        async with client.lease(profile_id):
            return None
    except ProfileBusy as busy:
        return busy


async def refused_as(client: Client, state: ProfileState) -> ProfileBusy:
    async def reached() -> ProfileBusy | None:
        busy = await refusal(client)
        return busy if busy is not None and busy.state == state else None

    busy = await until(reached)
    assert busy is not None
    return busy


async def test_the_next_script_resolves_the_lease_of_a_killed_one(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client)
        with holder(store_url) as process:
            process.send_signal(signal.SIGKILL)
            taken = await refusal(client)
            assert taken is not None
            assert "held by held (run " in taken.message
            assert f"until {taken.until_at:%Y-%m-%d %H:%M:%S} UTC unless renewed" in taken.message
            busy = await refused_as(client, ProfileState.QUARANTINED)
        assert "release policy is quarantine" in busy.message
        assert len((await client.find(Event, type="stale_resolved")).items) == 1


async def test_the_lock_delay_is_waited_for_and_named(store_url: str) -> None:
    async with connect(store_url, **{**TIMES, "lock_delay": 900.0}) as client:
        await furnish(client, release_policy="recover")
        with holder(store_url, lock_delay=900.0) as process:
            process.send_signal(signal.SIGKILL)
            busy = await refused_as(client, ProfileState.STALE)
        (lease,) = (await client.find(Lease, profile_id="p1")).items
        assert busy.until_at == lease.expires_at + timedelta(seconds=900)
        again = await refusal(client)
        assert again is not None
        said = f"after {busy.until_at:%Y-%m-%d %H:%M:%S} UTC resolves it by its release policy (recover)"
        assert said in again.message
        assert await state_of(client) is ProfileState.STALE


async def test_after_the_lock_delay_a_script_that_waits_gets_the_answer_of_the_policy(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client, release_policy="recover")
        with holder(store_url) as process:
            process.send_signal(signal.SIGKILL)
            busy = await refused_as(client, ProfileState.REVIEW_REQUIRED)
        assert "not recovered: no safe step is known" in busy.message


async def test_a_lost_lease_of_another_profile_frees_the_accounts_key(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await client.store.apply(fleet(account("shop", routing="account"), profile("p1"), profile("p2")), actor="test")
        with holder(store_url) as process:
            process.send_signal(signal.SIGKILL)
            async with client.lease("p2", wait=200):
                assert await state_of(client) is ProfileState.STALE


async def test_a_live_lease_is_left_alone(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            assert await refusal(client) is not None
            lease.check()
        assert lease.settled is not None
        assert (await client.find(Event, type="lease_expired")).items == []


async def test_durations_may_be_seconds(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1", ttl=300) as lease:
            assert lease.lease.expires_at - lease.lease.acquired_at >= timedelta(seconds=300)
            with pytest.raises(ProfileBusy):
                async with client.lease("p1", wait=0.05):
                    pass


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5", timedelta(seconds=-1)])
async def test_what_is_no_duration_is_refused(sqlite_url: str, wrong: Any) -> None:
    async with connect(sqlite_url) as client:
        with pytest.raises(InputError, match="wait: must be seconds or a timedelta"):
            client.lease("p1", wait=wrong)
