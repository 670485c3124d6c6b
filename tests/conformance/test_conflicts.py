"""Conflicts are signals: a job that is due while its profile is taken follows its policy, with an event."""

from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import OnConflict
from leasekeeper.core.leases import Purpose
from leasekeeper.ports import Grant, Submitted
from tests.conformance.world import NewWorld, World, account, profile, seconds, spec

W = OnConflict


async def conflict(world: World) -> Event:
    (event,) = await world.events(type=EventType.PROFILE_LOCK_CONFLICT)
    return event


async def meets(world: World, policy: OnConflict, **settings: Any) -> Submitted:
    (answer,) = await world.store.submit([spec(on_conflict=policy, **settings)])
    return answer


async def test_a_job_that_waits_is_queued_behind_the_holder(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.run()
        world.advance(20)
        answer = await meets(world, W.WAIT)
        assert answer.decision == "wait"
        assert (await world.job(answer.job)).blocked_reason == "blocked_by_profile_lease"
        event = await conflict(world)
        assert (event.job_id, event.profile_id, event.run_id) == (answer.job.job_id, "p1", holder.lease.run_id)
        assert event.data == {
            "profile_id": "p1",
            "blocked_job_id": answer.job.job_id,
            "blocked_task": "visit",
            "current_job_id": holder.lease.job_id,
            "current_run_id": holder.lease.run_id,
            "current_worker_id": "w1",
            "current_profile_id": "p1",
            "decision": "wait",
            "next_check_seconds": 40,
            "cause": "same_account_routing",
        }
        await world.finish(holder)
        assert (await world.take()).lease.job_id == answer.job.job_id


async def test_a_job_that_reschedules_comes_back_later(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.acquire(ttl=seconds(2000))
        answer = await meets(world, W.RESCHEDULE)
        assert (answer.decision, answer.job.state) == ("reschedule", "scheduled")
        assert answer.job.run_at == world.now + seconds(300)
        event = await conflict(world)
        assert (event.data["next_check_seconds"], event.data["current_job_id"]) == (300, None)
        world.advance(300)
        assert await world.store.promote() == 1
        again = await world.job(answer.job)
        assert (again.state, again.run_at, again.attempt) == ("scheduled", world.now + seconds(300), 0)
        await world.finish(holder)
        assert await world.claim() == []
        world.advance(300)
        assert await world.store.promote() == 1
        assert (await world.take()).lease.job_id == answer.job.job_id
        assert len(await world.events(type=EventType.PROFILE_LOCK_CONFLICT)) == 2


async def test_a_job_says_itself_how_long_it_stays_away(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.acquire()
        answer = await meets(world, W.RESCHEDULE, conflict_delay_seconds=7)
        assert answer.job.run_at == world.now + seconds(7)


async def test_a_job_that_skips_is_over(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.run()
        answer = await meets(world, W.SKIP, callback_url="https://hook.test/")
        assert (answer.decision, answer.job.state) == ("skip", "skipped")
        assert answer.job.finished_at == world.now
        assert (await conflict(world)).data["decision"] == "skip"
        assert [delivery.type for delivery in await world.all(Delivery)] == ["job.skipped"]
        await world.finish(holder)
        assert await world.claim() == []


async def test_a_job_that_asks_for_review_goes_to_a_person(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.run()
        answer = await meets(world, W.REVIEW, callback_url="https://hook.test/")
        assert (answer.decision, answer.job.state) == ("review", "review")
        (review,) = await world.all(Review, open="true")
        assert (review.job_id, review.reason) == (answer.job.job_id, "profile_lock_conflict")
        assert [delivery.type for delivery in await world.all(Delivery)] == ["job.review"]
        await world.finish(holder)
        assert await world.claim() == []


async def a_lost_worker(world: World) -> Grant:
    grant = await world.run()
    world.clock.now = grant.lease.expires_at
    return grant


async def a_swept_worker(world: World) -> Grant:
    grant = await world.run()
    await world.lose(grant)
    return grant


async def a_long_run(world: World) -> Grant:
    grant = await world.run(lock_timeout_seconds=3600)
    world.advance(600)
    return grant


async def almost_a_long_run(world: World) -> Grant:
    grant = await world.run(lock_timeout_seconds=3600)
    world.advance(599)
    return grant


async def a_person(world: World) -> Grant:
    return await world.acquire(purpose=Purpose.MANUAL)


async def an_inspection(world: World) -> Grant:
    return await world.acquire(purpose=Purpose.INSPECT)


async def a_program(world: World) -> Grant:
    return await world.acquire(purpose=Purpose.API)


async def a_less_urgent_job(world: World) -> Grant:
    return await world.run(priority=-1)


async def an_equal_job(world: World) -> Grant:
    return await world.run()


CAUSES = {
    a_lost_worker: "previous_worker_lost",
    a_swept_worker: "previous_worker_lost",
    a_long_run: "long_run",
    almost_a_long_run: "same_account_routing",
    a_person: "manual_use",
    an_inspection: "manual_use",
    a_program: "same_account_routing",
    a_less_urgent_job: "priority",
    an_equal_job: "same_account_routing",
}


@pytest.mark.parametrize("holds", CAUSES, ids=lambda holds: holds.__name__)
async def test_a_conflict_names_its_cause(new_world: NewWorld, holds: Any) -> None:
    async with new_world() as world:
        holder: Grant = await holds(world)
        await meets(world, W.WAIT)
        event = await conflict(world)
        assert event.data["cause"] == CAUSES[holds]
        assert event.data["current_run_id"] == holder.lease.run_id


async def test_another_profile_of_the_account_can_be_the_holder(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        holder = await world.run("p2")
        answer = await meets(world, W.SKIP)
        assert answer.job.state == "skipped"
        event = await conflict(world)
        assert (event.data["cause"], event.data["current_profile_id"]) == ("same_account_routing", "p2")
        assert event.data["current_run_id"] == holder.lease.run_id


@pytest.mark.parametrize("policy", OnConflict)
async def test_a_job_that_becomes_due_meets_its_policy(new_world: NewWorld, policy: OnConflict) -> None:
    async with new_world() as world:
        job = await world.add(run_at=world.now + seconds(30), on_conflict=policy)
        await world.acquire()
        world.advance(30)
        assert await world.store.promote() == 1
        expected = {W.WAIT: "blocked", W.RESCHEDULE: "scheduled", W.SKIP: "skipped", W.REVIEW: "review"}
        assert (await world.job(job)).state == expected[policy]
        assert (await conflict(world)).data["decision"] == policy.value


async def test_no_conflict_where_the_profile_is_free_or_can_be_shared(new_world: NewWorld) -> None:
    async with new_world(profile("p1", max_active_runs=2), profile("p2")) as world:
        await world.add("p1", shared=True)
        await world.take()
        shared = await meets(world, W.SKIP, shared=True)
        waiting = await world.add("p2")
        behind = (await world.store.submit([spec("p2", on_conflict=W.SKIP)]))[0]
        assert (shared.decision, behind.decision) == (None, None)
        assert await world.events(type=EventType.PROFILE_LOCK_CONFLICT) == []
        assert (await world.job(waiting)).state == "queued"
        alone = await meets(world, W.SKIP)
        assert alone.decision == "skip"


async def test_a_profile_that_waits_for_a_person_is_no_conflict(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(), "LOGIN_REQUIRED")
        answer = await meets(world, W.SKIP)
        assert (answer.decision, answer.job.state) == (None, "blocked")
        assert answer.job.blocked_reason == "blocked_by_review_required"
        assert answer.job == await world.job(answer.job)


async def test_a_job_that_a_person_sends_back_waits_whatever_its_policy(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(on_conflict=W.SKIP)
        await world.finish(grant, "ACTION_NOT_ALLOWED")
        holder = await world.acquire()
        job = await world.job(grant)
        await world.decide_job(job, Action.REQUEUE)
        assert (await world.job(job)).state == "blocked"
        await world.finish(holder)
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_job_that_is_blocked_by_itself_is_no_conflict(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.run()
        answer = await meets(world, W.SKIP, expected_language="fr")
        assert (answer.job.state, answer.decision) == ("blocked", None)
        assert await world.events(type=EventType.PROFILE_LOCK_CONFLICT) == []
