"""Which profiles of a pool are free, by how long they have rested."""

from typing import Any

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError
from tests.conformance.world import NewWorld, World, profile

WARM = ProfileChoice(pool="warm")


def warm(name: str, **settings: Any) -> Profile:
    return profile(name, pool="warm", **settings)


async def free(world: World, choice: ProfileChoice = WARM) -> list[str]:
    return [each.profile_id for each in (await world.store.free_profiles(choice)).items]


async def test_the_one_that_rested_longest_comes_first(new_world: NewWorld) -> None:
    async with new_world(warm("a"), warm("b"), warm("c"), profile("cold")) as world:
        assert await free(world) == ["a", "b", "c"]
        world.advance(1)
        await world.finish(await world.acquire("a"))
        assert await free(world) == ["b", "c", "a"]
        world.advance(1)
        held = await world.acquire("c")
        assert await free(world) == ["b", "a"]
        world.advance(1)
        await world.finish(held)
        assert await free(world) == ["b", "a", "c"]


async def test_only_what_could_be_leased_is_free(new_world: NewWorld) -> None:
    async with new_world(warm("a"), warm("b"), warm("c", account_id="other")) as world:
        await world.decide_profile(Action.QUARANTINE, "a")
        assert await free(world) == ["b", "c"]
        await world.decide_account(Action.PAUSE)
        assert await free(world) == ["c"]
        counts = (await world.store.free_profiles(WARM, counted=True)).counts
        assert counts == {"blocked_by_account_pause": 2, "": 1}
        assert (await world.store.free_profiles(ProfileChoice(pool="nowhere"), counted=True)).counts == {}


async def test_labels_choose_and_a_tier_is_one(new_world: NewWorld) -> None:
    gold = ProfileChoice(pool="warm", labels={"tier": "gold"})
    records = (warm("a", labels={"tier": "gold"}), warm("b", tier="gold", labels={"site": "us"}), warm("c", tier="tin"))
    async with new_world(*records) as world:
        assert await free(world, gold) == ["a", "b"]
        assert await free(world, ProfileChoice(pool="warm", labels={"tier": "gold", "site": "us"})) == ["b"]
        assert (await world.store.free_profiles(gold, counted=True)).counts == {"": 2}


async def test_pages_continue_where_the_one_before_ended(new_world: NewWorld) -> None:
    async with new_world(*(warm(f"p{n}") for n in range(5))) as world:
        found, after = list[str](), None
        while True:
            page = await world.store.free_profiles(WARM, after=after, limit=2)
            found += [each.profile_id for each in page.items]
            after = page.after
            if after is None:
                break
        assert found == [f"p{n}" for n in range(5)]
        with pytest.raises(InputError):
            await world.store.free_profiles(WARM, limit=0)
        with pytest.raises(InputError):
            await world.store.free_profiles(WARM, after="x")
