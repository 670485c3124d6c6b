"""Retention: finished jobs with their runs, and old events, go; what somebody still needs stays."""

from datetime import timedelta

import pytest

from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.policy import Retention
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import NotFound
from tests.conformance.world import URL, NewWorld, World, profile, seconds, spec

DAY = timedelta(days=1)
JOBS, EVENTS = Retention(jobs=DAY, events=None), Retention(jobs=None, events=DAY)


async def prune_all(world: World, retention: Retention) -> int:
    total = 0
    while gone := await world.store.prune(retention):
        total += gone
    return total


async def test_finished_jobs_go_with_all_that_is_theirs(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "ACTION_NOT_ALLOWED")
        await world.decide_job(await world.job(grant), Action.CANCEL)
        await world.finish(await world.acquire())
        world.advance(DAY)
        assert await prune_all(world, JOBS) == 0
        world.advance(seconds(1))
        assert await prune_all(world, JOBS) == 2
        for kind in (Job, RunRecord, Review):
            assert await world.all(kind) == []
        with pytest.raises(NotFound):
            await world.job(grant)


async def test_the_events_of_a_run_can_be_listed_after_it_is_gone(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant)
        reported = await world.paged(Event, 1000, {"run_id": grant.lease.run_id})
        world.advance(DAY + seconds(1))
        assert await prune_all(world, JOBS) == 1
        assert await world.paged(Event, 1000, {"run_id": grant.lease.run_id}) == reported != []


async def test_jobs_that_are_not_over_stay(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(6))) as world:
        await world.run("p3")
        await world.finish(await world.run("p4"), "ACTION_NOT_ALLOWED")
        await world.add("p0")
        await world.add("p1", expected_language="fr")
        await world.add("p2", run_at=world.now + 90 * DAY)
        await world.acquire("p5")
        world.advance(30 * DAY)
        before = await world.everything()
        assert await prune_all(world, JOBS) == 0
        assert await world.everything() == before


async def test_a_run_that_is_not_resolved_stays_with_its_job(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.finish(grant, facts=EndFacts(browser=Browser.NOT_PROVEN, final_url=URL))
        direct = await world.acquire("p2")
        await world.revoke(direct)
        world.advance(30 * DAY)
        await prune_all(world, JOBS)
        assert len(await world.store.unresolved()) == 2
        assert len(await world.resolve(grant)) == 1
        assert len(await world.resolve(direct)) == 1


async def test_tokens_go_on_when_all_runs_are_forgotten(new_world: NewWorld) -> None:
    async with new_world() as world:
        for _ in range(3):
            await world.finish(await world.run())
        world.advance(30 * DAY)
        await prune_all(world, JOBS)
        assert await world.all(RunRecord) == []
        assert (await world.run()).lease.token == 4


async def test_a_message_that_was_not_delivered_stays(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(callback_url="https://hook.test/"))
        world.advance(30 * DAY)
        await prune_all(world, JOBS)
        assert [delivery.type for delivery in await world.all(Delivery)] == ["job.completed"]


async def test_old_events_go_but_the_state_can_still_be_replayed(new_world: NewWorld) -> None:
    """The world's audit replays every job and profile at the end: the last word on each must be left."""
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        for _ in range(3):
            await world.finish(await world.run("p1"))
        await world.run("p2")
        await world.add("p3", expected_language="fr")
        before = len(await world.all(Event))
        assert await prune_all(world, EVENTS) == 0
        world.advance(2 * DAY)
        gone = await prune_all(world, EVENTS)
        assert gone > 5
        assert len(await world.all(Event)) == before - gone


async def test_events_of_a_record_that_is_gone_go_too(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant)
        world.advance(2 * DAY)
        await prune_all(world, JOBS)
        await prune_all(world, EVENTS)
        assert [event.type for event in await world.all(Event)] == ["run_settled"]


async def test_a_batch_of_pruning_has_a_limit(new_world: NewWorld) -> None:
    async with new_world() as world:
        jobs = await world.submit(*(spec() for _ in range(10)))
        for job in jobs:
            await world.decide_job(job, Action.CANCEL)
        world.advance(2 * DAY)
        assert [await world.store.prune(JOBS, limit=4) for _ in range(4)] == [4, 4, 2, 0]


async def test_nothing_goes_where_everything_is_kept(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run())
        world.advance(3650 * DAY)
        assert await world.store.prune(Retention(jobs=None, events=None)) == 0


async def test_a_pruned_key_may_be_used_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(idempotency_key="k"))
        world.advance(2 * DAY)
        await prune_all(world, JOBS)
        (answer,) = await world.store.submit([spec(idempotency_key="k", payload={"new": True})])
        assert not answer.already_handled


async def test_events_of_today_stay_though_older_numbers_come_after_them(new_world: NewWorld) -> None:
    """The clock was a year back for a while, and is right again."""
    async with new_world() as world:
        await world.finish(await world.run())
        world.advance(-365 * DAY)
        for _ in range(20):
            await world.finish(await world.run())
        world.advance(365 * DAY)
        today = world.now
        await world.finish(await world.run())
        kept = {event.seq for event in await world.all(Event) if event.at >= today}
        await prune_all(world, EVENTS)
        assert {event.seq for event in await world.all(Event) if event.at >= today} == kept


async def test_numbers_of_events_only_grow(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run())
        await world.store.report(
            WorkerReport(worker_id=WorkerId("w"), incarnation="w-1", pool="default", tasks=("visit",), stopping=True)
        )
        newest = max(event.seq for event in await world.all(Event))
        world.advance(10 * DAY)
        await prune_all(world, EVENTS)
        await world.finish(await world.run())
        assert min(event.seq for event in await world.all(Event) if event.at == world.now) > newest
