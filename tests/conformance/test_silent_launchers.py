"""Lost runs whose launcher does not say whether the browser still runs: the profile stays stale until it does."""

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.ids import LeaseId
from leasekeeper.core.launchers import LauncherSaid
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.ports import Grant
from tests.conformance.test_launchers import MLX, launched
from tests.conformance.world import URL, NewWorld, World, fleet, profile, seconds

SILENT: dict[str, Any] = {"launcher": LauncherSaid.SILENT, "problem": "no response within 5 s"}
IDLE: dict[str, Any] = {"launcher": LauncherSaid.IDLE, "browser_dead": True}
DOUBT = {"keeper": {"clauses": {"graceful": True, "processes_gone": False, "launcher_stopped": False}}}


async def lost_run(world: World, policy: ReleasePolicy, *, released: bool = False) -> Grant:
    """A run of a launcher's profile that nobody saw the end of."""
    declared = fleet(launched("p1", release_policy=policy))
    await world.store.apply(replace(declared, launchers={"mlx": MLX}), actor="ann")
    grant = await world.run()
    await world.store.checkpoint(grant.lease.ref, "cart_full")
    if released:
        facts = EndFacts(browser=Browser.NOT_PROVEN, failing_clause="the launcher did not confirm", final_url=URL)
        await world.finish(grant, facts=facts, evidence=DOUBT)
    else:
        await world.lose(grant)
    assert await world.state() == "stale"
    return grant


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    ("policy", "answer", "state"),
    [
        (ReleasePolicy.QUARANTINE, IDLE, "quarantined"),
        (ReleasePolicy.REVIEW, IDLE, "review_required"),
        (ReleasePolicy.RECOVER, IDLE, "available"),
        (ReleasePolicy.RECOVER, {"launcher": LauncherSaid.RUNNING}, "review_required"),
        (ReleasePolicy.RECOVER, {"launcher": LauncherSaid.CANNOT_SAY}, "review_required"),
    ],
)
async def test_a_silent_launcher_is_waited_for_and_its_answer_decides(
    new_world: NewWorld, released: bool, policy: ReleasePolicy, answer: dict[str, Any], state: str
) -> None:
    async with new_world() as world:
        grant = await lost_run(world, policy, released=released)
        known = {} if released else {"reported_by": "keeper", "final_url": URL, "evidence": DOUBT}
        assert await world.resolve(grant, **known) == []
        assert await world.resolve(grant, **SILENT) == []
        lane = await world.lane()
        assert lane.state == "stale"
        assert "launcher mlx does not say whether it still runs (no response within 5 s)" in lane.state_reason
        world.advance(grant.lease.lock_delay_ms / 1000 + 3600)
        assert await world.resolve(grant) == []  # who cannot ask does not decide
        (settled,) = await world.resolve(grant, **answer)
        assert settled.profile_state == state
        events = [event for event in await world.events() if event.type == "launcher_silent"]
        assert [event.profile_state for event in events] == ["stale"]


async def test_nobody_decides_before_the_machine_that_reaches_the_launcher_could_ask(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.QUARANTINE)
        assert await world.resolve(grant) == []
        world.advance(grant.lease.lock_delay_ms / 1000)
        assert await world.resolve(grant) == []
        world.advance(grant.lease.ttl_ms / 1000)
        (settled,) = await world.resolve(grant)
        assert settled.profile_state == "quarantined"


async def test_a_silent_launcher_is_asked_later_and_later_and_keeps_nobody_waiting(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.REVIEW)
        waits = []
        for _ in range(8):
            await world.resolve(grant, **SILENT)
            assert await world.store.unresolved() == []
            wait = 0
            while not await world.store.unresolved():
                world.advance(2)
                wait += 2
            waits.append(wait)
        assert waits == sorted(waits)
        assert (waits[0], waits[-1] > waits[0]) == (2, True)
        assert waits[-1] <= 300
        await world.store.apply(fleet(profile("p2")), actor="ann")
        other = await world.run("p2")
        await world.lose(other)
        first, last = await world.store.unresolved()
        assert (first.lease_id, last.lease_id) == (other.lease.lease_id, grant.lease.lease_id)


async def test_one_alone_is_given_a_question_and_it_comes_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.REVIEW)
        asked = [grant.lease.lease_id]
        assert await world.store.reserve_launcher_checks(asked, seconds(60)) == asked
        assert await world.store.unresolved() == []
        assert await world.store.reserve_launcher_checks(asked, seconds(60)) == []
        assert await world.resolve(grant) == []  # who does not ask changes nothing
        assert await world.store.unresolved() == []
        world.advance(60)
        assert [lease.lease_id for lease in await world.store.unresolved()] == asked
        assert await world.store.reserve_launcher_checks(asked, seconds(60)) == asked
        (settled,) = await world.resolve(grant, **IDLE)
        assert settled.profile_state == "review_required"
        world.advance(60)
        assert await world.store.reserve_launcher_checks([*asked, LeaseId("nobody:1")], seconds(60)) == []
        assert await world.store.reserve_launcher_checks([], seconds(60)) == []


async def test_a_browser_that_still_runs_is_asked_about_later_and_later(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.REVIEW)
        await world.store.reserve_launcher_checks([grant.lease.lease_id], seconds(60))
        assert await world.resolve(grant, launcher=LauncherSaid.RUNNING) == []
        assert await world.store.unresolved() == []
        world.advance(2)
        assert len(await world.store.unresolved()) == 1


async def test_nobody_asks_about_a_profile_that_somebody_has_again(new_world: NewWorld) -> None:
    """A launcher's stop names only the profile: it would end the browser of whoever has it now."""
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.REVIEW)
        await world.resolve(grant, **IDLE)
        await world.decide_profile(Action.CLEAR)
        await world.run()
        assert await world.store.reserve_launcher_checks([grant.lease.lease_id], seconds(60)) == []


async def test_a_person_may_decide_on_a_profile_whose_launcher_is_silent(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await lost_run(world, ReleasePolicy.RECOVER)
        await world.resolve(grant, **SILENT)
        await world.decide_profile(Action.DISABLE)
        await world.resolve(grant, **IDLE)
        assert await world.state() == "disabled"
