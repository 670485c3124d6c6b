"""Sends webhooks: takes due messages, posts them, records the outcome. Any number of processes may do so at once.

At least once: a message is delivered when its receiver responded with 2xx and the store has recorded that. If the
process died before, or the response was lost, the message is sent again with the same id.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.config import Config
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryRequest, DeliveryState
from leasekeeper.errors import InputError, NoWebhookSecret
from leasekeeper.ports import Store
from leasekeeper.runtime import tracing
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.secrets import endpoint_keys_of, webhook_settings
from leasekeeper.webhooks.message import Keys, body_of, read_keys, signature_headers
from leasekeeper.webhooks.sending import Answer, Network, post, read_networks

_LOG = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 64
MAX_PER_HOST: Final = 4
# Limits for hosts without a response to the last attempt: messages to all of them together, and hosts in memory.
MAX_TO_UNRESPONSIVE: Final = 16
MAX_QUERIES: Final = 20
MAX_REMEMBERED: Final = 10_000
MIN_PAUSE_SECONDS: Final = 0.1
STOP_SECONDS: Final = 5.0
PASS_SECONDS: Final = 5.0
LOG_EVERY_SECONDS: Final = 300.0
LATE: Final = timedelta(minutes=1)

_WHAT: Final = "webhooks could not be sent"
_Sending = asyncio.Task[Attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How one message is sent. Created once, so that a wrong setting is an error at the start.

    `keys` sign messages to the callback_url of a job, `endpoint_keys` finds those of a registered endpoint. None: this
    process cannot sign such messages, and leaves them to others.
    """

    keys: Keys | None
    endpoint_keys: Callable[[str], Awaitable[Keys]] | None = None
    networks: tuple[Network, ...]
    timeout: timedelta

    @property
    def complete(self) -> bool:
        """Whether it can sign every message."""
        return self.keys is not None and self.endpoint_keys is not None

    async def _keys(self, delivery: Delivery) -> Keys:
        if delivery.endpoint_id is not None and self.endpoint_keys is not None:
            return await self.endpoint_keys(delivery.endpoint_id)
        if delivery.endpoint_id is None and self.keys is not None:
            return self.keys
        raise NoWebhookSecret("this process has no secret to sign it with")

    async def send(self, delivery: Delivery) -> Attempt:
        """One attempt. Never raises: an attempt without a recorded outcome would be retried for ever."""
        try:
            body = body_of(delivery)
            headers = signature_headers(await self._keys(delivery), delivery.delivery_id, datetime.now(UTC), body)
            answer = await self._post(delivery, headers, body)
        except Exception as error:  # noqa: BLE001 - see above
            kind = error.message if isinstance(error, InputError) else type(error).__name__
            _LOG.warning(
                "webhook %s could not be sent: %s",
                delivery.delivery_id,
                kind,
                extra={"delivery_id": delivery.delivery_id},
            )
            return Attempt(delivery_id=delivery.delivery_id, number=delivery.attempts, answer=f"not sent: {kind}")
        return Attempt(
            delivery_id=delivery.delivery_id,
            number=delivery.attempts,
            status=answer.status,
            answer=answer.message,
            retry_after=answer.retry_after,
        )

    async def _post(self, delivery: Delivery, headers: dict[str, str], body: bytes) -> Answer:
        """The POST itself, in the trace of its job: the receiver gets the span as `traceparent`."""
        ids = {"delivery_id": delivery.delivery_id, "job_id": delivery.job_id, "endpoint_id": delivery.endpoint_id}
        with tracing.step(f"webhook {delivery.type}", parent=delivery.traceparent, kind="CLIENT", **ids) as traced:
            parent = tracing.current() or delivery.traceparent
            sent = headers if parent is None else {**headers, "traceparent": parent}
            seconds = self.timeout.total_seconds()
            answer = await post(delivery.url, sent, body, seconds=seconds, networks=self.networks)
            traced.note(status=answer.status, attempt=delivery.attempts)
            if answer.status is None or not 200 <= answer.status < 300:
                traced.fail("no_response" if answer.status is None else str(answer.status))
            return answer


async def sender_of(store: Store, config: Config) -> Sender | None:
    """The sender for these settings; None if it could sign nothing. Raises InputError if a setting is wrong."""
    settings = await webhook_settings(store, config)
    networks = read_networks(settings.networks)
    keys = read_keys(settings.secret)
    endpoint_keys = await endpoint_keys_of(store, config.secrets)
    if keys is None and endpoint_keys is None:
        return None
    return Sender(keys=keys, endpoint_keys=endpoint_keys, networks=networks, timeout=settings.timeout)


async def check_somebody_sends(store: Store) -> None:
    """For processes without a secret. Raises InputError if messages are overdue and no other process sends them."""
    stats = await store.stats()
    late = stats.webhooks_due_at is not None and stats.webhooks_due_at < stats.now - LATE
    tried = stats.webhooks_tried_at is not None and stats.webhooks_tried_at > stats.now - LATE
    if late and not tried:
        raise NoWebhookSecret(
            "webhooks are overdue, no process sends them, and LEASEKEEPER_WEBHOOK_SECRET is not set here "
            "(or LEASEKEEPER_SECRET_KEY, if they go to registered endpoints)"
        )


@dataclass(slots=True)
class Sent:
    """The result of one pass: messages that were delivered, and attempts that failed."""

    delivered: int = 0
    failed: int = 0


@dataclass(slots=True)
class Outbox:
    """Sends the messages of one store from one process, within limits per host."""

    store: Store
    config: Config
    sender: Sender
    trouble: FailureLog = field(default_factory=FailureLog)
    _sending: dict[_Sending, Delivery] = field(default_factory=dict)
    _unrecorded: list[Attempt] = field(default_factory=list)
    _unresponsive: set[str] = field(default_factory=set)
    _failing: dict[str, float] = field(default_factory=dict)  # host → when its failure was last logged
    _after: str = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set. Attempts in progress then have a few seconds left."""
        try:
            while not stop.is_set():
                try:
                    await self._record_and_take(Sent())
                    self.trouble.over(_WHAT)
                except Exception as error:  # noqa: BLE001 - nobody else would go on
                    self.trouble.again(_WHAT, error)
                await self._pause(stop)
            await self._finish(STOP_SECONDS, Sent())
        finally:
            for task in self._sending:
                task.cancel()

    async def once(self) -> Sent:
        """Send what is due now: take messages for a few seconds, then wait for the attempts in progress."""
        sent, until = Sent(), time.monotonic() + PASS_SECONDS
        while time.monotonic() < until:
            await self._record_and_take(sent)
            if not self._sending and not self._after:
                break
            if self._sending:
                left = max(0.0, until - time.monotonic())
                await asyncio.wait(self._sending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._finish(self.config.webhooks.timeout.total_seconds(), sent)
        return sent

    async def _record_and_take(self, sent: Sent) -> None:
        """Record the attempts that ended, then take as many messages as the limits allow."""
        await self._record_ended(sent)
        # No other process may take a message while it is being sent and while its outcome is being recorded.
        reserve_for = 2 * self.config.webhooks.timeout + timedelta(seconds=30)
        for _ in range(MAX_QUERIES):
            space = MAX_AT_ONCE - len(self._sending) - len(self._unrecorded)
            if space <= 0:
                break
            page = await self.store.take_deliveries(self._request(space), reserve_for, after=self._after)
            for delivery in page.items:
                self._sending[asyncio.create_task(self.sender.send(delivery))] = delivery
            self._after = page.after or ""
            if not self._after:
                break

    def _request(self, space: int) -> DeliveryRequest:
        """What may be taken now.

        Hosts that did not respond get one message at a time, and a limited share of the places together: however many
        they are, they do not delay messages to other hosts.
        """
        busy = Counter(delivery.host for delivery in self._sending.values())
        unresponsive = self._unresponsive.copy()
        room = {host: max(0, MAX_PER_HOST - count) for host, count in busy.items()}
        room |= {host: 0 if host in busy else 1 for host in unresponsive}
        places = MAX_TO_UNRESPONSIVE - sum(count for host, count in busy.items() if host in unresponsive)
        return DeliveryRequest(
            limit=space,
            each=MAX_PER_HOST,
            room=room,
            slow=unresponsive,
            slow_places=places,
            callbacks=self.sender.keys is not None,
            endpoints=self.sender.endpoint_keys is not None,
        )

    async def _record_ended(self, sent: Sent) -> None:
        """Record the attempts that ended. What the store could not record now is recorded at the next call."""
        for task in [task for task in self._sending if task.done()]:
            host = self._sending.pop(task).host
            if task.cancelled():
                continue
            attempt = task.result()
            self._unrecorded.append(attempt)
            if attempt.status is not None:
                self._unresponsive.discard(host)
            elif len(self._unresponsive) < MAX_REMEMBERED:
                self._unresponsive.add(host)
        if not self._unrecorded:
            return
        changed = await self.store.settle_deliveries(self._unrecorded)
        delivered = sum(1 for each in changed if each.state is DeliveryState.DELIVERED)
        sent.delivered, sent.failed = sent.delivered + delivered, sent.failed + len(changed) - delivered
        self._unrecorded.clear()
        for delivery in changed:
            self._log_outcome(delivery)

    def _log_outcome(self, delivery: Delivery) -> None:
        """Log every exhausted delivery; log a failing host once per 5 minutes, and its recovery."""
        host, now = delivery.host, time.monotonic()
        logged_at = self._failing.get(host, -LOG_EVERY_SECONDS)
        if delivery.state is DeliveryState.EXHAUSTED:
            again = delivery.delivery_id
            _LOG.warning("webhook to %s is exhausted: %s; to send it again, replay %s", host, delivery.answer, again)
        elif now < logged_at + LOG_EVERY_SECONDS:
            return
        elif delivery.state is DeliveryState.PENDING and len(self._failing) < MAX_REMEMBERED:
            self._failing[host] = now
            _LOG.warning("webhook to %s failed: %s; it will be retried", host, delivery.answer)
        elif delivery.state is DeliveryState.DELIVERED and self._failing.pop(host, None) is not None:
            _LOG.info("webhooks to %s work again", host)

    async def _pause(self, stop: asyncio.Event) -> None:
        """Wait until an attempt ends, the store changes, or the poll interval is over; only for a moment if the last
        query did not reach all hosts."""
        stopped = asyncio.create_task(stop.wait())
        news = asyncio.create_task(self.store.wait("", timedelta(0) if self._after else self.config.poll_every))
        try:
            await asyncio.wait({stopped, news, *self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in (stopped, *self._sending)):
                others = {stopped, *self._sending}
                await asyncio.wait(others, timeout=MIN_PAUSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, news):
                task.cancel()
            await asyncio.gather(stopped, news, return_exceptions=True)

    async def _finish(self, seconds: float, sent: Sent) -> None:
        """Wait up to `seconds` for attempts in progress and record them. The others are due again later."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=seconds)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._record_ended(sent)
