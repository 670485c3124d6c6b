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
from tests.bridges.queues import Queue, RabbitQueue, RedisQueue
from tests.bridges.servers import RabbitServer, RedisServer, until
from tests.bridges.test_bridges import fleet_store
from tests.servers import PostgresServer, new_database, postgres_server

MESSAGES = 1_000


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may kill."""
    with postgres_server() as server:
        yield server


@contextmanager
def broker_of(kind: str) -> Iterator[tuple[RedisServer | RabbitServer, Queue, list[str]]]:
    """A broker that this test may kill, its queue, and the arguments of a bridge."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        server = RedisServer(Path(directory)) if kind == "redis" else RabbitServer(Path(directory))
        server.start()
        queue: RedisQueue | RabbitQueue
        queue = RedisQueue(server.url) if kind == "redis" else RabbitQueue(server.url)
        option = "--list" if kind == "redis" else "--queue"
        try:
            yield server, queue, [kind, "env:BROKER_URL", option, queue.jobs, "--name", "jobs", "--batch", "40"]
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.release)])
def test_kills_of_bridge_broker_and_store_lose_nothing_and_double_nothing(
    kind: str, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """RabbitMQ's turn is part of a release: the daily tests cover its acknowledgements without kills."""
    url = new_database(own_postgres)
    with broker_of(kind) as (broker, queue, arguments):
        asyncio.run(prepare(url, queue))
        program = Program(arguments, {"LEASEKEEPER_STORE": url, "BROKER_URL": broker.url}, tmp_path / "log")
        parts = 5
        faults: list[list[Callable[[], None]]] = [
            [program.kill, program.start],
            [broker.kill, broker.start],
            [own_postgres.stop, own_postgres.start],
            [program.kill, program.start],
            [],
        ]
        program.start()
        try:
            for part, fault in enumerate(faults):
                size = MESSAGES // parts
                put(queue, range(part * size, (part + 1) * size))
                for step in fault:
                    step()
            until(lambda: len(jobs_in(url)) >= MESSAGES, program.log.read_text(errors="replace"), 300)
            assert program.end() == 0, program.log.read_text(errors="replace")
        finally:
            program.kill()
        until(lambda: asyncio.run(queue.left()) == 0, "the queue is empty")
        assert jobs_in(url) == list(range(MESSAGES))
        assert asyncio.run(queue.invalid()) == []
