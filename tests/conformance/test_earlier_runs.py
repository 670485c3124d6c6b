"""What a run leaves behind for the next one of its job, and for people: conflicts, evidence, sentences, pauses."""

from datetime import timedelta

import pytest

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import Backoff, Job, JobState, OnConflict, Retry
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.ports import Grant
from tests.conformance.world import URL, NewWorld, World, account, profile

AT_ONCE = Retry(backoff=Backoff(first=timedelta(milliseconds=1)))
NOT_PROVEN = EndFacts(browser=Browser.NOT_PROVEN, final_url=URL)


async def crashes(world: World, on_conflict: OnConflict, reason: str) -> tuple[Grant, Job]:
    """A run whose browser was not proven closed: its profile is stale when the retry is due."""
    grant = await world.run(on_conflict=on_conflict, retry=AT_ONCE)
    await world.finish(grant, reason, facts=NOT_PROVEN)
    job = await world.job(grant)
    assert (await world.state(), job.state) == (ProfileState.STALE, JobState.SCHEDULED)
    world.advance(1)
    assert await world.store.promote() == 1
    return grant, await world.job(grant)


@pytest.mark.parametrize("reason", [Reason.BROWSER_CRASHED, Reason.LEASE_LOST])
@pytest.mark.parametrize("on_conflict", OnConflict)
async def test_a_job_does_not_conflict_with_its_own_earlier_run(
    new_world: NewWorld, on_conflict: OnConflict, reason: Reason
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant, job = await crashes(world, on_conflict, reason)
        assert (job.state, job.blocked_reason) == (JobState.BLOCKED, "blocked_by_profile_state")
        assert await world.events(type="profile_lock_conflict") == []
        world.advance(60)
        await world.resolve(grant, final_url=URL, browser_dead=True)
        await world.clear()
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_job_conflicts_with_the_lost_run_of_another_one(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "BROWSER_CRASHED", facts=NOT_PROVEN)
        other = await world.add(on_conflict=OnConflict.SKIP)
        assert other.state is JobState.SKIPPED
        assert len(await world.events(type="profile_lock_conflict")) == 1


async def test_files_of_a_run_and_of_its_keeper_are_both_kept(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        mine = [{"name": "invoice.pdf", "hash": "a"}, {"name": "last.png", "hash": "b"}]
        evidence = {"artifacts": mine, "console": ["hello"]}
        await world.finish(grant, "BROWSER_CRASHED", facts=NOT_PROVEN, evidence=evidence)
        found = [{"name": "last.png", "hash": "c"}, {"name": "commands.json", "hash": "d"}]
        await world.resolve(grant, reported_by="keeper", browser_dead=True, evidence={"artifacts": found})
        kept = (await world.run_of(grant)).evidence
        assert kept["artifacts"] == [mine[0], found[0], found[1]]
        assert kept["console"] == ["hello"]


async def test_a_paused_account_that_is_removed_and_declared_again_is_paused_still(new_world: NewWorld) -> None:
    shop = account("shop", routing=Routing.ACCOUNT)
    async with new_world(shop, profile("p1", "shop"), profile("q1", "other")) as world:
        await world.decide_account(Action.PAUSE, note="asked by legal")
        before = await world.store.get(Account, "shop")
        await world.declare(profile("q1", "other"), prune=True)
        await world.declare(shop, profile("p1", "shop"))
        again = await world.store.get(Account, "shop")
        assert (again.paused, again.pause_note) == (True, "asked by legal")
        assert again.version > before.version
        job = await world.add("p1")
        assert (await world.job(job)).blocked_reason == "blocked_by_account_pause"
        assert await world.claim() == []
        await world.decide_account(Action.RESUME)
        assert len(await world.claim()) == 1


async def test_a_profile_says_what_is_known_of_a_holder_that_was_not_heard_of(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        grant = await world.run()
        world.advance(62)
        await world.lose(grant)
        assert (await world.lane()).state_reason == (
            "lease expired: no heartbeat of worker w1 reached the store for 62 s"
        )
        await world.resolve(grant)
        assert (await world.lane()).state_reason == (
            "no heartbeat of worker w1 reached the store for 60 s; release policy is review"
        )


async def test_a_browser_that_is_found_dead_later_is_no_contradiction(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart")
        await world.finish(grant, facts=NOT_PROVEN)
        world.advance(60)
        await world.resolve(grant, final_url=URL, browser_dead=True)
        assert (await world.lane()).state is ProfileState.AVAILABLE
        assert (await world.lane()).state_reason == (
            "the browser of worker w1 was not proven closed at the end of its run; "
            "recovered after safe step cart: the browser has been proven dead since"
        )
