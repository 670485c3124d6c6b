"""What becomes of a webhook message: every answer at every attempt."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.core.deliveries import (
    DELAYS,
    LONGEST_WAIT,
    MAX_ATTEMPTS,
    SPREAD,
    VANISHED,
    Attempt,
    Delivery,
    DeliveryRequest,
    DeliveryState,
    Due,
    after_attempt,
    bridge_url,
    chosen,
    host_of,
    replayed,
    taken,
)
from leasekeeper.core.ids import JobId
from leasekeeper.errors import IllegalTransition

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
LATER = NOW + timedelta(seconds=9)


def owed(**fields: object) -> Delivery:
    return Delivery(
        **{  # type: ignore[arg-type] # the fields that a test wants
            "delivery_id": "d1",
            "job_id": JobId("j1"),
            "type": "job.completed",
            "url": "https://hook.test/x",
            "host": "hook.test",
            "body": {},
            "created_at": NOW,
            "due_at": NOW,
            **fields,
        }
    )


def attempt(number: int, status: int | None, **more: object) -> Attempt:
    return Attempt(delivery_id="d1", number=number, status=status, answer="said", **more)  # type: ignore[arg-type] # as above


def test_the_delays_grow_and_end_after_three_days() -> None:
    assert list(DELAYS) == sorted(DELAYS)
    assert timedelta(days=3) < sum(DELAYS, timedelta()) < timedelta(days=4)


def test_who_takes_it_has_it_to_himself_for_a_while() -> None:
    held = taken(owed(), now=NOW, reserve_for=timedelta(seconds=60))
    assert (held.attempts, held.attempted_at, held.due_at) == (1, NOW, NOW + timedelta(seconds=60))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("number", range(1, MAX_ATTEMPTS + 1))
def test_any_answer_of_the_200s_delivers(number: int, status: int) -> None:
    after = after_attempt(owed(attempts=number), attempt(number, status), now=LATER, jitter=0.5)
    assert after is not None
    assert (after.state, after.ended_at, after.answer) == (DeliveryState.DELIVERED, LATER, "said")


@pytest.mark.parametrize("status", [None, 100, 199, 300, 301, 308, 400, 401, 404, 408, 429, 500, 503, 599])
@pytest.mark.parametrize("number", range(1, MAX_ATTEMPTS))
def test_any_other_answer_is_tried_again_after_the_delay_of_its_attempt(number: int, status: int | None) -> None:
    for jitter in (0.0, 1.0):
        after = after_attempt(owed(attempts=number), attempt(number, status), now=LATER, jitter=jitter)
        assert after is not None
        assert (after.state, after.ended_at, after.answer) == (DeliveryState.PENDING, None, "said")
        assert after.due_at - LATER == DELAYS[number - 1] * (1 + SPREAD * jitter)


@pytest.mark.parametrize("status", [None, 302, 404, 503])
def test_the_last_attempt_exhausts_it(status: int | None) -> None:
    last = owed(attempts=MAX_ATTEMPTS)
    after = after_attempt(last, attempt(MAX_ATTEMPTS, status), now=LATER, jitter=0)
    assert after is not None
    assert (after.state, after.ended_at) == (DeliveryState.EXHAUSTED, LATER)


def test_a_receiver_that_is_gone_for_good_is_not_asked_again() -> None:
    after = after_attempt(owed(attempts=1), attempt(1, 410), now=LATER, jitter=0)
    assert after is not None
    assert after.state is DeliveryState.EXHAUSTED


@pytest.mark.parametrize(
    ("asked", "delay"),
    [
        (timedelta(seconds=1), DELAYS[0]),
        (timedelta(minutes=2), timedelta(minutes=2)),
        (timedelta(days=9), LONGEST_WAIT),
    ],
)
def test_a_receiver_may_ask_for_more_time_but_not_for_ever(asked: timedelta, delay: timedelta) -> None:
    after = after_attempt(owed(attempts=1), attempt(1, 429, retry_after=asked), now=LATER, jitter=0)
    assert after is not None
    assert after.due_at == LATER + delay


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_attempt_that_was_overtaken_counts_only_if_it_was_accepted(number: int) -> None:
    delivery = owed(attempts=3)
    assert after_attempt(delivery, attempt(number, 500), now=LATER, jitter=0) is None
    assert after_attempt(delivery, attempt(number, 410), now=LATER, jitter=0) is None
    accepted = after_attempt(delivery, attempt(number, 200), now=LATER, jitter=0)
    assert accepted is not None
    assert accepted.state is DeliveryState.DELIVERED


@pytest.mark.parametrize("status", [None, 200, 410, 500])
def test_what_was_delivered_stays_so(status: int | None) -> None:
    ended = owed(attempts=1, state=DeliveryState.DELIVERED, ended_at=NOW)
    assert after_attempt(ended, attempt(1, status), now=LATER, jitter=0) is None


def test_what_was_given_up_is_delivered_after_all_if_the_receiver_has_it() -> None:
    ended = owed(attempts=2, state=DeliveryState.EXHAUSTED, ended_at=NOW)
    assert after_attempt(ended, attempt(2, 500), now=LATER, jitter=0) is None
    after = after_attempt(ended, attempt(1, 200), now=LATER, jitter=0)
    assert after is not None
    assert (after.state, after.ended_at) == (DeliveryState.DELIVERED, LATER)


def test_what_nobody_lives_to_tell_of_is_not_tried_for_ever() -> None:
    delivery = owed()
    for number in range(1, MAX_ATTEMPTS + 1):
        delivery = taken(delivery, now=NOW, reserve_for=timedelta(0))
        assert (delivery.state, delivery.attempts) == (DeliveryState.PENDING, number)
    over = taken(delivery, now=LATER, reserve_for=timedelta(0))
    assert (over.state, over.answer, over.ended_at) == (DeliveryState.EXHAUSTED, VANISHED, LATER)
    assert over.attempts == MAX_ATTEMPTS
    heard = taken(replace(delivery, answer="HTTP 500"), now=LATER, reserve_for=timedelta(0))
    assert heard.answer == f"{VANISHED}; the answer before: HTTP 500"


def test_a_person_sends_it_from_the_beginning() -> None:
    again = replayed(owed(attempts=7, state=DeliveryState.EXHAUSTED, ended_at=NOW, answer="HTTP 500"), now=LATER)
    assert (again.state, again.tries, again.due_at, again.ended_at) == (DeliveryState.PENDING, 0, LATER, None)
    first = taken(again, now=LATER, reserve_for=timedelta(0))
    assert (first.attempts, first.tries) == (8, 1), "no two attempts have one number"
    failed = after_attempt(first, attempt(8, 500), now=LATER, jitter=0)
    assert failed is not None
    assert failed.due_at - LATER == DELAYS[0]


def test_an_attempt_from_before_the_replay_cannot_fail_it() -> None:
    again = replayed(owed(attempts=1), now=LATER)
    for delivery in (again, taken(again, now=LATER, reserve_for=timedelta(0))):
        assert after_attempt(delivery, attempt(1, 410), now=LATER, jitter=0) is None


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Hook.Test/a?b=c", "hook.test"),
        ("http://hook.test:8080", "hook.test:8080"),
        ("https://[::1]:9/x#y", "[::1]:9"),
        ("https://hook.test?key=1", "hook.test"),
    ],
)
def test_the_host_is_what_stands_in_the_address(url: str, host: str) -> None:
    assert host_of(url) == host


def due(*messages: str) -> list[Due]:
    """Messages as `host/second`: the later the second, the shorter each has been due."""
    return [Due(each, each.split("/")[0], NOW + timedelta(seconds=int(each.split("/")[1]))) for each in messages]


@pytest.mark.parametrize(
    ("messages", "request_", "expected"),
    [
        ("", {}, ""),
        ("a/1 a/2 a/3 b/9", {}, "a/1 b/9 a/2 a/3"),
        ("a/3 b/2 c/1", {}, "c/1 b/2 a/3"),
        ("a/1 a/2 b/3", {"limit": 2}, "a/1 b/3"),
        ("a/1 a/2 a/3", {"each": 2}, "a/1 a/2"),
        ("a/1 a/2 b/3 b/4", {"room": {"a": 1}}, "a/1 b/3 b/4"),
        ("a/1 b/2", {"room": {"a": 0}}, "b/2"),
        ("a/1 b/2 c/3 c/4", {"slow": {"a", "c"}, "slow_places": 1}, "a/1 b/2"),
        ("a/1 b/2 c/3 c/4", {"slow": {"a", "c"}, "slow_places": 2}, "a/1 b/2 c/3"),
        ("a/1 b/2", {"slow": {"a"}}, "b/2"),
    ],
)
def test_no_host_delays_the_others(messages: str, request_: dict[str, object], expected: str) -> None:
    request = DeliveryRequest(**{"limit": 10, "each": 10, **request_})  # type: ignore[arg-type] # as above
    assert chosen(due(*messages.split()), request) == expected.split()
    assert chosen(reversed(due(*messages.split())), request) == expected.split()


def test_results_for_a_bridge_are_left_to_the_bridge() -> None:
    results = [Due("d1", bridge_url("jobs"), NOW), Due("d2", "a", LATER)]
    assert chosen(results, DeliveryRequest(limit=10, each=10)) == ["d2"]


def test_what_will_be_sent_anyway_is_not_replayed() -> None:
    with pytest.raises(IllegalTransition, match="not tried yet") as refused:
        replayed(owed(), now=NOW)
    assert (refused.value.state, refused.value.allowed) == (DeliveryState.PENDING, ())
    assert replayed(owed(due_at=LATER), now=NOW).due_at == NOW
    assert replayed(owed(attempts=1), now=NOW).tries == 0
