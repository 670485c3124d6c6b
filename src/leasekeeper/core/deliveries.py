"""Webhook deliveries: the outbox, written in the same commit as the change that it reports, and what becomes of it.

Pure: what came of an attempt arrives as a value. A delivery is pending until its receiver said that it has it
(delivered) or it was tried for the last time (exhausted). From there only a person sends it again.
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
# Later by up to this part of the delay, by chance: what failed together is not tried together again.
SPREAD: Final = 0.1
LONGEST_WAIT: Final = timedelta(days=1)
BRIDGE: Final = "bridge://"
GONE: Final = 410
CLOSED: Final = "not sent: its endpoint is disabled or was removed"
VANISHED: Final = "whoever sent it last vanished before it was known what came of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to a webhook. While somebody sends it, it is due again only after their time.

    `answer` is what the last attempt led to, as a sentence. `host` is where it goes: no host delays the others.
    It goes to the callback_url of a job, or to a registered endpoint (`endpoint_id`), signed with that one's secret.
    `attempts` counts all of them, so that none is taken for another; `spent` are those from before a person had it sent
    once more.
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
        """How often it was tried since it was written, or since a person had it sent once more."""
        return self.attempts - self.spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of sending a delivery for the `number`th time. No `status`: there was no answer at all."""

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
    """The delivery while somebody sends it. If they vanish, it is due again when their time is over.

    Exhausted, if all who were to send it vanished: it must not be tried for ever.
    """
    if delivery.tries >= MAX_ATTEMPTS:
        before = f"; the answer before: {delivery.answer}" if delivery.answer else ""
        return _over(delivery, DeliveryState.EXHAUSTED, VANISHED + before, now)
    return replace(delivery, attempts=delivery.attempts + 1, attempted_at=now, due_at=now + reserve_for)


def unsendable(delivery: Delivery, *, now: datetime) -> Delivery:
    """The delivery of an endpoint that takes none any more."""
    return _over(delivery, DeliveryState.EXHAUSTED, CLOSED, now)


def after_attempt(delivery: Delivery, attempt: Attempt, *, now: datetime, jitter: float) -> Delivery | None:
    """The delivery after an attempt; None if it makes no difference any more.

    That a receiver has it counts whenever it is reported. That it does not counts only if nobody has taken the delivery
    since. `jitter` is a number from 0 to 1.
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
    """The delivery as a person sends it once more: from the beginning, now. One that was never tried and is due will be
    sent anyway."""
    if delivery.state is DeliveryState.PENDING and not delivery.tries and delivery.due_at <= now:
        raise IllegalTransition(
            f"webhook {delivery.delivery_id} is pending and was not tried yet: there is nothing to replay",
            state=delivery.state,
            allowed=(),
        )
    return replace(delivery, state=DeliveryState.PENDING, due_at=now, spent=delivery.attempts, answer="", ended_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRequest:
    """What a sender wants of the webhook messages that are due: at most `limit`, at most `each` per host.

    `room` says of some hosts that they get fewer than `each`. Those in `slow` get at most `slow_places` together.
    `callbacks` and `endpoints`: whether the sender can sign messages to the callback_url of a job, and messages to
    registered endpoints. What it cannot sign is left to whoever can.
    `bridge`: only results that go back through the bridge of that name. Without it, none of any bridge.
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
    """Which of the messages a sender takes: the first of each host before any second one, and of each round those that
    have been due longest. Hosts that are slow share their few places; results for a bridge are not for this sender."""
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
