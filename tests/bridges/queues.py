"""One way to use the three brokers in a test: put messages in, and see what is left, put apart and sent back."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import aio_pika
import boto3
from redis import Redis

from leasekeeper.bridges.broker import Broker
from leasekeeper.bridges.rabbitmq import RabbitBroker, RabbitQueues
from leasekeeper.bridges.redis_list import RedisBroker, RedisLists
from leasekeeper.bridges.sqs import SqsBroker, SqsQueues


def fresh(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Answer:
    """A result that came back: what the signature is about, and the signature."""

    headers: dict[str, str]
    body: bytes


class Queue(Protocol):
    """A queue of jobs, another of invalid messages, another of results."""

    def broker(self) -> Broker: ...

    async def put(self, bodies: Sequence[str | bytes]) -> None: ...

    async def left(self) -> int:
        """Messages that the broker still has, those that were taken included."""
        ...

    async def invalid(self) -> list[tuple[str, str]]:
        """Body and reason of each message that was put apart."""
        ...

    async def replies(self) -> list[Answer]: ...


@dataclass
class RedisQueue:
    url: str
    jobs: str = field(default_factory=lambda: fresh("mlx:jobs"))
    bridge: str = "jobs"

    @property
    def lists(self) -> RedisLists:
        return RedisLists(jobs=self.jobs, replies=f"{self.jobs}:results")

    def broker(self) -> Broker:
        return RedisBroker(self.url, self.lists, self.bridge)

    async def put(self, bodies: Sequence[str | bytes]) -> None:
        with Redis.from_url(self.url) as client:
            for body in bodies:
                client.lpush(self.jobs, body)

    async def left(self) -> int:
        with Redis.from_url(self.url) as client:
            own = [self.lists.own(self.bridge, what) for what in ("next", "taken")]
            return int(client.llen(self.jobs)) + int(client.llen(own[0])) + int(client.hlen(own[1]))

    async def invalid(self) -> list[tuple[str, str]]:
        with Redis.from_url(self.url) as client:
            found = [json.loads(each) for each in client.lrange(self.lists.rejected, 0, -1)]
        return [(each["body"], each["reason"]) for each in reversed(found)]

    async def replies(self) -> list[Answer]:
        with Redis.from_url(self.url) as client:
            found = [json.loads(each) for each in client.lrange(f"{self.jobs}:results", 0, -1)]
        return [Answer(each["headers"], each["body"].encode()) for each in reversed(found)]


@dataclass
class RabbitQueue:
    url: str
    jobs: str = field(default_factory=lambda: fresh("jobs"))

    @property
    def queues(self) -> RabbitQueues:
        return RabbitQueues(jobs=self.jobs, replies=f"{self.jobs}.results")

    def broker(self) -> Broker:
        return RabbitBroker(self.url, self.queues, prefetch=50)

    async def put(self, bodies: Sequence[str | bytes]) -> None:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue(self.jobs, durable=True, arguments={"x-queue-type": "quorum"})
            await channel.declare_queue(f"{self.jobs}.results", durable=True)
            for body in bodies:
                message = aio_pika.Message(
                    body if isinstance(body, bytes) else body.encode(),
                    message_id=uuid.uuid4().hex,
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                )
                await self._publish(channel, message)

    async def _publish(self, channel: aio_pika.abc.AbstractChannel, message: aio_pika.Message) -> None:
        """As a sender does who must not lose it: a queue that just came back refuses for a while."""
        for _ in range(600):
            try:
                await channel.default_exchange.publish(message, self.jobs)
            except aio_pika.exceptions.DeliveryError:
                await asyncio.sleep(0.1)  # waits: until the queue has its leader again
            else:
                return
        raise AssertionError("RabbitMQ did not take a message within a minute")

    async def left(self) -> int:
        """Only once nobody consumes: a message that was taken counts again then."""
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            return int((await channel.declare_queue(self.jobs, passive=True)).declaration_result.message_count or 0)

    async def invalid(self) -> list[tuple[str, str]]:
        found = await self._all(self.queues.rejected)
        return [(each.body.decode(), str(each.headers["x-leasekeeper-reason"])) for each in found]

    async def replies(self) -> list[Answer]:
        found = await self._all(f"{self.jobs}.results")
        return [Answer({name: str(value) for name, value in each.headers.items()}, each.body) for each in found]

    async def _all(self, name: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, passive=True)
            found = []
            while (message := await queue.get(fail=False)) is not None:
                found.append(message)
            for message in found:
                await message.reject(requeue=True)
            return found


@dataclass
class SqsQueue:
    endpoint: str
    fifo: bool = False
    jobs: str = ""
    apart: str = ""
    results: str = ""

    def __post_init__(self) -> None:
        client, end = self._client(), ".fifo" if self.fifo else ""
        kind = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if self.fifo else {}
        names = [fresh(word) + end for word in ("jobs", "apart", "results")]
        self.jobs, self.apart, self.results = (
            client.create_queue(QueueName=name, Attributes=kind)["QueueUrl"] for name in names
        )
        found = client.get_queue_attributes(QueueUrl=self.apart, AttributeNames=["QueueArn"])
        policy = json.dumps({"deadLetterTargetArn": found["Attributes"]["QueueArn"], "maxReceiveCount": "50"})
        client.set_queue_attributes(QueueUrl=self.jobs, Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "3"})

    def _client(self) -> Any:
        return boto3.client("sqs", region_name="us-east-1", endpoint_url=self.endpoint)

    def broker(self) -> Broker:
        return SqsBroker(SqsQueues(jobs=self.jobs, replies=self.results))

    async def put(self, bodies: Sequence[str | bytes]) -> None:
        client = self._client()
        for number, body in enumerate(bodies):
            text = body if isinstance(body, str) else body.decode()
            order = {"MessageGroupId": "one", "MessageDeduplicationId": fresh(str(number))} if self.fifo else {}
            client.send_message(QueueUrl=self.jobs, MessageBody=text, **order)

    async def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._client().get_queue_attributes(QueueUrl=self.jobs, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    async def invalid(self) -> list[tuple[str, str]]:
        found = await asyncio.to_thread(self._all, self.apart)
        return [(each["Body"], each["MessageAttributes"]["leasekeeper_reason"]["StringValue"]) for each in found]

    async def replies(self) -> list[Answer]:
        found = await asyncio.to_thread(self._all, self.results)
        return [
            Answer(
                {name: value["StringValue"] for name, value in each["MessageAttributes"].items()},
                each["Body"].encode(),
            )
            for each in found
        ]

    def _all(self, queue: str) -> list[dict[str, Any]]:
        client, found = self._client(), []
        while page := client.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60, MessageAttributeNames=["All"]
        ).get("Messages"):
            found += page
            client.change_message_visibility_batch(
                QueueUrl=queue,
                Entries=[
                    {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 60}
                    for n, each in enumerate(page)
                ],
            )
        return found
