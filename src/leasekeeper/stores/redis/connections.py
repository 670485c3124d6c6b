"""Connections to a Redis server: checks that it keeps acknowledged writes, and translation of its errors.

A connection ends with the server process. Each new connection therefore asks which process it reached: a process other
than the last one may have lost the last writes.
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
# How long a holder may still believe in a lease that the server lost, unless the policy says otherwise.
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
        self._identify_server()

    def _identify_server(self) -> None:
        """Ask which server process this is. If it is another one than before, tokens skip ahead, and grants pause if it
        may have lost writes."""
        scripts_known = [("SCRIPT", "LOAD", script.text) for script in _SCRIPTS]
        parts = [("INFO", part) for part in ("server", "persistence", "replication")]
        server, disk, copies = (fields(reply) for reply in self.call([*parts, *scripts_known])[: len(parts)])
        if copies["role"] != "master" and sentinels(self.url):
            raise Disconnected(f"the sentinels at {location(self.url)} are replacing their primary; try again")
        self.process = process = server["run_id"]
        # A replica that took over lacks writes that had not reached it, even if it syncs everything to disk.
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
            pause = f", and no lease is granted for {seconds} s, because it may have lost its last writes"
            paused = self.grants_paused() > 0
            log.warning(
                "the Redis server at %s was restarted or replaced: fencing tokens continue from %s%s",
                location(self.url),
                lowest,
                pause if paused else "",
            )

    def remember_ttl(self, ttl_ms: int) -> None:
        """Store the TTL of a lease before it is granted, if it is the longest so far: so long a holder may believe in a
        lease that the server loses."""
        if ttl_ms > self._longest_ttl_ms:
            self.call([("ZADD", f"{PREFIX}longest_ttl", "GT", ttl_ms, "ms")])
            self._longest_ttl_ms = ttl_ms

    def check_grants(self) -> None:
        """Raise StoreUnavailable while a holder may still believe in a lease that the server lost."""
        if self.grants_resume_at and (left := self.grants_paused()) > 0:
            raise StoreUnavailable(
                f"Redis at {location(self.url)} was restarted and may have lost its last writes: nothing is granted "
                f"for another {left:.0f} s, until leases from before have expired"
            )

    def grants_paused(self) -> float:
        """For how many more seconds no lease is granted; 0 if grants are not paused."""
        if not self.grants_resume_at:
            return 0.0
        (time,) = self.call([("TIME",)])
        left = self.grants_resume_at / 1000 - int(time[0]) - int(time[1]) / 1e6
        if left <= 0:
            self.grants_resume_at = 0
        return max(0.0, left)

    def call(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send the commands in one round trip. Returns one reply per command; raises if one of them is an error."""
        connection: Any = self._connection
        with translated(self.url):
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_reply(connection) for _ in commands]
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise refused(self.url, reply)
        return replies

    def check_schema(self, found: str | None) -> None:
        """Raise if the store was migrated or emptied after this connection was opened."""
        if found != str(NEWEST):
            check_version(int(found or 0), self.url)

    def close(self) -> None:
        """Close the connection."""
        with suppress(redis.RedisError, OSError):
            self._connection.disconnect()
        with suppress(redis.RedisError, OSError):
            self._client.close()


def _reply(connection: Any) -> Any:
    """The next reply. An error is returned, not raised, because the replies after it still have to be read."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def fields(info: Any) -> dict[str, str]:
    """The fields of a reply to INFO."""
    lines = (line.partition(":") for line in str(info).splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def check_durable(link: Link, url: str) -> str:
    """Raise StoreNotDurable if the server could lose acknowledged writes, unless the URL says `durability=none`.
    Returns the server's version and durability."""
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
    if sentinels(url) is not None and (problem := _writes_without_replicas(link, version)):
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


def _writes_without_replicas(link: Link, version: tuple[int, ...]) -> tuple[str, str] | None:
    """The problem and the missing setting of a primary that would take writes for too long after Sentinel replaced it;
    None if there is no problem.

    A primary takes writes for `min-replicas-max-lag` after its replicas are gone, so it may renew leases until then.
    These holders stop before the new primary grants leases, if that time is at most the one from a holder's own
    deadline to the expiry.
    """
    (text,) = link.call([("INFO", "replication")])
    longest = int(link.grace.total_seconds()) // 3
    if version < OLDEST_WITH_SENTINEL:
        raise StoreError(
            f"Redis at {location(link.url)} is too old to be used with Sentinel: before 7.0 a primary that is cut off "
            "still runs scripts"
        )
    if "min_slaves_good_slaves" not in fields(text):
        return "it takes writes after Sentinel has replaced it (min-replicas-to-write 0)", "min-replicas-to-write 1"
    if int(configured(link, "min-replicas-max-lag", "10")) > longest:
        return (
            f"it takes writes for too long after Sentinel has replaced it (min-replicas-max-lag over {longest})",
            f"min-replicas-max-lag {min(10, longest)}",
        )
    return None


def fsync(link: Link) -> str:
    """How often the server syncs to disk: `always`, `everysec` or `no`."""
    return configured(link, "appendfsync", "everysec")


def rewrites_unsynced(link: Link) -> bool:
    """Whether the server stops to sync while it rewrites its append-only file, which may take minutes."""
    return configured(link, "no-appendfsync-on-rewrite", "no") == "yes"


def configured(link: Link, name: str, hidden: str) -> str:
    """A setting of the server; `hidden` where CONFIG is forbidden, as on many hosted servers."""
    try:
        (reply,) = link.call([("CONFIG", "GET", name)])
    except StoreError:
        return hidden
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return str(dict(pairs).get(name, hidden))


def check_version(found: int, url: str) -> None:
    """Raise SchemaTooNew or SchemaTooOld if the store's schema is not this program's."""
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
    """The connection broke. The last command may or may not have been executed."""


class ScriptUnknown(StoreError):
    """The server does not know a script any more: it was restarted, or its scripts were flushed."""


def refused(url: str, error: Exception) -> StoreError:
    """The store's error for an error reply of the server."""
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
