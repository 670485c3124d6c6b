"""Profiles: every move of the table is made through the port, and every other decision is refused."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from leasekeeper.core.decisions import ACTIONS, PROFILE_ACTIONS, Action, Decision, Review, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.profiles import TRANSITIONS, ProfileState, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import IllegalTransition, InputError, NotFound, ProfileBusy, VersionConflict
from leasekeeper.ports import Grant
from tests.conformance.world import URL, NewWorld, World, profile, proxy, schedule

S = ProfileState
Step = Callable[[World], Awaitable[object]]


async def nothing(world: World) -> None:
    return None


async def leased(world: World) -> None:
    await world.run()


async def stale(world: World) -> None:
    await world.lose(await world.run())


async def review_required(world: World) -> None:
    await world.finish(await world.run(), "LOGIN_REQUIRED")


async def quarantined(world: World) -> None:
    await world.finish(await world.run(), "SECURITY_PROMPT")


async def disabled(world: World) -> None:
    await world.decide_profile(Action.DISABLE)


INTO: dict[ProfileState, Step] = {
    S.AVAILABLE: nothing,
    S.LEASED: leased,
    S.STALE: stale,
    S.REVIEW_REQUIRED: review_required,
    S.QUARANTINED: quarantined,
    S.DISABLED: disabled,
}


async def the_lease(world: World) -> Grant:
    """The one open lease, as its holder has it."""
    (lease,) = [lease for lease in await world.all(Lease) if lease.ended_at is None or lease.unresolved]
    return await world.grant_of(lease)


def ends(reason: str | None = None, **facts: object) -> Step:
    async def step(world: World) -> None:
        about: dict[str, Any] = {"browser": Browser.CLOSED, "final_url": URL, **facts}
        await world.finish(await the_lease(world), reason, facts=EndFacts(**about))

    return step


def decides(action: Action) -> Step:
    async def step(world: World) -> None:
        await world.decide_profile(action)

    return step


def is_resolved(**facts: object) -> Step:
    async def step(world: World) -> None:
        grant = await the_lease(world)
        world.advance(grant.lease.lock_delay_ms / 1000)
        (answer,) = await world.resolve(grant, **facts)
        assert answer.refused is None

    return step


def in_turn(*steps: Step) -> Step:
    async def step(world: World) -> None:
        for each in steps:
            await each(world)

    return step


async def is_acquired(world: World) -> None:
    await world.acquire()


async def is_inspected(world: World) -> None:
    await world.acquire(purpose=Purpose.INSPECT)


async def is_lost(world: World) -> None:
    await world.lose(await the_lease(world))


async def is_revoked(world: World) -> None:
    await world.revoke(await the_lease(world))


async def opens_a_section(world: World) -> None:
    await world.store.enter_section((await the_lease(world)).lease.ref, "submit_order")


async def reaches_a_safe_step(world: World) -> None:
    await world.store.checkpoint((await the_lease(world)).lease.ref, "dashboard_open", url=URL)


RECOVERABLE = in_turn(leased, reaches_a_safe_step, is_lost)


@dataclass(frozen=True)
class Move:
    """One way from one state to another, with how to get there first and the profile's release policy."""

    frm: ProfileState
    to: ProfileState
    how: Step
    first: Step | None = None
    policy: ReleasePolicy = ReleasePolicy.QUARANTINE


MOVES = [
    Move(S.AVAILABLE, S.LEASED, is_acquired),
    Move(S.AVAILABLE, S.LEASED, leased),
    Move(S.REVIEW_REQUIRED, S.LEASED, is_inspected),
    Move(S.QUARANTINED, S.LEASED, is_inspected),
    Move(S.DISABLED, S.LEASED, is_inspected),
    Move(S.LEASED, S.REVIEW_REQUIRED, ends(), first=in_turn(review_required, is_inspected)),
    Move(S.LEASED, S.QUARANTINED, ends(), first=in_turn(quarantined, is_inspected)),
    Move(S.LEASED, S.DISABLED, ends(), first=in_turn(disabled, is_inspected)),
    Move(S.LEASED, S.AVAILABLE, ends(), first=in_turn(quarantined, is_inspected, decides(Action.CLEAR))),
    Move(S.LEASED, S.AVAILABLE, ends()),
    Move(S.LEASED, S.AVAILABLE, ends("TIMEOUT")),
    Move(S.LEASED, S.STALE, is_lost),
    Move(S.LEASED, S.STALE, is_revoked),
    Move(S.LEASED, S.STALE, ends(browser=Browser.NOT_PROVEN)),
    Move(S.LEASED, S.REVIEW_REQUIRED, ends("LOGIN_REQUIRED")),
    Move(S.LEASED, S.REVIEW_REQUIRED, ends(evidence_saved=False)),
    Move(S.LEASED, S.QUARANTINED, ends("SECURITY_PROMPT")),
    Move(S.LEASED, S.QUARANTINED, ends(final_url=None)),
    Move(S.LEASED, S.QUARANTINED, ends(proxy_changed=True)),
    Move(S.LEASED, S.QUARANTINED, in_turn(opens_a_section, ends("TIMEOUT"))),
    Move(S.LEASED, S.REVIEW_REQUIRED, in_turn(decides(Action.REVIEW), ends())),
    Move(S.LEASED, S.QUARANTINED, in_turn(decides(Action.QUARANTINE), ends())),
    Move(S.LEASED, S.DISABLED, in_turn(decides(Action.DISABLE), ends())),
    Move(S.STALE, S.QUARANTINED, decides(Action.QUARANTINE)),
    Move(S.STALE, S.REVIEW_REQUIRED, decides(Action.REVIEW)),
    Move(S.STALE, S.QUARANTINED, is_resolved()),
    Move(S.STALE, S.REVIEW_REQUIRED, is_resolved(), policy=ReleasePolicy.REVIEW),
    Move(
        S.STALE,
        S.AVAILABLE,
        is_resolved(final_url=URL, browser_dead=True),
        first=RECOVERABLE,
        policy=ReleasePolicy.RECOVER,
    ),
    Move(S.STALE, S.REVIEW_REQUIRED, is_resolved(), first=RECOVERABLE, policy=ReleasePolicy.RECOVER),
    Move(S.STALE, S.DISABLED, decides(Action.DISABLE)),
    Move(S.STALE, S.DISABLED, is_resolved(), first=in_turn(leased, decides(Action.DISABLE), is_lost)),
    Move(S.REVIEW_REQUIRED, S.AVAILABLE, decides(Action.CLEAR)),
    Move(S.REVIEW_REQUIRED, S.QUARANTINED, decides(Action.QUARANTINE)),
    Move(S.REVIEW_REQUIRED, S.DISABLED, decides(Action.DISABLE)),
    Move(S.QUARANTINED, S.AVAILABLE, decides(Action.CLEAR)),
    Move(S.QUARANTINED, S.REVIEW_REQUIRED, decides(Action.REVIEW)),
    Move(S.QUARANTINED, S.DISABLED, decides(Action.DISABLE)),
    Move(S.AVAILABLE, S.REVIEW_REQUIRED, decides(Action.REVIEW)),
    Move(S.AVAILABLE, S.QUARANTINED, decides(Action.QUARANTINE)),
    Move(S.AVAILABLE, S.DISABLED, decides(Action.DISABLE)),
    Move(S.DISABLED, S.AVAILABLE, decides(Action.ENABLE)),
    Move(S.DISABLED, S.REVIEW_REQUIRED, decides(Action.ENABLE), first=in_turn(stale, disabled)),
    Move(S.DISABLED, S.REVIEW_REQUIRED, decides(Action.ENABLE), first=in_turn(quarantined, disabled)),
]


def test_every_move_of_the_table_is_tried() -> None:
    assert {(move.frm, move.to) for move in MOVES} == set(TRANSITIONS)


@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move.frm}_to_{move.to}")
async def test_a_move_of_the_table_is_made_and_logged(new_world: NewWorld, move: Move) -> None:
    async with new_world(profile(release_policy=move.policy)) as world:
        await (move.first or INTO[move.frm])(world)
        before = await world.lane()
        assert before.state is move.frm
        world.advance(1)
        await move.how(world)
        after = await world.lane()
        assert after.state is move.to
        assert after.state_reason
        assert after.state_at > before.state_at
        assert after.version > before.version
        reported = [event.profile_state for event in await world.events(profile_id="p1") if event.profile_state]
        assert reported[-1] is move.to


CASES = [
    (state, action)
    for state in ProfileState
    for action in PROFILE_ACTIONS
    if state not in PROFILE_ACTIONS[action] and not (state is S.LEASED and S.AVAILABLE in PROFILE_ACTIONS[action])
]


@pytest.mark.parametrize(("state", "action"), CASES)
async def test_a_decision_that_the_state_does_not_allow_is_refused(
    new_world: NewWorld, state: ProfileState, action: Action
) -> None:
    async with new_world() as world:
        await INTO[state](world)
        before, logged = await world.everything(), await world.events()
        with pytest.raises(IllegalTransition) as refused:
            await world.decide_profile(action)
        assert refused.value.code == "ILLEGAL_TRANSITION"
        assert state.value in refused.value.message
        assert await world.everything() == before
        assert await world.events() == logged


@pytest.mark.parametrize("state", [state for state in ProfileState if state is not S.AVAILABLE])
async def test_only_an_available_profile_is_leased(new_world: NewWorld, state: ProfileState) -> None:
    async with new_world() as world:
        await INTO[state](world)
        await world.add()
        before = await world.everything()
        assert await world.claim() == []
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire()
        assert refused.value.code == "PROFILE_NOT_AVAILABLE"
        assert refused.value.reason.startswith("blocked_by_")
        assert await world.everything() == before


async def test_a_decision_that_the_record_does_not_have_is_refused(new_world: NewWorld) -> None:
    async with new_world(profile(), schedule(), proxy()) as world:
        grant = await world.run()
        await world.decide_account(Action.PAUSE)
        subjects = {
            Target.PROFILE: "p1",
            Target.JOB: str(grant.lease.job_id),
            Target.ACCOUNT: "shop",
            Target.LEASE: grant.lease.lease_id,
            Target.WEBHOOK: (await world.owe("https://hook.test/")).delivery_id,
            Target.TOKEN: (await world.token("a" * 12)).token_id,
            Target.SCHEDULE: "nightly",
            Target.PROXY: "exit_us",
            Target.ENDPOINT: "ops",
            Target.PAUSE: "all",
        }
        before, logged = await world.everything(), await world.events()
        for target in Target:
            for action in set(Action) - set(ACTIONS[target]):
                with pytest.raises(InputError) as refused:
                    await world.decide(target, subjects[target], action)
                assert all(allowed.value in str(refused.value) for allowed in ACTIONS[target])
        assert await world.everything() == before
        assert await world.events() == logged


async def test_a_leased_profile_is_disabled_when_its_lease_ends(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        decided = await world.decide_profile(Action.DISABLE)
        lane = await world.lane()
        assert (decided.state, lane.state, lane.drain) == (S.LEASED, S.LEASED, S.DISABLED)
        assert decided.version == lane.version
        assert (await world.finish(grant)).profile_state is S.DISABLED
        lane = await world.lane()
        assert (lane.drain, lane.drain_reason, lane.state_reason) == (None, "", "disable by ann: looked at it")


@pytest.mark.parametrize("action", [Action.QUARANTINE, Action.REVIEW])
async def test_a_profile_that_is_sent_to_a_person_opens_a_review_and_blocks_its_jobs(
    new_world: NewWorld, action: Action
) -> None:
    async with new_world() as world:
        job = await world.add()
        await world.decide_profile(action, note="customers complain")
        assert (await world.job(job)).state == "blocked"
        assert await world.claim() == []
        (review,) = await world.all(Review, open="1")
        assert (review.target, review.profile_id, review.reason) == ("profile", "p1", action.value)
        assert "customers complain" in review.summary
        await world.clear()
        assert await world.all(Review, open="1") == []
        assert len(await world.claim()) == 1


@pytest.mark.parametrize("action", [Action.QUARANTINE, Action.REVIEW])
async def test_a_leased_profile_goes_to_a_person_when_its_lease_ends(new_world: NewWorld, action: Action) -> None:
    async with new_world() as world:
        grant = await world.run()
        after = PROFILE_ACTIONS[action][S.AVAILABLE]
        assert (await world.decide_profile(action, note="odd orders")).state == S.LEASED
        assert await world.all(Review, open="1") == []
        assert (await world.finish(grant)).profile_state is after
        (review,) = await world.all(Review, open="1")
        assert review.summary == (await world.lane()).state_reason == f"{action} by ann: odd orders"
        (event,) = await world.events(type=EventType.PROFILE_DECIDED)
        assert event.data["drain"] == after


async def test_of_a_drain_and_a_bad_ending_the_stricter_stands(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.REVIEW)
        assert (await world.finish(grant, "SECURITY_PROMPT")).profile_state is S.QUARANTINED
        await world.clear()
        grant = await world.run()
        await world.decide_profile(Action.QUARANTINE)
        assert (await world.finish(grant, "LOGIN_REQUIRED")).profile_state is S.QUARANTINED


async def test_a_drain_to_a_person_is_changed_and_taken_back_while_the_lease_runs(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.QUARANTINE)
        await world.decide_profile(Action.REVIEW)
        assert (await world.lane()).drain is S.REVIEW_REQUIRED
        with pytest.raises(IllegalTransition, match="will be review_required when its lease ends: cannot enable"):
            await world.decide_profile(Action.ENABLE)
        await world.clear()
        assert (await world.finish(grant)).profile_state is S.AVAILABLE


async def test_a_stale_profile_that_a_person_sent_to_review_stays_there_when_resolved(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        await world.decide_profile(Action.REVIEW)
        with pytest.raises(IllegalTransition, match="not resolved yet"):
            await world.clear()
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is S.REVIEW_REQUIRED
        assert len(await world.all(Review, open="1", target="profile")) == 1
        assert (await world.clear()).state == S.AVAILABLE


async def test_a_drain_can_be_taken_back_while_the_lease_runs(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.DISABLE)
        decided = await world.decide_profile(Action.ENABLE)
        assert decided.version == (await world.lane()).version
        assert (await world.finish(grant)).profile_state is S.AVAILABLE


async def test_a_drain_that_is_asked_for_twice_is_one(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.DISABLE)
        again = await world.decide_profile(Action.DISABLE)
        assert again.version == (await world.lane()).version
        assert (await world.finish(grant)).profile_state is S.DISABLED


async def test_a_drained_profile_whose_run_was_not_clean_comes_back_by_a_review(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.DISABLE)
        assert (await world.finish(grant, "SECURITY_PROMPT")).profile_state is S.DISABLED
        assert (await world.decide_profile(Action.ENABLE)).state == S.REVIEW_REQUIRED
        (review,) = await world.all(Review, open="true", target="profile")
        assert review.profile_id == "p1"


async def test_a_drained_profile_that_lost_its_worker_is_disabled_when_resolved(
    new_world: NewWorld,
) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.DISABLE)
        await world.lose(grant)
        assert await world.state() is S.STALE
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is S.DISABLED
        assert (await world.decide_profile(Action.ENABLE)).state == S.REVIEW_REQUIRED


async def test_a_stale_profile_that_a_person_disabled_keeps_no_verdict_for_later(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        await world.decide_profile(Action.DISABLE)
        (answer,) = await world.resolve(grant)
        assert answer.profile_state is S.DISABLED
        assert answer.job_state == "scheduled"
        assert (await world.decide_profile(Action.ENABLE)).state == S.REVIEW_REQUIRED
        await world.clear()
        assert (await world.finish(await world.acquire())).profile_state is S.AVAILABLE


async def test_a_cleared_profile_counts_as_clean_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        await quarantined(world)
        assert not (await world.lane()).clean
        await world.clear()
        assert (await world.lane()).clean
        await world.decide_profile(Action.DISABLE)
        assert (await world.decide_profile(Action.ENABLE)).state == S.AVAILABLE


async def test_the_reason_of_a_state_is_a_sentence_that_a_person_reads(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "dashboard_open")
        await world.store.enter_section(grant.lease.ref, "submit_order")
        world.advance(40)
        await world.finish(grant, "BROWSER_CRASHED")
        reason = (await world.lane()).state_reason
        assert reason == "ended inside submit_order, 40 s after the last safe step dashboard_open"


async def test_a_decision_is_logged_with_who_made_it_and_why(new_world: NewWorld) -> None:
    async with new_world() as world:
        await quarantined(world)
        await world.decide_profile(Action.CLEAR, note="cookies were renewed by hand")
        (event,) = await world.events(type=EventType.PROFILE_DECIDED)
        assert (event.actor, event.profile_id, event.account_id) == ("ann", "p1", "shop")
        assert event.profile_state is S.AVAILABLE
        assert event.data["action"] == "clear"
        assert event.data["note"] == "cookies were renewed by hand"
        assert event.data["from"] == "quarantined"
        assert "cookies were renewed by hand" in (await world.lane()).state_reason


@pytest.mark.parametrize(("note", "actor"), [("", "ann"), ("  ", "ann"), ("looked", ""), ("looked", " \t")])
async def test_a_decision_without_a_note_or_a_name_is_refused(new_world: NewWorld, note: str, actor: str) -> None:
    async with new_world() as world:
        before = await world.everything()
        with pytest.raises(InputError):
            await world.store.decide(
                Decision(target=Target.PROFILE, id="p1", action=Action.DISABLE, note=note, actor=actor)
            )
        assert await world.everything() == before


async def test_a_decision_about_an_older_version_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        seen = await world.lane()
        await quarantined(world)
        before = await world.everything()
        with pytest.raises(VersionConflict) as refused:
            await world.decide_profile(Action.CLEAR, version=seen.version)
        assert refused.value.code == "VERSION_CHANGED"
        assert await world.everything() == before
        decided = await world.decide_profile(Action.CLEAR, version=(await world.lane()).version)
        assert decided.version == (await world.lane()).version


async def test_a_decision_about_what_is_not_there_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        for target, action in (
            (Target.PROFILE, Action.DISABLE),
            (Target.JOB, Action.CANCEL),
            (Target.ACCOUNT, Action.PAUSE),
            (Target.LEASE, Action.REVOKE),
        ):
            for name in ("nobody", "p1:7", ""):
                with pytest.raises(NotFound) as refused:
                    await world.decide(target, name, action)
                assert refused.value.code == "NOT_FOUND"
