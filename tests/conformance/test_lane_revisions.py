"""Every write of a lane counts: whoever knows its revision knows the lane."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.profiles import Lane, ReleasePolicy
from leasekeeper.ports import Grant
from tests.conformance.world import NewWorld, World, account, profile

Step = Callable[[World, Grant], Awaitable[object]]


async def settles(world: World, grant: Grant) -> None:
    await world.finish(grant)


async def is_lost(world: World, grant: Grant) -> None:
    await world.lose(grant)


async def gets_a_more_urgent_job(world: World, _grant: Grant) -> None:
    await world.add("p1", priority=9)


async def is_drained(world: World, _grant: Grant) -> None:
    await world.decide_profile(Action.DISABLE)


async def is_paused(world: World, grant: Grant) -> None:
    await world.finish(grant)
    await world.decide_account(Action.PAUSE)


@pytest.mark.parametrize("step", [settles, is_lost, gets_a_more_urgent_job, is_drained, is_paused])
async def test_a_change_of_a_lane_has_a_revision_of_its_own(new_world: NewWorld, step: Step) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        before = await world.lane()
        await step(world, grant)
        after = await world.lane()
        assert after != before
        assert after.revision > before.revision


async def test_a_lane_that_is_parked_and_woken_counts_both(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p2")
        seen = [await world.lane("p2")]
        await world.claim()
        seen.append(await world.lane("p2"))
        await world.finish(grant)
        seen.append(await world.lane("p2"))
        assert [lane.waits_on for lane in seen] == [None, "account:shop", None]
        assert seen[0].revision < seen[1].revision < seen[2].revision


async def test_what_does_not_change_a_lane_does_not_count(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant = await world.run()
        before = await world.lane()
        await world.store.checkpoint(grant.lease.ref, "cart")
        assert await world.claim() == []
        await world.store.heal()
        await world.add(run_at=world.now + timedelta(days=1))
        assert await world.lane() == before


async def test_a_profile_that_is_declared_again_does_not_repeat_a_revision(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run())
        before: Lane = await world.lane()
        await world.declare(profile("p2"), prune=True)
        await world.declare(profile("p1"))
        assert (await world.lane()).revision > before.revision
