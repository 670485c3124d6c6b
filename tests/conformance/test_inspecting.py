"""A person looks inside a profile that is out of rotation: fenced and recorded as any lease, and nothing about the
profile changes by looking."""

from datetime import timedelta

import pytest

from leasekeeper.core.accounts import Account, Limit, Routing
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.events import EventType, replay_profile
from leasekeeper.core.ids import AccountId
from leasekeeper.core.leases import Mode, Purpose, RunRecord
from leasekeeper.core.profiles import INSPECTABLE, ProfileState, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import InputError, LeaseLost, ProfileBusy, VersionConflict
from leasekeeper.ports import Grant
from tests.conformance.test_profile_states import INTO
from tests.conformance.world import URL, NewWorld, World, profile

S = ProfileState


async def look_inside(world: World, profile_id: str = "p1", worker: str = "ann") -> Grant:
    return await world.acquire(profile_id, purpose=Purpose.INSPECT, worker_id=worker)


@pytest.mark.parametrize("state", sorted(INSPECTABLE))
async def test_a_look_inside_leaves_the_state_and_its_reason_as_they_were(
    new_world: NewWorld, state: ProfileState
) -> None:
    async with new_world() as world:
        await INTO[state](world)
        job = await world.add()
        before, reviews = await world.lane(), await world.all(Review, open="1")
        grant = await look_inside(world)
        held = await world.lane()
        assert (held.state, held.drain, held.token) == (S.LEASED, state, before.token + 1)
        assert await world.claim() == []
        assert (await world.finish(grant)).profile_state is state
        after = await world.lane()
        assert (after.state, after.state_reason, after.drain) == (state, before.state_reason, None)
        assert await world.all(Review, open="1") == reviews
        assert (await world.job(job)).state == "blocked"
        run = await world.run_of(grant)
        assert (run.purpose, run.result, run.final_url) == (Purpose.INSPECT, "completed", URL)


async def test_a_look_inside_is_logged_and_its_events_rebuild_the_state(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.QUARANTINED](world)
        grant = await look_inside(world)
        granted = (await world.events(type=EventType.LEASE_GRANTED))[-1]
        assert (granted.data["purpose"], granted.worker_id, granted.profile_state) == ("inspect", "ann", S.LEASED)
        assert replay_profile(await world.events(profile_id="p1")) is S.LEASED
        await world.finish(grant)
        assert replay_profile(await world.events(profile_id="p1")) is S.QUARANTINED


@pytest.mark.parametrize("purpose", [Purpose.API, Purpose.MANUAL])
async def test_nobody_else_gets_a_profile_out_of_rotation(new_world: NewWorld, purpose: Purpose) -> None:
    async with new_world() as world:
        await INTO[S.QUARANTINED](world)
        with pytest.raises(ProfileBusy):
            await world.acquire(purpose=purpose)


async def test_an_available_profile_of_a_paused_account_is_available_after_a_look(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.decide_account(Action.PAUSE)
        with pytest.raises(ProfileBusy):
            await world.acquire()
        grant = await look_inside(world)
        assert (await world.lane()).drain is None
        assert (await world.finish(grant)).profile_state is S.AVAILABLE


async def test_the_person_decides_during_the_look_and_it_takes_effect_at_its_end(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        job = await world.add()
        grant = await look_inside(world)
        assert (await world.clear()).state == S.LEASED
        assert await world.all(Review, open="1", target="profile") == []
        assert await world.claim() == []
        assert (await world.finish(grant)).profile_state is S.AVAILABLE
        assert (await world.lane()).clean
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_decision_during_the_look_may_be_stricter(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        grant = await look_inside(world)
        await world.decide_profile(Action.QUARANTINE, note="it is somebody else's")
        assert (await world.finish(grant)).profile_state is S.QUARANTINED
        (review,) = await world.all(Review, open="1", target="profile")
        assert "somebody else's" in review.summary


async def test_a_decision_about_what_was_there_before_the_look_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        seen = await world.lane()
        grant = await look_inside(world)
        with pytest.raises(VersionConflict):
            await world.decide_profile(Action.CLEAR, version=seen.version)
        assert (await world.finish(grant)).profile_state is S.REVIEW_REQUIRED


async def test_two_people_do_not_look_inside_at_once(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3, disposable=True)) as world:
        await INTO[S.QUARANTINED](world)
        grant = await look_inside(world)
        with pytest.raises(ProfileBusy) as refused:
            await look_inside(world, worker="bob")
        assert refused.value.holder == "ann"
        with pytest.raises(InputError, match="exclusive"):
            await world.acquire(purpose=Purpose.INSPECT, mode=Mode.SHARED)
        await world.finish(grant)
        assert (await world.finish(await look_inside(world, worker="bob"))).profile_state is S.QUARANTINED


@pytest.mark.parametrize("state", sorted(INSPECTABLE))
async def test_a_profile_whose_visitor_vanished_does_not_come_back_by_itself(
    new_world: NewWorld, state: ProfileState
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        await INTO[state](world)
        grant = await look_inside(world)
        await world.lose(grant)
        assert await world.state() is S.STALE
        with pytest.raises(ProfileBusy):
            await look_inside(world)
        with pytest.raises(LeaseLost):
            await world.store.checkpoint(grant.lease.ref, "late")
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is state
        assert (await world.finish(await look_inside(world))).profile_state is state


async def test_a_visitor_who_vanished_after_clearing_leaves_it_to_the_release_policy(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        grant = await look_inside(world)
        await world.clear()
        await world.lose(grant)
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is S.QUARANTINED
        assert len(await world.all(Review, open="1", target="profile")) == 1


async def test_a_look_that_is_recovered_goes_back_to_where_it_was(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        await INTO[S.DISABLED](world)
        grant = await look_inside(world)
        await world.store.checkpoint(grant.lease.ref, "dashboard_open", url=URL)
        await world.lose(grant)
        world.advance(grant.lease.lock_delay_ms / 1000)
        (answer,) = await world.resolve(grant, final_url=URL, browser_dead=True)
        assert answer.profile_state is S.DISABLED


async def test_a_revoked_look_is_resolved_like_any_lost_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        grant = await look_inside(world)
        await world.revoke(grant)
        assert await world.state() is S.STALE
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is S.QUARANTINED


async def test_what_went_wrong_during_the_look_may_only_make_it_worse(new_world: NewWorld) -> None:
    async with new_world() as world:
        await INTO[S.REVIEW_REQUIRED](world)
        grant = await look_inside(world)
        assert (await world.finish(grant, "SECURITY_PROMPT")).profile_state is S.QUARANTINED
        grant = await look_inside(world)
        assert (await world.finish(grant, "LOGIN_REQUIRED")).profile_state is S.QUARANTINED
        grant = await look_inside(world)
        unproven = EndFacts(browser=Browser.NOT_PROVEN, final_url=URL)
        assert (await world.finish(grant, facts=unproven)).profile_state is S.STALE


async def test_nobody_looks_inside_before_the_last_ending_is_explained(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        await world.decide_profile(Action.DISABLE)
        with pytest.raises(ProfileBusy) as refused:
            await look_inside(world)
        assert (refused.value.reason, refused.value.state) == ("blocked_by_profile_state", S.DISABLED)
        assert refused.value.until_at is not None
        await world.resolve(grant)
        assert (await world.finish(await look_inside(world))).profile_state is S.DISABLED


async def test_a_look_inside_keeps_the_limits(new_world: NewWorld) -> None:
    shop = Account(account_id=AccountId("shop"), routing=Routing.ACCOUNT)
    limit = Limit(pool="default", max_leases=1)
    async with new_world(shop, profile("p1"), profile("p2"), profile("p3", account_id="other"), limit) as world:
        await world.decide_profile(Action.DISABLE, "p1")
        await world.decide_profile(Action.DISABLE, "p3")
        other = await world.run("p2")
        with pytest.raises(ProfileBusy) as refused:
            await look_inside(world, "p1")
        assert refused.value.reason == "blocked_by_profile_lease"
        with pytest.raises(ProfileBusy) as refused:
            await look_inside(world, "p3")
        assert refused.value.reason == "blocked_by_capacity"
        await world.finish(other)
        assert (await world.finish(await look_inside(world, "p1"))).profile_state is S.DISABLED


async def test_the_evidence_to_look_at_stays_that_of_the_run_which_asked_for_a_person(new_world: NewWorld) -> None:
    async with new_world() as world:
        failed = await world.run()
        await world.finish(failed, "LOGIN_REQUIRED")
        world.advance(timedelta(minutes=1).total_seconds())
        await world.finish(await look_inside(world))
        facts = await world.store.why(profile_id="p1")
        assert {review.run_id for review in facts.reviews} == {failed.lease.run_id}
        assert len(await world.all(RunRecord, profile_id="p1")) == 2
