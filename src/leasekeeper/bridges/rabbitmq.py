"""A RabbitMQ queue: messages are acknowledged when they are jobs, and delivered again if this process dies before.

The queue must exist: it is never declared here. Invalid messages go to a queue of their own with the reason as a
header, or, as an option, to the queue's dead-letter exchange.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, ChannelClosed, ChannelInvalidStateError
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ProbableAuthenticationError

from leasekeeper.bridges.broker import Message, Rejected, Reply
from leasekeeper.errors import BrokerUnavailable, InputError, Problem

_LOG = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = 15.0
# Quorum queues count how often a message was delivered. From this count on it may soon reach a delivery-limit.
_SUSPICIOUS_DELIVERIES: Final = 3
_AWAY: Final = (AMQPError, ChannelInvalidStateError, OSError, asyncio.TimeoutError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitQueues:
    """Which queues a bridge uses. `dead_letter`: invalid messages are rejected, for the queue's own dead-letter
    exchange. `reply_exchange`: results go there with their type (`job.completed`) as routing key, instead of to the
    queue `replies`.
    """

    jobs: str
    invalid: str = ""
    dead_letter: bool = False
    replies: str | None = None
    reply_exchange: str | None = None

    @property
    def rejected(self) -> str:
        return self.invalid or f"{self.jobs}.invalid"


@dataclass(slots=True)
class RabbitBroker:
    """One queue of one RabbitMQ server. See `broker.Broker`."""

    url: str = field(repr=False)
    queues: RabbitQueues
    prefetch: int
    _connection: AbstractConnection | None = None
    _channel: AbstractChannel | None = None
    _exchange: AbstractExchange | None = None
    _arrived: "asyncio.Queue[AbstractIncomingMessage]" = field(default_factory=asyncio.Queue)
    _lost: asyncio.Event = field(default_factory=asyncio.Event)
    _warned: bool = False
    _worked: bool = False

    @property
    def location(self) -> str:
        return f"RabbitMQ queue {self.queues.jobs}"

    async def open(self) -> None:
        await self.close()
        self._arrived, self._lost = asyncio.Queue(), asyncio.Event()
        try:
            await asyncio.wait_for(self._connect(), _TIMEOUT_SECONDS)
        except (ProbableAuthenticationError, ChannelAccessRefused) as error:
            raise InputError(f"{self.location}: RabbitMQ refused: {error}") from None
        except ChannelNotFoundEntity as error:
            if self._worked:  # RabbitMQ answers the same if the node of an unreplicated queue is down
                raise self._away(error) from None
            fault = f"{error}; create it first: a bridge does not declare the queue of jobs"
            raise InputError("the bridge cannot start", [Problem(self.location, fault)]) from None
        except ValueError as error:
            raise InputError("the bridge cannot start", [Problem("url", str(error))]) from None
        except _AWAY as error:
            raise self._away(error) from None
        self._worked = True

    async def _connect(self) -> None:
        # Not the "robust" connection: it may hang silently. The bridge opens another one when this one is lost.
        self._connection = await aio_pika.connect(self.url)
        self._connection.close_callbacks.add(self._closed)
        self._channel = await self._connection.channel(publisher_confirms=True)
        self._channel.close_callbacks.add(self._closed)
        await self._channel.set_qos(prefetch_count=self.prefetch)
        if not self.queues.dead_letter:
            await self._channel.declare_queue(self.queues.rejected, durable=True)
        if self.queues.replies is not None:
            await self._channel.declare_queue(self.queues.replies, passive=True)
        if self.queues.reply_exchange is not None:
            self._exchange = await self._channel.get_exchange(self.queues.reply_exchange)
        queue = await self._channel.declare_queue(self.queues.jobs, passive=True)
        await queue.consume(self._arrived.put)

    async def take(self, limit: int, seconds: float) -> Sequence[Message]:
        if self._lost.is_set():
            raise BrokerUnavailable(f"{self.location}: the connection was closed")
        found: list[AbstractIncomingMessage] = []
        if self._arrived.empty() and seconds > 0:
            first = asyncio.ensure_future(self._arrived.get())
            lost = asyncio.ensure_future(self._lost.wait())
            try:
                await asyncio.wait({first, lost}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                lost.cancel()
                first.cancel()
            if first.done() and not first.cancelled():
                found.append(first.result())
        while len(found) < limit and not self._arrived.empty():
            found.append(self._arrived.get_nowait())
        self._warn_of_a_limit(found)
        return [Message(id=each.message_id or None, body=each.body, handle=each) for each in found]

    def _warn_of_a_limit(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        """A client cannot query whether a queue has a delivery-limit: its policy may set one."""
        counts = [int(str(each.headers.get("x-delivery-count", 0))) for each in messages]
        if not self._warned and max(counts, default=0) >= _SUSPICIOUS_DELIVERIES:
            self._warned = True
            _LOG.warning(
                "%s: a message was delivered %d times before. If the queue has a delivery-limit (RabbitMQ 4: 20) and "
                "no dead-letter exchange, RabbitMQ deletes such messages: give it a dead-letter exchange",
                self.location,
                max(counts),
            )

    async def accept(self, messages: Sequence[Message]) -> None:
        for message in messages:
            await self._sent(_delivered(message).ack())

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        for each in rejected:
            message = _delivered(each.message)
            if not self.queues.dead_letter:
                headers = {**message.headers, "x-leasekeeper-code": each.code, "x-leasekeeper-reason": each.reason}
                copy = aio_pika.Message(
                    each.message.body,
                    headers=headers,
                    message_id=message.message_id,
                    content_type=message.content_type,
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await self._publish(copy, self.queues.rejected)
                await self._sent(message.ack())
            else:
                await self._sent(message.reject(requeue=False))

    async def give_back(self, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            await self._sent(_delivered(message).nack(requeue=True))

    async def reply(self, replies: Sequence[Reply]) -> None:
        for each in replies:
            message = aio_pika.Message(
                each.body,
                headers=dict(each.headers),
                message_id=each.id,
                type=each.type,
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            if self._exchange is not None:
                await self._sent(self._exchange.publish(message, each.type, mandatory=False))
            elif self.queues.replies is not None:
                await self._publish(message, self.queues.replies)

    async def close(self) -> None:
        connection, self._connection, self._channel, self._exchange = self._connection, None, None, None
        if connection is not None:
            with suppress(*_AWAY):
                await asyncio.wait_for(connection.close(), _TIMEOUT_SECONDS)

    async def _publish(self, message: aio_pika.Message, queue: str) -> None:
        if self._channel is None:
            raise BrokerUnavailable(f"{self.location} is not connected")
        await self._sent(self._channel.default_exchange.publish(message, queue, mandatory=True))

    async def _sent(self, sending: Awaitable[object]) -> None:
        try:
            await asyncio.wait_for(sending, _TIMEOUT_SECONDS)
        except (ChannelClosed, *_AWAY) as error:
            raise self._away(error) from None

    def _closed(self, *_: object) -> None:
        self._lost.set()

    def _away(self, error: BaseException) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.location}: {str(error) or type(error).__name__}")


def _delivered(message: Message) -> AbstractIncomingMessage:
    if not isinstance(message.handle, AbstractIncomingMessage):
        raise TypeError("this message did not come from RabbitMQ")
    return message.handle
