"""A lease that is older than its account's routing counts for the account, and its end is told to who waits for it."""

import pytest

from leasehold.core.accounts import Routing
from tests.conformance.world import NewWorld, account, profile


@pytest.mark.parametrize("before", [Routing.PROFILE, Routing.ACCOUNT_TASK])
@pytest.mark.parametrize("ending", ["finish", "lose"])
async def test_the_end_of_a_lease_from_before_wakes_who_waits_for_the_account(
    new_world: NewWorld, before: Routing, ending: str
) -> None:
    async with new_world(account(routing=before), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1", shared=True)
        waiting = await world.add("p2")
        await world.declare(account(routing=Routing.ACCOUNT))
        assert await world.claim() == []
        await (world.finish(grant) if ending == "finish" else world.lose(grant))
        (next_one,) = await world.claim()
        assert (await world.job(next_one)).job_id == waiting.job_id


@pytest.mark.parametrize("ending", ["finish", "lose"])
async def test_a_lease_from_before_keeps_changing_runs_of_its_account_out(new_world: NewWorld, ending: str) -> None:
    async with new_world(account(routing=Routing.PROFILE), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        waiting = await world.add("p2")
        await world.declare(account(routing=Routing.ACCOUNT_TASK))
        assert await world.claim() == []
        await (world.finish(grant) if ending == "finish" else world.lose(grant))
        (next_one,) = await world.claim()
        assert (await world.job(next_one)).job_id == waiting.job_id
