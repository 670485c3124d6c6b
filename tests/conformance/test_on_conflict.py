"""`on_conflict` means the same whichever came first, the job or the lease."""

from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.conflicts import MAX_MET
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType, replay_job
from leasekeeper.core.jobs import Job, OnConflict, Risk
from leasekeeper.core.leases import Purpose
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.settle import EndFacts
from leasekeeper.errors import ProfileBusy
from leasekeeper.ports import ClaimRequest
from tests.conformance.world import NewWorld, World, account, end, profile, seconds, spec

W = OnConflict
AFTER = {W.RESCHEDULE: "scheduled", W.SKIP: "skipped", W.REVIEW: "review"}


async def conflicts(world: World) -> list[Event]:
    return await world.events(type=EventType.PROFILE_LOCK_CONFLICT)


async def states(world: World, jobs: list[Job]) -> list[str]:
    return [(await world.job(job)).state for job in jobs]


async def test_jobs_that_were_there_first_follow_their_policy_in_the_commit_of_the_grant(new_world: NewWorld) -> None:
    async with new_world() as world:
        first, *others = await world.submit(
            spec(), *(spec(on_conflict=policy, callback_url="https://hook.test/") for policy in AFTER), spec()
        )
        assert await conflicts(world) == []
        grant = await world.take()
        assert grant.lease.job_id == first.job_id
        assert await states(world, others) == [*AFTER.values(), "blocked"]
        found = {event.job_id: event for event in await conflicts(world)}
        assert set(found) == {job.job_id for job in others[:3]}
        assert [found[job.job_id].data["decision"] for job in others[:3]] == list(AFTER)
        assert {event.data["current_run_id"] for event in found.values()} == {grant.lease.run_id}
        assert [replay_job(await world.events(job_id=job.job_id)) for job in others[:3]] == list(AFTER.values())
        assert [review.reason for review in await world.all(Review, open="true")] == ["profile_lock_conflict"]
        assert {each.type for each in await world.all(Delivery)} == {"job.skipped", "job.review"}
        lane = await world.lane()
        assert lane.head_job_id == others[3].job_id
        await world.finish(grant)
        assert (await world.take()).lease.job_id == others[3].job_id


async def test_a_lane_whose_other_jobs_all_leave_it_is_empty(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.submit(spec(), spec(on_conflict=W.SKIP), spec(on_conflict=W.SKIP))
        grant = await world.take()
        assert (await world.lane()).head_job_id is None
        await world.finish(grant)
        assert await world.claim() == []


async def test_a_job_meets_its_own_run_never(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(on_conflict=W.SKIP)
        left_open = EndFacts(final_url="about:blank", failing_clause="the process is still there")
        await world.finish(grant, not_started=True, facts=left_open)
        assert await world.state() == "stale"
        assert await world.store.promote() == 0
        assert await states(world, [await world.job(grant)]) == ["blocked"]
        assert await conflicts(world) == []


@pytest.mark.parametrize("purpose", [Purpose.API, Purpose.MANUAL])
async def test_a_direct_lease_is_a_conflict_for_those_that_wait(new_world: NewWorld, purpose: Purpose) -> None:
    async with new_world() as world:
        waits, skips = await world.submit(spec(), spec(on_conflict=W.SKIP))
        await world.acquire(purpose=purpose)
        assert await states(world, [waits, skips]) == ["blocked", "skipped"]
        (event,) = await conflicts(world)
        assert (event.job_id, event.data["current_job_id"]) == (skips.job_id, None)


async def test_a_hand_over_is_a_conflict_for_those_that_wait(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        second = await world.add()
        late = await world.add(priority=-1, run_at=world.now + seconds(1), on_conflict=W.REVIEW)
        ending = end(grant.lease.ref, facts=EndFacts(final_url="https://site.test/"))
        asked = ClaimRequest(worker_id=grant.lease.worker_id, incarnation="w1-1", tasks=("visit",))
        handed = await world.store.hand_over(ending, asked)
        assert handed is not None
        assert handed.grant is not None
        assert handed.grant.lease.job_id == second.job_id
        world.advance(1)
        assert await world.store.promote() == 1
        assert await states(world, [late]) == ["review"]


async def test_what_a_grant_has_no_room_for_the_sweeper_takes(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        await world.add()
        many = await world.submit(*(spec(on_conflict=W.SKIP) for _ in range(MAX_MET + 3)))
        elsewhere = await world.add("p2", on_conflict=W.SKIP, task="other")
        await world.take()
        assert await states(world, many) == ["skipped"] * MAX_MET + ["blocked"] * 3
        assert (await world.lane()).head_job_id == many[MAX_MET].job_id
        assert [await world.store.promote(limit=2), await world.store.promote(), await world.store.promote()] == [
            2,
            1,
            0,
        ]
        assert await states(world, many) == ["skipped"] * len(many)
        assert (await world.lane()).head_job_id is None
        assert await states(world, [elsewhere]) == ["blocked"]
        assert len(await conflicts(world)) == len(many)


async def test_a_rescheduled_job_comes_back_and_its_attempts_are_its_own(new_world: NewWorld) -> None:
    async with new_world() as world:
        _, again = await world.submit(spec(), spec(on_conflict=W.RESCHEDULE, conflict_delay_seconds=30))
        grant = await world.take()
        job = await world.job(again)
        assert (job.run_at, job.attempt) == (world.now + seconds(30), 0)
        await world.finish(grant)
        world.advance(30)
        assert await world.store.promote() == 1
        assert (await world.take()).lease.job_id == again.job_id


async def test_an_account_s_key_is_a_conflict_for_its_other_profiles(new_world: NewWorld) -> None:
    records = (account(routing=Routing.ACCOUNT), profile("p1"), profile("p2"), profile("p3", "else"))
    async with new_world(*records) as world:
        await world.add("p1", priority=1)
        other = await world.add("p2", on_conflict=W.SKIP)
        stranger = await world.add("p3", on_conflict=W.SKIP)
        grant = await world.take()
        assert grant.lease.profile_id == "p1"
        assert await world.store.promote() == 1
        assert await states(world, [other, stranger]) == ["skipped", "queued"]
        (event,) = await conflicts(world)
        assert (event.profile_id, event.data["current_profile_id"]) == ("p2", "p1")


async def test_jobs_that_can_share_the_profile_are_in_no_conflict(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        first, second, third, alone = await world.submit(
            spec(shared=True),
            spec(shared=True, on_conflict=W.SKIP),
            spec(shared=True, on_conflict=W.SKIP),
            spec(on_conflict=W.SKIP),
        )
        await world.take()
        assert await states(world, [second, third, alone]) == ["queued", "queued", "skipped"]
        assert await world.store.promote() == 0
        await world.take()
        assert await states(world, [first, second, third]) == ["running", "running", "skipped"]


async def test_what_a_lost_worker_left_behind_is_a_conflict_until_it_is_resolved(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        approved = await world.add(risk_level=Risk.REVIEW_REQUIRED, on_conflict=W.SKIP)
        freed = await world.add(task="new", on_conflict=W.SKIP)
        assert await states(world, [approved, freed]) == ["blocked", "blocked"]
        await world.lose(grant)
        await world.offer("visit", "new")
        await world.decide_job(approved, Action.APPROVE)
        assert await world.store.promote() == 1
        assert await states(world, [approved, freed]) == ["blocked", "skipped"]
        assert [event.data["cause"] for event in await conflicts(world)] == ["previous_worker_lost"]


async def refused(world: World, profile_id: str = "p1", **request: Any) -> ProfileBusy:
    with pytest.raises(ProfileBusy) as busy:
        await world.acquire(profile_id, worker_id="script", **request)
    return busy.value


async def test_a_direct_lease_that_is_refused_is_a_conflict_too(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.run()
        world.advance(20)
        before = await world.everything()
        busy = await refused(world, purpose=Purpose.MANUAL)
        assert (busy.holder, busy.run_id) == ("w1", holder.lease.run_id)
        assert await world.everything() == before
        (event,) = await conflicts(world)
        assert (event.profile_id, event.job_id, event.worker_id) == ("p1", None, "w1")
        assert event.data == {
            "profile_id": "p1",
            "blocked_job_id": None,
            "blocked_purpose": "manual",
            "blocked_worker_id": "script",
            "current_job_id": holder.lease.job_id,
            "current_run_id": holder.lease.run_id,
            "current_worker_id": "w1",
            "current_profile_id": "p1",
            "decision": "refused",
            "next_check_seconds": 40,
            "cause": "same_account_routing",
        }
        await refused(world, again=True)
        assert len(await conflicts(world)) == 1


async def test_a_refusal_by_an_account_s_key_names_the_holder(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        holder = await world.run("p1")
        busy = await refused(world, "p2")
        assert (busy.holder, busy.run_id, busy.until_at) == ("w1", holder.lease.run_id, holder.lease.expires_at)
        assert f"w1 has p1 (run {holder.lease.run_id})" in str(busy)
        (event,) = await conflicts(world)
        assert (event.profile_id, event.data["current_profile_id"]) == ("p2", "p1")


async def test_a_profile_that_waits_for_a_person_is_not_said_to_wait_for_its_account(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        await world.decide_profile(Action.QUARANTINE, "p2")
        await world.run("p1")
        busy = await refused(world, "p2")
        assert (busy.reason, busy.holder, busy.until_at) == (Blocked.PROFILE_STATE, None, None)
        assert "p1" not in str(busy)
        assert await conflicts(world) == []


async def test_a_refusal_for_another_reason_is_no_conflict(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.decide_account(Action.PAUSE)
        assert (await refused(world)).reason == "blocked_by_account_pause"
        assert await conflicts(world) == []
