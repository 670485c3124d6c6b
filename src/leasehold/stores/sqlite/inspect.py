"""Look at a SQLite file without opening it for work: which schema it has, whatever that is."""

import sqlite3
import time
from pathlib import Path

from leasehold.errors import StoreUnavailable
from leasehold.ports import StoreInfo
from leasehold.stores.sql.codec import from_us
from leasehold.stores.sqlite import schema
from leasehold.stores.sqlite.engine import translated


def inspect_file(path: Path) -> StoreInfo:
    """The file's schema and place. Makes nothing: a file that is not there is an error."""
    if not schema.exists(path):
        raise StoreUnavailable(
            f"{path} does not exist yet; 'leasehold apply' makes it, 'leasehold up' or 'leasehold db migrate'"
        )
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
