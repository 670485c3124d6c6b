"""Grants and placements, as tables: who may have a profile now, and where a job goes that may not. No store."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.conflicts import ConflictCause
from leasekeeper.core.granting import (
    blocked_job,
    direct_gate,
    direct_refusal,
    engine_gate,
    expected_environment,
    judge_head,
    lease_for_job,
    may_follow,
    started,
)
from leasekeeper.core.ids import AccountId, JobId, ProfileId, RunId, WorkerId
from leasekeeper.core.jobs import JobSpec, JobState, OnConflict, Risk
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.leases import Lease, Mode, Purpose, Timing
from leasekeeper.core.placing import check_policy, lease_in_the_way, new_job, place, profile_for
from leasekeeper.core.profiles import ProfileState, ReleasePolicy, stricter
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.routing import Holding, account_of, freed_keys, held_keys, is_taken
from leasekeeper.errors import AmbiguousProfile, InputError, LeasekeeperError, UnknownAccount, UnknownProfile
from tests.unit.test_core_lanes import LEASED, NOW, facts, job, lane, lease

S = ProfileState
SHOP = AccountId("shop")
KEY = "account:shop"


def routed(known: LaneFacts, routing: Routing = Routing.ACCOUNT) -> LaneFacts:
    known.account = replace(known.account, routing=routing)
    return known


def test_a_head_that_is_safe_is_granted_under_its_key() -> None:
    assert judge_head(facts(lane()), job(), {}).key == "profile:p1"
    assert judge_head(routed(facts(lane())), job(), {}).key == KEY


def test_a_head_waits_for_its_accounts_key() -> None:
    verdict = judge_head(routed(facts(lane())), job(), {KEY: 1})
    assert (verdict.key, verdict.waits_on, verdict.lane_blocked_by, verdict.block) == (None, KEY, None, None)


def test_a_head_of_a_lane_that_is_blocked_stays_there() -> None:
    assert judge_head(facts(LEASED, lease()), job(), {}).lane_blocked_by is Blocked.PROFILE_LEASE


def test_a_head_that_is_not_ready_itself_is_blocked() -> None:
    waits = job(risk_level=Risk.REVIEW_REQUIRED)
    block = judge_head(facts(LEASED, lease()), waits, {KEY: 1}).block
    assert block is not None
    blocked = blocked_job(waits, block, "not approved")
    assert (blocked.state, blocked.blocked_reason, blocked.version) == (JobState.BLOCKED, Blocked.APPROVAL, 2)
    assert blocked.detail == "not approved"


@pytest.mark.parametrize(
    ("known", "purpose", "held", "blocked"),
    [
        (facts(lane()), Purpose.API, {}, None),
        (facts(lane(), paused=True), Purpose.API, {}, Blocked.ACCOUNT_PAUSE),
        (facts(lane(), paused=True), Purpose.MANUAL, {}, None),
        (facts(lane(), paused=True), Purpose.INSPECT, {}, None),
        (facts(lane()), Purpose.API, {KEY: 1}, Blocked.PROFILE_LEASE),
        (facts(lane(state=S.QUARANTINED)), Purpose.API, {}, Blocked.PROFILE_STATE),
        (facts(lane(state=S.QUARANTINED)), Purpose.MANUAL, {}, Blocked.PROFILE_STATE),
        (facts(lane(state=S.QUARANTINED)), Purpose.INSPECT, {}, None),
        (facts(lane(state=S.REVIEW_REQUIRED), paused=True), Purpose.INSPECT, {}, None),
        (facts(lane(state=S.DISABLED)), Purpose.INSPECT, {}, None),
        (facts(lane(state=S.DISABLED)), Purpose.INSPECT, {KEY: 1}, Blocked.PROFILE_LEASE),
        (facts(lane(state=S.DISABLED), lease(unresolved=True)), Purpose.INSPECT, {}, Blocked.PROFILE_STATE),
        (facts(lane(state=S.STALE), lease(unresolved=True)), Purpose.INSPECT, {}, Blocked.PROFILE_STATE),
        (facts(LEASED, lease()), Purpose.INSPECT, {}, Blocked.PROFILE_LEASE),
        (facts(LEASED, lease(mode=Mode.SHARED), max_active_runs=2), Purpose.API, {}, None),
        (
            facts(lane(state=S.LEASED, head_job_id=JobId("j1")), lease(mode=Mode.SHARED), max_active_runs=2),
            Purpose.API,
            {},
            Blocked.PROFILE_LEASE,
        ),
    ],
)
def test_who_comes_without_a_job_waits_for_the_same(
    known: LaneFacts, purpose: Purpose, held: dict[str, int], blocked: Blocked | None
) -> None:
    assert direct_gate(known, shared=True, purpose=purpose, key=KEY, held=held) is blocked


@pytest.mark.parametrize(
    ("newest", "engine", "blocked"),
    [
        (None, 150, None),
        (150, None, None),
        (150, 150, None),
        (149, 150, None),
        (151, 150, Blocked.ENVIRONMENT_MISMATCH),
    ],
)
def test_a_browser_older_than_the_last_one_gets_no_profile(
    newest: int | None, engine: int | None, blocked: Blocked | None
) -> None:
    assert engine_gate(lane(engine=newest), engine) is blocked


@pytest.mark.parametrize(
    ("gate", "purpose", "paused", "engine", "full", "why"),
    [
        (None, Purpose.API, False, 140, False, None),
        (None, Purpose.API, False, None, False, None),
        (None, Purpose.API, False, 140, True, Blocked.CAPACITY),
        (None, Purpose.API, False, 139, True, Blocked.ENVIRONMENT_MISMATCH),
        (None, Purpose.API, True, 139, True, Blocked.PAUSE),
        (None, Purpose.SESSION, True, 140, False, Blocked.PAUSE),
        (None, Purpose.MANUAL, True, 140, False, None),
        (None, Purpose.MANUAL, True, 140, True, Blocked.CAPACITY),
        (None, Purpose.MANUAL, True, 139, False, Blocked.ENVIRONMENT_MISMATCH),
        (None, Purpose.INSPECT, True, 140, False, None),
        (Blocked.PROFILE_LEASE, Purpose.API, True, 139, True, Blocked.PROFILE_LEASE),
    ],
)
def test_who_is_refused_without_a_job_hears_the_first_reason(
    gate: Blocked | None, purpose: Purpose, paused: bool, engine: int | None, full: bool, why: Blocked | None
) -> None:
    asked: list[bool] = []

    def is_full() -> bool:
        asked.append(full)
        return full

    refused = direct_refusal(gate, lane(engine=140), purpose=purpose, paused=paused, engine=engine, full=is_full)
    assert refused is why
    assert asked == ([full] if why in (None, Blocked.CAPACITY) else []), "a pool is locked only to grant something"


NEXT: dict[str, Any] = {"head_task": "visit", "head_pool": "default", "head_priority": 5}


@pytest.mark.parametrize(
    ("head", "asked", "follows"),
    [
        ({}, {}, True),
        ({"head_task": "buy"}, {}, False),
        ({"head_pool": "night"}, {}, False),
        ({"head_shared": True}, {}, False),
        ({"home": "other", "saved": False}, {}, False),
        ({"home": "here", "saved": False}, {}, True),
        ({}, {"isolated": True}, False),
        ({}, {"paused": True}, False),
        ({}, {"elsewhere": [5, 4]}, True),
        ({}, {"elsewhere": [4, 6]}, False),
    ],
)
def test_which_job_goes_on_in_an_open_browser(head: dict[str, Any], asked: dict[str, Any], follows: bool) -> None:
    usual: dict[str, Any] = {"isolated": False, "paused": False, "elsewhere": []}
    waiting = lane(**{**NEXT, **head})
    known = {**usual, **asked}
    assert may_follow(waiting, tasks=["visit"], pool="default", machine="here", **known) is follows


def test_a_lease_has_the_next_token_and_the_stricter_policy() -> None:
    known = facts(lane(token=4), release_policy=ReleasePolicy.REVIEW)
    asked = job(release_policy="recover", lock_timeout_seconds=600, priority=3)
    running = started(asked, RunId("r9"))
    granted = lease_for_job(
        known,
        running,
        run_id=RunId("r9"),
        key="profile:p1",
        worker_id=WorkerId("w1"),
        incarnation="w1-1",
        machine="rack1",
        timing=Timing(),
        now=NOW,
    )
    assert (running.state, running.attempt, running.version) == (JobState.RUNNING, 1, 2)
    assert (granted.token, granted.lease_id, granted.release_policy) == (5, "p1:5", ReleasePolicy.REVIEW)
    assert (granted.expires_at, granted.ttl_ms, granted.lock_delay_ms) == (
        NOW + timedelta(minutes=10),
        600_000,
        60_000,
    )
    assert (granted.priority, granted.mode) == (3, Mode.EXCLUSIVE)


def test_of_two_policies_the_stricter_one_counts() -> None:
    order = [ReleasePolicy.RECOVER, ReleasePolicy.REVIEW, ReleasePolicy.QUARANTINE]
    for own in order:
        assert stricter(own, None) is own
        for wanted in order:
            assert stricter(own, wanted) is order[max(order.index(own), order.index(wanted))]


def test_a_run_keeps_what_its_job_expected() -> None:
    assert expected_environment(job(expected_language="en")) == {"language": "en"}
    assert expected_environment(None) == {}


def test_leases_from_before_an_account_was_routed_so_count_for_all_of_it() -> None:
    rows = [
        Holding("shop", Routing.ACCOUNT, "account:shop:task:read", 2),
        Holding("other", Routing.ACCOUNT_TASK, "account:other:task:read", 1),
        Holding("other", Routing.ACCOUNT_TASK, "profile:p9", 1),
    ]
    assert held_keys(rows) == {KEY: 2, "account:other:task:read": 1, "account:other": 1}


def test_only_keys_of_accounts_are_waited_for() -> None:
    assert is_taken(KEY, {KEY: 1})
    assert not is_taken(KEY, {})
    assert not is_taken("profile:p1", {"profile:p1": 1})
    assert account_of("account:shop:task:read") == account_of(KEY) == "shop"


@pytest.mark.parametrize(
    ("routing", "key", "freed"),
    [
        (Routing.PROFILE, "profile:p1", []),
        (Routing.PROFILE, KEY, [KEY]),
        (Routing.ACCOUNT, "profile:p1", [KEY]),
        (Routing.ACCOUNT, "account:shop:task:read", [KEY, "account:shop:task:read"]),
        (Routing.ACCOUNT_TASK, "profile:p1", [KEY]),
        (Routing.ACCOUNT_TASK, "account:shop:task:read", ["account:shop:task:read"]),
    ],
)
def test_an_ending_frees_its_key_and_what_it_counts_for_by_now(routing: Routing, key: str, freed: list[str]) -> None:
    assert freed_keys(Account(account_id=SHOP, routing=routing), key) == freed


def the_profile_of(**asked: Any) -> ProfileId:
    return profile_for(
        JobSpec(task="visit", **asked),
        3,
        accounts={"shop", "empty", "two"},
        owner={"p1": "shop", "t1": "two", "t2": "two"},
        of_account={"shop": ["p1"], "two": ["t1", "t2"]},
    )


@pytest.mark.parametrize(
    "asked", [{"account_id": "shop"}, {"profile_id": "p1"}, {"account_id": "shop", "profile_id": "p1"}]
)
def test_a_job_finds_its_profile(asked: dict[str, Any]) -> None:
    assert the_profile_of(**asked) == "p1"


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({}, InputError, "needs an account_id or a profile_id"),
        ({"account_id": "nobody"}, UnknownAccount, "there is no account nobody"),
        ({"account_id": "empty"}, UnknownProfile, "has no profile"),
        ({"account_id": "two"}, AmbiguousProfile, "t1, t2"),
        ({"profile_id": "p9"}, UnknownProfile, "there is no profile p9"),
        ({"account_id": "two", "profile_id": "p1"}, UnknownProfile, "belongs to account shop"),
    ],
)
def test_a_job_that_finds_no_profile_is_reported_what_there_is(
    asked: dict[str, Any], error: type[LeasekeeperError], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        the_profile_of(**asked)
    assert "jobs[3]" in str(raised.value)


def test_a_new_job_takes_from_its_profile_what_it_does_not_say() -> None:
    known = facts(lane(), pool="vendor")
    made = new_job(JobSpec(task="visit", priority=2), known, fresh_id="j9", now=NOW)
    assert (made.job_id, made.pool, made.created_at, made.priority) == ("j9", "vendor", NOW, 2)
    named = new_job(JobSpec(task="visit", job_id=JobId("mine"), pool="own"), known, fresh_id="j9", now=NOW)
    assert (named.job_id, named.pool) == ("mine", "own")


def test_a_job_may_only_be_stricter_than_its_profile() -> None:
    known = facts(lane(), release_policy=ReleasePolicy.REVIEW)
    check_policy(job(release_policy="review"), known, 0)
    check_policy(job(release_policy="quarantine"), known, 0)
    with pytest.raises(InputError, match="more lenient"):
        check_policy(job(release_policy="recover"), known, 0)


def placed(known: LaneFacts, *, keys: dict[str, Lease] | None = None, follow: bool = True, **asked: Any) -> Any:
    return place(
        job(**asked),
        known,
        task_known=True,
        key_holders=keys or {},
        follow_conflict=follow,
        now=NOW,
        long_run=timedelta(minutes=10),
    )


def test_a_job_goes_where_it_belongs() -> None:
    assert placed(facts(lane()), run_at=NOW + timedelta(seconds=1)).job.state is JobState.SCHEDULED
    assert placed(facts(lane()), run_at=NOW).job.state is JobState.QUEUED
    assert placed(facts(lane()), risk_level=Risk.REVIEW_REQUIRED).job.blocked_reason is Blocked.APPROVAL
    assert placed(facts(lane(), paused=True), on_conflict=OnConflict.SKIP).job.state is JobState.QUEUED


@pytest.mark.parametrize(
    ("on_conflict", "state"),
    [
        (OnConflict.WAIT, JobState.QUEUED),
        (OnConflict.SKIP, JobState.SKIPPED),
        (OnConflict.REVIEW, JobState.REVIEW),
        (OnConflict.RESCHEDULE, JobState.SCHEDULED),
    ],
)
def test_a_job_that_meets_a_lease_follows_its_on_conflict(on_conflict: OnConflict, state: JobState) -> None:
    taken = facts(LEASED, lease(job_id=JobId("other")))
    placement = placed(taken, on_conflict=on_conflict)
    assert placement.job.state is state
    assert placement.holder is taken.open[0]
    assert placement.conflict.cause is ConflictCause.PREVIOUS_WORKER_LOST
    assert placed(taken, on_conflict=on_conflict, follow=False).job.state is JobState.QUEUED


def test_a_job_conflicts_with_who_holds_its_accounts_key() -> None:
    holder = lease(job_id=JobId("other"))
    assert placed(routed(facts(lane())), keys={KEY: holder}, on_conflict=OnConflict.SKIP).holder is holder
    assert placed(facts(lane()), keys={KEY: holder}, on_conflict=OnConflict.SKIP).holder is None


def test_a_job_does_not_conflict_with_its_own_earlier_run() -> None:
    earlier = lease(job_id=job().job_id)
    assert placed(facts(LEASED, earlier), on_conflict=OnConflict.SKIP).holder is None
    assert placed(routed(facts(lane())), keys={KEY: earlier}, on_conflict=OnConflict.SKIP).holder is None


OURS, LOST = lease(1), lease(2, unresolved=True, ended_at=NOW)
KEYED, OTHER = replace(lease(3), routing_key=KEY), replace(lease(9), routing_key=KEY)


@pytest.mark.parametrize(
    ("open_leases", "key", "here", "holder"),
    [
        ([OURS], KEY, True, OURS),
        ([LOST], KEY, True, LOST),
        # Whoever works there now comes before whoever was lost.
        ([LOST, OURS], KEY, True, OURS),
        ([], KEY, True, OTHER),
        ([], "profile:p1", True, None),
        # A profile that has room for another is kept by its account's key at most.
        ([OURS], "profile:p1", False, None),
        ([OURS], KEY, False, OTHER),
        ([OURS, KEYED], KEY, False, KEYED),
    ],
)
def test_a_run_is_kept_out_by_a_lease_of_the_profile_or_of_its_accounts_key(
    open_leases: list[Lease], key: str, here: bool, holder: Lease | None
) -> None:
    assert lease_in_the_way(facts(LEASED, *open_leases), key, {KEY: OTHER}, here=here) is holder
