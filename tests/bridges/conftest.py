"""Brokers that tests of one process share, and a queue of each kind."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridges.queues import Queue, RabbitQueue, RedisQueue, SqsQueue
from tests.bridges.servers import RabbitServer, RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="lk-redis-", dir="/tmp") as directory:
        server = RedisServer(Path(directory))
        server.start()
        yield server
        server.kill()


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    with tempfile.TemporaryDirectory(prefix="lk-rabbit-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        server = RabbitServer(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials as every AWS program finds them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-queue")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-queue")


@pytest.fixture(params=["redis", "rabbitmq", "sqs", "sqs-fifo"])
def queue(request: pytest.FixtureRequest) -> Queue:
    """An empty queue of each kind, for this test alone."""
    if request.param == "redis":
        return RedisQueue(request.getfixturevalue("redis_server").url)
    if request.param == "rabbitmq":
        return RabbitQueue(request.getfixturevalue("rabbit_server").url)
    request.getfixturevalue("aws")
    return SqsQueue(request.getfixturevalue("s3").endpoint, fifo=request.param == "sqs-fifo")
