"""Lanes, as tables: what holds one, who is at its head, and what an ending makes of its profile. No store."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Account, BanStatus, Routing
from leasekeeper.core.ids import AccountId, JobId, LeaseId, ProfileId, RunId, Token, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.lanes import (
    Head,
    LaneFacts,
    RetiredLane,
    cause_of,
    draining,
    gate,
    judged,
    key_of,
    may_be_older_than_head,
    moved,
    new_lane,
    next_head,
    offered,
    opened_by,
    parked,
    profile_ended,
    profile_expired,
    refreshed,
    unparked,
)
from leasekeeper.core.leases import Lease, LeaseStatus, Mode
from leasekeeper.core.profiles import TRANSITIONS, Because, Cause, Lane, Profile, ProfileState, StateCause
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.settle import ProfileVerdict, verdict_of
from leasekeeper.errors import IllegalTransition

S, C = ProfileState, StateCause
WHY = Because("lost", C.LEASE_EXPIRED, {"silent_seconds": 60})
NOW = datetime(2031, 5, 6, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=30)
KEY = "account:shop"
NO_HEAD = {"head_job_id": None, "head_pool": None, "head_task": None, "head_priority": 0, "head_shared": False}


def lane(**fields: Any) -> Lane:
    return Lane(
        profile_id=ProfileId("p1"), account_id=AccountId("shop"), state_at=EARLIER, waiting_at=EARLIER, **fields
    )


def lease(token: int = 1, **fields: Any) -> Lease:
    return Lease(
        lease_id=LeaseId(f"p1:{token}"),
        profile_id=ProfileId("p1"),
        account_id=AccountId("shop"),
        run_id=RunId(f"r{token}"),
        worker_id=WorkerId("w1"),
        incarnation="w1-1",
        proxy_id=None,
        pool="default",
        routing_key="profile:p1",
        token=Token(token),
        acquired_at=EARLIER,
        heartbeat_at=EARLIER,
        expires_at=NOW,
        ttl_ms=60_000,
        lock_delay_ms=15_000,
        renew_ms=15_000,
        **{"job_id": None, "mode": Mode.EXCLUSIVE, **fields},
    )


def facts(lane: Lane, *open_leases: Lease, paused: bool = False, **profile: Any) -> LaneFacts:
    return LaneFacts(
        lane=lane,
        profile=Profile(profile_id=ProfileId("p1"), account_id=AccountId("shop"), **profile),
        account=Account(account_id=AccountId("shop"), paused=paused),
        proxy=None,
        open=list(open_leases),
    )


def job(job_id: str = "j1", **fields: Any) -> Job:
    return Job(
        job_id=JobId(job_id),
        account_id=AccountId("shop"),
        profile_id=ProfileId("p1"),
        task="visit",
        payload={},
        pool="default",
        created_at=EARLIER,
        **fields,
    )


def head_of(job_id: str, priority: int = 0, *, shared: bool = False) -> Head:
    return Head(JobId(job_id), "default", "visit", priority, shared)


def as_changes(head: Head, waiting_at: datetime) -> dict[str, object]:
    return {
        "head_job_id": head.job_id,
        "head_pool": head.pool,
        "head_task": head.task,
        "head_priority": head.priority,
        "head_shared": head.shared,
        "waiting_at": waiting_at,
    }


LEASED = lane(state=S.LEASED)
UNRESOLVED = lease(unresolved=True, ended_at=EARLIER)
SHARED = lease(mode=Mode.SHARED)

GATES = [
    ("a free profile", facts(lane()), False, None),
    ("a paused account", facts(lane(), paused=True), False, Blocked.ACCOUNT_PAUSE),
    ("an exclusive lease", facts(LEASED, lease()), False, Blocked.PROFILE_LEASE),
    ("an exclusive lease, for a sharer", facts(LEASED, lease(), max_active_runs=2), True, Blocked.PROFILE_LEASE),
    ("a sharer beside a sharer", facts(LEASED, SHARED, max_active_runs=2), True, None),
    ("no room for another sharer", facts(LEASED, SHARED), True, Blocked.PROFILE_LEASE),
    ("an exclusive job beside a sharer", facts(LEASED, SHARED, max_active_runs=2), False, Blocked.PROFILE_LEASE),
    ("all share a disposable profile", facts(LEASED, lease(), max_active_runs=2, disposable=True), False, None),
    ("a drain", facts(lane(state=S.LEASED, drain=S.DISABLED), SHARED, max_active_runs=2), True, Blocked.PROFILE_LEASE),
    (
        "a verdict that waits for the last sharer",
        facts(lane(state=S.LEASED, verdict=S.QUARANTINED), SHARED, max_active_runs=2),
        True,
        Blocked.PROFILE_LEASE,
    ),
    (
        "an ending that nobody explained yet",
        facts(LEASED, UNRESOLVED, replace(SHARED, token=Token(2)), max_active_runs=3),
        True,
        Blocked.PROFILE_LEASE,
    ),
    ("a stale profile", facts(lane(state=S.STALE), UNRESOLVED), False, Blocked.PROFILE_STATE),
    ("a profile in review", facts(lane(state=S.REVIEW_REQUIRED)), False, Blocked.REVIEW_REQUIRED),
    ("a disabled profile", facts(lane(state=S.DISABLED)), False, Blocked.PROFILE_STATE),
]


@pytest.mark.parametrize(("name", "known", "shared", "blocked_by"), GATES, ids=[row[0] for row in GATES])
def test_a_lane_is_blocked_by(name: str, known: LaneFacts, shared: bool, blocked_by: Blocked | None) -> None:
    assert gate(known, shared=shared) is blocked_by


def test_a_person_goes_where_the_jobs_of_a_paused_account_do_not() -> None:
    assert gate(facts(lane(), paused=True), shared=False, even_paused=True) is None


REFRESHES = [
    ("nothing changed", facts(lane()), {}),
    (
        "it is held now",
        facts(LEASED, lease()),
        {"blocked_by": Blocked.PROFILE_LEASE, "waits_on": None, "waiting_at": EARLIER},
    ),
    (
        "it is ready now, and starts to wait",
        facts(lane(blocked_by=Blocked.ACCOUNT_PAUSE)),
        {"blocked_by": None, "waits_on": None, "waiting_at": NOW},
    ),
    ("it waits for a key still", facts(lane(blocked_by=Blocked.PROFILE_LEASE, waits_on=KEY)), {}),
    (
        "what holds it comes before the key",
        facts(lane(blocked_by=Blocked.PROFILE_LEASE, waits_on=KEY), paused=True),
        {"blocked_by": Blocked.ACCOUNT_PAUSE, "waits_on": None, "waiting_at": EARLIER},
    ),
]


@pytest.mark.parametrize(("name", "known", "changes"), REFRESHES, ids=[row[0] for row in REFRESHES])
def test_a_lane_is_computed_again(name: str, known: LaneFacts, changes: dict[str, object]) -> None:
    assert refreshed(known, NOW) == changes


def test_a_lane_that_waited_for_a_key_keeps_its_place() -> None:
    waiting = lane(blocked_by=Blocked.PROFILE_LEASE, waits_on=KEY)
    assert parked(KEY) == {"blocked_by": Blocked.PROFILE_LEASE, "waits_on": KEY}
    assert unparked(waiting) == {"blocked_by": None, "waits_on": None}
    assert unparked(lane()) == {}


HEAD = as_changes(head_of("j0"), EARLIER)
OFFERS: list[tuple[str, dict[str, object], int, dict[str, object]]] = [
    ("an empty lane starts to wait", {}, 0, as_changes(head_of("j1"), NOW)),
    ("an equal one goes behind the head", HEAD, 0, {}),
    ("a more urgent one takes the head's place and its waiting time", HEAD, 5, as_changes(head_of("j1", 5), EARLIER)),
    (
        "a new head may need another key",
        {**HEAD, "waits_on": KEY, "blocked_by": Blocked.PROFILE_LEASE},
        5,
        {**as_changes(head_of("j1", 5), EARLIER), "waits_on": None, "blocked_by": None},
    ),
]


@pytest.mark.parametrize(("name", "before", "priority", "changes"), OFFERS, ids=[row[0] for row in OFFERS])
def test_a_job_enters_a_lane(name: str, before: dict[str, Any], priority: int, changes: dict[str, object]) -> None:
    assert offered(replace(lane(), **before), job(priority=priority), NOW) == changes


def test_a_job_that_comes_back_may_be_older_than_the_head() -> None:
    after = lane(head_job_id=JobId("j2"), head_priority=0)
    assert may_be_older_than_head(after, job("j1", seq=1))
    assert not may_be_older_than_head(after, job("j1"))
    assert not may_be_older_than_head(after, job("j2", seq=2))
    assert not may_be_older_than_head(after, job("j1", seq=1, priority=-1))


HEADS = [
    ("nobody is left", [], "j1", NO_HEAD),
    ("the head was the only one", [head_of("j1")], "j1", NO_HEAD),
    ("the next one follows", [head_of("j1"), head_of("j2", 5)], "j1", as_changes(head_of("j2", 5), NOW)),
    ("the head is another one by now", [head_of("j7"), head_of("j8")], None, as_changes(head_of("j7"), NOW)),
]


@pytest.mark.parametrize(("name", "heads", "gone", "changes"), HEADS, ids=[row[0] for row in HEADS])
def test_the_next_job_takes_the_heads_place(
    name: str, heads: list[Head], gone: str | None, changes: dict[str, object]
) -> None:
    assert next_head(lane(), heads, None if gone is None else JobId(gone), NOW) == changes


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_a_profile_moves_only_as_the_table_says(before: ProfileState, after: ProfileState) -> None:
    for cause in Cause:
        if before is after:
            assert moved(lane(state=before), after, cause, WHY, NOW) == {}
        elif cause in TRANSITIONS.get((before, after), ()):
            changes = to(after, WHY)
            assert moved(lane(state=before), after, cause, WHY, NOW) == changes
        else:
            with pytest.raises(IllegalTransition):
                moved(lane(state=before), after, cause, WHY, NOW)


CLEAN_END = Because("closed cleanly", C.CLEAN_RELEASE)
PROMPT = Because("a security prompt appeared", C.SECURITY_PROMPT, {"stop_reason": "SECURITY_PROMPT"})
LOGGED_OUT = Because("logged out", C.RUN_STOPPED, {"stop_reason": "LOGIN_REQUIRED"})
LEFT_OPEN = Because("not proven closed", C.NOT_PROVEN_CLOSED, {"clause": "the lock is left"})
OLD = Because("disable by ann: old", C.DECIDED, {"action": "disable", "actor": "ann"})
ODD = Because("review by ann: odd", C.DECIDED, {"action": "review", "actor": "ann"})
CLEAN = verdict_of(None, Cause.CLEAN_RELEASE, CLEAN_END)
BAD = verdict_of(S.QUARANTINED, Cause.QUARANTINE_TRIGGER, PROMPT)
DOUBTFUL = verdict_of(S.REVIEW_REQUIRED, Cause.NEEDS_PERSON, LOGGED_OUT)
OPEN = verdict_of(None, Cause.NOT_PROVEN_CLOSED, LEFT_OPEN, unresolved=True)
FORGET: dict[str, object] = {
    "verdict": None,
    "verdict_reason": "",
    "verdict_cause": None,
    "verdict_data": {},
    "drain": None,
    "drain_reason": "",
    "drain_cause": None,
    "drain_data": {},
}


def to(state: ProfileState, why: Because, **more: object) -> dict[str, object]:
    said = {"state_reason": why.reason, "state_cause": why.cause, "state_data": why.data}
    return {"state": state, **said, "state_at": NOW, **more}


PENDING = lane(state=S.LEASED, **judged(S.QUARANTINED, PROMPT))
ENDS: list[tuple[str, LaneFacts, ProfileVerdict, dict[str, object], str | None]] = [
    ("a clean end", facts(LEASED), CLEAN, to(S.AVAILABLE, CLEAN_END), None),
    ("a sharer is left", facts(LEASED, SHARED), CLEAN, {}, None),
    (
        "a sharer is left after a bad end",
        facts(LEASED, SHARED),
        BAD,
        {**judged(S.QUARANTINED, PROMPT)},
        None,
    ),
    (
        "the last sharer ends well, an earlier one did not",
        facts(PENDING),
        CLEAN,
        to(S.QUARANTINED, PROMPT, **FORGET, clean=False),
        BAD.reason,
    ),
    (
        "the worst of the sharers' endings counts",
        facts(PENDING),
        DOUBTFUL,
        to(S.QUARANTINED, PROMPT, **FORGET, clean=False),
        BAD.reason,
    ),
    (
        "a bad end",
        facts(LEASED),
        DOUBTFUL,
        to(S.REVIEW_REQUIRED, LOGGED_OUT, **FORGET, clean=False),
        "logged out",
    ),
    ("an end without proof", facts(LEASED, UNRESOLVED), OPEN, to(S.STALE, LEFT_OPEN, clean=False), None),
    (
        "the last sharer ends well, an earlier one was lost",
        facts(LEASED, replace(UNRESOLVED, status=LeaseStatus.EXPIRED)),
        CLEAN,
        to(
            S.STALE,
            Because(
                "lease expired: no heartbeat of worker w1 reached the store for 30 s",
                C.LEASE_EXPIRED,
                {"silent_seconds": 30},
            ),
            clean=False,
        ),
        None,
    ),
    (
        "the last sharer ends well, an earlier one left its browser open",
        facts(LEASED, replace(UNRESOLVED, status=LeaseStatus.RELEASED)),
        CLEAN,
        to(
            S.STALE,
            Because("the browser of worker w1 was not proven closed at the end of its run", C.NOT_PROVEN_CLOSED),
            clean=False,
        ),
        None,
    ),
    (
        "the last sharer leaves its browser open, an earlier one ended badly",
        facts(PENDING, UNRESOLVED),
        OPEN,
        to(S.STALE, LEFT_OPEN, clean=False),
        None,
    ),
    (
        "a person disabled it meanwhile",
        facts(lane(state=S.LEASED, **draining(S.DISABLED, OLD))),
        CLEAN,
        to(S.DISABLED, OLD, **FORGET, clean=True),
        None,
    ),
    (
        "a person sent it to review meanwhile",
        facts(lane(state=S.LEASED, **draining(S.REVIEW_REQUIRED, ODD))),
        CLEAN,
        to(S.REVIEW_REQUIRED, ODD, **FORGET, clean=True),
        "review by ann: odd",
    ),
    (
        "its ending was worse than what a person wanted",
        facts(lane(state=S.LEASED, **draining(S.REVIEW_REQUIRED, ODD))),
        BAD,
        to(S.QUARANTINED, PROMPT, **FORGET, clean=False),
        BAD.reason,
    ),
    (
        "a stale one is resolved",
        facts(lane(state=S.STALE, clean=False)),
        replace(CLEAN, cause=Cause.RESOLVED),
        to(S.AVAILABLE, CLEAN_END, **FORGET, clean=True),
        None,
    ),
    ("a person has decided already", facts(lane(state=S.DISABLED)), BAD, {}, None),
]


@pytest.mark.parametrize(("name", "known", "verdict", "changes", "review"), ENDS, ids=[row[0] for row in ENDS])
def test_an_ending_is_applied_to_its_profile(
    name: str, known: LaneFacts, verdict: ProfileVerdict, changes: dict[str, object], review: str | None
) -> None:
    assert profile_ended(known, verdict, NOW) == (changes, review)


@pytest.mark.parametrize("before", [S.LEASED, S.STALE])
@pytest.mark.parametrize("after", [S.AVAILABLE, S.STALE, S.REVIEW_REQUIRED, S.QUARANTINED, S.DISABLED])
@pytest.mark.parametrize("cause", Cause)
def test_every_move_of_an_ending_is_in_the_table(before: ProfileState, after: ProfileState, cause: Cause) -> None:
    if before is not after:
        assert cause_of(before, after, cause) in TRANSITIONS[before, after]


def test_a_profile_is_stale_once_the_last_of_its_holders_is_lost() -> None:
    assert profile_expired(facts(LEASED, UNRESOLVED), WHY, NOW) == to(S.STALE, WHY, clean=False)
    assert profile_expired(facts(LEASED, UNRESOLVED, replace(SHARED, token=Token(2))), WHY, NOW) == {}
    assert profile_expired(facts(lane(state=S.DISABLED), UNRESOLVED), WHY, NOW) == {}


@pytest.mark.parametrize(
    ("newest", "engine", "after"),
    [(None, None, {}), (150, None, {}), (None, 150, {"engine": 150}), (149, 150, {"engine": 150}), (151, 150, {})],
)
def test_a_profile_remembers_the_newest_browser_that_opened_it(
    newest: int | None, engine: int | None, after: dict[str, int]
) -> None:
    assert opened_by(lane(engine=newest), engine) == after


def test_a_profile_that_was_removed_goes_on_where_it_was() -> None:
    profile = Profile(profile_id=ProfileId("p1"), account_id=AccountId("shop"))
    before = RetiredLane(
        token=Token(7),
        state=S.QUARANTINED,
        state_reason="a prompt",
        state_cause=C.SECURITY_PROMPT,
        state_data={"stop_reason": "SECURITY_PROMPT"},
        clean=False,
        engine=120,
        ban_status=BanStatus.BANNED,
        snapshot=None,
        saved=False,
        unsaved_reason="",
        home="rack1",
        revision=9,
    )
    again = new_lane(profile, before, NOW)
    assert (again.token, again.state, again.state_reason, again.clean) == (7, S.QUARANTINED, "a prompt", False)
    assert (again.engine, again.revision, again.ban_status) == (120, 10, BanStatus.BANNED)
    assert again.home == "rack1"
    assert (again.state_cause, again.state_data) == (C.SECURITY_PROMPT, {"stop_reason": "SECURITY_PROMPT"})
    fine = new_lane(profile, replace(before, state=S.AVAILABLE), NOW)
    assert (fine.token, fine.state, fine.state_reason, fine.clean) == (7, S.AVAILABLE, "added to the fleet", True)
    fresh = new_lane(profile, None, NOW)
    assert (fresh.token, fresh.state, fresh.revision, fresh.engine) == (0, S.AVAILABLE, 0, None)
    assert fresh.state_cause is fine.state_cause is C.ADDED


@pytest.mark.parametrize(
    ("routing", "shared", "key"),
    [
        (Routing.PROFILE, False, "profile:p1"),
        (Routing.ACCOUNT, True, "account:shop"),
        (Routing.ACCOUNT_TASK, True, "account:shop:task:visit"),
        (Routing.ACCOUNT_TASK, False, "account:shop"),
    ],
)
def test_a_run_holds_the_key_that_its_account_asks_for(routing: Routing, shared: bool, key: str) -> None:
    known = facts(lane())
    known.account = replace(known.account, routing=routing)
    assert key_of(known, task="visit", shared=shared) == key
