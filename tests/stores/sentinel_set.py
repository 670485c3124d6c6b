"""A Redis with a replica and a sentinel, each behind a wire of its own: to be cut off from one another."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.wire import Wire
from tests.redis_store import DurableRedis, redis_server
from tests.servers import START_SECONDS, wait_for_redis

NAME = "shop"
LAG_SECONDS = 3
WAIT_SECONDS = 120


@dataclass(frozen=True)
class SentinelSet:
    """`wire` is the way to the primary, for its replica, for the sentinel and for whoever asks the sentinel."""

    primary: DurableRedis
    replica: DurableRedis
    wire: Wire
    beside: Wire
    sentinel: Wire

    @property
    def url(self) -> str:
        """Whoever opens it asks the sentinel."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{NAME}/0"

    def is_copied(self) -> bool:
        """Whether the replica has what the primary has."""
        return b"master_link_status:up" in self.replica.call("INFO", "replication") and (
            b"min_slaves_good_slaves:1" in self.primary.call("INFO", "replication")
        )

    def is_level(self) -> bool:
        """Whether the replica has read every write that the primary has made so far."""
        written, read = (_offset(each.call("INFO", "replication")) for each in (self.primary, self.replica))
        return read >= written

    def has_taken_over(self) -> bool:
        return b"role:master" in self.replica.call("INFO", "replication")


def _offset(info: bytes) -> int:
    """How far a server's stream of writes goes: made by a primary, read by a replica."""
    fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
    return int(fields.get(b"slave_repl_offset", fields[b"master_repl_offset"]))


@contextmanager
def sentinel_set(parent: Path) -> Iterator[SentinelSet]:
    """Both servers need the other to write: the one that is alone grants nothing."""
    alone = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", str(LAG_SECONDS))
    quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(redis_server(parent, settings=(*alone, *quick))) for _ in range(2))
        wire, beside = (stack.enter_context(Wire(str(each.socket), seed=1)) for each in (primary, replica))
        for each, way in ((primary, wire), (replica, beside)):
            each.call("CONFIG", "SET", "replica-announce-ip", "127.0.0.1")
            each.call("CONFIG", "SET", "replica-announce-port", str(way.port))
        replica.call("REPLICAOF", "127.0.0.1", str(wire.port))
        address = stack.enter_context(_sentinel(parent, wire.port))
        found = SentinelSet(primary, replica, wire, beside, stack.enter_context(Wire(str(address), seed=1)))
        until(found.is_copied, "the replica has a copy")
        yield found


@contextmanager
def _sentinel(parent: Path, port: int) -> Iterator[Path]:
    """A sentinel for the primary at this port; gives its socket."""
    directory = Path(tempfile.mkdtemp(prefix="lk-sentinel-", dir=parent))
    address, file = directory / "redis.sock", directory / "sentinel.conf"
    file.write_text(
        f"port 0\nunixsocket {address}\ndir {directory}\n"
        f"sentinel monitor {NAME} 127.0.0.1 {port} 1\n"
        f"sentinel down-after-milliseconds {NAME} 1000\n"
        f"sentinel failover-timeout {NAME} 5000\n"
    )
    with (directory / "redis.log").open("ab") as log:
        process = subprocess.Popen(["redis-server", str(file), "--sentinel"], stdout=log, stderr=log)
    try:
        wait_for_redis(process, address)
        yield address
    finally:
        process.kill()
        process.wait(START_SECONDS)


def until(condition: Callable[[], bool], what: str) -> None:
    """Return when it holds; fail with `what` if that takes too long."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)  # waits: servers tell nobody what they decided
