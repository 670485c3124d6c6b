"""What put a profile into its state, as a code with data: one row for each way there, the same on every store.

The audit of each world checks that the events say the same as the profile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.ids import LeaseId, RunId, Token
from leasekeeper.core.profiles import Lane, ProfileState, ReleasePolicy, StateCause, because
from leasekeeper.core.settle import Browser
from leasekeeper.core.snapshots import Verdict
from leasekeeper.core.why import explain
from tests.conformance.test_profile_states import (
    Step,
    decides,
    disabled,
    ends,
    in_turn,
    is_acquired,
    is_inspected,
    is_lost,
    is_resolved,
    is_revoked,
    leased,
    nothing,
    opens_a_section,
    quarantined,
    reaches_a_safe_step,
    the_lease,
)
from tests.conformance.test_silent_launchers import SILENT, lost_run
from tests.conformance.test_snapshots import run_on, stored
from tests.conformance.test_transfers import take
from tests.conformance.world import URL, NewWorld, World, end, profile, proxy

S, C = ProfileState, StateCause
Q, R, RECOVER, RESTORE = (
    ReleasePolicy.QUARANTINE, ReleasePolicy.REVIEW, ReleasePolicy.RECOVER, ReleasePolicy.RESTORE,
)  # fmt: skip
NOT_PROVEN: dict[str, Any] = {"browser": Browser.NOT_PROVEN, "failing_clause": "the singleton lock is left"}
CLAUSE = {"clause": "the singleton lock is left"}
EXPIRED = {"ending": "expired"}
ANN = {"actor": "ann"}


async def is_taken_over(world: World) -> None:
    await take(world, await the_lease(world))


async def gives_back(world: World) -> None:
    await world.finish(await the_lease(world), not_started=True)


async def was_forgotten(world: World) -> None:
    grant = await world.run()
    await world.finish(grant)
    token = Token(grant.lease.token + 1)
    ref = replace(grant.lease.ref, token=token, lease_id=LeaseId(f"p1:{token}"), run_id=RunId("lost"))
    await world.store.settle([end(ref)])


async def gets_another_proxy(world: World) -> None:
    await world.declare(proxy("x2"), profile(release_policy=RECOVER, proxy_id="x2"))


async def launcher_is_silent(world: World) -> None:
    grant = await lost_run(world, R)
    assert await world.resolve(grant, **SILENT) == []


def is_lost_after(verdict: Verdict) -> Step:
    async def step(world: World) -> None:
        await stored(world)
        await run_on(world, "rack1", verdict)
        await world.add()
        await world.lose(await world.take(machine="rack1"))

    return step


@dataclass(frozen=True)
class Case:
    """What happens, and why the profile is in its state after it."""

    steps: tuple[Step, ...]
    state: ProfileState
    cause: StateCause
    data: Mapping[str, object] = field(default_factory=dict)
    policy: ReleasePolicy = Q


CASES = {
    "added": Case((nothing,), S.AVAILABLE, C.ADDED),
    "granted": Case((leased,), S.LEASED, C.GRANTED),
    "acquired": Case((is_acquired,), S.LEASED, C.GRANTED),
    "taken over": Case((leased, is_taken_over), S.LEASED, C.GRANTED),
    "completed": Case((leased, ends()), S.AVAILABLE, C.CLEAN_RELEASE),
    "timed out": Case((leased, ends("TIMEOUT")), S.AVAILABLE, C.CLEAN_RELEASE, {"stop_reason": "TIMEOUT"}),
    "given back": Case((leased, gives_back), S.AVAILABLE, C.GIVEN_BACK),
    "expired": Case((leased, is_lost), S.STALE, C.LEASE_EXPIRED, {"silent_seconds": 60}),
    "revoked": Case((leased, is_revoked), S.STALE, C.LEASE_REVOKED, {"silent_seconds": 60}),
    "not proven closed": Case((leased, ends(**NOT_PROVEN)), S.STALE, C.NOT_PROVEN_CLOSED, CLAUSE),
    "crashed, not proven closed": Case(
        (leased, ends("BROWSER_CRASHED", **NOT_PROVEN)),
        S.STALE,
        C.NOT_PROVEN_CLOSED,
        {"stop_reason": "BROWSER_CRASHED", **CLAUSE},
    ),
    "launcher is silent": Case(
        (launcher_is_silent,),
        S.STALE,
        C.LAUNCHER_SILENT,
        {"launcher_id": "mlx", "problem": "no response within 5 s", **EXPIRED},
    ),
    "ended in a section": Case(
        (leased, reaches_a_safe_step, opens_a_section, ends("TIMEOUT")),
        S.QUARANTINED,
        C.OPEN_SECTION,
        {"section": "submit_order", "safe_step": "dashboard_open", "seconds": 0, "stop_reason": "TIMEOUT"},
    ),
    "lost in a section": Case(
        (leased, opens_a_section, is_lost, is_resolved()),
        S.QUARANTINED,
        C.OPEN_SECTION,
        {"section": "submit_order", **EXPIRED},
    ),
    "final URL unknown": Case((leased, ends(final_url=None)), S.QUARANTINED, C.FINAL_URL_UNKNOWN),
    "final URL unknown, not proven closed": Case(
        (leased, ends(**{**NOT_PROVEN, "final_url": None})), S.QUARANTINED, C.FINAL_URL_UNKNOWN, CLAUSE
    ),
    "proxy changed": Case((leased, ends(proxy_changed=True)), S.QUARANTINED, C.PROXY_CHANGED),
    "proxy changed, lost": Case(
        (leased, is_lost, is_resolved(proxy_changed=True)), S.QUARANTINED, C.PROXY_CHANGED, EXPIRED, RECOVER
    ),
    "security prompt": Case(
        (leased, ends("SECURITY_PROMPT")), S.QUARANTINED, C.SECURITY_PROMPT, {"stop_reason": "SECURITY_PROMPT"}
    ),
    "corrupt": Case(
        (leased, ends("PROFILE_CORRUPT")), S.QUARANTINED, C.RUN_STOPPED, {"stop_reason": "PROFILE_CORRUPT"}
    ),
    "logged out": Case(
        (leased, ends("LOGIN_REQUIRED")), S.REVIEW_REQUIRED, C.RUN_STOPPED, {"stop_reason": "LOGIN_REQUIRED"}
    ),
    "directory empty": Case(
        (leased, ends("PROFILE_DIRECTORY_EMPTY")),
        S.REVIEW_REQUIRED,
        C.DIRECTORY_EMPTY,
        {"stop_reason": "PROFILE_DIRECTORY_EMPTY"},
    ),
    "evidence not saved": Case(
        (leased, ends(evidence_saved=False)),
        S.REVIEW_REQUIRED,
        C.EVIDENCE_NOT_SAVED,
        {"stop_reason": "EVIDENCE_NOT_SAVED"},
    ),
    "policy quarantine": Case(
        (leased, is_lost, is_resolved()), S.QUARANTINED, C.RELEASE_POLICY, {"policy": "quarantine", **EXPIRED}
    ),
    "policy review, revoked": Case(
        (leased, is_revoked, is_resolved()),
        S.REVIEW_REQUIRED,
        C.RELEASE_POLICY,
        {"policy": "review", "ending": "revoked"},
        R,
    ),
    "policy review, not proven closed": Case(
        (leased, ends(**NOT_PROVEN), is_resolved()),
        S.REVIEW_REQUIRED,
        C.RELEASE_POLICY,
        {"policy": "review", "ending": "released"},
        R,
    ),
    "recovered": Case(
        (leased, reaches_a_safe_step, is_lost, is_resolved(final_url=URL, browser_dead=True)),
        S.AVAILABLE,
        C.RECOVERED,
        {"safe_step": "dashboard_open", **EXPIRED},
        RECOVER,
    ),
    "not recovered": Case(
        (leased, is_lost, is_resolved()),
        S.REVIEW_REQUIRED,
        C.NOT_RECOVERED,
        {"doubts": ["no_safe_step", "final_url_unknown", "browser_not_dead"], **EXPIRED},
        RECOVER,
    ),
    "not recovered, other proxy": Case(
        (leased, reaches_a_safe_step, gets_another_proxy, is_lost, is_resolved(final_url=URL, browser_dead=True)),
        S.REVIEW_REQUIRED,
        C.NOT_RECOVERED,
        {"doubts": ["proxy_replaced"], **EXPIRED},
        RECOVER,
    ),
    "restored": Case(
        (is_lost_after(Verdict.LOGGED_IN), is_resolved()), S.AVAILABLE, C.RESTORED, {"token": 1, **EXPIRED}, RESTORE
    ),
    "not restored": Case(
        (is_lost_after(Verdict.LOGGED_OUT), is_resolved()),
        S.REVIEW_REQUIRED,
        C.NOT_RESTORED,
        {"doubts": ["no_good_snapshot"], **EXPIRED},
        RESTORE,
    ),
    "not restored, seen alive": Case(
        (is_lost_after(Verdict.LOGGED_IN), is_resolved(reported_by="keeper")),
        S.REVIEW_REQUIRED,
        C.NOT_RESTORED,
        {"doubts": ["browser_not_dead"], **EXPIRED},
        RESTORE,
    ),
    "disabled": Case((disabled,), S.DISABLED, C.DECIDED, {"action": "disable", **ANN}),
    "cleared": Case((quarantined, decides(Action.CLEAR)), S.AVAILABLE, C.DECIDED, {"action": "clear", **ANN}),
    "drained": Case(
        (leased, decides(Action.REVIEW), ends()), S.REVIEW_REQUIRED, C.DECIDED, {"action": "review", **ANN}
    ),
    "inspected": Case((quarantined, is_inspected), S.LEASED, C.GRANTED),
    "after an inspection": Case(
        (quarantined, is_inspected, ends()), S.QUARANTINED, C.SECURITY_PROMPT, {"stop_reason": "SECURITY_PROMPT"}
    ),
    "lease forgotten": Case(
        (was_forgotten,), S.REVIEW_REQUIRED, C.LEASE_FORGOTTEN, {"lease_id": "p1:2", "run_id": "lost"}
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_profile_says_as_a_code_what_put_it_into_its_state(new_world: NewWorld, name: str) -> None:
    case = CASES[name]
    async with new_world(profile(release_policy=case.policy)) as world:
        await in_turn(*case.steps)(world)
        lane = await world.lane()
        assert (lane.state, lane.state_cause, lane.state_data) == (case.state, case.cause, case.data)
        view = explain(await world.store.why(profile_id="p1")).profile
        assert (view.state_reason, view.state_cause, view.state_data) == because(lane)
        (found,) = await world.all(Lane, state_cause=case.cause)
        assert found == lane


def test_every_cause_has_a_way_there() -> None:
    """Two have none here: a profile whose browser is handed over is leased in the same commit, and only one store
    can lose writes."""
    assert {case.cause for case in CASES.values()} == set(StateCause) - {C.HANDED_OVER, C.STORE_LOST_WRITES}


async def test_what_a_sharer_found_and_what_a_person_decided_say_their_cause_until_the_last_one_ends(
    new_world: NewWorld,
) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        first, second = await world.run(shared=True), await world.run(shared=True)
        await world.finish(first, "SECURITY_PROMPT")
        await world.decide_profile(Action.REVIEW)
        lane = await world.lane()
        assert (lane.state_cause, lane.verdict_cause, lane.drain_cause) == (C.GRANTED, C.SECURITY_PROMPT, C.DECIDED)
        assert (lane.verdict_data, lane.drain_data) == ({"stop_reason": "SECURITY_PROMPT"}, {"action": "review", **ANN})
        view = explain(await world.store.why(profile_id="p1")).profile
        assert (view.drain_cause, view.drain_data) == (lane.drain_cause, lane.drain_data)
        await world.finish(second)
        lane = await world.lane()
        assert (lane.state, lane.state_cause) == (S.QUARANTINED, C.SECURITY_PROMPT)
        assert (lane.verdict_cause, lane.verdict_data, lane.drain_cause, lane.drain_data) == (None, {}, None, {})


async def test_a_profile_is_stale_for_the_sharer_that_was_lost_not_for_the_last_one_that_ended(
    new_world: NewWorld,
) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        lost, other = await world.run(shared=True), await world.run(shared=True, lock_timeout_seconds=600)
        await world.lose(lost)
        await world.finish(other)
        lane = await world.lane()
        assert (lane.state, lane.state_cause, lane.state_data) == (S.STALE, C.LEASE_EXPIRED, {"silent_seconds": 60})
        assert lane.state_reason == "lease expired: no heartbeat of worker w1 reached the store for 60 s"


async def test_a_profile_that_is_declared_again_says_the_cause_that_it_had(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        await world.finish(await world.acquire(), "SECURITY_PROMPT")
        before = because(await world.lane())
        await world.declare(profile("p2"), prune=True)
        await world.declare(profile(), profile("p2"))
        assert because(await world.lane()) == before
