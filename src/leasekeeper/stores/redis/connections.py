"""Connections to a Redis server: what it must be to keep what it acknowledges, and errors in the store's words.

A connection belongs to one process of the server for as long as it lasts. Each new one therefore asks which process it
is: another than before may have lost the last writes.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from leasekeeper.core.leases import Timing
from leasekeeper.errors import (
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreNotDurable,
    StoreNotWritable,
    StoreUnavailable,
)
from leasekeeper.stores.redis import scripts
from leasekeeper.stores.redis.sentinel import server_url
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import DURABILITY, clean_url, location, query, redact, sentinels
from leasekeeper.stores.sqlite.scratch import NEWEST

log = logging.getLogger("leasekeeper.store")

DEFAULT_TIMEOUT: Final = timedelta(seconds=15)
# What a lease that a server forgot may have left, unless the policy says otherwise.
DEFAULT_GRACE: Final = Timing().ttl
OLDEST: Final = (6, 2)
OLDEST_WITH_SENTINEL: Final = (7, 0)
_SCRIPTS: Final = (
    scripts.COMMIT,
    scripts.BAR,
    scripts.READY,
    scripts.DISTINCT,
    scripts.GROUPS,
    scripts.MEET,
    scripts.VALID,
)


class Link:
    """One connection, for one thread."""

    def __init__(
        self,
        url: str,
        timeout: timedelta = DEFAULT_TIMEOUT,
        grace: timedelta = DEFAULT_GRACE,
        claimer: str = "",
    ) -> None:
        self.url, self.grace = url, grace
        self.slot = uuid.uuid4().hex
        self.claimer = claimer or self.slot
        self.commits = 0
        self.has_turn = False
        self.lowest_token = self.incomplete_token = 0
        self.grants_resume_at = 0
        self.schema = ""
        self.process = ""
        self._longest_ttl_ms = 0
        self._client = redis.Redis.from_url(
            clean_url(server_url(url, timeout)),
            decode_responses=True,
            socket_timeout=timeout.total_seconds(),
            socket_connect_timeout=timeout.total_seconds(),
            single_connection_client=False,
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
        )
        with translated(url):
            self._connection: Any = self._client.connection_pool.get_connection()
        self._meet()

    def _meet(self) -> None:
        """Which server process this is, and what follows from that."""
        scripts_known = [("SCRIPT", "LOAD", script.text) for script in _SCRIPTS]
        parts = [("INFO", part) for part in ("server", "persistence", "replication")]
        server, disk, copies = (fields(reply) for reply in self.call([*parts, *scripts_known])[: len(parts)])
        if copies["role"] != "master" and sentinels(self.url):
            raise Disconnected(f"the sentinels at {location(self.url)} are replacing their primary; try again")
        self.process = process = server["run_id"]
        # A replica that took over lacks what had not reached it, however it keeps what it got.
        took_over = set(copies.get("master_replid2", "0")) != {"0"}
        lossless = disk.get("aof_enabled") == "1" and fsync(self) == "always" and not rewrites_unsynced(self)
        lossless = lossless and not took_over
        grace = 0 if lossless else int(self.grace.total_seconds() * 1000)
        (found,) = self.call([scripts.MEET.call((f"{PREFIX}server",), (PREFIX, process, grace))])
        self.schema, lowest, resume, longest, other, incomplete = found
        self._longest_ttl_ms = max(int(longest), int(self.grace.total_seconds() * 1000))
        self.lowest_token, self.incomplete_token, self.grants_resume_at = int(lowest), int(incomplete), int(resume)
        if other == "1":
            seconds = self._longest_ttl_ms // 1000
            pause = f", and nothing is granted for {seconds} s, as it may have lost its last writes"
            paused = self.grants_paused() > 0
            log.warning(
                "the Redis server at %s is another process than before: tokens go on from %s%s",
                location(self.url),
                lowest,
                pause if paused else "",
            )

    def remember_ttl(self, ttl_ms: int) -> None:
        """How long a holder may believe in a lease that a server forgets. Kept before the lease is granted."""
        if ttl_ms > self._longest_ttl_ms:
            self.call([("ZADD", f"{PREFIX}longest_ttl", "GT", ttl_ms, "ms")])
            self._longest_ttl_ms = ttl_ms

    def check_grants(self) -> None:
        """Refuse to grant anything while a lease that the server forgot may still be held."""
        if self.grants_resume_at and (left := self.grants_paused()) > 0:
            raise StoreUnavailable(
                f"Redis at {location(self.url)} was restarted and may have lost its last writes: nothing is granted "
                f"for another {left:.0f} s, until leases from before have expired"
            )

    def grants_paused(self) -> float:
        """For how many seconds nothing is granted."""
        if not self.grants_resume_at:
            return 0.0
        (time,) = self.call([("TIME",)])
        left = self.grants_resume_at / 1000 - int(time[0]) - int(time[1]) / 1e6
        if left <= 0:
            self.grants_resume_at = 0
        return max(0.0, left)

    def call(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send the commands in one trip; one reply each."""
        connection: Any = self._connection
        with translated(self.url):
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_reply(connection) for _ in commands]
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise refused(self.url, reply)
        return replies

    def check_schema(self, found: str | None) -> None:
        """Refuse a store that was migrated, or emptied, under this connection."""
        if found != str(NEWEST):
            check_version(int(found or 0), self.url)

    def close(self) -> None:
        """Close the connection."""
        with suppress(redis.RedisError, OSError):
            self._connection.disconnect()
        with suppress(redis.RedisError, OSError):
            self._client.close()


def _reply(connection: Any) -> Any:
    """The next reply. An error is a reply too: those that follow it still have to be read."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def fields(info: Any) -> dict[str, str]:
    """What INFO says."""
    lines = (line.partition(":") for line in str(info).splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def check_durable(link: Link, url: str) -> str:
    """Refuse a server that could lose what it acknowledged, unless the URL accepts that. Returns what was found."""
    server, memory, disk = (
        fields(text) for text in link.call([("INFO", part) for part in ("server", "memory", "persistence")])
    )
    version = tuple(int(part) for part in server["redis_version"].split(".")[:2])
    if version < OLDEST:
        raise StoreError(f"Redis {server['redis_version']} at {location(url)} is too old: 6.2 or newer is needed")
    if server.get("redis_mode") == "cluster":
        raise StoreError(f"Redis at {location(url)} is a cluster; name one server, or a set with Sentinel, instead")
    durability = query(url).get(DURABILITY, "")
    policy = memory.get("maxmemory_policy", "noeviction")
    synced = fsync(link) if disk.get("aof_enabled") == "1" else "off"
    found, wanted = [], []
    if synced == "off":
        found.append("it keeps no append-only file (appendonly no)")
        wanted += ["appendonly yes", "appendfsync always"]
    elif synced == "no":
        found.append("it never waits for the disk (appendfsync no)")
        wanted.append("appendfsync always")
    elif rewrites_unsynced(link):
        found.append("it does not wait for the disk while it rewrites its file (no-appendfsync-on-rewrite yes)")
        wanted.append("no-appendfsync-on-rewrite no")
    if policy != "noeviction":
        found.append(f"it evicts records when memory is full (maxmemory-policy {policy})")
        wanted.append("maxmemory-policy noeviction")
    if sentinels(url) is not None and (problem := _outlives_its_replicas(link, version)):
        found.append(problem[0])
        wanted.append(problem[1])
    if found and durability != "none":
        raise StoreNotDurable(
            f"Redis at {location(url)} can lose what it acknowledged: {', and '.join(found)}; it needs the settings "
            f"{', '.join(wanted)}",
            wanted=tuple(wanted),
        )
    detail = (
        f"Redis {server['redis_version']}, appendfsync {synced}"
        if synced != "off"
        else f"Redis {server['redis_version']}, no append-only file"
    )
    if found:
        log.warning("the store's URL says durability=none: %s", ", and ".join(found))
    elif synced == "everysec":
        log.warning(
            "Redis at %s writes to disk once a second (appendfsync everysec): when its machine or process dies, the "
            "last second of jobs, leases and endings may be lost; `appendfsync always` loses nothing",
            location(url),
        )
    return detail


def _outlives_its_replicas(link: Link, version: tuple[int, ...]) -> tuple[str, str] | None:
    """What a primary lacks that must stop when it is cut off, before its successor grants anything; None if nothing.

    It takes writes for `min-replicas-max-lag` after its replicas are gone. Holders that it renewed until then stop
    themselves before the successor grants, if that time is not longer than from their own deadline to the expiry.
    """
    (text,) = link.call([("INFO", "replication")])
    longest = int(link.grace.total_seconds()) // 3
    if version < OLDEST_WITH_SENTINEL:
        raise StoreError(
            f"Redis at {location(link.url)} is too old to be used with Sentinel: before 7.0 a primary that is cut off "
            "goes on to run scripts"
        )
    if "min_slaves_good_slaves" not in fields(text):
        return "it goes on when Sentinel replaces it (min-replicas-to-write 0)", "min-replicas-to-write 1"
    if int(configured(link, "min-replicas-max-lag", "10")) > longest:
        return (
            f"it goes on for too long when Sentinel replaces it (min-replicas-max-lag over {longest})",
            f"min-replicas-max-lag {min(10, longest)}",
        )
    return None


def fsync(link: Link) -> str:
    """How often the server waits for the disk."""
    return configured(link, "appendfsync", "everysec")


def rewrites_unsynced(link: Link) -> bool:
    """Whether the server stops to sync while it rewrites its append-only file, which may take minutes."""
    return configured(link, "no-appendfsync-on-rewrite", "no") == "yes"


def configured(link: Link, name: str, hidden: str) -> str:
    """A setting of the server. Where CONFIG is forbidden, as in hosting, `hidden` is assumed."""
    try:
        (reply,) = link.call([("CONFIG", "GET", name)])
    except StoreError:
        return hidden
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return str(dict(pairs).get(name, hidden))


def check_version(found: int, url: str) -> None:
    """Refuse a store of another schema than this program's."""
    if found > NEWEST:
        raise SchemaTooNew(
            f"Redis at {location(url)} has schema {found}, this program knows {NEWEST}: "
            "upgrade Leasekeeper here before using it",
            schema=found,
            newest_schema=NEWEST,
        )
    if found < NEWEST:
        raise SchemaTooOld(
            f"Redis at {location(url)} has schema {found}, this program needs {NEWEST}: migrate it",
            schema=found,
            newest_schema=NEWEST,
        )


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Translates errors of the connection into the store's, with what to do next."""
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise StoreError(
            f"Redis at {location(url)} refused the user or password of the store's URL ({error})"
        ) from None
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise Disconnected(
            f"Redis at {location(url)} cannot be reached ({redact(url, str(error))}); "
            "check that it runs, and its address"
        ) from None
    except redis.RedisError as error:
        raise refused(url, error) from None


class Disconnected(StoreUnavailable):
    """The connection is gone; nobody knows what became of the last command."""


class ScriptUnknown(StoreError):
    """The server does not know a script any more; it was restarted or told to forget them."""


def refused(url: str, error: Exception) -> StoreError:
    """An error that the server answered with."""
    text = redact(url, str(error))
    if isinstance(error, redis.exceptions.NoScriptError):
        return ScriptUnknown(f"Redis at {location(url)} does not know a script: {text}")
    full = isinstance(error, (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError))
    if full or text.startswith(("MISCONF", "NOREPLICAS")) or "OOM" in text or "READONLY" in text:
        return StoreNotWritable(
            f"Redis at {location(url)} cannot be written ({text}); "
            "check its memory, its disk, and that it is no replica"
        )
    if text.startswith(("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN")):
        return StoreUnavailable(f"Redis at {location(url)} is not ready ({text}); try again")
    return StoreError(f"Redis at {location(url)}: {text}")
