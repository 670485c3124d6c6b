"""Connections and threads of the SQLite store.

One writer thread and one reader thread per process, each with one connection. Each call of the writer thread is a whole
transaction (`BEGIN IMMEDIATE`). Checkpoints never run during a commit (see `checkpoints`).
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from leasekeeper.errors import StoreError, StoreNotWritable, StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.sql.batching import Threads
from leasekeeper.stores.sql.codec import Row, from_us, to_us
from leasekeeper.stores.sql.engine import ANSWERS_IN_ORDER, AnsweredBefore, Memory, Params, Tx, TxState
from leasekeeper.stores.sqlite import schema
from leasekeeper.stores.sqlite.checkpoints import Checkpoints
from leasekeeper.stores.sqlite.file_watch import FileWatch
from leasekeeper.stores.sqlite.inline_writes import Committing, InlineWrites
from leasekeeper.stores.sqlite.prepared import STATEMENTS
from leasekeeper.stores.sqlite.waiters import Waiters

T = TypeVar("T")

# Without these adapters the sqlite3 module searches for one at each use, which is slow. Adapters that the program has
# registered stay.
_SAME: dict[None, None] = {None: None}
sqlite3.adapters.setdefault((type(None), sqlite3.PrepareProtocol), _SAME.__getitem__)
sqlite3.adapters.setdefault((bool, sqlite3.PrepareProtocol), int)

BUSY_SECONDS = 30.0
RETRY_SECONDS = 0.005
# The interval of checks for changes of other processes: while the file is being written to (and at first); the longest
# without inotify; and with inotify, which reports writes.
CHECK_EVERY = timedelta(milliseconds=25)
IDLE_CHECK_EVERY = timedelta(milliseconds=250)
WATCHED_CHECK_EVERY = timedelta(seconds=2)
# A commit is visible some time after the last write to the file: when it is on disk.
COMMIT_TAKES = timedelta(milliseconds=500)
JUST_NOW = timedelta(milliseconds=5)
MAX_CACHED_STATEMENTS = 256


_FLEET = "SELECT revision, expiry_resumes_at FROM fleet_lock"
# Writes that change what `clock` reads besides the time.
_READ_BY_CLOCK = frozenset({"count_change", "pause_expiry"})


class _SqliteTx(TxState):
    """One open transaction on one connection. Nobody else can write meanwhile, so it reads the time once."""

    __slots__ = ("_cursor",)

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[datetime], datetime], memory: Memory) -> None:
        super().__init__(clock, memory)
        self._cursor = connection.cursor()

    def read(self, *queries: tuple[str, Params]) -> list[list[Row]]:
        return [self._rows(name, params) for name, params in queries]

    def _rows(self, name: str, params: Params) -> list[Row]:
        statement, values = STATEMENTS[name].prepared(params)
        cursor = self._cursor.execute(statement.text, values)
        columns = statement.columns
        if not columns:
            columns = statement.columns = [column[0] for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor]

    def clock(self, *queries: tuple[str, Params]) -> tuple[datetime, list[list[Row]]]:
        answers = self.read(*queries)
        if self._now is None:
            self.revision, resumes_at = self._cursor.execute(_FLEET).fetchone()
            self._now = self._clock(from_us(time.time_ns() // 1_000))
            self.lenient = to_us(self._now) < resumes_at
        return self._now, answers

    def expect(self, query: tuple[str, Params]) -> None:
        """No round trips to save: does nothing."""

    def flush_writes(self) -> None:
        """Writes are executed at once: does nothing."""

    def write(self, name: str, rows: Sequence[Params]) -> None:
        if name in _READ_BY_CLOCK:
            self._now = None
        statement = STATEMENTS[name]
        self._cursor.executemany(statement.text, map(statement.pick, rows))


class SqliteEngine:
    """The writer, the reader and the check for changes of one SQLite file."""

    def __init__(self, path: Path, clock: Callable[[datetime], datetime] = lambda real: real) -> None:
        self._path = path
        self._clock = clock
        self._pid = os.getpid()
        self._local = threading.local()
        self._writer = Threads(1, "leasekeeper-sqlite-writer", self._close_connection)
        self._reader = Threads(1, "leasekeeper-sqlite-reader", self._close_connection)
        self._checkpoints = Checkpoints(path)
        self._inline = InlineWrites(path, lambda: connect(path, timeout=0))
        self._memory = Memory()
        self._waiters = Waiters(path)
        self._watch = FileWatch(path.with_name(path.name + "-wal"), self._waiters.written)

    async def open(self) -> None:
        """Connect and migrate the schema."""
        await self._run_in(self._writer, self._migrate)

    def _migrate(self) -> None:
        connection = self._connection()
        if schema.check_version(schema.version(connection), self._path) < schema.NEWEST:
            with translated(self._path), self._checkpoints.committing():
                schema.migrate(connection, self._path)

    def change(self, operation: Callable[[Tx], T], *, brief: bool = False) -> "asyncio.Future[T]":
        self._check_process()
        if brief:
            done = self._inline.run(lambda connection, committing: self._commit(connection, operation, committing))
            if done is not None:
                if self._checkpoints.count():
                    self._inline.suspended = True
                    with suppress(StoreUnavailable):  # the store is being closed, which checkpoints too
                        self._run_in(self._writer, self._checkpoint)
                return done
        return self._run_in(self._writer, lambda: self._change(operation))

    def view(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        return self._run_in(self._reader, lambda: self._view(operation))

    async def wait(self, timeout: timedelta) -> None:
        """Poll the file's change counter until it changes. Any change counts: a claim that finds nothing is cheap.

        Several callers may wait; a change that one of them notices wakes all of them, and returns at once for one that
        is about to wait.
        """
        waiters = self._waiters
        started = time.monotonic()
        if started - waiters.changed_at < JUST_NOW.total_seconds():
            return
        self._check_process()
        changes = waiters.changes
        self._check_for_changes()  # also creates the WAL file, which is watched
        watched = self._watch.begin()
        try:
            await self._until_changed(changes, started + timeout.total_seconds(), watched=watched)
        finally:
            if watched:
                self._watch.end()

    async def _until_changed(self, changes: int, until: float, *, watched: bool) -> None:
        waiters, pause = self._waiters, CHECK_EVERY
        while True:
            self._check_for_changes()
            now = time.monotonic()
            if waiters.changes != changes or now >= until:
                return
            if now - waiters.written_at < COMMIT_TAKES.total_seconds():
                pause = CHECK_EVERY
            elif watched:
                pause = WATCHED_CHECK_EVERY
            await waiters.wait(min(until - now, pause.total_seconds()))
            pause = min(pause * 1.5, IDLE_CHECK_EVERY)

    def _check_for_changes(self) -> None:
        with translated(self._path):
            if self._inline.others_wrote():
                self._waiters.wake()

    def hint(self) -> None:
        """Wake the waiters of this process. Other processes watch the file."""
        self._waiters.notify()

    async def info(self) -> StoreInfo:
        version = await self._run_in(self._reader, lambda: schema.version(self._connection()))
        return StoreInfo(
            kind="sqlite",
            location=str(self._path),
            schema=version,
            newest_schema=schema.NEWEST,
            now=self._clock(from_us(time.time_ns() // 1_000)),
            detail=f"SQLite {sqlite3.sqlite_version}, WAL, synchronous FULL",
        )

    async def close(self) -> None:
        for threads in (self._writer, self._reader):
            await asyncio.to_thread(threads.close)
        self._watch.close()
        self._waiters.close()
        self._inline.close()
        self._checkpoints.close()

    def _run_in(self, threads: Threads, work: Callable[[], T]) -> "asyncio.Future[T]":
        self._check_process()
        return threads.run(work)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError("this store was opened before a fork; open it again in the child process")

    def _close_connection(self) -> None:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._checkpoints.at_end(connection)
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path)
        return connection

    def _change(self, operation: Callable[[Tx], T]) -> T:
        connection = self._connection()
        with translated(self._path):
            connection.execute("BEGIN IMMEDIATE")
        result = self._commit(connection, operation, self._checkpoints.committing())
        self._checkpoints.if_due(connection)
        return result

    def _checkpoint(self) -> None:
        try:
            self._checkpoints.if_due(self._connection())
        finally:
            self._inline.suspended = False

    def _commit(self, connection: sqlite3.Connection, operation: Callable[[Tx], T], committing: Committing) -> T:
        """Run the operation in the open transaction, and commit it."""
        try:
            with translated(self._path):
                schema.check_version(schema.version(connection), self._path)
                tx = _SqliteTx(connection, self._clock, self._memory)
                result = operation(tx)
                with committing:
                    connection.execute("COMMIT")
                self._memory.committed(tx)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _view(self, operation: Callable[[Tx], T]) -> T:
        connection = self._connection()
        with translated(self._path):
            connection.execute("BEGIN")
            try:
                schema.check_version(schema.version(connection), self._path)
                return operation(_SqliteTx(connection, self._clock, self._memory))
            finally:
                connection.execute("ROLLBACK")


def connect(path: Path, timeout: float = BUSY_SECONDS) -> sqlite3.Connection:
    """A connection with the settings that the store's guarantees need."""
    schema.check_place(path)
    with translated(path):
        connection = sqlite3.connect(
            path,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=MAX_CACHED_STATEMENTS,
        )
        try:
            schema.check_owner(connection, path)
            _use_wal(connection, timeout)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA cache_size = -65536")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
    return connection


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to WAL mode. SQLite's busy timeout does not cover two processes that do this to a new file: retry."""
    until = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
        else:
            return
        time.sleep(RETRY_SECONDS)  # waits: SQLite's lock has no notification


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translates SQLite's errors into the store's, with what to do next."""
    try:
        yield
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.IntegrityError) and ANSWERS_IN_ORDER in str(error):
            raise AnsweredBefore from None
        raise _translation(path, str(error)) from error


def _translation(path: Path, text: str) -> StoreError:
    if "locked" in text or "busy" in text:
        return StoreUnavailable(f"{path} was locked for {BUSY_SECONDS:.0f} s by another program; try again")
    if any(word in text for word in ("readonly", "unable to open", "full", "disk I/O", "permission")):
        return StoreNotWritable(
            f"{path} cannot be written ({text}); check the disk's space and the file's owner. Nothing was changed"
        )
    if "not a database" in text or "malformed" in text:
        return StoreError(f"{path} is not a Leasekeeper store, or it is damaged ({text})")
    return StoreError(f"{path}: {text}")
