"""Where results and invalid messages go if not to a queue of the bridge's own: exchanges and topics."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import aio_pika
import boto3
import pytest

from leasekeeper.bridges.broker import Message, Rejected, Reply
from leasekeeper.bridges.rabbitmq import RabbitBroker, RabbitQueues
from leasekeeper.bridges.sqs import SqsBroker, SqsQueues
from leasekeeper.errors import BrokerUnavailable, InputError, LeasekeeperError
from tests.bridges.queues import SqsQueue, fresh
from tests.bridges.servers import RabbitServer
from tests.servers import S3Server

RESULTS = [
    Reply(id=f"d{n}", type=type_, headers={"webhook-id": f"d{n}", "webhook-signature": "v1,x"}, body=b'{"n": %d}' % n)
    for n, type_ in enumerate(("job.completed", "job.dead"))
]


async def test_results_to_an_exchange_are_routed_by_what_became_of_the_job(rabbit_server: RabbitServer) -> None:
    jobs, exchange, of_dead = fresh("jobs"), fresh("results"), fresh("dead")
    async with await aio_pika.connect(rabbit_server.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(jobs, durable=True)
        broker = RabbitBroker(rabbit_server.url, RabbitQueues(jobs=jobs, reply_exchange=exchange), prefetch=10)
        with pytest.raises(InputError, match="create it first"):
            await broker.open()
        results = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(of_dead, durable=True)
        await queue.bind(results, "job.dead")
        await broker.open()
        await broker.reply(RESULTS)
        await broker.close()
        found = await queue.get()
        assert (found.body, found.type, found.message_id) == (b'{"n": 1}', "job.dead", "d1")
        assert found.headers == {"webhook-id": "d1", "webhook-signature": "v1,x"}
        assert await queue.get(fail=False) is None


async def test_rabbitmq_messages_that_are_no_jobs_can_go_the_queues_own_dead_letter_way(
    rabbit_server: RabbitServer,
) -> None:
    jobs, dead = fresh("jobs"), fresh("dead")
    async with await aio_pika.connect(rabbit_server.url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        letters = await channel.declare_queue(dead, durable=True)
        way: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await channel.declare_queue(jobs, durable=True, arguments=way)
        await channel.default_exchange.publish(aio_pika.Message(b"no job"), jobs)
        broker = RabbitBroker(rabbit_server.url, RabbitQueues(jobs=jobs, dead_letter=True), prefetch=10)
        await broker.open()
        (message,) = await broker.take(10, 30)
        await broker.reject([Rejected(message=message, code="INPUT_ERROR", reason="not JSON")])
        await broker.close()
        async with letters.iterator(timeout=60) as arriving:
            found = await anext(arriving)
            assert found.body == b"no job"
            assert found.headers["x-first-death-queue"] == jobs
            await found.ack()
        made = await connection.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await made.declare_queue(f"{jobs}.invalid", passive=True)


async def test_results_to_a_topic_reach_whoever_subscribed(s3: S3Server, aws: None) -> None:
    def client(service: str) -> Any:
        return boto3.client(service, region_name="us-east-1", endpoint_url=s3.endpoint)

    queue = SqsQueue(s3.endpoint)
    sqs, sns = client("sqs"), client("sns")
    topic = sns.create_topic(Name=fresh("results"))["TopicArn"]
    arn = sqs.get_queue_attributes(QueueUrl=queue.results, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    broker = SqsBroker(SqsQueues(jobs=queue.jobs, replies=topic))
    await broker.open()
    await broker.reply(RESULTS)
    await broker.close()
    found = {answer.headers["webhook-id"]: answer for answer in await queue.replies()}
    assert {name: json.loads(answer.body)["n"] for name, answer in found.items()} == {"d0": 0, "d1": 1}
    assert found["d1"].headers == {"webhook-id": "d1", "webhook-signature": "v1,x", "type": "job.dead"}


class TooMany(BaseHTTPRequestHandler):
    """SQS when too many messages of a queue were taken and not deleted."""

    def do_POST(self) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"__type": "com.amazonaws.sqs#OverLimit", "message": "too many messages in flight"}')

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


async def test_a_limit_of_sqs_passes(aws: None) -> None:
    server = HTTPServer(("127.0.0.1", 0), TooMany)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    broker = SqsBroker(SqsQueues(jobs=f"http://127.0.0.1:{server.server_port}/1/jobs", invalid="http://h/1/apart"))
    await broker.open()
    with pytest.raises(BrokerUnavailable, match="OverLimit"):
        await broker.take(10, 0)
    await broker.close()
    server.shutdown()
    server.server_close()


async def test_what_sqs_refuses_of_a_batch_is_not_taken_for_done(s3: S3Server, aws: None) -> None:
    """A receipt that is not known any more: the message comes again, and is the same job then."""
    queue = SqsQueue(s3.endpoint)
    await queue.put(["{}"])
    broker = queue.broker()
    await broker.open()
    (taken,) = await broker.take(10, 1)
    await broker.accept([taken])
    stranger = Message(id="m", body=b"{}", handle={"ReceiptHandle": "of nobody", "MessageId": "m"})
    with pytest.raises(LeasekeeperError, match="SQS queue"):
        await broker.accept([stranger])
    await broker.close()
