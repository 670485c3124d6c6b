"""Opens, migrates and inspects stores by URL: `sqlite:///FILE`, `postgresql://…`, `redis://…`, a server's `https://…`.

A store's modules are imported when a URL of its kind is used.
"""

import random
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from leasekeeper.core.policy import Policy
from leasekeeper.errors import InputError, Problem
from leasekeeper.local_tokens import is_loopback
from leasekeeper.ports import Store, StoreInfo
from leasekeeper.settings_file import sqlite_file

# Matches a URL whose password has an unescaped @, / or #: a part of it would be parsed as the host and shown in errors.
_UNESCAPED_PASSWORD: Final = re.compile(r"[^/?#@]*:(?!\d+(?:[/?]|$))(?:[^@?]*[@/#][^?]*@|[^@?]*\?.*@)")
_ESCAPES: Final = "a password has to be written with %40 for @, %2F for /, %3F for ?, %23 for #"


def _real_time(real: datetime) -> datetime:
    return real


async def open_store(
    url: str,
    *,
    policy: Policy | None = None,
    clock: Callable[[datetime], datetime] = _real_time,
    jitter: Callable[[], float] = random.random,
    token: str = "",
    ca: str = "",
) -> Store:
    """Open the store behind a URL and check its schema.

    An SQLite file is created and migrated as needed. PostgreSQL and Redis: only `leasekeeper db migrate` migrates them.

    `token` and `ca` are for a server (`https://…`): its API token, and the file of certificates that it is trusted by.
    A server uses its own clock and policy. `clock` and `jitter` are for tests: `clock` maps the store's real time to
    the time that it uses, `jitter` returns numbers from 0 up to 1, which spread retries.
    """
    kind, place = split(url)
    policy = policy or Policy()
    if kind == "sqlite":
        from leasekeeper.stores.sql.store import SqlStore
        from leasekeeper.stores.sqlite.engine import SqliteEngine

        engine = SqliteEngine(Path(place), clock)
        try:
            await engine.open()
        except BaseException:
            await engine.close()
            raise
        return SqlStore(engine, policy, jitter)
    if kind == "http":
        from leasekeeper.stores.http import open_http

        return await open_http(place, token, policy, ca)
    if kind == "redis":
        return await _open_redis(place, policy, clock, jitter)
    return await _open_postgres(place, policy, clock, jitter)


async def _open_redis(
    url: str, policy: Policy, clock: Callable[[datetime], datetime], jitter: Callable[[], float]
) -> Store:
    from leasekeeper.stores.redis.engine import RedisEngine
    from leasekeeper.stores.redis.urls import check_url
    from leasekeeper.stores.sql.store import SqlStore

    check_url(url)
    engine = RedisEngine(url, clock, policy.store_timeout, policy.timing.ttl)
    try:
        await engine.open()
    except BaseException:
        await engine.close()
        raise
    return SqlStore(engine, policy, jitter)


async def _open_postgres(
    url: str, policy: Policy, clock: Callable[[datetime], datetime], jitter: Callable[[], float]
) -> Store:
    from leasekeeper.stores.postgres.engine import PostgresEngine
    from leasekeeper.stores.sql.store import SqlStore

    engine = PostgresEngine(url, clock, policy.store_timeout)
    try:
        await engine.open()
    except BaseException:
        await engine.close()
        raise
    return SqlStore(engine, policy, jitter)


async def migrate(url: str) -> StoreInfo:
    """Migrate the store's schema to the newest that this program knows."""
    kind, place = split(url)
    if kind == "sqlite":
        store = await open_store(url)
        try:
            return await store.check()
        finally:
            await store.close()
    if kind == "http":
        raise InputError(
            "nothing was migrated", [Problem("store", "a server's store is migrated where the server runs, by its URL")]
        )
    if kind == "redis":
        from leasekeeper.stores.redis.schema import migrate_url as migrate_redis

        return await migrate_redis(place)
    from leasekeeper.stores.postgres.schema import migrate_url

    return await migrate_url(place)


async def inspect(url: str, *, token: str = "", ca: str = "") -> StoreInfo:
    """Kind, location, schema and clock of the store, also if its schema is older or newer than this program's."""
    kind, place = split(url)
    if kind == "http":
        store = await open_store(url, token=token, ca=ca)
        try:
            return await store.check()
        finally:
            await store.close()
    if kind == "sqlite":
        from leasekeeper.stores.sqlite.inspect import inspect_file

        return inspect_file(Path(place))
    if kind == "redis":
        from leasekeeper.stores.redis.schema import inspect_url as inspect_redis

        return await inspect_redis(place)
    from leasekeeper.stores.postgres.schema import inspect_url

    return await inspect_url(place)


def absolute(url: str) -> str:
    """The same store by a URL that does not depend on the working directory."""
    kind, place = split(url)
    return f"sqlite:///{place}" if kind == "sqlite" else url


def split(url: str) -> tuple[str, str]:
    """The kind of store that a URL names (`sqlite`, `postgres`, `redis` or `http`), and its file or URL. Raises
    InputError for any other URL."""
    scheme, separator, rest = url.partition("://")
    file = sqlite_file(url)
    if file is not None:
        return "sqlite", str(file)
    if separator and scheme in ("postgresql", "postgres"):
        if _UNESCAPED_PASSWORD.match(rest):
            raise InputError("the store's URL is not usable", [Problem("store", _ESCAPES)])
        return "postgres", url
    if separator and scheme in ("redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"):
        if _UNESCAPED_PASSWORD.match(rest):
            raise InputError("the store's URL is not usable", [Problem("store", _ESCAPES)])
        return "redis", url
    if separator and scheme in ("http", "https") and rest:
        return "http", _checked(url)
    shown = f"{scheme}://…" if separator else "it"
    raise InputError(
        "the store's URL is not usable",
        [
            Problem(
                "store",
                f"{shown} must be sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://…, redis://… "
                "or https://…",
            )
        ],
    )


def _checked(url: str) -> str:
    """A server's URL. Raises InputError if it has a user, password, query or fragment, or if it is plain HTTP to
    another machine: others on the network could read the token."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    problem = None
    if parts.username or parts.password or parts.query or parts.fragment:
        problem = "a server's URL has no user, password, query or fragment: the token is a setting of its own"
    elif parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        problem = "a server on another machine needs https://: over http:// others could read the token"
    if problem:
        raise InputError("the store's URL is not usable", [Problem("store", problem)])
    return url.rstrip("/")
