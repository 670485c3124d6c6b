"""Lease arithmetic: who may still write, how the durations scale, and the form of ids."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.ids import LeaseId, ProfileId, Token, is_id
from leasekeeper.core.leases import (
    LIVE,
    LeaseStatus,
    Refusal,
    Timing,
    browser_overdue,
    clock_jump,
    expired,
    forgotten,
    is_live,
    lease_id_of,
    refusal,
    renewed,
    silent_for,
)
from leasekeeper.core.workers import Worker, reports
from tests.unit.records import NOW, a_lease, before, seconds


@pytest.mark.parametrize(
    ("before_it", "said", "after"),
    [
        (LeaseStatus.RUNNING, LeaseStatus.RUNNING, LeaseStatus.RUNNING),
        (LeaseStatus.RUNNING, LeaseStatus.RELEASING, LeaseStatus.RELEASING),
        (LeaseStatus.RELEASING, LeaseStatus.RUNNING, LeaseStatus.RELEASING),
    ],
)
def test_a_heartbeat_gives_a_lease_its_ttl_again(before_it: LeaseStatus, said: LeaseStatus, after: LeaseStatus) -> None:
    lease = renewed(a_lease(status=before_it, ttl_ms=90_000, expires_at=before(-1)), said, NOW)
    assert (lease.heartbeat_at, lease.expires_at, lease.status) == (NOW, NOW + seconds(90), after)


@pytest.mark.parametrize(
    ("before_it", "after"),
    [
        (LeaseStatus.RUNNING, LeaseStatus.EXPIRED),
        (LeaseStatus.RELEASING, LeaseStatus.EXPIRED),
        (LeaseStatus.REVOKED, LeaseStatus.REVOKED),
    ],
)
def test_a_lease_that_nobody_released_has_expired_unless_a_person_took_it(
    before_it: LeaseStatus, after: LeaseStatus
) -> None:
    lease = expired(a_lease(status=before_it, expires_at=before(5)))
    assert (lease.status, lease.ended_at, lease.unresolved) == (after, before(5), True)


def test_the_defaults_are_those_of_the_product() -> None:
    timing = Timing()
    assert timing.ttl == seconds(60)
    assert timing.renew_every == seconds(15)
    assert timing.holder_stops_after == seconds(40)
    assert timing.lock_delay == seconds(15)


def test_a_lock_timeout_scales_the_other_three_up_to_a_renewal_every_minute() -> None:
    assert Timing().scaled(seconds(180)) == Timing(
        ttl=seconds(180), renew_every=seconds(45), holder_stops_after=seconds(120), lock_delay=seconds(45)
    )
    assert Timing().scaled(seconds(900)) == Timing(
        ttl=seconds(900), renew_every=seconds(60), holder_stops_after=seconds(160), lock_delay=seconds(60)
    )


def test_the_bound_of_renewals_is_a_setting_and_shortens_no_lease_of_the_usual_length() -> None:
    often = Timing(renew_at_least_every=seconds(20)).scaled(seconds(900))
    assert (often.renew_every, often.holder_stops_after) == (seconds(20), seconds(160) / 3)
    seldom = Timing(ttl=seconds(800), renew_every=seconds(200), holder_stops_after=seconds(500))
    assert seldom.scaled(seconds(800)) == seldom
    assert seldom.scaled(seconds(3600)).renew_every == seconds(200)


@pytest.mark.parametrize(("quiet", "silent"), [(15, False), (90, False), (91, True), (800, True)])
def test_a_holder_is_silent_when_half_a_renewal_more_than_one_is_overdue(quiet: float, silent: bool) -> None:
    lease = a_lease(heartbeat_at=before(quiet), renew_ms=60_000, expires_at=NOW + seconds(900 - quiet))
    assert silent_for(lease, NOW) == (seconds(quiet) if silent else None)
    assert silent_for(replace(lease, ended_at=NOW), NOW) is None


@given(st.integers(min_value=5, max_value=86_400))
def test_a_holder_always_renews_before_it_stops_and_stops_before_it_expires(ttl: int) -> None:
    timing = Timing().scaled(seconds(ttl))
    assert timedelta(0) < timing.renew_every < timing.holder_stops_after < timing.ttl == seconds(ttl)
    assert timing.lock_delay > timedelta(0)


@given(st.integers(min_value=5, max_value=240), st.integers(min_value=5, max_value=240))
def test_scaling_twice_is_scaling_once(first: int, second: int) -> None:
    once, twice = Timing().scaled(seconds(second)), Timing().scaled(seconds(first)).scaled(seconds(second))
    assert abs(once.renew_every - twice.renew_every) < timedelta(milliseconds=1) * second
    assert once.ttl == twice.ttl


@pytest.mark.parametrize("status", LeaseStatus)
def test_a_lease_is_live_while_it_runs_or_is_being_released(status: LeaseStatus) -> None:
    assert is_live(a_lease(status=status), NOW) is (status in {LeaseStatus.RUNNING, LeaseStatus.RELEASING})


def test_live_statuses_are_running_and_releasing() -> None:
    assert {LeaseStatus.RUNNING, LeaseStatus.RELEASING} == LIVE


def test_a_lease_is_dead_at_its_expiry_before_any_sweeper_saw_it() -> None:
    lease = a_lease(status=LeaseStatus.RUNNING)
    assert is_live(lease, lease.expires_at - timedelta(microseconds=1))
    assert not is_live(lease, lease.expires_at)


def test_the_live_lease_with_its_own_token_may_write() -> None:
    lease = a_lease()
    assert refusal(lease, lease.ref, NOW) is None


def test_a_write_without_a_lease_is_refused() -> None:
    assert refusal(None, a_lease().ref, NOW) is Refusal.NO_SUCH_LEASE


@pytest.mark.parametrize("changes", [{"token": Token(6)}, {"token": Token(8)}, {"profile_id": ProfileId("other")}])
def test_a_foreign_token_is_refused(changes: dict[str, Any]) -> None:
    foreign = a_lease(**changes).ref
    assert refusal(a_lease(), foreign, NOW) is Refusal.WRONG_TOKEN


@pytest.mark.parametrize("status", sorted(set(LeaseStatus) - LIVE))
def test_an_ended_lease_writes_nothing(status: LeaseStatus) -> None:
    lease = a_lease(status=status)
    assert refusal(lease, lease.ref, NOW) == Refusal(status)


def test_an_expired_lease_writes_nothing() -> None:
    lease = a_lease(expires_at=NOW)
    assert refusal(lease, lease.ref, NOW) is Refusal.OVERDUE


@given(st.sampled_from(LeaseStatus), st.integers(min_value=-100, max_value=100))
def test_a_write_is_accepted_exactly_while_the_lease_is_live(status: LeaseStatus, left: int) -> None:
    lease = a_lease(status=status, expires_at=NOW + seconds(left))
    assert (refusal(lease, lease.ref, NOW) is None) is is_live(lease, NOW)


@pytest.mark.parametrize(
    ("store", "least", "limit", "expected"),
    [
        (5.0, 5.0, 5.0, None),
        (9.9, 5.0, 5.0, None),
        (10.0, 5.0, 5.0, None),
        (10.1, 5.0, 5.0, seconds(5.1)),
        (-3600.0, 5.0, 5.0, seconds(-3605)),
        (5.0, 5.0, 60.0, None),
        (60.0, 5.0, 60.0, None),
        (65.1, 5.0, 60.0, seconds(5.1)),
        (-0.1, 5.0, 60.0, seconds(-5.1)),
    ],
)
def test_a_clock_jumped_if_it_strays_further_than_tolerated(
    store: float, least: float, limit: float, expected: timedelta | None
) -> None:
    assert clock_jump(seconds(store), seconds(least), seconds(limit), seconds(5)) == expected


def test_a_browser_is_overdue_after_its_keeper_had_to_end_it_and_before_the_lease_expires() -> None:
    silent = a_lease(ttl_ms=60_000, heartbeat_at=before(56))
    assert browser_overdue(silent, NOW, Timing())
    assert not browser_overdue(silent, before(1), Timing())
    assert not browser_overdue(a_lease(ttl_ms=600_000, heartbeat_at=before(400)), NOW, Timing())


@pytest.mark.parametrize("status", sorted(set(LeaseStatus) - LIVE))
def test_the_browser_of_an_ended_lease_is_overdue_at_once(status: LeaseStatus) -> None:
    assert browser_overdue(a_lease(status=status, heartbeat_at=NOW), NOW, Timing())


@pytest.mark.parametrize("text", ["a", "store_us_018", "A.b-c_9", "-x", "_", "x" * 128])
def test_ids_are_short_plain_words(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("text", ["", ".hidden", "..", "a/b", "a b", "a\n", "ä", "x" * 129, "a\0", "a:b"])
def test_other_texts_are_no_ids(text: str) -> None:
    assert not is_id(text)


def a_worker(**changes: Any) -> Worker:
    usual = {"worker_id": "w", "incarnation": "i", "pool": "p", "tasks": (), "started_at": before(900)}
    return Worker(**{**usual, "heartbeat_at": before(30), **changes})


def test_a_worker_counts_as_there_while_it_reports() -> None:
    assert reports(a_worker(), NOW, seconds(90))
    assert not reports(a_worker(heartbeat_at=before(90)), NOW, seconds(90))
    assert not reports(a_worker(stopped_at=before(1)), NOW, seconds(90))


@pytest.mark.parametrize(
    ("token", "highest", "doubtful_up_to", "expected"),
    [(6, 5, 0, True), (5, 5, 0, False), (4, 5, 0, False), (6, 1_001, 1_000, True), (0, 1_001, 1_000, False)],
)
def test_a_lease_was_forgotten_if_only_the_store_can_have_granted_it(
    token: int, highest: int, doubtful_up_to: int, expected: bool
) -> None:
    ref = replace(a_lease().ref, token=Token(token), lease_id=lease_id_of(a_lease().profile_id, Token(token)))
    assert forgotten(ref, Token(highest), doubtful_up_to) is expected
    assert not forgotten(replace(ref, lease_id=LeaseId("p1:999")), Token(highest), doubtful_up_to)
