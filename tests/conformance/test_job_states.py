"""Jobs: every move of the table is made through the port, and every other decision is refused."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import JOB_ACTIONS, Action, Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import EventType
from leasekeeper.core.jobs import FINAL, JOB_TRANSITIONS, Job, JobState, OnConflict, Risk
from leasekeeper.core.leases import Lease
from leasekeeper.core.settle import Ending
from leasekeeper.errors import IllegalTransition, InputError, VersionConflict
from leasekeeper.ports import Grant
from tests.conformance.world import NewWorld, World, account, profile

S = JobState
Into = Callable[[World], Awaitable[Job]]
Step = Callable[[World, Job], Awaitable[object]]
LATER = timedelta(hours=1)


async def scheduled(world: World, **settings: Any) -> Job:
    return await world.add(run_at=world.now + LATER, **settings)


async def queued(world: World) -> Job:
    return await world.add()


async def blocked(world: World) -> Job:
    return await world.add(expected_language="fr")


async def running(world: World, **settings: Any) -> Job:
    return await world.job(await world.run(**settings))


async def review(world: World, **settings: Any) -> Job:
    grant = await world.run(**settings)
    await world.finish(grant, "ACTION_NOT_ALLOWED")
    return await world.job(grant)


async def completed(world: World) -> Job:
    grant = await world.run()
    await world.finish(grant)
    return await world.job(grant)


async def dead(world: World, **settings: Any) -> Job:
    grant = await world.run(max_attempts=1, **settings)
    await world.finish(grant, "TIMEOUT")
    return await world.job(grant)


async def skipped(world: World) -> Job:
    holder = await world.acquire()
    job = await world.add(on_conflict=OnConflict.SKIP)
    await world.finish(holder)
    return job


async def cancelled(world: World) -> Job:
    job = await world.add()
    await world.decide_job(job, Action.CANCEL)
    return await world.job(job)


INTO: dict[JobState, Into] = {
    S.SCHEDULED: scheduled,
    S.QUEUED: queued,
    S.BLOCKED: blocked,
    S.RUNNING: running,
    S.REVIEW: review,
    S.COMPLETED: completed,
    S.DEAD: dead,
    S.SKIPPED: skipped,
    S.CANCELLED: cancelled,
}


async def becomes_due(world: World, job: Job) -> None:
    assert job.run_at is not None
    world.clock.now = job.run_at
    assert await world.store.promote() == 1


async def becomes_due_while_taken(world: World, job: Job) -> None:
    holder = await world.acquire(ttl=2 * LATER)
    await becomes_due(world, job)
    await world.finish(holder)


async def sees_its_profile_taken(world: World, job: Job) -> None:
    await world.finish(await world.acquire())


async def loses_its_language(world: World, job: Job) -> None:
    await world.declare(profile(language="de"))


async def is_checked(world: World, job: Job) -> None:
    assert await world.claim() == []


def ends(reason: str | None) -> Step:
    async def step(world: World, job: Job) -> None:
        await world.finish(await grant_of(world, job), reason)

    return step


async def is_given_back(world: World, job: Job) -> None:
    """A holder that never started it hands it back."""
    grant = await grant_of(world, job)
    (settled,) = await world.store.settle([Ending(ref=grant.lease.ref, not_started=True)])
    assert (settled.refused, settled.profile_state) == (None, "available")
    assert (await world.job(job)).attempt == 0


async def grant_of(world: World, job: Job) -> Grant:
    (lease,) = await world.all(Lease, run_id=str(job.run_id))
    return await world.grant_of(lease)


async def loses_its_worker(world: World, job: Job) -> None:
    grant = await grant_of(world, job)
    await world.lose(grant)
    await world.resolve(grant)


def decides(action: Action) -> Step:
    async def step(world: World, job: Job) -> None:
        await world.decide_job(job, action)

    return step


async def is_claimed(world: World, job: Job) -> None:
    assert (await world.take()).lease.job_id == job.job_id


async def gets_its_language(world: World, job: Job) -> None:
    await world.declare(profile(language="fr"))


async def gets_another_reason(world: World, job: Job) -> None:
    """The language is right now, the timezone is not."""
    await world.declare(profile(language="fr", timezone="UTC"))


def in_turn(*steps: Step) -> Step:
    async def step(world: World, job: Job) -> None:
        for each in steps:
            await each(world, job)

    return step


def with_settings(into: Callable[..., Awaitable[Job]], **settings: Any) -> Into:
    async def begin(world: World) -> Job:
        return await into(world, **settings)

    return begin


@dataclass(frozen=True)
class Move:
    """One way from one state to another, with how to get there first."""

    frm: JobState
    to: JobState
    how: Step
    first: Into | None = None


DUE, TAKEN = becomes_due_while_taken, sees_its_profile_taken
IN_ENGLISH = {"expected_language": "en"}

MOVES = [
    Move(S.SCHEDULED, S.QUEUED, becomes_due),
    Move(S.SCHEDULED, S.BLOCKED, becomes_due, with_settings(scheduled, expected_language="fr")),
    Move(S.SCHEDULED, S.SCHEDULED, DUE, with_settings(scheduled, on_conflict=OnConflict.RESCHEDULE)),
    Move(S.SCHEDULED, S.SKIPPED, DUE, with_settings(scheduled, on_conflict=OnConflict.SKIP)),
    Move(S.SCHEDULED, S.REVIEW, DUE, with_settings(scheduled, on_conflict=OnConflict.REVIEW)),
    Move(S.SCHEDULED, S.CANCELLED, decides(Action.CANCEL)),
    Move(S.QUEUED, S.RUNNING, is_claimed),
    Move(S.QUEUED, S.BLOCKED, in_turn(loses_its_language, is_checked), with_settings(World.add, **IN_ENGLISH)),
    Move(S.QUEUED, S.SCHEDULED, TAKEN, with_settings(World.add, on_conflict=OnConflict.RESCHEDULE)),
    Move(S.QUEUED, S.SKIPPED, TAKEN, with_settings(World.add, on_conflict=OnConflict.SKIP)),
    Move(S.QUEUED, S.REVIEW, TAKEN, with_settings(World.add, on_conflict=OnConflict.REVIEW)),
    Move(S.QUEUED, S.CANCELLED, decides(Action.CANCEL)),
    Move(S.BLOCKED, S.QUEUED, gets_its_language),
    Move(
        S.BLOCKED,
        S.BLOCKED,
        gets_another_reason,
        with_settings(World.add, expected_language="fr", expected_timezone="Europe/Paris"),
    ),
    Move(S.BLOCKED, S.CANCELLED, decides(Action.CANCEL)),
    Move(S.RUNNING, S.QUEUED, is_given_back),
    Move(S.RUNNING, S.COMPLETED, ends(None)),
    Move(S.RUNNING, S.SCHEDULED, ends("TIMEOUT")),
    Move(S.RUNNING, S.SCHEDULED, loses_its_worker),
    Move(S.RUNNING, S.REVIEW, ends("ACTION_NOT_ALLOWED")),
    Move(S.RUNNING, S.REVIEW, loses_its_worker, with_settings(running, max_attempts=1)),
    Move(S.RUNNING, S.DEAD, ends("TIMEOUT"), with_settings(running, max_attempts=1)),
    Move(S.REVIEW, S.QUEUED, decides(Action.REQUEUE)),
    Move(
        S.REVIEW,
        S.BLOCKED,
        in_turn(loses_its_language, decides(Action.REQUEUE)),
        with_settings(review, **IN_ENGLISH),
    ),
    Move(S.REVIEW, S.CANCELLED, decides(Action.CANCEL)),
    Move(S.DEAD, S.QUEUED, decides(Action.RETRY)),
    Move(S.DEAD, S.BLOCKED, in_turn(loses_its_language, decides(Action.RETRY)), with_settings(dead, **IN_ENGLISH)),
]


HAND_BACK = (S.REVIEW, S.RUNNING)  # needs a person who took the browser: test_transfers


def test_every_move_of_the_table_is_tried() -> None:
    assert {*((move.frm, move.to) for move in MOVES), HAND_BACK} == {
        (frm, to) for frm, after in JOB_TRANSITIONS.items() for to in after
    }


@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move.frm}_to_{move.to}")
async def test_a_move_of_the_table_is_made_and_logged(new_world: NewWorld, move: Move) -> None:
    async with new_world(profile(language="en")) as world:
        job = await (move.first or INTO[move.frm])(world)
        before = await world.job(job)
        assert before.state is move.frm
        logged = len(await world.events(job_id=job.job_id))
        world.advance(1)
        await move.how(world, job)
        after = await world.job(job)
        assert after.state is move.to
        assert after.version > before.version
        assert (after.finished_at is not None) is (move.to in FINAL)
        reported = [event.job_state for event in (await world.events(job_id=job.job_id))[logged:] if event.job_state]
        assert reported
        assert reported[-1] is move.to


@pytest.mark.parametrize("state", JobState)
async def test_a_decision_that_the_state_does_not_allow_is_refused(new_world: NewWorld, state: JobState) -> None:
    async with new_world() as world:
        job = await INTO[state](world)
        before, logged = await world.everything(), await world.events()
        for action in JOB_ACTIONS:
            if state not in JOB_ACTIONS[action]:
                with pytest.raises(IllegalTransition) as refused:
                    await world.decide_job(job, action, to="1")
                assert refused.value.code == "ILLEGAL_TRANSITION"
                assert state.value in refused.value.message
        assert await world.everything() == before
        assert await world.events() == logged


@pytest.mark.parametrize("state", [state for state in JobState if state is not S.QUEUED])
async def test_only_a_queued_job_is_claimed(new_world: NewWorld, state: JobState) -> None:
    async with new_world() as world:
        job = await INTO[state](world)
        assert (await world.job(job)).state is state
        before = await world.everything()
        assert await world.claim(5) == []
        assert await world.everything() == before


async def test_a_decision_about_an_older_version_of_a_job_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await review(world)
        before = await world.everything()
        with pytest.raises(VersionConflict):
            await world.decide_job(job, Action.REQUEUE, version=job.version - 1)
        assert await world.everything() == before
        decided = await world.decide_job(job, Action.REQUEUE, version=job.version)
        assert (decided.state, decided.version) == (S.QUEUED, (await world.job(job)).version)


async def test_two_people_who_decide_at_once_do_not_overwrite_each_other(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await review(world)
        other = await world.another()
        assert (await other.get(Job, job.job_id)).version == job.version
        await world.decide_job(job, Action.CANCEL, version=job.version)
        with pytest.raises(VersionConflict):
            await world.decide_job(job, Action.REQUEUE, version=job.version)
        assert (await other.get(Job, job.job_id)).state is S.CANCELLED


async def test_a_dead_job_that_is_retried_gets_one_new_attempt(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await dead(world)
        assert (job.state, job.attempt, job.stop_reason) == (S.DEAD, 1, "TIMEOUT")
        await world.decide_job(job, Action.RETRY, note="the site is back")
        again = await world.job(job)
        assert (again.state, again.finished_at, again.stop_reason) == (S.QUEUED, None, None)
        grant = await world.take()
        assert grant.job is not None
        assert (grant.job.job_id, grant.job.attempt) == (job.job_id, 2)
        await world.finish(grant, "TIMEOUT")
        assert (await world.job(job)).state is S.DEAD


async def test_a_dead_job_that_is_retried_can_complete(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await dead(world, callback_url="https://hook.test/")
        await world.decide_job(job, Action.RETRY)
        await world.finish(await world.take())
        assert (await world.job(job)).state is S.COMPLETED
        assert [d.type for d in reversed(await world.all(Delivery))] == ["job.dead", "job.completed"]


async def test_a_dead_job_that_is_dropped_stays_dead_and_leaves_the_list(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await dead(world, callback_url="https://hook.test/")
        await world.decide_job(job, Action.DROP)
        dropped = await world.job(job)
        assert (dropped.state, dropped.dropped) == (S.DEAD, True)
        assert await world.all(Job, state="dead", dropped="false") == []
        assert len(await world.all(Delivery)) == 1
        await world.decide_job(job, Action.RETRY)
        assert not (await world.job(job)).dropped


async def test_a_job_of_a_profile_that_was_removed_can_only_be_dropped(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        grant = await world.run("p2", max_attempts=1)
        await world.finish(grant, "TIMEOUT")
        job = await world.job(grant)
        await world.declare(profile(), prune=True)
        with pytest.raises(IllegalTransition, match="p2"):
            await world.decide_job(job, Action.RETRY)
        await world.decide_job(job, Action.DROP)
        assert (await world.job(job)).dropped


async def test_a_job_with_risk_waits_for_approval_before_it_runs(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(risk_level=Risk.REVIEW_REQUIRED)
        assert (job.state, job.blocked_reason) == (S.BLOCKED, "blocked_by_approval")
        assert await world.claim() == []
        (item,) = await world.all(Review, open="true")
        assert (item.job_id, item.reason) == (job.job_id, "approval")
        assert (await world.decide_job(job, Action.APPROVE)).state == S.QUEUED
        assert (await world.take()).lease.job_id == job.job_id
        assert [r.decision for r in await world.all(Review)] == [Action.APPROVE]


async def test_a_job_with_risk_that_is_due_later_asks_for_approval_when_it_is_due(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await scheduled(world, risk_level=Risk.REVIEW_REQUIRED)
        assert await world.all(Review) == []
        await becomes_due(world, job)
        assert (await world.job(job)).blocked_reason == "blocked_by_approval"
        assert len(await world.all(Review, open="true")) == 1


async def test_a_job_can_be_approved_before_it_is_due(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await scheduled(world, risk_level=Risk.REVIEW_REQUIRED)
        await world.decide_job(job, Action.APPROVE)
        await becomes_due(world, job)
        assert (await world.take()).lease.job_id == job.job_id


async def test_an_approved_job_can_still_be_blocked_by_its_environment(new_world: NewWorld) -> None:
    async with new_world(profile(language="en")) as world:
        job = await world.add(risk_level=Risk.REVIEW_REQUIRED, expected_language="fr")
        assert (await world.decide_job(job, Action.APPROVE)).state == S.BLOCKED
        assert (await world.job(job)).blocked_reason == "blocked_by_environment_mismatch"
        await world.declare(profile(language="fr"))
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_cancelled_job_leaves_its_lane_to_the_next(new_world: NewWorld) -> None:
    async with new_world() as world:
        first, second, third = [await world.add() for _ in range(3)]
        await world.decide_job(first, Action.CANCEL, note="no longer wanted")
        await world.decide_job(third, Action.CANCEL)
        assert (await world.job(first)).detail == "no longer wanted"
        assert (await world.take()).lease.job_id == second.job_id
        assert (await world.lane()).head_job_id is None


async def test_cancelling_a_job_behind_the_head_does_not_cost_the_lane_its_turn(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        first = await world.add("p1")
        behind = await world.add("p1")
        world.advance(1)
        await world.add("p2")
        world.advance(1)
        await world.decide_job(behind, Action.CANCEL)
        assert (await world.take()).lease.job_id == first.job_id


async def test_a_decision_about_a_job_is_logged_with_who_made_it_and_why(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await review(world)
        await world.decide_job(job, Action.REQUEUE, note="the rule was wrong")
        (event,) = await world.events(type=EventType.JOB_DECIDED)
        assert (event.actor, event.job_id, event.profile_id) == ("ann", job.job_id, "p1")
        assert event.job_state is S.QUEUED
        assert event.data["action"] == "requeue"
        assert event.data["note"] == "the rule was wrong"
        assert event.data["from"] == "review"


async def test_a_job_that_was_requeued_counts_as_approved(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(risk_level=Risk.REVIEW_REQUIRED)
        await world.decide_job(job, Action.APPROVE)
        await world.finish(await world.take(), "ACTION_NOT_ALLOWED")
        await world.decide_job(job, Action.REQUEUE)
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_job_whose_priority_was_raised_runs_before_those_that_came_earlier(new_world: NewWorld) -> None:
    async with new_world(account("shop"), profile("p1"), profile("p2")) as world:
        first, second, other = await world.add("p1"), await world.add("p1"), await world.add("p2")
        decided = await world.decide_job(second, Action.PRIORITIZE, to="7")
        assert (decided.state, (await world.job(second)).priority) == (S.QUEUED, 7)
        lane = await world.lane("p1")
        assert (lane.head_job_id, lane.head_priority) == (second.job_id, 7)
        # Its own head changes in place, and back again.
        await world.decide_job(second, Action.PRIORITIZE, to="-3")
        assert ((await world.lane("p1")).head_job_id, (await world.lane("p1")).head_priority) == (first.job_id, 0)
        await world.decide_job(first, Action.PRIORITIZE, to="-5")
        assert ((await world.lane("p1")).head_job_id, (await world.lane("p1")).head_priority) == (second.job_id, -3)
        assert [grant.job.job_id for grant in await world.claim(1) if grant.job] == [other.job_id]
        assert [grant.job.job_id for grant in await world.claim(1) if grant.job] == [second.job_id]
        said = (await world.events(job_id=first.job_id))[-1].data
        assert (said["action"], said["priority"]) == ("prioritize", -5)


@pytest.mark.parametrize("to", [None, "", "high", "1.5", "--1", "99999999999", "١"])
async def test_a_priority_that_is_none_is_refused(new_world: NewWorld, to: str | None) -> None:
    async with new_world() as world:
        job = await world.add()
        with pytest.raises(InputError, match="priority"):
            await world.decide_job(job, Action.PRIORITIZE, to=to)
        assert (await world.job(job)).priority == 0
