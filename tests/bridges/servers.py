"""Brokers for tests: a durable Redis and a RabbitMQ, each private, to be killed and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import START_SECONDS, ServerUnavailable, wait_for_redis

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@dataclass
class RedisServer:
    """A Redis that loses nothing that it acknowledged."""

    directory: Path
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/redis.sock"

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise ServerUnavailable("no redis-server found: install Redis (Debian: apt-get install redis-server)")
        address = self.directory / "redis.sock"
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        own = ["--port", "0", "--unixsocket", str(address), "--dir", str(self.directory)]
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([program, *own, *durable], stdout=log, stderr=log)
        wait_for_redis(self.process, address)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class RabbitServer:
    """A RabbitMQ with directories, ports and a name service of its own."""

    directory: Path
    port: int = field(default_factory=free_port)
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        if not RABBITMQ.exists():
            raise ServerUnavailable(f"no {RABBITMQ}: install RabbitMQ (Debian: apt-get install rabbitmq-server)")
        place, names = self.directory, str(free_port())
        environment = {
            **os.environ,
            "HOME": str(place),
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"leasekeeper{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(place / "advanced"),
            "RABBITMQ_CONF_ENV_FILE": str(place / "none"),
        }
        with (place / "out").open("ab") as log:
            for command in (["epmd"], [str(RABBITMQ)]):
                self.processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
        self._wait()

    def _wait(self) -> None:
        give_up_at = time.monotonic() + 3 * START_SECONDS
        while time.monotonic() < give_up_at and self.processes[-1].poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                    connection.sendall(b"AMQP\0\0\x09\x01")
                    if connection.recv(8):
                        return
            except OSError:
                pass
            time.sleep(0.1)  # waits: a starting server tells nobody that it is ready
        raise ServerUnavailable(f"RabbitMQ did not start:\n{(self.directory / 'out').read_text(errors='replace')}")

    def kill(self) -> None:
        for process in reversed(self.processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Return when it holds; fail with `what` if that takes too long."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {seconds} s: {what}"
        time.sleep(0.05)  # waits: asks again
