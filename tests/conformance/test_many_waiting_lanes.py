"""How many lanes one claim blocks or parks, and how those are found again."""

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.profiles import Lane
from tests.conformance.world import NewWorld, account, profile, spec


async def test_however_many_lanes_wait_for_one_key_a_claim_finds_what_can_run(new_world: NewWorld) -> None:
    crowd = [profile(f"p{n:03}") for n in range(300)]
    async with new_world(account(routing=Routing.ACCOUNT), *crowd, profile("z1", "other")) as world:
        await world.store.submit([spec(each.profile_id) for each in crowd])
        await world.take()
        await world.add("z1")
        (grant,) = await world.claim()
        assert grant.lease.profile_id == "z1"
        parked = [lane for lane in await world.all(Lane) if lane.waits_on is not None]
        assert len(parked) == 299
        assert await world.claim() == []


async def test_a_wake_up_that_was_lost_is_found_behind_any_number_of_keys_that_are_held(new_world: NewWorld) -> None:
    names = ("a", "b", "c")
    accounts = [account(name, routing=Routing.ACCOUNT) for name in names]
    profiles = [profile(f"{name}{n}", name) for name in names for n in range(3)]
    async with new_world(*accounts, *profiles) as world:
        held = {name: await world.run(f"{name}0") for name in names}
        waiting = {name: [await world.add(f"{name}{n}") for n in (1, 2)] for name in names}
        assert await world.claim(10) == []
        # The first of those that wait is woken, and goes: nobody wakes the second.
        await world.finish(held["c"])
        await world.decide_job(waiting["c"][0], Action.CANCEL)
        assert await world.claim() == []
        assert await world.store.heal(limit=1) == 1
        assert (await world.take()).lease.job_id == waiting["c"][1].job_id
        assert await world.store.heal(limit=1) == 0
