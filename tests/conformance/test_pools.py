"""Pool limits: a vendor's plan, held by leases of every kind, fleet-wide."""

import asyncio

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.leases import Lease
from leasekeeper.errors import ProfileBusy
from leasekeeper.ports import ClaimRequest
from tests.conformance.world import NewWorld, Record, World, limit, profile, spec


def vendor(leases: int, count: int = 6) -> tuple[Record, ...]:
    return (limit("vendor", leases), *(profile(f"p{n}", f"shop{n}", pool="vendor") for n in range(count)))


async def submit_all(world: World, count: int = 6) -> None:
    await world.offer("visit", pool="vendor")
    await world.submit(*(spec(f"p{n}") for n in range(count)))


async def test_a_pool_never_holds_more_leases_than_its_limit(new_world: NewWorld) -> None:
    async with new_world(*vendor(2)) as world:
        await submit_all(world)
        first = await world.claim(5, pool="vendor")
        assert len(first) == 2
        assert await world.claim(5, pool="vendor") == []
        await world.finish(first[0])
        assert len(await world.claim(5, pool="vendor")) == 1


async def test_waiting_for_capacity_is_shown_as_such(new_world: NewWorld) -> None:
    async with new_world(*vendor(1, 2)) as world:
        await submit_all(world, 2)
        grant = await world.take(pool="vendor")
        (waiting,) = [job for job in (await world.everything())["Job"] if job.state == "blocked"]
        assert waiting.blocked_reason == "blocked_by_capacity"
        assert (await world.store.stats()).blocked == {"blocked_by_capacity": 1}
        await world.finish(grant)
        assert (await world.job(waiting)).state == "queued"


async def test_direct_leases_count_and_are_counted(new_world: NewWorld) -> None:
    async with new_world(*vendor(2)) as world:
        await submit_all(world)
        direct = await world.acquire("p5")
        assert len(await world.claim(5, pool="vendor")) == 1
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire("p4")
        assert refused.value.reason == "blocked_by_capacity"
        await world.finish(direct)
        assert len(await world.claim(5, pool="vendor")) == 1


async def test_an_expired_lease_gives_its_place_back_when_it_is_swept(new_world: NewWorld) -> None:
    async with new_world(*vendor(1)) as world:
        await submit_all(world)
        grant = await world.take(pool="vendor")
        world.clock.now = grant.lease.expires_at
        assert await world.claim(5, pool="vendor") == []
        await world.store.expire()
        assert len(await world.claim(5, pool="vendor")) == 1


async def test_pools_without_a_limit_and_other_pools_are_not_held(new_world: NewWorld) -> None:
    async with new_world(*vendor(1), profile("free", "free")) as world:
        await submit_all(world)
        await world.add("free")
        assert len(await world.claim(5, pool="vendor")) == 1
        assert [grant.lease.profile_id for grant in await world.claim(5)] == ["free"]


async def test_a_higher_limit_and_no_limit_let_more_in_at_once(new_world: NewWorld) -> None:
    async with new_world(*vendor(1)) as world:
        await submit_all(world)
        assert len(await world.claim(9, pool="vendor")) == 1
        await world.declare(limit("vendor", 3))
        assert len(await world.claim(9, pool="vendor")) == 2
        await world.declare(*vendor(1)[1:], prune=True)
        assert len(await world.claim(9, pool="vendor")) == 3


async def test_a_lower_limit_counts_from_the_next_grant_on(new_world: NewWorld) -> None:
    async with new_world(*vendor(4)) as world:
        await submit_all(world)
        grants = await world.claim(9, pool="vendor")
        assert len(grants) == 4
        await world.declare(limit("vendor", 2))
        for grant in grants[:2]:
            await world.finish(grant)
            assert await world.claim(9, pool="vendor") == []
        await world.finish(grants[2])
        assert len(await world.claim(9, pool="vendor")) == 1


async def test_blocked_lanes_do_not_use_up_the_room_of_a_pool(new_world: NewWorld) -> None:
    async with new_world(*vendor(1, 3)) as world:
        await world.offer("visit", pool="vendor")
        await world.submit(*(spec(f"p{n}", expected_language=None) for n in range(3)))
        wrong = await world.submit(*(spec(f"p{n}", priority=5, expected_timezone="UTC") for n in range(2)))
        assert {job.state for job in wrong} == {"blocked"}
        assert len(await world.claim(3, pool="vendor")) == 1


async def test_many_who_claim_at_once_keep_to_the_limit(new_world: NewWorld) -> None:
    async with new_world(*vendor(3, 12)) as world:
        await submit_all(world, 12)
        stores = [world.store, await world.another(), await world.another()]
        answers = await asyncio.gather(
            *(
                stores[n % 3].claim(
                    ClaimRequest(
                        worker_id=WorkerId(f"w{n}"), incarnation=str(n), tasks=("visit",), pool="vendor", limit=2
                    )
                )
                for n in range(9)
            ),
            *(world.acquire(f"p{n}") for n in (10, 11)),
            return_exceptions=True,
        )
        assert all(isinstance(answer, list | ProfileBusy) or hasattr(answer, "lease") for answer in answers)
        assert len(await world.all(Lease, live="true", pool="vendor")) <= 3
        assert len(await world.claim(9, pool="vendor")) + len(await world.all(Lease, live="true")) >= 3
        assert len(await world.all(Lease, live="true", pool="vendor")) == 3
