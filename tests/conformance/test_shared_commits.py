"""Settles and claims that share a commit, callers that are gone, and what must not slip in between."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.events import Event
from leasekeeper.core.ids import Token
from leasekeeper.core.jobs import JobState
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import IllegalTransition, InputError
from leasekeeper.ports import Grant, Renewal, Settled
from leasekeeper.stores.http import HttpStore
from tests.conformance.world import CLEAN, URL, NewWorld, World, account, end, profile, spec


async def test_a_profile_that_is_quarantined_is_not_claimed_in_the_same_commit(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        for _ in range(3):
            await world.add(shared=True)
        first = await world.take()
        stopped = end(first.lease.ref, "SECURITY_PROMPT")
        (settled,), grants = await asyncio.gather(world.store.settle([stopped]), world.claim(2))
        assert (settled.profile_state, grants) == (ProfileState.QUARANTINED, [])
        assert await world.state() is ProfileState.QUARANTINED


async def test_a_profile_that_is_freed_can_be_claimed_in_the_same_commit(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        await world.add()
        first = await world.take()
        _, (second,) = await asyncio.gather(world.store.settle([end(first.lease.ref)]), world.claim(1))
        assert second.lease.token == 2


async def test_a_settle_and_a_claim_of_one_moment_are_both_done(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        for name in ("p1", "p2", "p1"):
            await world.add(name)
        first = await world.take()
        world.advance(1)
        stranger = replace(first.lease.ref, token=Token(9))
        settled, (second,) = await settle_and_claim(world, end(first.lease.ref), end(stranger))
        assert settled[0].job_state is JobState.COMPLETED
        assert settled[1].refused is not None
        assert second.lease.profile_id == "p2"
        (only,), (third,) = await settle_and_claim(world, end(second.lease.ref))
        assert (only.profile_state, third.lease.ref.token) == (ProfileState.AVAILABLE, 2)
        (last,), nothing = await settle_and_claim(world, end(third.lease.ref))
        assert (last.job_state, nothing) == (JobState.COMPLETED, [])


async def test_after_an_ending_those_who_waited_for_its_account_are_ready(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        first = await world.run("p1")
        await world.add("p2")
        assert await world.claim() == []
        _, granted = await settle_and_claim(world, end(first.lease.ref))
        assert [grant.lease.profile_id for grant in granted] == ["p2"]


@pytest.mark.parametrize("together", [False, True])
async def test_who_waits_for_the_account_is_not_passed_over_by_whoever_had_it(
    new_world: NewWorld, *, together: bool
) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p1", priority=-5)
        urgent = await world.add("p2", priority=900)
        assert await world.claim() == []
        if together:
            _, granted = await settle_and_claim(world, end(grant.lease.ref))
        else:
            await world.finish(grant)
            granted = await world.claim()
        assert [each.lease.job_id for each in granted] == [urgent.job_id]


async def test_profiles_of_one_account_take_turns(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        for name in ("p1", "p2") * 3:
            await world.add(name)
        granted, order = await world.claim(1), []
        while granted:
            order.append(granted[0].lease.profile_id)
            world.advance(1)
            _, granted = await settle_and_claim(world, end(granted[0].lease.ref))
        assert order == ["p1", "p2"] * 3


async def test_a_call_that_cannot_be_done_does_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        with pytest.raises(InputError):
            await world.claim(0)
        with pytest.raises(InputError):
            await world.store.settle([Ending(ref=grant.lease.ref, facts=CLEAN, output={"found": {1}})])
        assert await world.state() is ProfileState.LEASED


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17, 40])
async def test_calls_of_any_size_are_done_whole_and_answered_in_order(new_world: NewWorld, count: int) -> None:
    """Few rows and many are written in different ways."""
    names = [f"p{number:02}" for number in range(count)]
    async with new_world(*(profile(name) for name in names)) as world:
        await world.store.submit([spec(name, payload={"half": "\ud83d", "é": name}) for name in names * 2])
        first = await world.claim(count)
        settled, second = await settle_and_claim(world, *(end(grant.lease.ref) for grant in first), limit=count)
        assert [answer.job_state for answer in settled] == [JobState.COMPLETED] * count
        assert sorted(grant.lease.profile_id for grant in second) == names
        assert {grant.lease.token for grant in second} == {2}
        reported = await world.store.find(Event, {"type": "run_settled"}, limit=100)
        assert [event.profile_id for event in reported.items] == [grant.lease.profile_id for grant in reversed(first)]
        runs = await world.store.find(Lease, {}, limit=100)
        assert sorted(lease.profile_id for lease in runs.items if lease.ended_at is None) == names


async def test_an_ending_that_contains_itself_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        output: dict[str, object] = {"page": "x" * 100_000}
        output["itself"] = output
        with pytest.raises(InputError, match=r"endings\[0\].output"):
            await world.store.settle([Ending(ref=grant.lease.ref, facts=CLEAN, output=output)])


async def settle_and_claim(world: World, *endings: Ending, limit: int = 1) -> tuple[list[Settled], list[Grant]]:
    """Two calls of one process at the same moment: they share a commit. Through a server they are two requests, which
    may arrive in any order: there one is answered before the other is sent."""
    if isinstance(world.store, HttpStore):
        return await world.store.settle(endings), await world.claim(limit)
    settled, granted = await asyncio.gather(world.store.settle(endings), world.claim(limit))
    return settled, granted


@pytest.mark.parametrize("steps", range(1, 7))
async def test_jobs_of_a_claim_that_nobody_waits_for_take_their_places_again(new_world: NewWorld, steps: int) -> None:
    """Whenever the caller goes: before its claim is sent, while it is under way, or with the answer at the door."""
    async with new_world(profile("p1"), profile("p2")) as world:
        jobs = [await world.add(name) for name in ("p1", "p2", "p1")]
        claiming = asyncio.create_task(world.claim(2))
        for _ in range(steps):
            await asyncio.sleep(0)
        claiming.cancel()
        (got,) = await asyncio.gather(claiming, return_exceptions=True)
        if isinstance(got, list):
            await world.store.settle([Ending(ref=grant.lease.ref, not_started=True) for grant in got])

        # A later claim of the same process waits for the one under way; what is given back comes after it.
        await world.claim(1, tasks=("nothing",))
        deadline = asyncio.get_running_loop().time() + 30
        while (await world.store.find(Lease, {"live": "1"})).items:
            assert asyncio.get_running_loop().time() < deadline
        shown = [await world.job(job) for job in jobs]
        assert [(job.state, job.attempt) for job in shown] == [(JobState.QUEUED, 0)] * 3
        assert {await world.state("p1"), await world.state("p2")} == {ProfileState.AVAILABLE}
        again = await world.claim(2)
        assert {grant.lease.job_id for grant in again} == {jobs[0].job_id, jobs[1].job_id}


async def test_an_ending_that_cannot_be_kept_is_refused_alone(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        good, bad = await world.run("p1"), await world.run("p2")
        wrong = Ending(ref=bad.lease.ref, facts=CLEAN, output={"found": {1, 2}})
        answers = await asyncio.gather(
            world.store.settle([end(good.lease.ref)]), world.store.settle([wrong]), return_exceptions=True
        )
        assert isinstance(answers[1], InputError)
        assert await world.state("p1") is ProfileState.AVAILABLE
        assert await world.state("p2") is ProfileState.LEASED


async def test_sharers_that_end_badly_each_in_its_own_way_can_all_end(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        for _ in range(2):
            await world.add(shared=True)
        first, second = await world.take(), await world.take()
        await world.finish(first, "SECURITY_PROMPT")
        lost = EndFacts(browser=Browser.CLOSED, final_url=URL, evidence_saved=False)
        await world.finish(second, facts=lost)
        assert await world.state() is ProfileState.QUARANTINED


async def test_a_revoked_lease_keeps_its_account_to_itself_until_its_holder_must_have_stopped(
    new_world: NewWorld,
) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p2")
        await world.revoke(grant, over=False)
        assert await world.claim(1) == []
        world.clock.now = (await world.lease(grant)).expires_at
        await world.store.expire()
        assert len(await world.claim(1)) == 1


async def test_a_lease_from_before_the_account_was_routed_so_counts(new_world: NewWorld) -> None:
    async with new_world(account(), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p2")
        await world.declare(account(routing=Routing.ACCOUNT))
        assert await world.claim(1) == []
        await world.finish(grant)
        await world.store.heal()
        assert len(await world.claim(1)) == 1


async def test_while_the_clock_is_in_doubt_nobody_loses_a_lease(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        healthy, silent = await world.run("p1"), await world.run("p2")
        world.advance(timedelta(hours=1))
        await world.store.pause_expiry(timedelta(seconds=60), timedelta(hours=1))
        assert await world.store.expire() == []
        await world.store.checkpoint(healthy.lease.ref, "still_here")
        (renewed,) = await world.store.renew([Renewal(ref=healthy.lease.ref)])
        assert renewed.refused is None
        world.advance(59)
        assert await world.store.expire() == []
        await world.store.renew([Renewal(ref=healthy.lease.ref)])
        world.advance(1)
        assert [lease.lease_id for lease in await world.store.expire()] == [silent.lease.lease_id]


async def test_after_a_jump_back_no_lease_outlives_its_ttl(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(-3600)
        await world.store.pause_expiry(timedelta(seconds=60), timedelta(hours=-1))
        assert (await world.lease(grant)).expires_at == world.now + timedelta(seconds=60)


async def test_a_key_is_known_whatever_became_of_its_account(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        asked = spec(None, account_id="shop", idempotency_key="k")
        (first,) = await world.store.submit([asked])
        await world.declare(profile("p2"))
        (again,) = await world.store.submit([asked])
        assert (again.already_handled, again.job.job_id) == (True, first.job.job_id)


async def test_a_profile_is_not_cleared_while_an_ending_is_unresolved(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        grant = await world.run()
        await world.lose(grant)
        await world.decide_profile(Action.DISABLE)
        await world.decide_profile(Action.ENABLE)
        with pytest.raises(IllegalTransition, match="not resolved yet"):
            await world.clear()
        await world.resolve(grant)
        await world.clear()
        assert await world.state() is ProfileState.AVAILABLE
