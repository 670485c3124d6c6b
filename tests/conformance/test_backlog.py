"""A decision about a profile or an account costs the same with ten jobs behind it as with two thousand."""

from collections.abc import Awaitable, Callable

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.jobs import Job
from tests.conformance.probe import touching
from tests.conformance.world import NewWorld, World, profile, spec

FEW, MANY = 10, 2_000
Step = Callable[[World], Awaitable[object]]


async def backlog(world: World, count: int) -> None:
    for start in range(0, count, 1000):
        await world.submit(*(spec() for _ in range(min(1000, count - start))))


async def claims_and_finds_a_prompt(world: World) -> None:
    await world.finish(await world.take(), "SECURITY_PROMPT")


async def claims_and_finishes(world: World) -> None:
    await world.finish(await world.take())


async def changes_the_profile(world: World) -> None:
    waiting = (await world.store.stats()).jobs["queued"]
    assert await world.declare(profile(notes=f"with {waiting} jobs"))


STEPS: list[tuple[str, Step, str | None]] = [
    ("pause", lambda world: world.decide_account(Action.PAUSE), "blocked_by_account_pause"),
    ("resume", lambda world: world.decide_account(Action.RESUME), None),
    ("claim and finish", claims_and_finishes, None),
    ("claim and quarantine", claims_and_finds_a_prompt, "blocked_by_profile_state"),
    ("clear", lambda world: world.clear(), None),
    ("disable", lambda world: world.decide_profile(Action.DISABLE), "blocked_by_profile_state"),
    ("enable", lambda world: world.decide_profile(Action.ENABLE), None),
    ("a change of the profile", changes_the_profile, None),
    ("a claim that finds nothing", lambda world: world.claim(tasks=("nothing",)), None),
]


async def rows_of_each_step(world: World, count: int) -> dict[str, int]:
    await backlog(world, count)
    rows = {}
    for name, step, reason in STEPS:
        async with touching(world) as touched:
            await step(world)
        rows[name] = touched.rows
        job = (await world.store.find(Job, {"state": "blocked" if reason else "queued"}, limit=1)).items[0]
        assert job.blocked_reason == reason, name
    return rows


@pytest.mark.timeout(120)
async def test_decisions_touch_a_constant_number_of_rows(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        few = await rows_of_each_step(world, FEW)
        many = await rows_of_each_step(world, MANY - FEW)
        assert few == many
        assert all(rows <= 12 for rows in many.values()), many
        assert few["a claim that finds nothing"] == 0


async def test_the_count_of_rows_is_a_real_one(new_world: NewWorld) -> None:
    async with new_world() as world:
        async with touching(world) as touched:
            await world.submit(*(spec() for _ in range(20)))
        assert touched.rows >= 40
        async with touching(world) as touched:
            await world.store.stats()
        assert touched.rows == 0
