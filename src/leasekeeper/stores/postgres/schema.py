"""The PostgreSQL schema: its version, and its migrations. Workers never migrate."""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import sql

from leasekeeper.errors import SchemaTooNew, SchemaTooOld, StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.sql.codec import from_us

SCHEMA: Final = "leasekeeper"
MIGRATIONS: Final = tuple(
    sorted(
        (file for file in resources.files("leasekeeper.stores.postgres").joinpath("migrations").iterdir()
         if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
)  # fmt: skip
NEWEST: Final = len(MIGRATIONS)
_LOCK: Final = 0x1EA5E401D


def version(connection: psycopg.Connection[Any]) -> int:
    """The schema version of the database; 0 if it has no tables yet."""
    found = connection.execute("SELECT to_regclass('leasekeeper.schema_version') IS NOT NULL AS there").fetchone()
    if not found or not found["there"]:
        return 0
    row = connection.execute("SELECT max(version) AS version FROM leasekeeper.schema_version").fetchone()
    return int(row["version"] or 0) if row else 0


def check(connection: psycopg.Connection[Any], url: str) -> int:
    """The schema version. Raises SchemaTooOld or SchemaTooNew if it is not the one of this program (I14)."""
    found = version(connection)
    if found < NEWEST:
        raise SchemaTooOld(
            f"PostgreSQL at {location(url)} has schema {found}, this program needs {NEWEST}: migrate it",
            schema=found,
            newest_schema=NEWEST,
        )
    return refuse_newer(found, url)


def refuse(found: int) -> None:
    """Raise SchemaTooNew if the schema changed while the store is open (I14)."""
    if found != NEWEST:
        raise SchemaTooNew(
            f"the store's schema became {found} while this program was running, and it knows {NEWEST}: "
            "restart it with a Leasekeeper that knows it",
            schema=found,
            newest_schema=NEWEST,
        )


def refuse_newer(found: int, url: str) -> int:
    if found > NEWEST:
        raise SchemaTooNew(
            f"PostgreSQL at {location(url)} has schema {found}, this program knows {NEWEST}: "
            "upgrade Leasekeeper here before using it",
            schema=found,
            newest_schema=NEWEST,
        )
    return found


def info(
    connection: psycopg.Connection[Any], url: str, clock: Callable[[datetime], datetime] = lambda real: real
) -> StoreInfo:
    row = connection.execute(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us, "
        "current_setting('server_version') AS server, current_setting('synchronous_commit') AS durable"
    ).fetchone()
    if row is None:
        raise StoreUnavailable(f"PostgreSQL at {location(url)} did not respond")
    return StoreInfo(
        kind="postgres",
        location=location(url),
        schema=version(connection),
        newest_schema=NEWEST,
        now=clock(from_us(row["us"])),
        detail=f"PostgreSQL {row['server']}, synchronous_commit {row['durable']}",
    )


async def migrate_url(url: str) -> StoreInfo:
    """Migrate the database to the newest schema, in one commit. Concurrent calls wait for each other."""
    return await asyncio.to_thread(_migrate, url)


def _migrate(url: str) -> StoreInfo:
    from leasekeeper.stores.postgres.connections import connected

    with connected(url, timeout=None) as connection:  # no timeout: a migration may take long
        connection.waits_for = "the server to begin a migration, or for one of another process to end"
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
            for number in range(refuse_newer(version(connection), url), NEWEST):
                connection.waits_for = f"the migration to schema {number + 1}"
                connection.execute(MIGRATIONS[number].read_text(encoding="utf-8").encode())
                connection.execute("INSERT INTO schema_version VALUES (%s)", (number + 1,))
            connection.execute("UPDATE fleet_lock SET schema = %s", (NEWEST,))
        return info(connection, url)


async def inspect_url(url: str) -> StoreInfo:
    """Location, schema and clock of the database, also if its schema is older or newer than this program's."""
    return await asyncio.to_thread(_inspect, url)


def _inspect(url: str) -> StoreInfo:
    from leasekeeper.stores.postgres.connections import connected

    with connected(url) as connection:
        return info(connection, url)


def location(url: str) -> str:
    """Host and database of a URL, without user and password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
        return f"{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return "the given URL"


def redact(url: str, text: str) -> str:
    """The text without the URL's password."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return re.sub(r"://[^@\s]*@", "://…@", text)
    return text.replace(password, "…") if password else text
