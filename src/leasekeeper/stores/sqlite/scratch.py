"""An SQLite database in memory that has some rows of another store, for one transaction.

A store that is no SQL database loads the rows that a statement may read, and runs the statement here: so each statement
is written once. Knows nothing of where the rows come from and go to.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from leasekeeper.errors import StoreError
from leasekeeper.stores.sql.codec import Row
from leasekeeper.stores.sql.engine import ANSWERS_IN_ORDER, AnsweredBefore, Params
from leasekeeper.stores.sqlite import schema
from leasekeeper.stores.sqlite.prepared import STATEMENTS

MAX_CACHED_STATEMENTS: Final = 512
NEWEST: Final = schema.NEWEST
# Deletes the row that the migrations insert: the store that loads rows here loads its own.
_DELETE_MIGRATION_ROWS: Final = "DELETE FROM fleet_lock"


class Scratch:
    """A scratch database, for one thread. `roll_back` removes all rows that were loaded and written."""

    def __init__(self, version: int = NEWEST) -> None:
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=MAX_CACHED_STATEMENTS
        )
        self._connection.deserialize(_empty(version))
        self._cursor = self._connection.cursor()
        self.columns = columns_of(self._connection)
        self._load = {
            table: f"INSERT OR REPLACE INTO {table} ({', '.join(map(_quoted, names))}) "  # noqa: S608 - the schema's own names
            f"VALUES ({', '.join('?' * len(names))})"
            for table, names in self.columns.items()
        }
        self._select: dict[tuple[str, tuple[str, ...]], str] = {}

    def begin(self) -> None:
        """Begin a transaction, with no rows."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN")

    def roll_back(self) -> None:
        """Remove all rows."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def migrate(self, before: int) -> None:
        """Migrate the rows from the schema `before`, which this database was created with, to the newest."""
        migrate(self._connection, before, NEWEST)
        self.columns = columns_of(self._connection)

    def all(self, table: str) -> Iterator[tuple[Any, ...]]:
        """All rows of a table, in the order of `columns`."""
        names = ", ".join(map(_quoted, self.columns[table]))
        yield from self._connection.execute(f"SELECT {names} FROM {table}")  # noqa: S608 - the schema's own names

    def close(self) -> None:
        """Free the memory."""
        self._connection.close()

    def load(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, each a list of values in the order of `columns`."""
        self._cursor.executemany(self._load[table], rows)

    def row(self, table: str, key: tuple[str, ...], values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The row whose columns `key` have these values, in the order of `columns`. None if there is none."""
        text = self._select.get((table, key))
        if text is None:
            where = " AND ".join(f"{_quoted(name)} = ?" for name in key)
            names = ", ".join(map(_quoted, self.columns[table]))
            text = self._select[table, key] = f"SELECT {names} FROM {table} WHERE {where}"  # noqa: S608 - the schema's own names
        found: tuple[Any, ...] | None = self._cursor.execute(text, values).fetchone()
        return found

    def number(self, table: str, key: str, value: str, seq: int) -> None:
        """Set the `seq` of a row that was inserted here to the number that the store gave it."""
        self._cursor.execute(f"UPDATE {table} SET seq = ? WHERE {key} = ?", (seq, value))  # noqa: S608 - the schema's own names

    def read(self, name: str, params: Params) -> list[Row]:
        """Run a named query on the loaded rows."""
        statement, values = STATEMENTS[name].prepared(params)
        with _translated():
            cursor = self._cursor.execute(statement.text, values)
            columns = statement.columns
            if not columns:
                columns = statement.columns = [column[0] for column in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor]

    def write(self, name: str, rows: Sequence[Params]) -> None:
        """Apply a named statement to each row."""
        statement = STATEMENTS[name]
        with _translated():
            self._cursor.executemany(statement.text, map(statement.pick, rows))


@cache
def _empty(version: int) -> bytes:
    """A serialized database of this schema without rows. Cached, as migrating takes longer than copying."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, 0, version)
    connection.execute(_DELETE_MIGRATION_ROWS)
    return connection.serialize()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.IntegrityError) and ANSWERS_IN_ORDER in str(error):
            raise AnsweredBefore from None
        raise StoreError(f"a statement could not be run: {error}") from error


def migrate(connection: sqlite3.Connection, before: int, after: int) -> None:
    """Run the migrations that lead from one schema to another."""
    for number in range(before, after):
        connection.executescript(schema.MIGRATIONS[number].read_text(encoding="utf-8"))


def columns_of(connection: sqlite3.Connection) -> Mapping[str, tuple[str, ...]]:
    """The columns of each table, in their order."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        table: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        for table in tables
        if not table.startswith("sqlite_")
    }


def _quoted(name: str) -> str:
    return f'"{name}"'
