"""Bridge, broker and store are killed in turns while messages come in: each message is one job, once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leasekeeper.core.jobs import Job
from leasekeeper.stores import migrate, open_store
from tests.bridges.queues import Queue, RabbitQueue, RedisQueue, SqsQueue
from tests.bridges.servers import RabbitServer, RedisServer, until
from tests.bridges.test_bridges import fleet_store
from tests.servers import PostgresServer, new_database, postgres_server, s3_server

# Messages in each round. RabbitMQ and SQS have their turn in a release: what a kill comes to, a message that was taken
# and not acknowledged, is tested daily with each of them.
ROUNDS = [
    ("redis", 200),
    pytest.param("redis", 1_000, marks=pytest.mark.release),
    pytest.param("rabbitmq", 1_000, marks=pytest.mark.release),
    pytest.param("sqs", 1_000, marks=pytest.mark.release),
]


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may kill."""
    with postgres_server() as server:
        yield server


@dataclass
class Broken:
    """A broker, its queue, the arguments of a bridge, and how the broker is killed: SQS is not ours to kill."""

    queue: Queue
    arguments: list[str]
    url: str = ""
    restart: list[Callable[[], None]] = field(default_factory=list)


@contextmanager
def broker_of(kind: str) -> Iterator[Broken]:
    """A broker of each kind."""
    more = ["--name", "jobs", "--batch", "40"]
    if kind == "sqs":
        with s3_server() as aws:
            found = SqsQueue(aws.endpoint)
            yield Broken(found, ["sqs", found.jobs, *more])
        return
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        server = RedisServer(Path(directory)) if kind == "redis" else RabbitServer(Path(directory))
        server.start()
        queue = RedisQueue(server.url) if kind == "redis" else RabbitQueue(server.url)
        option = "--list" if kind == "redis" else "--queue"
        arguments = [kind, "env:BROKER_URL", option, queue.jobs, *more]
        try:
            yield Broken(queue, arguments, server.url, [server.kill, server.start])
        finally:
            server.kill()


@dataclass
class Program:
    """`leasekeeper bridge …` as its own process."""

    arguments: list[str]
    environment: dict[str, str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leasekeeper", "bridge", *self.arguments],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


def jobs_in(url: str) -> list[int]:
    """The number in each job's payload."""

    async def read() -> list[int]:
        store = await open_store(url)
        found: list[int] = []
        after = None
        try:
            while True:
                page = await store.find(Job, after=after, limit=500)
                found += [int(str(job.payload["n"])) for job in page.items]
                after = page.after
                if after is None:
                    return sorted(found)
        finally:
            await store.close()

    return asyncio.run(read())


async def prepare(url: str, queue: Queue) -> None:
    await migrate(url)
    async with fleet_store(url):
        await queue.put([])


def put(queue: Queue, numbers: range) -> None:
    bodies = [json.dumps({"task": "visit", "profile_id": "p1", "payload": {"n": n}}) for n in numbers]
    asyncio.run(queue.put(bodies))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "size"), ROUNDS)
def test_kills_of_bridge_broker_and_store_lose_nothing_and_double_nothing(
    kind: str, size: int, own_postgres: PostgresServer, tmp_path: Path, aws: None
) -> None:
    url = new_database(own_postgres)
    with broker_of(kind) as broker:
        asyncio.run(prepare(url, broker.queue))
        program = Program(broker.arguments, {"LEASEKEEPER_STORE": url, "BROKER_URL": broker.url}, tmp_path / "log")
        faults: list[list[Callable[[], None]]] = [
            [program.kill, program.start],
            broker.restart,
            [own_postgres.stop, own_postgres.start],
            [program.kill, program.start],
            [],
        ]
        program.start()
        try:
            for number, fault in enumerate(faults):
                put(broker.queue, range(number * size, (number + 1) * size))
                for step in fault:
                    step()
            every = len(faults) * size
            until(lambda: len(jobs_in(url)) >= every, program.log.read_text(errors="replace"), 600)
            assert program.end() == 0, program.log.read_text(errors="replace")
        finally:
            program.kill()
        until(lambda: asyncio.run(broker.queue.left()) == 0, "the queue is empty")
        assert jobs_in(url) == list(range(every))
        assert asyncio.run(broker.queue.invalid()) == []
