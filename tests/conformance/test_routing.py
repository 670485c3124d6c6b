"""Routing keys: what runs one at a time by profile, account or task of an account; parking and waking of lanes."""

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.leases import Mode
from leasekeeper.errors import ProfileBusy
from tests.conformance.world import NewWorld, Record, account, profile, spec


def shop(routing: Routing, count: int = 3) -> tuple[Record, ...]:
    return (account(routing=routing), *(profile(f"p{n}", max_active_runs=2) for n in range(1, count + 1)))


async def test_profiles_of_one_account_run_side_by_side_by_default(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.PROFILE)) as world:
        await world.submit(*(spec(f"p{n}") for n in (1, 2, 3)))
        grants = await world.claim(5)
        assert sorted(grant.lease.routing_key for grant in grants) == ["profile:p1", "profile:p2", "profile:p3"]


async def test_profiles_of_an_account_that_is_routed_so_run_one_at_a_time(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT), profile("other", "elsewhere")) as world:
        await world.submit(spec("p1"), spec("p2"), spec("p3"), spec("other"))
        grants = await world.claim(5)
        assert sorted(grant.lease.routing_key for grant in grants) == ["account:shop", "profile:other"]
        assert await world.claim(5) == []
        held = next(grant for grant in grants if grant.lease.routing_key == "account:shop")
        assert (await world.lane("p2")).waits_on == "account:shop"
        order = [held.lease.profile_id]
        for _ in range(2):
            await world.finish(held)
            held = await world.take()
            order.append(held.lease.profile_id)
        assert order == ["p1", "p2", "p3"]


async def test_a_claim_of_many_still_takes_one_of_an_account(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 20)) as world:
        await world.submit(*(spec(f"p{n}") for n in range(1, 21)))
        assert len(await world.claim(20)) == 1
        assert len(await world.claim(20)) == 0


async def test_lanes_that_wait_for_a_key_do_not_keep_others_from_running(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 30), profile("other", "elsewhere")) as world:
        await world.submit(*(spec(f"p{n}", priority=9) for n in range(1, 31)))
        await world.take()
        other = await world.add("other")
        assert (await world.take()).lease.job_id == other.job_id


async def test_sharers_of_one_profile_share_the_key_of_their_account_not(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 1)) as world:
        await world.submit(spec("p1", shared=True), spec("p1", shared=True))
        assert len(await world.claim(2)) == 1
        assert await world.claim(2) == []


@pytest.mark.parametrize("ending", ["finish", "lose", "revoke"])
async def test_whatever_ends_a_lease_wakes_who_waits_for_its_key(new_world: NewWorld, ending: str) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 2)) as world:
        await world.submit(spec("p1"), spec("p2"))
        grant = await world.take()
        assert await world.claim() == []
        match ending:
            case "finish":
                await world.finish(grant)
            case "lose":
                await world.lose(grant)
            case _:
                await world.revoke(grant)
        assert (await world.take()).lease.profile_id == "p2"


async def test_healing_does_nothing_while_nobody_was_forgotten(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 3)) as world:
        await world.submit(spec("p1"), spec("p2"), spec("p3"))
        grant = await world.take()
        assert await world.claim() == []
        assert await world.store.heal() == 0
        await world.finish(grant)
        woken = await world.take()
        await world.finish(woken)
        assert await world.store.heal() == 0
        await world.decide_profile(Action.DISABLE, "p3")
        assert await world.store.heal() == 0
        await world.decide_profile(Action.ENABLE, "p3")
        assert (await world.take()).lease.profile_id == "p3"


async def test_the_best_waiting_lane_is_woken_first(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 3)) as world:
        await world.add("p1")
        holder = await world.take()
        await world.add("p2")
        world.advance(1)
        urgent = await world.add("p3", priority=5)
        assert await world.claim(5) == []
        await world.finish(holder)
        assert (await world.take()).lease.job_id == urgent.job_id


async def test_a_woken_lane_that_nobody_can_serve_does_not_keep_the_key(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 3)) as world:
        await world.offer("visit", "rare")
        await world.add("p1")
        holder = await world.take(tasks=("visit", "rare"))
        await world.add("p2", "rare", priority=9)
        await world.add("p3")
        assert await world.claim(5, tasks=("visit", "rare")) == []
        await world.finish(holder)
        assert (await world.take(tasks=("visit",))).lease.profile_id == "p3"


async def test_read_only_tasks_of_an_account_run_beside_each_other_and_one_at_a_time_each(
    new_world: NewWorld,
) -> None:
    async with new_world(*shop(Routing.ACCOUNT_TASK)) as world:
        await world.offer("visit", "report")
        tasks = ("visit", "report")
        await world.submit(
            spec("p1", "visit", shared=True), spec("p2", "visit", shared=True), spec("p3", "report", shared=True)
        )
        grants = await world.claim(5, tasks=tasks)
        assert sorted(grant.lease.routing_key for grant in grants) == [
            "account:shop:task:report",
            "account:shop:task:visit",
        ]
        assert await world.claim(5, tasks=tasks) == []
        visit = next(grant for grant in grants if grant.lease.routing_key.endswith("visit"))
        await world.finish(visit)
        assert (await world.take(tasks=tasks)).lease.profile_id == "p2"


async def test_jobs_that_mutate_take_the_whole_account_under_routing_by_task(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT_TASK)) as world:
        await world.submit(spec("p1"), spec("p2"))
        (grant,) = await world.claim(5)
        assert grant.lease.routing_key == "account:shop"
        assert await world.claim(5) == []
        await world.finish(grant)
        assert (await world.take()).lease.profile_id == "p2"


async def test_a_direct_lease_holds_the_key_of_its_account(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 2)) as world:
        direct = await world.acquire("p1", mode=Mode.SHARED)
        assert direct.lease.routing_key == "account:shop"
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire("p2")
        assert refused.value.reason == "blocked_by_profile_lease"
        await world.add("p2")
        assert await world.claim() == []
        await world.finish(direct)
        assert (await world.take()).lease.profile_id == "p2"


async def test_a_stricter_routing_counts_from_the_next_grant_on(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.PROFILE)) as world:
        await world.submit(*(spec(f"p{n}") for n in (1, 2, 3)), *(spec(f"p{n}") for n in (1, 2, 3)))
        old = await world.claim(3)
        assert len(old) == 3
        await world.declare(*shop(Routing.ACCOUNT))
        for grant in old:
            assert await world.claim(3) == []
            await world.finish(grant)
        assert len(await world.claim(3)) == 1
        assert await world.claim(3) == []


async def test_a_wider_routing_frees_the_lanes_that_waited(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT)) as world:
        await world.submit(*(spec(f"p{n}") for n in (1, 2, 3)))
        await world.take()
        assert await world.claim() == []
        await world.declare(*shop(Routing.PROFILE))
        assert len(await world.claim(5)) == 2


async def test_a_more_urgent_head_checks_its_own_key(new_world: NewWorld) -> None:
    """A parked lane whose new head needs another key is looked at again."""
    async with new_world(*shop(Routing.ACCOUNT_TASK, 2)) as world:
        await world.offer("visit", "report")
        await world.submit(spec("p1", "visit", shared=True), spec("p2", "visit", shared=True))
        await world.take()
        assert await world.claim() == []
        urgent = await world.add("p2", "report", shared=True, priority=3)
        assert (await world.take(tasks=("report",))).lease.job_id == urgent.job_id


async def test_pausing_takes_a_lane_out_of_the_waiting_for_a_key(new_world: NewWorld) -> None:
    async with new_world(*shop(Routing.ACCOUNT, 2)) as world:
        await world.submit(spec("p1"), spec("p2"))
        grant = await world.take()
        assert await world.claim() == []
        await world.decide_account(Action.PAUSE)
        assert (await world.lane("p2")).blocked_by == "blocked_by_account_pause"
        await world.finish(grant)
        assert await world.claim() == []
        await world.decide_account(Action.RESUME)
        assert (await world.take()).lease.profile_id == "p2"
