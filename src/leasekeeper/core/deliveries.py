"""Webhook deliveries, the outbox: each is written in the same commit as the change that it reports.

Pure: the result of an attempt arrives as a value. A delivery is pending until its receiver acknowledged it (delivered)
or its last attempt failed (exhausted). After that only a person has it sent again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from leasekeeper.core.ids import JobId
from leasekeeper.errors import IllegalTransition


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"


# How long after each attempt the next one is made: soon, then rarer, for three days in all.
DELAYS: Final = tuple(
    timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
MAX_ATTEMPTS: Final = len(DELAYS) + 1
# Maximum jitter, as a share of the delay: messages that failed together are not retried together.
SPREAD: Final = 0.1
LONGEST_WAIT: Final = timedelta(days=1)
BRIDGE: Final = "bridge://"
GONE: Final = 410
CLOSED: Final = "not sent: its endpoint is disabled or was removed"
VANISHED: Final = "its last sender vanished before it reported a result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to a webhook. While a sender has it, `due_at` is the end of that sender's reservation.

    `answer` is the result of the last attempt, as a sentence. `host` is where it goes: no host delays the others. It
    goes to the callback_url of a job, or to a registered endpoint (`endpoint_id`), signed with that endpoint's secret.
    `attempts` counts all attempts, so that each has a number of its own; `spent` is how many of them were made before a
    person had it sent again.
    """

    seq: int = 0
    delivery_id: str
    job_id: JobId | None = None
    endpoint_id: str | None = None
    type: str
    url: str
    host: str
    body: Mapping[str, object]
    traceparent: str | None = None
    created_at: datetime
    state: DeliveryState = DeliveryState.PENDING
    due_at: datetime
    attempts: int = 0
    spent: int = 0
    attempted_at: datetime | None = None
    answer: str = ""
    ended_at: datetime | None = None

    @property
    def tries(self) -> int:
        """Attempts since it was written, or since a person had it sent again."""
        return self.attempts - self.spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The result of the `number`th attempt to send a delivery. `status` None: there was no answer at all."""

    delivery_id: str
    number: int
    answer: str
    status: int | None = None
    retry_after: timedelta | None = None

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def bridge_url(bridge: str) -> str:
    """The address of results that go back through a bridge, to the queue that it takes jobs from."""
    return BRIDGE + bridge


def host_of(url: str) -> str:
    """Host and port as the URL has them. A bridge is one host."""
    return url if url.startswith(BRIDGE) else urlsplit(url).netloc.lower()


def taken(delivery: Delivery, *, now: datetime, reserve_for: timedelta) -> Delivery:
    """The delivery, reserved for a sender. If the sender vanishes, it is due again after `reserve_for`.

    Exhausted, if the sender of the last allowed attempt vanished: it must not be tried for ever.
    """
    if delivery.tries >= MAX_ATTEMPTS:
        before = f"; the answer before: {delivery.answer}" if delivery.answer else ""
        return _over(delivery, DeliveryState.EXHAUSTED, VANISHED + before, now)
    return replace(delivery, attempts=delivery.attempts + 1, attempted_at=now, due_at=now + reserve_for)


def unsendable(delivery: Delivery, *, now: datetime) -> Delivery:
    """The delivery, exhausted because its endpoint is disabled or was removed."""
    return _over(delivery, DeliveryState.EXHAUSTED, CLOSED, now)


def after_attempt(delivery: Delivery, attempt: Attempt, *, now: datetime, jitter: float) -> Delivery | None:
    """The delivery after an attempt; None if the result changes nothing.

    A success counts whenever it is reported; a failure only if nobody has taken the delivery since. `jitter` is a
    number from 0 to 1.
    """
    if delivery.state is DeliveryState.DELIVERED:
        return None
    if attempt.accepted:
        return _over(delivery, DeliveryState.DELIVERED, attempt.answer, now)
    if delivery.state is not DeliveryState.PENDING or delivery.attempts != attempt.number or not delivery.tries:
        return None
    if attempt.status == GONE or delivery.tries >= MAX_ATTEMPTS:
        return _over(delivery, DeliveryState.EXHAUSTED, attempt.answer, now)
    asked = min(attempt.retry_after or timedelta(0), LONGEST_WAIT)
    delay = max(DELAYS[delivery.tries - 1], asked) * (1 + SPREAD * jitter)
    return replace(delivery, answer=attempt.answer, due_at=now + delay)


def _over(delivery: Delivery, state: DeliveryState, answer: str, now: datetime) -> Delivery:
    return replace(delivery, state=state, answer=answer, due_at=now, ended_at=now)


def replayed(delivery: Delivery, *, now: datetime) -> Delivery:
    """The delivery after a person had it sent again: due now, with all its attempts. Raises IllegalTransition if it is
    due and was never tried: it will be sent anyway."""
    if delivery.state is DeliveryState.PENDING and not delivery.tries and delivery.due_at <= now:
        raise IllegalTransition(
            f"webhook {delivery.delivery_id} is pending and was not tried yet: there is nothing to replay",
            state=delivery.state,
            allowed=(),
        )
    return replace(delivery, state=DeliveryState.PENDING, due_at=now, spent=delivery.attempts, answer="", ended_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRequest:
    """A sender's request for webhook messages that are due: at most `limit`, at most `each` per host.

    `room` sets a lower maximum for some hosts. The hosts in `slow` get at most `slow_places` together. `callbacks` and
    `endpoints`: whether the sender can sign messages to the callback_url of a job, and messages to registered
    endpoints. Messages that it cannot sign are left to other senders. `bridge`: only results that go back through the
    bridge of that name; None: no results for bridges.
    """

    limit: int
    each: int
    room: Mapping[str, int] = field(default_factory=dict)
    slow: Collection[str] = ()
    slow_places: int = 0
    callbacks: bool = True
    endpoints: bool = True
    bridge: str | None = None


class Due(NamedTuple):
    """A message that is due."""

    delivery_id: str
    host: str
    due_at: datetime


def chosen(due: Iterable[Due], request: DeliveryRequest) -> list[str]:
    """The ids of the messages that a sender takes: the first of each host before any second one, and within each such
    round the longest due first. Slow hosts share their few places; results for a bridge are left out."""
    places: dict[str, int] = {}
    ranked = []
    for each in sorted((each for each in due if not each.host.startswith(BRIDGE)), key=lambda each: each.due_at):
        places[each.host] = place = places.get(each.host, 0) + 1
        if place <= request.room.get(each.host, request.each):
            ranked.append((place, each.due_at, each.delivery_id, each.host))
    found, slow = list[str](), request.slow_places
    for _, _, delivery_id, host in sorted(ranked):
        if host in request.slow:
            if slow <= 0:
                continue
            slow -= 1
        found.append(delivery_id)
    return found[: request.limit]
