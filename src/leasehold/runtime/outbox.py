"""Sends webhooks: takes what is due, posts it, keeps what came of it. Any number of processes may do so at once.

At least once: a message counts as delivered when its receiver said so and that is in the store. What was sent by a
process that vanished, or whose answer was lost, is sent again, with the same id.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from leasehold.config import Config, WebhookConfig
from leasehold.core.deliveries import Attempt, Delivery, DeliveryState
from leasehold.errors import InputError
from leasehold.ports import Store
from leasehold.runtime.trouble import Trouble
from leasehold.webhooks.message import Keys, body_of, read_keys, signed
from leasehold.webhooks.sending import Network, post, read_networks

MOST_AT_ONCE: Final = 64
MOST_PER_HOST: Final = 4
LOOK_AT_MOST_EVERY_SECONDS: Final = 0.1
LAST_SECONDS: Final = 5.0
PASS_SECONDS: Final = 60.0

_WHAT: Final = "webhooks are not sent"
_Sending = asyncio.Task[Attempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How one message is sent. Made once, so that settings that are wrong are told at the start."""

    keys: Keys
    networks: tuple[Network, ...]
    timeout: timedelta

    async def send(self, delivery: Delivery) -> Attempt:
        """One attempt. Whatever happens is a value."""
        body = body_of(delivery)
        headers = signed(self.keys, delivery.delivery_id, datetime.now(UTC), body)
        answer = await post(delivery.url, headers, body, seconds=self.timeout.total_seconds(), networks=self.networks)
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
    sender: Sender | None
    trouble: Trouble = field(default_factory=Trouble)
    _sending: dict[_Sending, str] = field(default_factory=dict)
    _untold: list[Attempt] = field(default_factory=list)
    _after: str = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Send until told to stop; what is under way then has a few seconds left."""
        while not stop.is_set():
            try:
                await self._turn()
                self.trouble.over(_WHAT)
            except Exception as error:  # noqa: BLE001 - nobody else would go on
                self.trouble.again(_WHAT, error)
            await self._pause(stop)
        await self._finish(LAST_SECONDS)

    async def once(self) -> Sent:
        """Send all that is due now, each once, for a minute at most."""
        sent, until = Sent(), time.monotonic() + PASS_SECONDS
        while time.monotonic() < until:
            await self._turn(sent)
            if not self._sending and not self._after:
                break
            if self._sending:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        await self._finish(self.config.webhooks.timeout.total_seconds(), sent)
        return sent

    async def _turn(self, sent: Sent | None = None) -> None:
        """Tell the store what came back, then take as much as there is room for."""
        await self._tell(sent)
        if self.sender is None:
            await self._complain()
            return
        room = MOST_AT_ONCE - len(self._sending) - len(self._untold)
        if room <= 0:
            return
        # Nobody else may take a message while it is sent, and while the store is slow to hear of it.
        hold = 2 * self.config.webhooks.timeout + timedelta(seconds=30)
        page = await self.store.take_deliveries(
            room, hold, each=MOST_PER_HOST, after=self._after, without=self._busy_hosts()
        )
        self._after = page.after or ""
        for delivery in page.items:
            self._sending[asyncio.create_task(self.sender.send(delivery))] = delivery.host

    def _busy_hosts(self) -> Collection[str]:
        return [host for host, count in Counter(self._sending.values()).items() if count >= MOST_PER_HOST]

    async def _tell(self, sent: Sent | None = None) -> None:
        """Keep what came of attempts that ended. What the store could not take is told again."""
        for task in [task for task in self._sending if task.done()]:
            del self._sending[task]
            if not task.cancelled() and task.exception() is None:
                self._untold.append(task.result())
        if not self._untold:
            return
        changed = await self.store.settle_deliveries(self._untold)
        if sent is not None:
            sent.delivered += sum(1 for each in changed if each.state is DeliveryState.DELIVERED)
            sent.failed += sum(1 for each in changed if each.state is not DeliveryState.DELIVERED)
        self._untold.clear()

    async def _complain(self) -> None:
        waiting = await self.store.find(Delivery, {"state": DeliveryState.PENDING}, most=1)
        if waiting.items:
            raise InputError(
                "LEASEHOLD_WEBHOOK_SECRET is not set, and jobs have a callback_url; "
                "'leasehold webhooks secret' makes one"
            )

    async def _pause(self, stop: asyncio.Event) -> None:
        """Until an attempt ended, or something changed in the store, or it is time to look anyway. If one look did not
        take in all hosts, only for a moment."""
        stopped = asyncio.create_task(stop.wait())
        news = asyncio.create_task(self.store.wait("", timedelta(0) if self._after else self.config.poll_every))
        try:
            await asyncio.wait({stopped, news, *self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                await asyncio.wait({stopped}, timeout=LOOK_AT_MOST_EVERY_SECONDS)
        finally:
            for task in (stopped, news):
                task.cancel()
            await asyncio.gather(stopped, news, return_exceptions=True)

    async def _finish(self, seconds: float, sent: Sent | None = None) -> None:
        """Wait for what is under way, not longer than so; tell what came of it. The rest is due again later."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=seconds)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._tell(sent)
