"""An open browser passes to a person and back: one commit each way, and the profile is leased all the time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.control import TransferRequest
from leasekeeper.core.decisions import Action, Decision, Review, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import JobId, WorkerId
from leasekeeper.core.leases import LeaseStatus, Purpose, Refusal
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import Conflict, InputError, LeaseLost, NotFound
from leasekeeper.ports import Grant, HandedOver, Renewal
from tests.conformance.test_repeated_calls import twice
from tests.conformance.world import URL, NewWorld, World, account, limit, profile

OPEN = EndFacts(browser=Browser.HANDED_OVER, final_url=URL)


def taken(grant: Grant, **changes: Any) -> Ending:
    return replace(
        Ending(ref=grant.lease.ref, reason="TAKEN_OVER", message="taken over by human:ann", facts=OPEN), **changes
    )


def person(name: str = "ann", **changes: Any) -> TransferRequest:
    request = TransferRequest(
        worker_id=WorkerId(f"human:{name}"), incarnation=f"take-{name}", actor=name, note="looks odd"
    )
    return replace(request, **changes)


async def take(world: World, grant: Grant, name: str = "ann", **ending: Any) -> Grant:
    handed = await world.store.transfer(taken(grant, **ending), person(name))
    assert handed.grant is not None
    return handed.grant


async def hand_back(
    world: World, theirs: Grant, job_id: str, incarnation: str = "back-1", **changes: Any
) -> HandedOver:
    back = TransferRequest(
        worker_id=WorkerId("w1"),
        incarnation=incarnation,
        actor="ann",
        note="solved",
        job_id=JobId(job_id),
        **changes,
    )
    return await world.store.transfer(Ending(ref=theirs.lease.ref, facts=OPEN), back)


async def test_a_person_gets_the_open_browser_of_a_run(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        theirs = await take(world, first)
        assert (theirs.lease.token, theirs.lease.purpose) == (first.lease.token + 1, Purpose.MANUAL)
        assert (theirs.lease.worker_id, theirs.job) == ("human:ann", None)
        assert (await world.lease(first)).status is LeaseStatus.RELEASED
        assert (await world.run_of(first)).stop_reason == "TAKEN_OVER"
        job = await world.job(first)
        assert (job.state, job.stop_reason) == ("review", "TAKEN_OVER")
        assert [review.job_id for review in await world.all(Review, open="1")] == [job.job_id]
        assert await world.state() == "leased"
        kinds = [event.type for event in (await world.events(profile_id="p1"))[-3:]]
        assert kinds == [EventType.RUN_SETTLED, EventType.CONTROL_PASSED, EventType.LEASE_GRANTED]
        await world.finish(theirs)
        assert await world.state() == "available"
        assert (await world.job(first)).state == "review"


async def test_nobody_gets_the_profile_in_between(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        await world.add()
        theirs = await take(world, first)
        assert await world.claim() == []
        with pytest.raises(LeaseLost):
            await world.store.checkpoint(first.lease.ref, "late")
        await world.finish(theirs)
        assert len(await world.claim()) == 1


async def test_the_job_goes_on_as_the_same_attempt(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        theirs = await take(world, first)
        assert first.job is not None
        handed = await hand_back(world, theirs, first.job.job_id)
        assert handed.grant is not None
        again = handed.grant
        assert again.job is not None
        assert (again.job.state, again.job.attempt, again.lease.purpose) == ("running", 1, Purpose.JOB)
        assert again.lease.token == theirs.lease.token + 1
        assert again.job.run_id == again.lease.run_id != first.lease.run_id
        assert (await world.run_of(theirs)).result == "completed"
        assert await world.all(Review, open="1") == []
        (review,) = await world.all(Review)
        assert (review.decision, review.actor, review.note) == (Action.RESUME, "ann", "solved")
        await world.finish(again)
        assert (await world.job(first)).state == "completed"
        assert await world.state() == "available"


async def test_a_job_that_was_decided_meanwhile_is_not_handed_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        theirs = await take(world, first)
        job = await world.job(first)
        await world.decide_job(job, Action.CANCEL)
        before = await world.events()
        with pytest.raises(Conflict) as refused:
            await hand_back(world, theirs, job.job_id)
        assert (refused.value.cause, refused.value.why) == (ConflictReason.NOT_RESUMABLE, "not_waiting")
        assert "it does not wait to be handed back; nothing was handed back" in refused.value.message
        assert await world.events() == before
        assert (await world.lease(theirs)).status is LeaseStatus.RUNNING
        await world.finish(theirs)


@pytest.mark.parametrize(
    ("what", "why"),
    [("account", "paused"), ("everything", "paused"), ("drain", "profile_leaves"), ("proxy", "profile_leaves")],
)
async def test_no_job_goes_on_where_none_may_run(new_world: NewWorld, what: str, why: str) -> None:
    async with new_world() as world:
        first = await world.run()
        theirs = await take(world, first, facts=replace(OPEN, proxy_changed=what == "proxy"))
        assert first.job is not None
        if what == "account":
            await world.decide_account(Action.PAUSE)
        elif what == "everything":
            await world.pause()
        elif what == "drain":
            await world.decide_profile(Action.DISABLE)
        with pytest.raises(Conflict) as refused:
            await hand_back(world, theirs, first.job.job_id)
        assert (refused.value.cause, refused.value.why) == (ConflictReason.NOT_RESUMABLE, why)
        await world.finish(theirs)


async def test_a_task_that_may_have_done_it_goes_on_but_does_not_begin_anew(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        await world.store.enter_section(first.lease.ref, "submit_order")
        await world.store.leave_section(first.lease.ref, "submit_order")
        theirs = await take(world, first)
        assert first.job is not None
        with pytest.raises(Conflict) as refused:
            await hand_back(world, theirs, first.job.job_id, begins_anew=True)
        assert refused.value.cause is ConflictReason.NOT_RESUMABLE
        assert "mutating section submit_order was left" in refused.value.message
        assert (await world.job(first)).state == "review"
        handed = await hand_back(world, theirs, first.job.job_id, "back-2")
        assert handed.grant is not None
        await world.finish(handed.grant)


async def test_a_person_may_take_what_is_paused(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        await world.decide_account(Action.PAUSE)
        await world.finish(await take(world, first))


async def test_what_stands_against_the_profile_counts_when_the_person_is_done(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        unsaved = await world.run("p1")
        changed = await world.run("p2")
        await world.finish(await take(world, unsaved, facts=replace(OPEN, evidence_saved=False)))
        await world.finish(await take(world, changed, "bob", facts=replace(OPEN, proxy_changed=True)))
        assert await world.state("p1") == "review_required"
        assert await world.state("p2") == "quarantined"


async def test_a_section_stays_open_for_whoever_comes_next(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        await world.store.checkpoint(first.lease.ref, "cart_open")
        await world.store.enter_section(first.lease.ref, "pay")
        theirs = await take(world, first)
        assert (theirs.lease.open_section, theirs.lease.last_safe_step) == ("pay", "cart_open")
        assert "mutating section pay was open" in (await world.job(first)).detail
        await world.lose(theirs)
        world.advance(3600)
        await world.resolve(theirs)
        assert await world.state() == "quarantined"


async def test_a_person_may_leave_the_section(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        await world.store.enter_section(first.lease.ref, "pay")
        theirs = await take(world, first)
        await world.store.leave_section(theirs.lease.ref, "pay")
        await world.finish(theirs)
        assert await world.state() == "available"


async def test_a_late_take_over_is_refused_and_changes_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        world.clock.now = first.lease.expires_at
        handed = await world.store.transfer(taken(first), person())
        assert (handed.grant, handed.settled.refused) == (None, Refusal.OVERDUE)
        assert len(await world.events(type=EventType.STALE_WORKER_WRITE_REJECTED)) == 1
        assert (await world.job(first)).state == "running"


async def test_two_people_at_once_get_one_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        other = await world.another()
        answers = await asyncio.gather(
            world.store.transfer(taken(first), person("ann")), other.transfer(taken(first), person("bob"))
        )
        (winner,) = [answer.grant for answer in answers if answer.grant is not None]
        (refused,) = [answer.settled.refused for answer in answers if answer.grant is None]
        assert refused is Refusal.RELEASED
        await world.finish(winner)


async def test_the_same_transfer_again_gives_the_same_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        theirs = await take(world, first)
        before = await world.events()
        assert await take(world, first) == theirs
        assert first.job is not None
        assert await world.events() == before
        back = await hand_back(world, theirs, first.job.job_id)
        assert back.grant is not None
        again = await hand_back(world, theirs, first.job.job_id)
        assert again.grant == back.grant
        await world.finish(back.grant)


async def test_the_same_transfer_again_says_where_the_profiles_state_is(new_world: NewWorld) -> None:
    """Who gets the browser after a lost answer has to know where to save the profile, and what is newer than that."""
    async with new_world() as world:
        await world.store.apply(Fleet(profile_store="s3://acme-profiles/leasekeeper"), actor="ann", prune=False)
        await world.add()
        await world.finish(await world.take(machine="rack1"), engine=150)
        await world.add()
        first = await world.take(machine="rack1")
        theirs = await take(world, first)
        assert (theirs.profile_store, theirs.unsaved_on) == ("s3://acme-profiles/leasekeeper", "rack1")
        assert await take(world, first) == theirs
        await world.finish(theirs)


async def test_a_transfer_whose_answer_was_lost_is_answered_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        handed = await twice(world, lambda store: store.transfer(taken(first), person()))
        assert handed.grant is not None
        await world.finish(handed.grant)


async def test_limits_hold_through_a_transfer(new_world: NewWorld) -> None:
    records = (account(routing="account"), profile("p1"), profile("p2"), limit("default", 1))
    async with new_world(*records) as world:
        first = await world.run("p1")
        await world.add("p2")
        theirs = await take(world, first)
        assert theirs.lease.routing_key == first.lease.routing_key
        assert await world.claim() == []
        await world.finish(theirs)
        assert len(await world.claim()) == 1


async def test_a_session_without_a_job_is_taken_too(new_world: NewWorld) -> None:
    async with new_world() as world:
        session = await world.acquire(purpose=Purpose.SESSION)
        theirs = await take(world, session)
        assert theirs.lease.purpose is Purpose.MANUAL
        assert await world.all(Review, open="1") == []
        await world.finish(theirs)
        assert await world.state() == "available"


async def test_a_run_asks_for_a_person_until_it_does_not_any_more(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.request_person(grant.lease.ref, "solve the prompt")
        await world.store.request_person(grant.lease.ref, "solve the prompt")
        (review,) = await world.all(Review, open="1")
        assert (review.target, review.summary, review.run_id) == ("job", "solve the prompt", grant.lease.run_id)
        assert (await world.lease(grant)).asks_person == "solve the prompt"
        await world.store.request_person(grant.lease.ref, None)
        assert await world.all(Review, open="1") == []
        kinds = [event.type for event in await world.events(run_id=grant.lease.run_id)]
        assert kinds[-2:] == [EventType.HUMAN_REQUESTED, EventType.HUMAN_REQUEST_WITHDRAWN]
        await world.finish(grant)


async def test_a_person_answers_a_run_that_asks_once(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant, session = await world.run(), await world.acquire("p2")
        ref = grant.lease.ref

        async def answer(asked: Grant = grant, outcome: str | None = "solved") -> None:
            lease_id = asked.lease.lease_id
            about: Any = {"target": Target.LEASE, "id": lease_id, "action": Action.ANSWER, "to": outcome}
            await world.store.decide(Decision(**about, note="a picture", actor="ann"))

        async def heard() -> tuple[str, str, str] | None:
            (renewed,) = await world.store.renew([Renewal(ref=ref)])
            said = renewed.answer
            return None if said is None else (said.by, said.outcome, said.note)

        with pytest.raises(Conflict) as early:
            await answer()
        assert early.value.cause is ConflictReason.LEASE_NOT_HELD
        for asking in (grant, session):
            await world.store.request_person(asking.lease.ref, "solve the prompt")
        assert await heard() is None
        await answer()
        (review,) = await world.all(Review, open="1")
        assert review.profile_id == "p2", "the review that was answered is closed"
        assert await heard() == await heard() == ("ann", "solved", "a picture")
        with pytest.raises(Conflict) as second:
            await answer(outcome="other")
        assert second.value.cause is ConflictReason.ANSWERED_ALREADY
        await world.store.request_person(ref, None)
        assert (await heard(), (await world.lease(grant)).person_answer) == (None, None)
        kinds = [event.type for event in await world.events(run_id=grant.lease.run_id)]
        assert kinds[-2:] == [EventType.HUMAN_REQUESTED, EventType.HUMAN_ANSWERED], "it was not withdrawn"
        await world.store.request_person(ref, "and this one")
        assert await heard() is None, "an answer is to one question"
        await answer(session, None)
        (review,) = await world.all(Review, open="1")
        assert review.summary == "and this one"
        await world.finish(grant)
        await world.finish(session)
        for gone in (grant, session):
            with pytest.raises(NotFound):
                await answer(gone)


async def test_the_end_of_a_run_withdraws_what_it_asked(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        done, session, lost = await world.run("p1"), await world.acquire("p2"), await world.run("p3")
        for grant in (done, session, lost):
            await world.store.request_person(grant.lease.ref, "solve the prompt")
        assert len(await world.all(Review, open="1")) == 3
        await world.finish(done)
        await world.finish(session)
        assert [review.profile_id for review in await world.all(Review, open="1")] == ["p3"]
        await world.lose(lost)
        world.advance(3600)
        await world.resolve(lost)
        # Its profile is quarantined, and its job is retried.
        assert [review.target for review in await world.all(Review, open="1")] == ["profile"]


async def test_a_request_stays_open_while_a_person_works_on_it(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.request_person(grant.lease.ref, "solve the prompt")
        theirs = await take(world, grant)
        (review,) = await world.all(Review, open="1")
        assert review.summary == "solve the prompt"
        assert grant.job is not None
        back = await hand_back(world, theirs, grant.job.job_id)
        assert await world.all(Review, open="1") == []
        assert back.grant is not None
        await world.finish(back.grant)


async def test_a_stale_run_asks_nobody(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        with pytest.raises(InputError):
            await world.store.request_person(grant.lease.ref, " ")
        await world.finish(grant)
        with pytest.raises(LeaseLost):
            await world.store.request_person(grant.lease.ref, "solve the prompt")
        assert await world.all(Review, open="1") == []
