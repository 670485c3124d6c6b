"""The schema of a Redis store: its version, the first records of a new store, and migrations.

Records have the columns of the SQLite schema, so SQLite's migrations are used: the records are loaded into a scratch
database of their schema, migrated there, and written again with all their indexes.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from leasekeeper.errors import StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.redis.connections import Link, check_durable, check_version
from leasekeeper.stores.redis.tables import FIELD_END, PREFIX, TABLES, Table, event_entries, number, pack, unpack
from leasekeeper.stores.redis.urls import DURABILITY, check_url, location, query
from leasekeeper.stores.sql.codec import from_us
from leasekeeper.stores.sqlite.scratch import NEWEST, Scratch

SCHEMA: Final = f"{PREFIX}schema"
_FIRST_FLEET: Final = [1, 0, 0]


def info(link: Link, url: str, clock: Callable[[datetime], datetime] = lambda real: real) -> StoreInfo:
    """Location, schema and clock of the store."""
    time, found = link.call([("TIME",), ("GET", SCHEMA)])
    return StoreInfo(
        kind="redis",
        location=location(url),
        schema=int(found or 0),
        newest_schema=NEWEST,
        now=clock(from_us(int(time[0]) * 1_000_000 + int(time[1]))),
        detail=check_durable(link, url),
    )


async def migrate_url(url: str) -> StoreInfo:
    """Migrate the store to the newest schema."""
    return await asyncio.to_thread(_migrate, url)


async def inspect_url(url: str) -> StoreInfo:
    """Location, schema and clock of the store, also if its schema is older or newer than this program's."""
    return await asyncio.to_thread(_inspect, url)


def _inspect(url: str) -> StoreInfo:
    check_url(url)
    link = Link(url)
    try:
        return info(link, url)
    finally:
        link.close()


def _migrate(url: str) -> StoreInfo:
    check_url(url)
    link = Link(url)
    try:
        check_durable(link, url)
        found = int(link.schema or 0)
        if found > NEWEST:
            check_version(found, url)
        if not found:
            fleet: list[Any] = ["HSETNX", TABLES["fleet_lock"].hash, "1", f"1|{pack(_FIRST_FLEET)}"]
            link.call([fleet, *_first_token(link, url), ("SETNX", SCHEMA, NEWEST)])
        elif found < NEWEST:
            _upgrade(link, found, url)
        return info(link, url)
    finally:
        link.close()


def _first_token(link: Link, url: str) -> list[Sequence[Any]]:
    """The command that sets the lowest token of a new store. With `durability=none` the server may have lost an earlier
    store, so tokens begin above all that it can have granted."""
    if query(url).get(DURABILITY) != "none":
        return []
    ((seconds, micros),) = link.call([("TIME",)])
    return [("HSETNX", f"{PREFIX}server", "lowest_token", int(seconds) * 100 + int(micros) // 10_000)]


def _upgrade(link: Link, found: int, url: str) -> None:
    """Write all records again in the newest schema, in one transaction. Raises StoreUnavailable if somebody wrote to
    the store meanwhile: then nothing was changed."""
    link.call([("WATCH", SCHEMA, f"{PREFIX}revision")])
    scratch = Scratch(found)
    try:
        before: dict[tuple[str, str], dict[str, Any]] = {}
        for name, columns in scratch.columns.items():
            rows = _records(link, name)
            scratch.load(name, [_numbered(name, columns, key, values) for key, values in rows])
            before.update({(name, key): dict(zip(columns, values, strict=True)) for key, values in rows})
        scratch.migrate(found)
        commands: list[Sequence[Any]] = [("MULTI",)]
        for name, columns in scratch.columns.items():
            for values in scratch.all(name):
                commands += _rewritten(name, dict(zip(columns, values, strict=True)), before)
        for (name, key), row in before.items():  # these records do not exist in the newest schema
            commands.append(("HDEL", f"{PREFIX}{name}", key))
            commands += [("ZREM", index, member) for index, member in _entries(name, row, key)]
        commands += [("SET", SCHEMA, NEWEST), ("EXEC",)]
        *_, done = link.call(commands)
    finally:
        scratch.close()
    if done is None:
        raise StoreUnavailable(
            f"Redis at {location(url)} was written to during the migration: nothing was changed. "
            "Stop workers and servers, then repeat it"
        )


def _records(link: Link, name: str) -> list[tuple[str, list[Any]]]:
    """All records of a table, a few at a time. Events have no revision."""
    found: dict[str, list[Any]] = {}
    cursor = "0"
    while True:
        ((cursor, reply),) = link.call([("HSCAN", f"{PREFIX}{name}", cursor, "COUNT", 1000)])
        pairs = zip(reply[::2], reply[1::2], strict=True)
        found.update({key: unpack(f"|{text}" if name == "events" else text)[1] for key, text in pairs})
        if cursor == "0":
            return list(found.items())


def _numbered(name: str, columns: Sequence[str], key: str, values: list[Any]) -> list[Any]:
    if name == "events":
        values[columns.index("seq")] = int(key)
    return values


def _rewritten(
    name: str, row: dict[str, Any], before: dict[tuple[str, str], dict[str, Any]]
) -> Iterator[Sequence[Any]]:
    """The commands that write one record and its index entries."""
    table = TABLES.get(name)
    if table is None:
        if name == "events":
            before.pop((name, str(row["seq"])), None)
            yield ("HSET", f"{PREFIX}{name}", str(row["seq"]), pack([*(row | {"seq": None}).values()]))
            yield from (("ZADD", index, 0, f"{FIELD_END}{number(row['seq'])}") for index in event_entries(row))
        return
    key = table.key_of(row)
    old = dict(_entries(name, before.pop((name, key), {}), key))
    new = dict(table.entries(row, key))
    yield ("HSET", table.hash, key, f"{NEWEST}|{pack(list(row.values()))}")
    yield from (("ZREM", index, member) for index, member in old.items() if new.get(index) != member)
    yield from (("ZADD", index, 0, member) for index, member in new.items())
    yield from (("HSET", unique, field, key) for unique, field in table.unique_entries(row))


def _entries(name: str, row: dict[str, Any], key: str) -> Iterator[tuple[str, str]]:
    """The entries of a record of an older schema in current indexes, without indexes whose columns it lacks."""
    table = TABLES.get(name)
    for index in table.indexes if table and row else ():
        with suppress(KeyError):
            yield from Table(name, table.key if table else (), (index,)).entries(row, key)
