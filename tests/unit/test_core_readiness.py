"""The readiness gate: each blocked reason, its next step, and the routing keys."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.accounts import ProxyTrouble, Routing
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import Risk
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.readiness import (
    Block,
    Blocked,
    Expected,
    NoWorker,
    WaitFacts,
    can_share,
    job_gate,
    lane_gate,
    shown_reason,
    waits_as,
)
from leasekeeper.core.routing import is_account_key, routing_key
from leasekeeper.wording import UNBLOCKED_BY, block_text
from tests.unit.records import a_job, a_profile, a_proxy

REASONS = {
    "blocked_by_profile_lease",
    "blocked_by_account_pause",
    "blocked_by_pause",
    "blocked_by_proxy_mismatch",
    "blocked_by_proxy_unreachable",
    "blocked_by_environment_mismatch",
    "blocked_by_review_required",
    "blocked_by_profile_state",
    "blocked_by_capacity",
    "blocked_by_approval",
    "blocked_by_no_worker",
    "blocked_by_home",
    "blocked_by_duplicate_idempotency_key",
}

# What the job asks for, what the gate answers, and a word of the sentence that a person reads.
JOB_GATE: list[tuple[dict[str, Any], Blocked | None, str]] = [
    ({}, None, ""),
    ({"proxy_id": "dallas"}, None, ""),
    ({"proxy_id": "berlin"}, Blocked.PROXY_MISMATCH, "wants proxy berlin, profile profile_018 has dallas"),
    ({"expected_proxy_region": "US"}, None, ""),
    ({"expected_proxy_region": "DE"}, Blocked.PROXY_MISMATCH, "expects proxy region DE"),
    ({"expected_language": "en-US"}, None, ""),
    (
        {"expected_language": "de-DE"},
        Blocked.ENVIRONMENT_MISMATCH,
        "expects language de-DE, profile profile_018 has en-US",
    ),
    ({"expected_timezone": "America/Chicago"}, None, ""),
    ({"expected_timezone": "Europe/Berlin"}, Blocked.ENVIRONMENT_MISMATCH, "expects timezone Europe/Berlin"),
    ({"risk_level": Risk.LOW}, None, ""),
    ({"risk_level": Risk.MEDIUM}, None, ""),
    ({"risk_level": Risk.REVIEW_REQUIRED}, Blocked.APPROVAL, "nobody has approved"),
    ({"risk_level": Risk.REVIEW_REQUIRED, "approved": True}, None, ""),
]


@pytest.mark.parametrize(("asks", "expected", "words"), JOB_GATE, ids=[str(row[0]) for row in JOB_GATE])
def test_the_gate_compares_what_a_job_asks_for_with_its_profile(
    asks: dict[str, Any], expected: Blocked | None, words: str
) -> None:
    job = a_job(**asks)
    block = job_gate(job, a_profile(), a_proxy(), task_known=True)
    assert (block.reason if block else None) is expected
    assert words in (block_text(block, job) if block else "")


def test_a_task_that_nobody_offers_waits_for_a_worker() -> None:
    job = a_job(task="refund")
    block = job_gate(job, a_profile(), a_proxy(), task_known=False)
    assert block == Block(reason=Blocked.NO_WORKER, no_worker=NoWorker.NEVER_OFFERED)
    assert "refund" in block_text(block, job)


@pytest.mark.parametrize(
    ("asks", "field", "wanted", "actual"),
    [
        ({"proxy_id": "paris"}, Expected.PROXY_ID, "paris", "dallas"),
        ({"expected_proxy_region": "DE"}, Expected.PROXY_REGION, "DE", "US"),
        ({"expected_language": "de-DE"}, Expected.LANGUAGE, "de-DE", "en-US"),
        ({"expected_timezone": "Europe/Berlin"}, Expected.TIMEZONE, "Europe/Berlin", "America/Chicago"),
    ],
)
def test_a_block_says_as_data_what_is_wanted_and_what_is(
    asks: dict[str, Any], field: Expected, wanted: str, actual: str
) -> None:
    block = job_gate(a_job(**asks), a_profile(), a_proxy(), task_known=True)
    assert block is not None
    assert (block.field, block.wanted, block.actual) == (field, wanted, actual)


def test_a_profile_without_an_environment_matches_no_expectation() -> None:
    bare = a_profile(proxy_id=None, language=None, timezone=None)
    for asks in ({"proxy_id": "dallas"}, {"expected_proxy_region": "US"}):
        block = job_gate(a_job(**asks), bare, None, task_known=True)
        assert block is not None
        assert block.reason is Blocked.PROXY_MISMATCH
    for asks in ({"expected_language": "en-US"}, {"expected_timezone": "America/Chicago"}):
        job = a_job(**asks)
        block = job_gate(job, bare, None, task_known=True)
        assert block is not None
        assert (block.reason, block.actual) == (Blocked.ENVIRONMENT_MISMATCH, None)
        assert "has none" in block_text(block, job)


def test_the_payload_never_enters_a_detail() -> None:
    job = a_job(payload={"password": "hunter2"}, expected_language="de-DE")
    block = job_gate(job, a_profile(), a_proxy(), task_known=True)
    assert block is not None
    assert "hunter2" not in block_text(block, job)


def gate(**facts: Any) -> Blocked | None:
    usual: dict[str, Any] = {
        "state": ProfileState.AVAILABLE,
        "paused": False,
        "profile": a_profile(),
        "live": 0,
        "live_exclusive": 0,
        "proxy": a_proxy(),
        "head_shared": False,
        "ending": False,
    }
    return lane_gate(**{**usual, **facts})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ProfileState.AVAILABLE, None),
        (ProfileState.LEASED, Blocked.PROFILE_LEASE),
        (ProfileState.STALE, Blocked.PROFILE_STATE),
        (ProfileState.REVIEW_REQUIRED, Blocked.REVIEW_REQUIRED),
        (ProfileState.QUARANTINED, Blocked.PROFILE_STATE),
        (ProfileState.DISABLED, Blocked.PROFILE_STATE),
    ],
)
def test_the_profile_s_state_blocks_its_lane(state: ProfileState, expected: Blocked | None) -> None:
    assert gate(state=state, live=1, live_exclusive=1) is expected


@pytest.mark.parametrize("state", ProfileState)
def test_a_paused_account_blocks_every_lane(state: ProfileState) -> None:
    assert gate(state=state, paused=True) is Blocked.ACCOUNT_PAUSE


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [(ProxyTrouble.MISMATCH, Blocked.PROXY_MISMATCH), (ProxyTrouble.UNREACHABLE, Blocked.PROXY_UNREACHABLE)],
)
def test_a_proxy_in_trouble_blocks_what_could_run_otherwise(trouble: ProxyTrouble, expected: Blocked) -> None:
    proxy = a_proxy(trouble=trouble)
    shared = {"profile": THREE, "live": 1, "head_shared": True}
    assert gate(proxy=proxy) is expected
    assert gate(proxy=proxy, state=ProfileState.LEASED, **shared) is expected
    assert gate(proxy=proxy, state=ProfileState.LEASED, live=1, live_exclusive=1) is Blocked.PROFILE_LEASE
    assert gate(proxy=proxy, state=ProfileState.QUARANTINED) is Blocked.PROFILE_STATE
    assert gate(proxy=proxy, paused=True) is Blocked.ACCOUNT_PAUSE


@pytest.mark.parametrize(("expected", "region"), [("us", "US"), ("US", "us"), ("US", "EU")])
def test_regions_compare_without_case(expected: str, region: str) -> None:
    block = job_gate(a_job(expected_proxy_region=expected), a_profile(), a_proxy(region=region), task_known=True)
    assert (block is not None) is (region == "EU")


THREE = a_profile(max_active_runs=3)
SCRAP = a_profile(max_active_runs=3, disposable=True)


@pytest.mark.parametrize(
    ("facts", "free"),
    [
        ({"profile": THREE, "live": 1, "head_shared": True}, True),
        ({"profile": THREE, "live": 2, "head_shared": True}, True),
        ({"profile": THREE, "live": 3, "head_shared": True}, False),
        ({"profile": THREE, "live": 1, "head_shared": False}, False),
        ({"profile": THREE, "live": 1, "live_exclusive": 1, "head_shared": True}, False),
        ({"profile": THREE, "live": 1, "head_shared": True, "ending": True}, False),
        ({"profile": SCRAP, "live": 1, "head_shared": False}, True),
        ({"profile": SCRAP, "live": 3, "head_shared": False}, False),
        ({"profile": a_profile(), "live": 1, "head_shared": True}, False),
    ],
)
def test_a_leased_profile_takes_another_run_only_if_both_may_share(facts: dict[str, Any], free: bool) -> None:
    assert gate(state=ProfileState.LEASED, **facts) is (None if free else Blocked.PROFILE_LEASE)


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 8), st.booleans(), st.booleans(), st.booleans())
def test_the_gate_never_lets_a_profile_exceed_its_limit(
    limit: int, live: int, exclusive: int, shared: bool, disposable: bool, ending: bool
) -> None:
    profile = a_profile(max_active_runs=limit, disposable=disposable)
    blocked = gate(
        state=ProfileState.LEASED,
        profile=profile,
        live=live,
        live_exclusive=exclusive,
        head_shared=shared,
        ending=ending,
    )
    if blocked is None:
        assert live < limit
        assert exclusive == 0
        assert can_share(profile, shared=shared)


def test_only_read_only_runs_and_disposable_profiles_share() -> None:
    shares = {
        (disposable, shared): can_share(a_profile(disposable=disposable), shared=shared)
        for disposable, shared in product((False, True), (False, True))
    }
    assert shares == {(False, False): False, (False, True): True, (True, False): True, (True, True): True}


def test_the_blocked_reasons_are_those_of_the_product_and_each_has_a_next_step() -> None:
    assert {reason.value for reason in Blocked} == REASONS
    assert set(UNBLOCKED_BY) == set(Blocked)
    assert all(UNBLOCKED_BY.values())


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Blocked.PROFILE_LEASE, "released"),
        (Blocked.ACCOUNT_PAUSE, "resume"),
        (Blocked.PAUSE, "resumes it"),
        (Blocked.PROXY_MISMATCH, "fleet.yaml"),
        (Blocked.PROXY_UNREACHABLE, "by itself"),
        (Blocked.ENVIRONMENT_MISMATCH, "fleet.yaml"),
        (Blocked.REVIEW_REQUIRED, "a person"),
        (Blocked.PROFILE_STATE, "a stale profile"),
        (Blocked.CAPACITY, "limit"),
        (Blocked.APPROVAL, "approve"),
        (Blocked.NO_WORKER, "start a worker"),
        (Blocked.DUPLICATE, "first job"),
    ],
)
def test_each_next_step_says_what_it_waits_for(reason: Blocked, words: str) -> None:
    assert words in UNBLOCKED_BY[reason]


@pytest.mark.parametrize(
    ("routing", "task", "shared", "expected"),
    [
        (Routing.PROFILE, "sync", False, "profile:p1"),
        (Routing.PROFILE, "sync", True, "profile:p1"),
        (Routing.PROFILE, None, False, "profile:p1"),
        (Routing.ACCOUNT, "sync", False, "account:a1"),
        (Routing.ACCOUNT, "sync", True, "account:a1"),
        (Routing.ACCOUNT, None, False, "account:a1"),
        (Routing.ACCOUNT_TASK, "sync", True, "account:a1:task:sync"),
        (Routing.ACCOUNT_TASK, "sync", False, "account:a1"),
        (Routing.ACCOUNT_TASK, None, True, "account:a1"),
    ],
)
def test_the_account_s_policy_gives_the_routing_key(
    routing: Routing, task: str | None, shared: bool, expected: str
) -> None:
    key = routing_key(routing, account_id=AccountId("a1"), profile_id=ProfileId("p1"), task=task, shared=shared)
    assert key == expected
    assert is_account_key(key) is expected.startswith("account")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (WaitFacts(), None),
        (WaitFacts(unserved=True), Blocked.NO_WORKER),
        (WaitFacts(unserved=True, away=True), Blocked.NO_WORKER),
        (WaitFacts(away=True), Blocked.HOME),
        (WaitFacts(full=True, unserved=True), Blocked.CAPACITY),
        (WaitFacts(lane_blocked_by=Blocked.PROFILE_LEASE, full=True, unserved=True), Blocked.PROFILE_LEASE),
    ],
)
def test_a_queued_job_shows_the_first_thing_that_it_waits_for(facts: WaitFacts, reason: Blocked | None) -> None:
    assert shown_reason(facts) == reason


def test_whoever_searches_for_a_reason_finds_the_jobs_that_show_it() -> None:
    either = (False, True)
    lanes = (None, Blocked.PROFILE_LEASE, Blocked.ACCOUNT_PAUSE)
    reasons = (Blocked.CAPACITY, Blocked.NO_WORKER, Blocked.HOME, Blocked.PROFILE_LEASE, Blocked.ACCOUNT_PAUSE)
    for lane, full, unserved, away in product(lanes, either, either, either):
        facts = WaitFacts(lane_blocked_by=lane, full=full, unserved=unserved, away=away)
        for reason in reasons:
            wanted = waits_as(reason)
            found = (
                wanted.lane_blocked_by == lane and wanted.full in (full, None) and wanted.unserved in (unserved, None)
            )
            found = found and wanted.away in (away, None)
            assert found == (shown_reason(facts) == reason)
