"""Jobs out of other people's queues: the same promises over Redis, RabbitMQ and SQS, on real servers."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import aio_pika
import pytest
from redis import Redis
from standardwebhooks import Webhook

from leasekeeper.bridges.broker import Message
from leasekeeper.bridges.intake import Intake
from leasekeeper.bridges.rabbitmq import RabbitBroker, RabbitQueues
from leasekeeper.bridges.redis_list import RedisBroker, RedisLists
from leasekeeper.bridges.sqs import SqsBroker, SqsQueues
from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import BrokerUnavailable, InputError, StoreUnavailable
from leasekeeper.ports import Store, Submitted
from leasekeeper.runtime.bridge import Bridge, Counts
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.stores import open_store
from leasekeeper.webhooks.message import new_secret, read_keys, verify
from tests.bridges.queues import Answer, Queue, RabbitQueue, RedisQueue, SqsQueue
from tests.bridges.servers import RabbitServer, RedisServer

SECRET = new_secret()
# The manifest of a well-known recipe, with the names of its fields.
RECIPE = {"job_id": "5f1c", "profile_id": "p1", "task": "sync_orders", "payload": {"shop": "acme"}, "attempt": 1}


@asynccontextmanager
async def fleet_store(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        shop = Account(account_id=AccountId("shop"))
        profile = Profile(profile_id=ProfileId("p1"), account_id=shop.account_id)
        await store.apply(Fleet(accounts={"shop": shop}, profiles={"p1": profile}), actor="test")
        yield store
    finally:
        await store.close()


def bridge_of(store: Store, queue: Queue, *, batch: int = 50, replies: bool = False) -> Bridge:
    return Bridge(
        store,
        queue.broker(),
        Intake(bridge="jobs", replies=replies),
        Shutdown(timedelta(0)),
        batch=batch,
        keys=read_keys(SECRET) if replies else None,
        poll_every=timedelta(milliseconds=200),
        wait_seconds=1.0,
    )


async def drained(store: Store, queue: Queue) -> Counts:
    return await bridge_of(store, queue).run(drain=True)


async def all_jobs(store: Store) -> list[Job]:
    """Oldest first."""
    return list(reversed((await store.find(Job, limit=100)).items))


async def test_messages_become_jobs_in_order_and_leave_the_queue(queue: Queue, sqlite_url: str) -> None:
    bodies = [json.dumps({"taskType": "visit", "profileId": "p1", "payload": {"n": n}}) for n in range(25)]
    await queue.put([json.dumps(RECIPE), *bodies])
    async with fleet_store(sqlite_url) as store:
        counts = await drained(store, queue)
        jobs = await all_jobs(store)
    assert (counts.taken, counts.submitted, counts.rejected) == (26, 26, 0)
    assert jobs[0].job_id == "5f1c"
    assert jobs[0].task == "sync_orders"
    assert [job.payload.get("n") for job in jobs[1:]] == list(range(25))
    assert await queue.left() == 0


async def test_what_is_no_job_is_put_apart_with_its_reason_and_stops_no_other(queue: Queue, sqlite_url: str) -> None:
    bad = ["not json", '{"task": "visit"}', '{"task": "visit", "profile_id": "nobody"}', "[1]"]
    good = [json.dumps({"task": "visit", "profile_id": "p1", "payload": {"n": n}}) for n in range(4)]
    await queue.put([body for pair in zip(bad, good, strict=True) for body in pair])
    async with fleet_store(sqlite_url) as store:
        counts = await drained(store, queue)
        jobs = await all_jobs(store)
        logged = (await store.find(Event, {"type": EventType.MESSAGES_REJECTED})).items
    apart = dict(await queue.invalid())
    assert (counts.submitted, counts.rejected) == (4, 4)
    assert [job.payload["n"] for job in jobs] == [0, 1, 2, 3]
    assert set(apart) == set(bad)
    assert "not JSON" in apart["not json"]
    assert "whose job is it?" in apart['{"task": "visit"}']
    assert "nobody" in apart['{"task": "visit", "profile_id": "nobody"}']
    assert "must be a JSON object" in apart["[1]"]
    assert sum(int(str(event.data["messages"])) for event in logged) == 4
    assert await queue.left() == 0


async def test_a_message_that_was_submitted_but_not_acknowledged_is_one_job(queue: Queue, sqlite_url: str) -> None:
    """The bridge is gone between the commit and the acknowledgement: the message comes again."""
    await queue.put([json.dumps({"task": "visit", "profile_id": "p1", "payload": {"n": n}}) for n in range(3)])
    async with fleet_store(sqlite_url) as store:
        first = queue.broker()
        await first.open()
        taken: list[Message] = []
        while len(taken) < 3:
            taken += await first.take(10, 1)
        intake = Intake(bridge="jobs")
        await store.submit([intake.read(message) for message in taken])
        await first.close()
        counts = Counts()
        while counts.taken < 3:  # SQS shows a message again after its visibility timeout
            again = await drained(store, queue)
            counts = Counts(**{name: getattr(counts, name) + getattr(again, name) for name in Counts.__slots__})
        assert (counts.submitted, counts.duplicates) == (0, 3)
        assert len(await all_jobs(store)) == 3
    assert await queue.left() == 0


async def test_results_come_back_signed_once_the_job_has_ended(queue: Queue, sqlite_url: str) -> None:
    await queue.put([json.dumps(RECIPE)])
    async with fleet_store(sqlite_url) as store:
        bridge = bridge_of(store, queue, replies=True)
        working = asyncio.ensure_future(bridge.run())
        await happens(lambda: bridge.counts.submitted == 1, working)
        decision = Decision(action=Action.CANCEL, target=Target.JOB, id="5f1c", note="enough", actor="test")
        await store.decide(decision)
        await happens(lambda: bridge.counts.replied == 1, working)
        answers = await queue.replies()
        bridge.stop.ask()
        await working
    assert len(answers) == 1
    assert verify_all(answers[0]) is None
    body = Webhook(SECRET).verify(answers[0].body, answers[0].headers)
    assert body["type"] == "job.cancelled"
    assert body["data"]["job_id"] == "5f1c"


async def happens(condition: Callable[[], bool], working: "asyncio.Future[Counts]") -> None:
    """Return when it does; fail if the bridge ends before."""
    for _ in range(6_000):
        if condition():
            return
        assert not working.done(), working.result()
        await asyncio.sleep(0.02)  # waits: a bridge tells nobody what it has done
    raise AssertionError("it did not happen within two minutes")


def verify_all(answer: Answer) -> str | None:
    keys = read_keys(SECRET)
    assert keys is not None
    return verify(keys, answer.headers, answer.body, datetime.now(UTC))


class Away:
    """A store whose submits fail for a while."""

    def __init__(self, store: Store, times: int) -> None:
        self._store, self.times = store, times

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def submit(self, specs: list[JobSpec]) -> list[Submitted]:
        if self.times > 0:
            self.times -= 1
            raise StoreUnavailable("the store is away")
        return await self._store.submit(specs)


async def test_while_the_store_is_away_messages_wait_and_then_come_in(
    redis_server: RedisServer, sqlite_url: str
) -> None:
    queue = RedisQueue(redis_server.url)
    await queue.put([json.dumps(RECIPE)])
    async with fleet_store(sqlite_url) as store:
        away = Away(store, times=2)
        counts = await bridge_of(away.as_store, queue).run(drain=True)
    assert away.times == 0
    assert counts.submitted == 1
    assert await queue.left() == 0


async def test_a_bridge_that_stops_while_the_store_is_away_gives_messages_back(
    redis_server: RedisServer, sqlite_url: str
) -> None:
    queue = RedisQueue(redis_server.url)
    await queue.put([json.dumps({**RECIPE, "job_id": f"j{n}"}) for n in range(3)])
    async with fleet_store(sqlite_url) as store:
        away = Away(store, times=1_000_000)
        bridge = bridge_of(away.as_store, queue)
        working = asyncio.ensure_future(bridge.run())
        await happens(lambda: away.times < 1_000_000, working)
        bridge.stop.ask()
        await working
        assert await queue.left() == 3
        counts = await drained(store, queue)
        assert [job.job_id for job in await all_jobs(store)] == ["j0", "j1", "j2"]
    assert counts.submitted == 3


class Unanswered(Away):
    """A store that commits, and whose answers are lost."""

    async def submit(self, specs: list[JobSpec]) -> list[Submitted]:
        self.times -= 1
        await self._store.submit(specs)
        raise StoreUnavailable("the answer was lost")


async def test_a_bridge_that_stops_before_the_store_answered_submits_nothing_twice(
    queue: Queue, sqlite_url: str
) -> None:
    """Messages without a key of their own: only the broker's id says that they are the same."""
    await queue.put([json.dumps({"task": "visit", "profile_id": "p1", "payload": {"n": n}}) for n in range(3)])
    async with fleet_store(sqlite_url) as store:
        unanswered = Unanswered(store, times=1_000_000)
        bridge = bridge_of(unanswered.as_store, queue)
        working = asyncio.ensure_future(bridge.run())
        await happens(lambda: unanswered.times < 1_000_000, working)
        bridge.stop.ask()
        await working
        while await queue.left():
            await drained(store, queue)
        assert sorted(str(job.payload["n"]) for job in await all_jobs(store)) == ["0", "1", "2"]


async def test_a_bridge_outlives_a_failover_of_its_redis(own_redis: RedisServer, sqlite_url: str) -> None:
    """What it waits in is ended by an error, then it writes to a replica, then to a primary again."""
    queue = RedisQueue(own_redis.url)
    with Redis.from_url(own_redis.url, decode_responses=True) as admin:
        async with fleet_store(sqlite_url) as store:
            bridge = bridge_of(store, queue)
            working = asyncio.ensure_future(bridge.run())
            await happens(lambda: admin.info("clients")["blocked_clients"] == 1, working)
            admin.replicaof("127.0.0.1", 1)
            await happens(lambda: "errorstat_READONLY" in admin.info("errorstats"), working)
            admin.replicaof("NO", "ONE")
            await queue.put([json.dumps(RECIPE)])
            await happens(lambda: bridge.counts.submitted == 1, working)
            bridge.stop.ask()
            await working


async def test_a_queue_that_was_there_is_waited_for(rabbit_server: RabbitServer) -> None:
    """RabbitMQ says that there is no such queue while the node of one that is not replicated is down."""
    queue = RabbitQueue(rabbit_server.url)
    await queue.put([])
    broker = queue.broker()
    await broker.open()
    async with await aio_pika.connect(rabbit_server.url) as connection:
        await (await connection.channel()).queue_delete(queue.jobs)
    with pytest.raises(BrokerUnavailable, match="NOT_FOUND"):
        await broker.open()
    await queue.put(["{}"])
    await broker.open()
    assert len(await broker.take(1, 30)) == 1
    await broker.close()


async def test_rpush_lists_are_taken_from_their_left_end(redis_server: RedisServer, sqlite_url: str) -> None:
    queue = RedisQueue(redis_server.url)
    await queue.put([json.dumps({**RECIPE, "job_id": "newest"}), json.dumps({**RECIPE, "job_id": "oldest"})])
    broker = RedisBroker(redis_server.url, RedisLists(jobs=queue.jobs, from_right=False), "jobs")
    await broker.open()
    taken = await broker.take(10, 1)
    await broker.give_back(taken)
    again = await broker.take(10, 1)
    await broker.close()
    assert [json.loads(each.body)["job_id"] for each in taken] == ["oldest", "newest"]
    assert again == taken


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis whose role this test may change."""
    with tempfile.TemporaryDirectory(prefix="lk-redis-", dir="/tmp") as directory:
        server = RedisServer(Path(directory))
        server.start()
        yield server
        server.kill()


async def test_what_can_never_work_is_said_at_the_start(
    redis_server: RedisServer, rabbit_server: RabbitServer, s3: object, aws: None
) -> None:
    redis = RedisQueue(redis_server.url)
    await redis.put(["x"])
    lists = RedisLists(jobs=redis.lists.own("jobs", "taken"))
    own = redis.broker()
    await own.open()
    await own.take(1, 0)
    await own.close()
    endpoint = getattr(s3, "endpoint")  # noqa: B009 - the server's type is not this test's business
    alone = SqsQueue(endpoint)
    alone._client().set_queue_attributes(QueueUrl=alone.jobs, Attributes={"RedrivePolicy": ""})
    for broker, said in (
        (RedisBroker(redis_server.url, lists, "jobs"), "is a hash in Redis, not a list"),
        (RedisBroker("http://nowhere", RedisLists(jobs="x"), "jobs"), "url"),
        (RabbitBroker(rabbit_server.url, RabbitQueues(jobs="nobody-made-it"), 10), "create it first"),
        (SqsBroker(SqsQueues(jobs=alone.jobs)), "has no dead-letter queue"),
        (SqsBroker(SqsQueues(jobs="mlx:jobs")), "must be the URL of an SQS queue"),
    ):
        with pytest.raises(InputError) as refused:
            await broker.open()
        await broker.close()
        assert said in str(refused.value)


async def test_rabbitmq_messages_without_any_id_are_put_apart_unless_known_by_content(
    rabbit_server: RabbitServer, sqlite_url: str
) -> None:
    body = b'{"task": "visit", "profile_id": "p1"}'
    with pytest.raises(InputError, match="would run twice"):
        Intake(bridge="jobs").read(Message(id=None, body=body))
    one, other = (Intake(bridge="jobs", by_content=True).read(Message(id=None, body=body)) for _ in range(2))
    assert one.idempotency_key == other.idempotency_key
    queue = RabbitQueue(rabbit_server.url)
    await queue.put([body])
    broker = queue.broker()
    await broker.open()
    (taken,) = await broker.take(10, 30)
    await broker.give_back([taken])
    (again,) = await broker.take(10, 30)
    assert taken.id is not None
    assert again.id == taken.id
    await broker.close()


async def test_a_message_that_nears_a_delivery_limit_is_a_warning(
    rabbit_server: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = RabbitQueue(rabbit_server.url)
    await queue.put([b"{}"])
    broker = queue.broker()
    await broker.open()
    for delivered in range(5):
        (taken,) = await broker.take(10, 30)
        assert ("delivery-limit" in caplog.text) == (delivered >= 3)
        await broker.give_back([taken])
    await broker.close()
    assert caplog.text.count("delivery-limit") == 1
