"""How many rows a stretch of work wrote or locked, asked from the database itself. One way per store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import redis
from psycopg import sql

from leasekeeper.stores import split
from leasekeeper.stores.redis.tables import PREFIX, TABLES
from leasekeeper.stores.redis.urls import clean_url
from tests.conformance.world import World


@dataclass(slots=True)
class Touched:
    """The number of rows, once the stretch is over."""

    rows: int = -1


@asynccontextmanager
async def touching(world: World) -> AsyncIterator[Touched]:
    """Count the rows that are inserted, updated, deleted or locked inside."""
    kind, place = split(world.place.behind)
    touched = Touched()
    if kind == "sqlite":
        before = await total_changes(world)
        yield touched
        touched.rows = await total_changes(world) - before
        return
    if kind == "redis":
        known = revisions(place)
        yield touched
        now = revisions(place)
        touched.rows = sum(known.get(record) != now.get(record) for record in known.keys() | now.keys())
        return
    with psycopg.connect(place, autocommit=True) as connection:
        first = int(one(connection, "SELECT pg_current_xact_id()::text"))
        live = count(connection, 0)
        yield touched
        deleted = live - count(connection, 0) + count(connection, first, inserted=True)
        touched.rows = count(connection, first) + deleted


async def total_changes(world: World) -> int:
    """SQLite counts what a connection changed since it was opened; the store has two that write."""

    async def count_changes(engine: Any) -> int:
        result = await engine.change(lambda tx: tx._cursor.connection.total_changes)
        brief = engine._inline._connection
        return int(result) + (brief.total_changes if brief is not None else 0)

    return int(await world.place.on_engine(world.store, count_changes))


def revisions(url: str) -> dict[tuple[str, bytes], bytes]:
    """The revision of each record of a Redis store; an event has none, and never changes."""
    with redis.Redis.from_url(clean_url(url)) as client:
        return {
            (name, key): value.partition(b"|")[0]
            for name in (*TABLES, "events")
            for key, value in cast("dict[bytes, bytes]", client.hgetall(f"{PREFIX}{name}")).items()
        }


def count(connection: psycopg.Connection[Any], since: int, *, inserted: bool = False) -> int:
    """Rows that a transaction from `since` on wrote (xmin) or locked (xmax); all rows for 0."""
    # Each connection's last commit has a mark, which goes with its next one: that is not part of the work.
    tables = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'leasekeeper' AND tablename <> 'commits'"
    ).fetchall()
    written = sql.SQL("SELECT count(*) FROM {} WHERE xmin::text::bigint >= %(since)s")
    touched = sql.SQL("SELECT count(*) FROM {} WHERE greatest(xmin::text::bigint, xmax::text::bigint) >= %(since)s")
    total = 0
    for (name,) in tables:
        table = sql.Identifier("leasekeeper", name)
        query = (written if inserted else touched).format(table)
        total += int(one(connection, query, {"since": since}))
    return total


def one(connection: psycopg.Connection[Any], query: Any, params: Any = None) -> Any:
    row = connection.execute(query, params).fetchone()
    assert row is not None
    return row[0]
