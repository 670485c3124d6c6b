"""Reads the schema version of an SQLite file without migrating it, also if it is older or newer than this program's."""

import sqlite3
import time
from pathlib import Path

from leasekeeper.errors import StoreMissing
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.sql.codec import from_us
from leasekeeper.stores.sqlite import schema
from leasekeeper.stores.sqlite.engine import translated


def inspect_file(path: Path) -> StoreInfo:
    """The file's schema and location. Creates nothing: a missing file is an error."""
    if not schema.exists(path):
        raise StoreMissing(f"{path} does not exist yet", location=str(path))
    with translated(path):
        connection = sqlite3.connect(path)
        try:
            schema.check_owner(connection, path)
            found = schema.version(connection)
        finally:
            connection.close()
    return StoreInfo(
        kind="sqlite",
        location=str(path),
        schema=found,
        newest_schema=schema.NEWEST,
        now=from_us(time.time_ns() // 1_000),
        detail=f"SQLite {sqlite3.sqlite_version}",
    )
