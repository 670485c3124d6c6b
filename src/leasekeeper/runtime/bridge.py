"""A bridge: moves jobs from an external queue into the store, and their results back.

Take → read → submit → accept: a message leaves its queue once its job is committed, and a message that is delivered
again finds its existing job. So a crash at any point loses nothing and submits nothing twice. While the store is
unavailable, no more messages are taken.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.bridges.broker import Broker, Message, Rejected, Reply
from leasekeeper.bridges.intake import Intake
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryRequest
from leasekeeper.core.events import messages_rejected
from leasekeeper.core.jobs import JobSpec
from leasekeeper.errors import (
    BodyTooLarge,
    BrokerUnavailable,
    Conflict,
    InputError,
    LeasekeeperError,
    NotFound,
    StoreError,
)
from leasekeeper.ports import Store, Submitted
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.webhooks.message import Keys, body_of, signature_headers

_LOG = logging.getLogger(__name__)

WAIT_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
COUNT_EVERY_SECONDS: Final = 60.0
MAX_REPLIES: Final = 100
# A reply that was taken and not settled is due again after this time.
RESERVE_FOR: Final = timedelta(minutes=2)
ACCEPTED: Final = 200

_TAKING = "messages could not be taken"
_SUBMITTING = "jobs could not be submitted"
_REPLYING = "results could not be sent"


@dataclass(slots=True)
class Counts:
    """Counts of what a bridge did. `duplicates` are messages whose job existed already."""

    taken: int = 0
    submitted: int = 0
    duplicates: int = 0
    rejected: int = 0
    replied: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in asdict(self).items())


class _Stopped(Exception):
    """The bridge was asked to stop while it waited for the store or the broker."""


@dataclass(slots=True)
class Bridge:
    """Takes messages from one queue until asked to stop. With `keys`, it sends back the results, signed with them."""

    store: Store
    broker: Broker
    intake: Intake
    stop: Shutdown
    batch: int = 200
    keys: Keys | None = None
    poll_every: timedelta = timedelta(seconds=5)
    wait_seconds: float = WAIT_SECONDS
    counts: Counts = field(default_factory=Counts)
    trouble: FailureLog = field(default_factory=FailureLog)
    _connected: asyncio.Event = field(default_factory=asyncio.Event)
    _logged_at: float = field(default_factory=boot_time)

    async def run(self, *, drain: bool = False) -> Counts:
        """Run until asked to stop; with `drain`, until the queue is empty. Returns the counts.

        Raises InputError for a wrong configuration, BrokerUnavailable if the first connection fails.
        """
        await self._reconnect(first=True)
        replying = asyncio.ensure_future(self._reply_until_stopped()) if self.keys is not None else None
        try:
            await self._take_until_stopped(drain=drain)
        finally:
            if replying is not None:
                replying.cancel()
                await asyncio.gather(replying, return_exceptions=True)
            await self.broker.close()
        return self.counts

    async def _take_until_stopped(self, *, drain: bool) -> None:
        pause = FIRST_PAUSE
        while not self.stop.asked.is_set():
            try:
                if not self._connected.is_set():
                    await self._reconnect()
                messages = await self.broker.take(self.batch, DRAIN_SECONDS if drain else self.wait_seconds)
                self.trouble.over(_TAKING)
                pause = FIRST_PAUSE
                if messages:
                    await self._submit_or_reject(messages)
                elif drain:
                    return
            except BrokerUnavailable as error:
                self._connected.clear()
                self.trouble.again(_TAKING, error)
                with suppress(_Stopped):  # a server may accept the connection and refuse every take, as a replica does
                    pause = await self._pause(pause)
            except _Stopped:
                return
            self._log_counts()

    async def _reconnect(self, *, first: bool = False) -> None:
        """Connect to the broker; retry until that succeeds. Raises _Stopped if asked to stop.

        The `first` connection is not retried.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                await self.broker.open()
            except BrokerUnavailable as error:
                if first:
                    raise
                self.trouble.again(_TAKING, error)
                pause = await self._pause(pause)
            else:
                self._connected.set()
                return

    async def _submit_or_reject(self, messages: Sequence[Message]) -> None:
        """Submit these messages as jobs; reject those that are no jobs. If that fails, give them all back."""
        self.counts.taken += len(messages)
        read: list[tuple[Message, JobSpec]] = []
        rejected: list[Rejected] = []
        for message in messages:
            try:
                read.append((message, self.intake.read(message)))
            except InputError as error:
                rejected.append(Rejected(message=message, code=error.code, reason=str(error)))
        try:
            rejected += await self._submit(read)
        except (_Stopped, LeasekeeperError):
            with suppress(BrokerUnavailable):
                await self.broker.give_back(messages)
            raise
        refused = {id(each.message) for each in rejected}
        accepted = [message for message, _ in read if id(message) not in refused]
        if accepted:
            await self.broker.accept(accepted)
        if rejected:
            await self._reject(rejected)

    async def _submit(self, read: Sequence[tuple[Message, JobSpec]]) -> list[Rejected]:
        """Submit these jobs. Returns those that the store refused. One of them does not stop the others: a refused
        batch is submitted again in halves."""
        if not read:
            return []
        try:
            answers = await self._submit_with_retries([spec for _, spec in read])
        except (InputError, Conflict, NotFound, BodyTooLarge) as error:
            if len(read) == 1:
                return [Rejected(message=read[0][0], code=error.code, reason=str(error))]
            middle = len(read) // 2
            return [*await self._submit(read[:middle]), *await self._submit(read[middle:])]
        handled = sum(answer.already_handled for answer in answers)
        self.counts.duplicates += handled
        self.counts.submitted += len(answers) - handled
        return []

    async def _submit_with_retries(self, specs: Sequence[JobSpec]) -> list[Submitted]:
        """Submit; retry until the store answers. Meanwhile the messages stay where they are, and no more are taken.

        Raises _Stopped if asked to stop.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                answers = await self.store.submit(specs)
            except StoreError as error:
                self.trouble.again(_SUBMITTING, error)
                pause = await self._pause(pause)
            else:
                self.trouble.over(_SUBMITTING)
                return answers

    async def _reject(self, rejected: Sequence[Rejected]) -> None:
        """Put messages apart that are no jobs. Writes a log line, and an event in the store."""
        await self.broker.reject(rejected)
        self.counts.rejected += len(rejected)
        reasons = [each.reason for each in rejected]
        _LOG.warning(
            "bridge %s: %d messages of %s are no jobs and were put apart; the first: %s",
            self.intake.bridge,
            len(rejected),
            self.broker.location,
            reasons[0].replace("\n", " "),
        )
        try:
            now = datetime.now(UTC)  # the store sets its own time instead
            await self.store.record(messages_rejected(self.intake.bridge, self.broker.location, reasons, now))
        except StoreError as error:
            self.trouble.again("rejected messages could not be recorded", error)

    async def _reply_until_stopped(self) -> None:
        while True:
            await self._connected.wait()
            try:
                sent = await self._reply_once()
                self.trouble.over(_REPLYING)
            except Exception as error:  # noqa: BLE001 - whatever it is, results must still be sent later
                self.trouble.again(_REPLYING, error)
                sent = 0
            if not sent:
                with suppress(StoreError):
                    await self.store.wait("", self.poll_every)
                await asyncio.sleep(FIRST_PAUSE)

    async def _reply_once(self) -> int:
        """Send the results that are due. Returns how many were sent."""
        request = DeliveryRequest(limit=MAX_REPLIES, each=MAX_REPLIES, bridge=self.intake.bridge)
        page = await self.store.take_deliveries(request, RESERVE_FOR)
        if not page.items:
            return 0
        status: int | None = ACCEPTED
        answer = f"put into the queue of bridge {self.intake.bridge}"
        try:
            await self.broker.reply([self._signed(delivery) for delivery in page.items])
            self.counts.replied += len(page.items)
        except BrokerUnavailable as error:
            self.trouble.again(_REPLYING, error)
            status, answer = None, error.message
        await self.store.settle_deliveries(
            [
                Attempt(delivery_id=each.delivery_id, number=each.attempts, answer=answer, status=status)
                for each in page.items
            ]
        )
        return len(page.items) if status is not None else 0

    def _signed(self, delivery: Delivery) -> Reply:
        if self.keys is None:
            raise InputError("results are not sent from here: there is no secret to sign them with")
        body = body_of(delivery)
        headers = signature_headers(self.keys, delivery.delivery_id, datetime.now(UTC), body)
        return Reply(id=delivery.delivery_id, type=delivery.type, headers=headers, body=body)

    async def _pause(self, seconds: float) -> float:
        """Wait before the next try. Returns how long to wait before the one after; raises _Stopped if asked to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stop.asked.wait(), seconds * (0.5 + random.random() / 2))  # noqa: S311 - spreads retries
        if self.stop.asked.is_set():
            raise _Stopped
        return min(seconds * 2, LONGEST_PAUSE)

    def _log_counts(self) -> None:
        if boot_time() >= self._logged_at + COUNT_EVERY_SECONDS:
            self._logged_at = boot_time()
            _LOG.info("bridge %s: %s", self.intake.bridge, self.counts)
