"""Warm hand-over: one run ends and the next job of its profile begins in the same commit, or nothing happens."""

import asyncio
from dataclasses import replace

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import SessionMode
from leasekeeper.core.leases import LeaseStatus, Refusal
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.ports import ClaimRequest, Grant, HandedOver
from tests.conformance.world import URL, NewWorld, World, account, limit, profile, proxy, spec

OPEN = EndFacts(browser=Browser.HANDED_OVER, final_url=URL)


def request(**changes: object) -> ClaimRequest:
    wanted = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=("visit",))
    return replace(wanted, **changes)  # type: ignore[arg-type] # fields by name


async def hand(world: World, grant: Grant, **changes: object) -> HandedOver | None:
    return await world.store.hand_over(Ending(ref=grant.lease.ref, facts=OPEN, output={"n": 1}), request(**changes))


async def test_the_next_job_gets_a_lease_and_a_token_of_its_own(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        waiting = await world.add()
        handed = await hand(world, first)
        assert handed is not None
        assert handed.grant is not None
        assert handed.grant.job is not None
        assert handed.grant.job.job_id == waiting.job_id
        assert handed.grant.lease.token == first.lease.token + 1
        assert (await world.job(first)).state == "completed"
        assert (await world.run_of(first)).output == {"n": 1}
        assert (await world.lease(first)).status is LeaseStatus.RELEASED
        assert await world.state() == "leased"
        settled, granted = (await world.events(profile_id="p1"))[-2:]
        assert (settled.type, granted.type) == (EventType.RUN_SETTLED, EventType.LEASE_GRANTED)
        assert settled.data["profile_reason"] == "the run completed and handed its browser over"
        await world.finish(handed.grant)
        assert await world.state() == "available"


async def test_nothing_happens_if_nobody_waits(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant = await world.run()
        await world.add("p2")
        before = await world.events()
        assert await hand(world, grant) is None
        assert await world.events() == before
        assert (await world.lease(grant)).status is LeaseStatus.RUNNING
        assert (await world.job(grant)).state == "running"
        await world.finish(grant)
        assert await world.state() == "available"


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": ("other",)},
        {"pool": "elsewhere"},
    ],
)
async def test_a_job_that_is_not_this_workers_is_left(new_world: NewWorld, changes: dict[str, object]) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        assert await hand(world, grant, **changes) is None
        assert await hand(world, grant) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "TIMEOUT"},
        {"facts": replace(OPEN, evidence_saved=False)},
        {"facts": replace(OPEN, final_url=None)},
        {"facts": replace(OPEN, proxy_changed=True)},
    ],
)
async def test_only_a_clean_run_hands_its_browser_over(new_world: NewWorld, change: dict[str, object]) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        ending = replace(Ending(ref=grant.lease.ref, facts=OPEN), **change)  # type: ignore[arg-type] # fields by name
        assert await world.store.hand_over(ending, request()) is None
        assert (await world.lease(grant)).status is LeaseStatus.RUNNING


async def test_an_open_section_keeps_the_browser(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        await world.store.enter_section(grant.lease.ref, "pay")
        assert await hand(world, grant) is None


async def test_a_stale_lease_hands_nothing_over(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        world.clock.now = grant.lease.expires_at
        handed = await hand(world, grant)
        assert handed is not None
        assert handed.grant is None
        assert handed.settled.refused is Refusal.OVERDUE
        assert len(await world.events(type=EventType.STALE_WORKER_WRITE_REJECTED)) == 1


async def test_a_more_urgent_job_elsewhere_comes_first(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant = await world.run()
        await world.submit(spec(), spec("p2", priority=5))
        assert await hand(world, grant) is None
        await world.claim()
        assert await hand(world, grant) is not None


async def test_a_paused_account_and_a_drained_profile_get_no_next_run(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2", "other")) as world:
        first, second = await world.run("p1"), await world.run("p2")
        await world.submit(spec("p1"), spec("p2"))
        await world.decide_account(Action.PAUSE, "shop")
        await world.decide_profile(Action.DISABLE, "p2")
        assert await hand(world, first) is None
        assert await hand(world, second) is None


async def test_a_job_whose_environment_does_not_fit_is_not_handed_anything(new_world: NewWorld) -> None:
    async with new_world(proxy(), profile(proxy_id="exit_us")) as world:
        grant = await world.run()
        await world.submit(spec(expected_proxy_region="DE"))
        assert await hand(world, grant) is None
        await world.finish(grant)


async def test_account_keys_and_pool_limits_hold(new_world: NewWorld) -> None:
    records = (account(routing=Routing.ACCOUNT), profile("p1"), profile("p2"), limit("default", 1))
    async with new_world(*records) as world:
        grant = await world.run()
        await world.submit(spec("p1"), spec("p2"))
        handed = await hand(world, grant)
        assert handed is not None
        assert handed.grant is not None
        assert await world.claim() == []
        await world.finish(handed.grant)
        (last,) = await world.claim()
        assert last.lease.profile_id == "p2"


async def test_two_hand_overs_of_one_run_give_one_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.submit(spec(), spec())
        other = await world.another()
        ending = Ending(ref=grant.lease.ref, facts=OPEN)
        answers = await asyncio.gather(
            world.store.hand_over(ending, request()), other.hand_over(ending, request()), return_exceptions=True
        )
        grants = [a.grant for a in answers if isinstance(a, HandedOver) and a.grant is not None]
        assert len(grants) == 1
        refused = [a.settled.refused for a in answers if isinstance(a, HandedOver) and a.grant is None]
        assert refused == [Refusal.RELEASED]


async def test_a_job_that_wants_a_copy_gets_no_browser_that_is_open_in_the_profile(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        alone = await world.add(session_mode=SessionMode.ISOLATED)
        assert (await world.job(alone)).session_mode is SessionMode.ISOLATED
        assert await hand(world, first) is None
        await world.finish(first)
        grant = await world.take()
        assert grant.job is not None
        assert grant.job.isolated
