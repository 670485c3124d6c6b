"""A Redis server for the store's own tests: private, durable, on a unix socket, to be killed and started again."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from leasekeeper.stores import migrate
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import clean_url
from tests.servers import START_SECONDS, ServerUnavailable, wait_for_redis

FLEET = f"{PREFIX}fleet_lock"


@dataclass
class DurableRedis:
    """A Redis with an append-only file."""

    directory: Path
    fsync: str = "always"
    settings: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.directory / "redis.sock"

    @property
    def url(self) -> str:
        return f"redis+unix://{self.socket}"

    def start(self) -> None:
        """Start it and return when it accepts connections. Also after `kill`, on the same data."""
        program = shutil.which("redis-server")
        if program is None:
            raise ServerUnavailable("no redis-server found: install Redis (Debian: apt-get install redis-server)")
        durable = ["--appendonly", "yes", "--appendfsync", self.fsync, "--save", ""]
        own = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.directory)]
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([program, *own, *durable, *self.settings], stdout=log, stderr=log)
        wait_for_redis(self.process, self.socket)

    def kill(self) -> None:
        """End it at once, as a power loss of the process would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(START_SECONDS)
            self.process = None

    def call(self, *words: str) -> bytes:
        """Send one command; its raw answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            parts = [word.encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            return connection.recv(65536)

    def emptied(self) -> str:
        """The URL of the store, as new as after its migration."""
        empty_redis(self.url)
        return self.url


def empty_redis(url: str) -> None:
    """Make the store as new as it was after its migration. Its configuration's revision goes on: who has the store open
    remembers the configuration by that."""
    with redis.Redis.from_url(clean_url(url), decode_responses=True) as client:
        before = client.hget(FLEET, "1")
        client.flushall()
        asyncio.run(migrate(url))
        if before is not None:
            revision = json.loads(str(before).partition("|")[2])[1]
            client.hset(FLEET, "1", f"1|[1,{revision},0]")


@contextmanager
def redis_server(parent: Path, *, fsync: str = "always", settings: tuple[str, ...] = ()) -> Iterator[DurableRedis]:
    """A Redis of one's own, on a unix socket alone."""
    directory = Path(tempfile.mkdtemp(prefix="lk-redis-", dir=parent))
    server = DurableRedis(directory, fsync, settings)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory)
