"""A warm browser is no reason to overtake: what is more urgent goes first, also where it waits for an account."""

from dataclasses import replace

from leasekeeper.core.accounts import Routing
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.ports import ClaimRequest
from tests.conformance.world import URL, NewWorld, account, profile

OPEN = EndFacts(browser=Browser.HANDED_OVER, final_url=URL)
REQUEST = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=("visit",))


async def test_a_more_urgent_job_that_waits_for_the_account_is_not_overtaken(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p1")
        urgent = await world.add("p2", priority=9)
        assert await world.claim() == []
        assert await world.store.hand_over(Ending(ref=grant.lease.ref, facts=OPEN), REQUEST) is None
        await world.finish(grant)
        assert (await world.job(await world.take())).job_id == urgent.job_id


async def test_a_more_urgent_job_that_the_browser_could_not_take_goes_first_all_the_same(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.offer("report")
        grant = await world.run("p1")
        following = await world.add("p1")
        urgent = await world.add("p2", task="report", priority=9)
        ending, request = Ending(ref=grant.lease.ref, facts=OPEN), replace(REQUEST, tasks=("visit", "report"))
        assert await world.store.hand_over(ending, request, among=("visit",)) is None
        assert (await world.take(tasks=("visit", "report"))).lease.job_id == urgent.job_id
        assert await world.store.hand_over(ending, request, among=("report",)) is None
        handed = await world.store.hand_over(ending, request, among=("visit",))
        assert handed is not None
        assert handed.grant is not None
        assert handed.grant.lease.job_id == following.job_id


async def test_a_run_that_never_started_has_no_browser_to_hand_over(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        ending = Ending(ref=grant.lease.ref, facts=OPEN, not_started=True)
        assert await world.store.hand_over(ending, REQUEST) is None
        assert (await world.job(grant)).state == "running"
