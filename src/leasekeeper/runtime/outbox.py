"""Sends webhooks: takes what is due, posts it, keeps what came of it. Any number of processes may do so at once.

At least once: a message counts as delivered when its receiver said so and that is in the store. What was sent by a
process that vanished, or whose answer was lost, is sent again, with the same id.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.config import Config, WebhookConfig
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryState
from leasekeeper.errors import InputError
from leasekeeper.ports import Look, Store
from leasekeeper.runtime.trouble import Trouble
from leasekeeper.webhooks.message import Keys, body_of, read_keys, signed
from leasekeeper.webhooks.sending import Network, post, read_networks

_LOG = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
MOST_PER_HOST: Final = 4
# Hosts that did not answer last time: how many messages to all of them together, and how many hosts are remembered.
MOST_TO_SILENT: Final = 16
MOST_LOOKS: Final = 20
MOST_REMEMBERED: Final = 10_000
LOOK_AT_MOST_EVERY_SECONDS: Final = 0.1
LAST_SECONDS: Final = 5.0
PASS_SECONDS: Final = 5.0
TELL_EVERY_SECONDS: Final = 300.0
LATE: Final = timedelta(minutes=1)

_WHAT: Final = "webhooks could not be sent"
_Sending = asyncio.Task[Attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How one message is sent. Made once, so that settings that are wrong are told at the start."""

    keys: Keys
    networks: tuple[Network, ...]
    timeout: timedelta

    async def send(self, delivery: Delivery) -> Attempt:
        """One attempt. Whatever happens is a value: what is not told would be tried for ever."""
        try:
            body = body_of(delivery)
            headers = signed(self.keys, delivery.delivery_id, datetime.now(UTC), body)
            seconds = self.timeout.total_seconds()
            answer = await post(delivery.url, headers, body, seconds=seconds, networks=self.networks)
        except Exception as error:  # noqa: BLE001 - see above
            kind = type(error).__name__
            _LOG.warning("webhook %s could not be sent: %s", delivery.delivery_id, kind)
            return Attempt(delivery_id=delivery.delivery_id, number=delivery.attempts, answer=f"not sent: {kind}")
        return Attempt(
            delivery_id=delivery.delivery_id,
            number=delivery.attempts,
            status=answer.status,
            answer=answer.words,
            retry_after=answer.retry_after,
        )


def sender_of(config: WebhookConfig) -> Sender | None:
    """The sender that the settings describe; None without a secret. Raises InputError for settings that are wrong."""
    networks = read_networks(config.networks)
    keys = read_keys(config.secret)
    return None if keys is None else Sender(keys=keys, networks=networks, timeout=config.timeout)


async def check_sent(store: Store) -> None:
    """Without a secret nothing can be sent from here. Raises InputError if nobody else does it either."""
    stats = await store.stats()
    late = stats.webhooks_due_at is not None and stats.webhooks_due_at < stats.now - LATE
    tried = stats.webhooks_tried_at is not None and stats.webhooks_tried_at > stats.now - LATE
    if late and not tried:
        raise InputError(
            "jobs have a callback_url, nobody tells it, and LEASEKEEPER_WEBHOOK_SECRET is not set here; "
            "'leasekeeper webhooks secret' makes one"
        )


@dataclass(slots=True)
class Sent:
    """What one pass came to: messages that were delivered, and attempts that failed."""

    delivered: int = 0
    failed: int = 0


@dataclass(slots=True)
class Outbox:
    """The messages under way of one process."""

    store: Store
    config: Config
    sender: Sender
    trouble: Trouble = field(default_factory=Trouble)
    _sending: dict[_Sending, Delivery] = field(default_factory=dict)
    _untold: list[Attempt] = field(default_factory=list)
    _silent: set[str] = field(default_factory=set)
    _failing: dict[str, float] = field(default_factory=dict)  # when each was told last
    _after: str = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; what is under way then has a few seconds left."""
        try:
            while not stop.is_set():
                try:
                    await self._turn(Sent())
                    self.trouble.over(_WHAT)
                except Exception as error:  # noqa: BLE001 - nobody else would go on
                    self.trouble.again(_WHAT, error)
                await self._pause(stop)
            await self._finish(LAST_SECONDS, Sent())
        finally:
            for task in self._sending:
                task.cancel()

    async def once(self) -> Sent:
        """Send what is due now: a few seconds long take it, and then wait for what is under way."""
        sent, until = Sent(), time.monotonic() + PASS_SECONDS
        while time.monotonic() < until:
            await self._turn(sent)
            if not self._sending and not self._after:
                break
            if self._sending:
                left = max(0.0, until - time.monotonic())
                await asyncio.wait(self._sending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        await self._finish(self.config.webhooks.timeout.total_seconds(), sent)
        return sent

    async def _turn(self, sent: Sent) -> None:
        """Tell the store what came back, then take as much as there is room for."""
        await self._tell(sent)
        # Nobody else may take a message while it is sent, and while the store is slow to hear of it.
        hold = 2 * self.config.webhooks.timeout + timedelta(seconds=30)
        for _ in range(MOST_LOOKS):
            space = MOST_AT_ONCE - len(self._sending) - len(self._untold)
            if space <= 0:
                break
            page = await self.store.take_deliveries(self._look(space), hold, after=self._after)
            for delivery in page.items:
                self._sending[asyncio.create_task(self.sender.send(delivery))] = delivery
            self._after = page.after or ""
            if not self._after:
                break

    def _look(self, space: int) -> Look:
        """What may be taken now.

        Hosts that did not answer get one at a time, and a part of the places together: however many of them there are,
        they keep nobody from the others.
        """
        busy = Counter(delivery.host for delivery in self._sending.values())
        silent = self._silent.copy()
        room = {host: max(0, MOST_PER_HOST - count) for host, count in busy.items()}
        room |= {host: 0 if host in busy else 1 for host in silent}
        places = MOST_TO_SILENT - sum(count for host, count in busy.items() if host in silent)
        return Look(most=space, each=MOST_PER_HOST, room=room, slow=silent, slow_places=places)

    async def _tell(self, sent: Sent) -> None:
        """Keep what came of attempts that ended. What the store could not take is told again."""
        for task in [task for task in self._sending if task.done()]:
            host = self._sending.pop(task).host
            if task.cancelled():
                continue
            attempt = task.result()
            self._untold.append(attempt)
            if attempt.status is not None:
                self._silent.discard(host)
            elif len(self._silent) < MOST_REMEMBERED:
                self._silent.add(host)
        if not self._untold:
            return
        changed = await self.store.settle_deliveries(self._untold)
        delivered = sum(1 for each in changed if each.state is DeliveryState.DELIVERED)
        sent.delivered, sent.failed = sent.delivered + delivered, sent.failed + len(changed) - delivered
        self._untold.clear()
        for delivery in changed:
            self._say(delivery)

    def _say(self, delivery: Delivery) -> None:
        """What is given up is told always; of a host that does not take messages now and then, and that it does again
        when it has taken them for a while."""
        host, now = delivery.host, time.monotonic()
        told = self._failing.get(host, -TELL_EVERY_SECONDS)
        if delivery.state is DeliveryState.EXHAUSTED:
            again = f"leasekeeper webhooks replay {delivery.delivery_id} --note …"
            _LOG.warning("webhook to %s was given up: %s; to send it again: %s", host, delivery.answer, again)
        elif now < told + TELL_EVERY_SECONDS:
            return
        elif delivery.state is DeliveryState.PENDING and len(self._failing) < MOST_REMEMBERED:
            self._failing[host] = now
            where = f"leasekeeper webhooks --host {host}"
            _LOG.warning("%s did not take a webhook: %s; it is tried again, see %s", host, delivery.answer, where)
        elif delivery.state is DeliveryState.DELIVERED and self._failing.pop(host, None) is not None:
            _LOG.info("%s takes webhooks again", host)

    async def _pause(self, stop: asyncio.Event) -> None:
        """Until an attempt ended, or something changed in the store, or it is time to look anyway. If one look did not
        take in all hosts, only for a moment."""
        stopped = asyncio.create_task(stop.wait())
        news = asyncio.create_task(self.store.wait("", timedelta(0) if self._after else self.config.poll_every))
        try:
            await asyncio.wait({stopped, news, *self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in (stopped, *self._sending)):
                others = {stopped, *self._sending}
                await asyncio.wait(others, timeout=LOOK_AT_MOST_EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, news):
                task.cancel()
            await asyncio.gather(stopped, news, return_exceptions=True)

    async def _finish(self, seconds: float, sent: Sent) -> None:
        """Wait for what is under way, not longer than so; tell what came of it. The rest is due again later."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=seconds)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._tell(sent)
