"""The human inbox and the outbox: one open item per subject, closed by the decision; one message per state."""

import pytest

from leasekeeper.core.decisions import Action, Review, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.jobs import JobState, OnConflict
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import VersionConflict
from tests.conformance.world import URL, NewWorld, World, profile, seconds

HOOK = "https://hook.test/x"


async def open_reviews(world: World) -> list[Review]:
    return await world.all(Review, open="true")


async def test_a_profile_in_doubt_opens_one_item_that_says_why(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.acquire()
        await world.finish(grant, "LOGIN_REQUIRED")
        (review,) = await open_reviews(world)
        assert (review.target, review.profile_id, review.account_id) == (Target.PROFILE, "p1", "shop")
        assert (review.job_id, review.run_id) == (None, grant.lease.run_id)
        assert (review.reason, review.opened_at) == ("LOGIN_REQUIRED", world.now)
        assert review.summary == (await world.lane()).state_reason


async def test_a_decision_closes_the_item_with_who_and_why(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.acquire(), "LOGIN_REQUIRED")
        world.advance(60)
        await world.decide_profile(Action.CLEAR, note="logged in again")
        assert await open_reviews(world) == []
        (review,) = await world.all(Review)
        assert (review.decision, review.note, review.actor) == (Action.CLEAR, "logged in again", "ann")
        assert review.decided_at == world.now


async def test_an_item_goes_over_into_the_next_when_the_profile_stays_in_doubt(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.acquire(), "LOGIN_REQUIRED")
        await world.decide_profile(Action.QUARANTINE)
        await world.decide_profile(Action.REVIEW)
        assert len(await open_reviews(world)) == 1
        decisions = [review.decision for review in await world.all(Review) if review.decision is not None]
        assert sorted(decisions) == [Action.QUARANTINE, Action.REVIEW]
        await world.decide_profile(Action.DISABLE)
        assert await open_reviews(world) == []


async def test_a_job_and_its_profile_have_items_of_their_own(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "SECURITY_PROMPT")
        assert sorted(review.target for review in await open_reviews(world)) == ["job", "profile"]
        await world.clear()
        (left,) = await open_reviews(world)
        assert (left.target, left.job_id) == (Target.JOB, grant.lease.job_id)
        await world.decide_job(await world.job(grant), Action.CANCEL)
        assert await open_reviews(world) == []


async def test_sharers_that_fail_alike_open_one_item(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        for _ in range(3):
            await world.add(shared=True)
        grants = [await world.take() for _ in range(3)]
        for grant in grants:
            await world.finish(grant, "LOGIN_REQUIRED")
        assert len(await world.all(Review, open="true", target="profile")) == 1


async def test_two_people_cannot_close_one_item_with_two_decisions(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.acquire(), "LOGIN_REQUIRED")
        seen = (await world.lane()).version
        await world.decide_profile(Action.CLEAR, version=seen)
        with pytest.raises(VersionConflict):
            await world.decide_profile(Action.QUARANTINE, version=seen)
        assert [review.decision for review in await world.all(Review)] == [Action.CLEAR]


async def test_jobs_that_wait_do_not_spoil_the_version_that_a_person_saw(new_world: NewWorld) -> None:
    """A busy queue must not make every decision fail: only what the person saw counts."""
    async with new_world() as world:
        await world.finish(await world.acquire(), "LOGIN_REQUIRED")
        seen = (await world.lane()).version
        await world.add()
        await world.add(priority=5)
        decided = await world.decide_profile(Action.CLEAR, version=seen)
        assert decided.version == (await world.lane()).version


async def reported(world: World) -> list[str]:
    return [delivery.type for delivery in reversed(await world.all(Delivery))]


async def test_each_final_state_and_review_is_owed_to_the_callback(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(6))) as world:
        await world.finish(await world.run("p0", callback_url=HOOK))
        await world.finish(await world.run("p1", callback_url=HOOK, max_attempts=1), "TIMEOUT")
        review = await world.run("p2", callback_url=HOOK)
        await world.finish(review, "ACTION_NOT_ALLOWED")
        cancelled = await world.add("p3", callback_url=HOOK)
        await world.decide_job(cancelled, Action.CANCEL)
        await world.acquire("p4")
        await world.add("p4", callback_url=HOOK, on_conflict=OnConflict.SKIP)
        await world.add("p4", callback_url=HOOK, on_conflict=OnConflict.REVIEW)
        assert await reported(world) == [
            "job.completed",
            "job.dead",
            "job.review",
            "job.cancelled",
            "job.skipped",
            "job.review",
        ]


async def test_nothing_is_owed_on_the_way(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(callback_url=HOOK, run_at=world.now + seconds(5))
        world.advance(5)
        await world.store.promote()
        await world.finish(await world.take(), "TIMEOUT")
        world.advance(60)
        await world.store.promote()
        assert (await world.job(job)).state is JobState.QUEUED
        assert await reported(world) == []
        await world.finish(await world.take())
        assert await reported(world) == ["job.completed"]


async def test_nothing_is_owed_without_a_callback(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run())
        assert await reported(world) == []


async def test_nothing_is_owed_for_an_ending_that_was_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(callback_url=HOOK)
        await world.revoke(grant)
        assert (await world.finish(grant)).refused
        assert await reported(world) == []


async def test_a_message_says_what_happened_and_no_payload(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(callback_url=HOOK, payload={"password": "hunter2"})
        await world.finish(grant, output={"token": "hunter3"})
        (delivery,) = await world.all(Delivery)
        assert delivery.body == {
            "job_id": grant.lease.job_id,
            "account_id": "shop",
            "profile_id": "p1",
            "task": "visit",
            "state": "completed",
            "attempt": 1,
            "run_id": grant.lease.run_id,
            "stop_reason": None,
        }
        assert (delivery.created_at, delivery.due_at, delivery.ended_at) == (world.now, world.now, None)


async def test_no_event_holds_a_payload_an_output_or_an_address(new_world: NewWorld) -> None:
    async with new_world() as world:
        secret = "hunter2"  # noqa: S105 - it stands for one
        grant = await world.run(payload={"a": secret}, labels={"l": secret}, notes=secret)
        await world.store.checkpoint(grant.lease.ref, "cart", url=f"https://site.test/?session={secret}")
        facts = EndFacts(browser=Browser.CLOSED, final_url=f"{URL}?session={secret}")
        await world.finish(grant, "TASK_ERROR", facts=facts, output={"o": secret}, evidence={"e": secret})
        assert all(secret not in str(event) for event in await world.events())


async def test_a_review_that_a_person_sends_back_and_that_fails_again_opens_a_new_item(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(callback_url=HOOK)
        await world.finish(grant, "ACTION_NOT_ALLOWED")
        await world.decide_job(await world.job(grant), Action.REQUEUE)
        await world.finish(await world.take(), "ACTION_NOT_ALLOWED")
        assert len(await open_reviews(world)) == 1
        assert len(await world.all(Review)) == 2
        assert await reported(world) == ["job.review", "job.review"]
