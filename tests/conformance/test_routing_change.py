"""A lease that is older than its account's routing counts for the account, and its end wakes who waits for it."""

import pytest

from leasekeeper.core.accounts import Routing
from tests.conformance.world import NewWorld, account, profile


@pytest.mark.parametrize(
    ("before", "shared", "after"),
    [
        (Routing.PROFILE, True, Routing.ACCOUNT),
        (Routing.ACCOUNT_TASK, True, Routing.ACCOUNT),
        (Routing.PROFILE, False, Routing.ACCOUNT_TASK),
    ],
)
@pytest.mark.parametrize("ending", ["finish", "lose"])
async def test_a_lease_from_before_keeps_others_of_its_account_out_and_its_end_wakes_them(
    new_world: NewWorld, before: Routing, shared: bool, after: Routing, ending: str
) -> None:
    async with new_world(account(routing=before), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1", shared=shared)
        waiting = await world.add("p2")
        await world.declare(account(routing=after))
        assert await world.claim() == []
        await (world.finish(grant) if ending == "finish" else world.lose(grant))
        (next_one,) = await world.claim()
        assert (await world.job(next_one)).job_id == waiting.job_id
