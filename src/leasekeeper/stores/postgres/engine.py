"""Connections and threads of the PostgreSQL store.

A few threads, each with a connection of its own; an operation is one hop and one transaction, its statements sent in
as few round trips as they allow (pipeline mode). A lost answer to a commit is looked up by the mark it leaves.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.rows import DictRow, dict_row

from leasekeeper.errors import StoreError, StoreNotWritable, StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.postgres import schema
from leasekeeper.stores.postgres.link import Link
from leasekeeper.stores.postgres.signals import Signals
from leasekeeper.stores.postgres.transaction import PostgresTx
from leasekeeper.stores.sql.engine import Memory, Tx
from leasekeeper.stores.sql.threads import Threads

T = TypeVar("T")
Connection = psycopg.Connection[DictRow]

WRITERS = 4
READERS = 2
MOST_COLLISIONS = 8
MOST_CUTS = 1
COMMIT_LOOKUP_SECONDS = 30.0

_WHOSE_MARK = (
    "INSERT INTO commits AS c (nonce, barred) VALUES (%s, TRUE) "
    "ON CONFLICT (nonce) DO UPDATE SET nonce = c.nonce RETURNING c.barred"
)
_OLD_MARKS = "DELETE FROM commits WHERE made_at < now() - interval '1 day'"

# Hot statements are planned once, for any parameters, and by index: their tables may look empty when first planned.
_WRITER_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off "
    "-c enable_mergejoin=off -c jit=off -c synchronous_commit=on "
    # A writer that was stopped or cut off in the middle must not hold its profiles: the server ends it.
    "-c idle_in_transaction_session_timeout=10s -c lock_timeout=10s "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30000"
)
_READER_OPTIONS = "-c plan_cache_mode=force_custom_plan -c default_transaction_read_only=on"


class PostgresEngine:
    """Writers, readers, and the signals that wake those who wait."""

    def __init__(self, url: str, clock: Callable[[datetime], datetime] = lambda real: real) -> None:
        self._url = url
        self._clock = clock
        self._pid = os.getpid()
        self._local = threading.local()
        self._memory = Memory()
        self._writers = Threads(WRITERS, "leasekeeper-pg-writer", self._drop_link)
        self._readers = Threads(READERS, "leasekeeper-pg-reader", self._drop_link)
        self._signals = Signals(lambda: connect(self._url, ""))

    async def open(self) -> None:
        """Connect once, and refuse a schema that this program does not know."""
        await self._in(self._readers, self._check)

    def _check(self) -> int:
        with connected(self._url) as connection:
            return schema.check(connection, self._url)

    def change(self, operation: Callable[[Tx], T], *, brief: bool = False) -> "asyncio.Future[T]":  # noqa: ARG002 - servers may keep anybody waiting
        return self._in(self._writers, lambda: self._change(operation))

    def view(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        return self._in(self._readers, lambda: self._view(operation))

    async def wait(self, timeout: timedelta) -> None:
        await self._signals.wait(timeout)

    def hint(self) -> None:
        self._signals.send()

    async def info(self) -> StoreInfo:
        return await self._in(self._readers, self._info)

    def _info(self) -> StoreInfo:
        with connected(self._url) as connection:
            return schema.info(connection, self._url, self._clock)

    async def close(self) -> None:
        await asyncio.to_thread(self._signals.close)
        for threads in (self._writers, self._readers):
            await asyncio.to_thread(threads.close)

    def _in(self, threads: Threads, work: Callable[[], T]) -> "asyncio.Future[T]":
        if os.getpid() != self._pid:
            raise StoreError("this store was opened before a fork; open it again in the child process")
        return threads.run(work)

    def _link(self, options: str) -> Link:
        """This thread's connection, made when it is first wanted or when the last one broke."""
        link: Link | None = getattr(self._local, "link", None)
        if link is None or link.broken:
            connection = connect(self._url, options)
            try:
                if options is _WRITER_OPTIONS:
                    connection.execute(_OLD_MARKS)
            except psycopg.OperationalError as error:
                raise unavailable(self._url, error) from error
            except psycopg.Error as error:  # a server that only reads, or a role that may not write
                connection.close()
                raise _refused(error) from None
            link = self._local.link = Link(connection)
        return link

    def _drop_link(self) -> None:
        link: Link | None = getattr(self._local, "link", None)
        self._local.link = None
        if link is not None:
            with suppress(psycopg.Error):
                link.close()

    def _change(self, operation: Callable[[Tx], T]) -> T:
        """Run until it commits. What was rolled back may run again; what was committed never does."""
        collisions = cuts = 0
        while True:
            tx = PostgresTx(self._link(_WRITER_OPTIONS), self._clock, self._memory, writes=True)
            answer: list[T] = []
            try:
                answer.append(operation(tx))
                tx.commit()
                self._memory.committed(tx)
                return answer[0]
            except _MAY_BE_TRIED_AGAIN as error:
                if _is_cut(error) and tx.nonce and self._committed(tx.nonce):
                    self._drop_link()
                    return answer[0]
                collisions, cuts = self._after(tx, error, collisions, cuts)
            except psycopg.Error as error:
                self._roll_back(tx)
                raise _refused(error) from None
            except BaseException:
                self._roll_back(tx)
                raise

    def _after(self, tx: PostgresTx, error: psycopg.Error, collisions: int, cuts: int) -> tuple[int, int]:
        """Clear up after a transaction that did not commit; raises when it has been tried often enough."""
        if _is_cut(error):
            self._drop_link()
            if cuts >= MOST_CUTS:
                raise unavailable(self._url, error) from error
            return collisions, cuts + 1
        self._roll_back(tx)
        if collisions >= MOST_COLLISIONS:
            raise StoreError(f"gave up after {collisions} collisions with other transactions: {_said(error)}") from None
        return collisions + 1, cuts

    def _roll_back(self, tx: PostgresTx) -> None:
        try:
            tx.roll_back()
        except psycopg.Error:
            self._drop_link()

    def _committed(self, nonce: str) -> bool:
        """Whether the transaction whose answer was lost has committed. Asked until the server answers.

        Its last write was a mark that only it could have made. If the mark is there, it has committed. If not, making
        the same mark now keeps it from ever committing: not even a server that has yet to read it can do so then. Such
        a mark says that it was made here, since the answer to this question may be lost too.
        """
        until = time.monotonic() + COMMIT_LOOKUP_SECONDS
        while True:
            try:
                with connect(self._url, "") as connection:
                    row = connection.execute(_WHOSE_MARK, (nonce,)).fetchone()
                    return row is not None and not row["barred"]
            except (psycopg.OperationalError, StoreUnavailable) as error:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        "the answer to a commit was lost and the server cannot be asked; read before doing it again"
                    ) from error
            except psycopg.Error as error:
                raise StoreUnavailable(
                    f"the answer to a commit was lost ({error}); read before doing it again"
                ) from error
            time.sleep(0.1)

    def _view(self, operation: Callable[[Tx], T]) -> T:
        for attempt in range(2):
            tx = PostgresTx(self._link(_READER_OPTIONS), self._clock, self._memory, writes=False)
            try:
                tx.clock()  # it tells the schema too: nothing is read of one that this program does not know
                result = operation(tx)
                tx.roll_back()
                return result
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self._drop_link()
                if attempt:
                    raise unavailable(self._url, error) from error
            except psycopg.Error as error:
                self._roll_back(tx)
                raise _refused(error) from None
            except BaseException:
                self._roll_back(tx)
                raise
        raise StoreError("unreachable")


_COLLISIONS = (pg.DeadlockDetected, pg.SerializationFailure, pg.UniqueViolation, pg.LockNotAvailable)
_MAY_BE_TRIED_AGAIN = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.UniqueViolation,
    pg.IdleInTransactionSessionTimeout,
)


def _is_cut(error: psycopg.Error) -> bool:
    """Whether the connection itself broke, and not only the transaction (a deadlock, a lock that came too late)."""
    return not isinstance(error, _COLLISIONS)


def _refused(error: psycopg.Error) -> StoreError:
    if isinstance(error, pg.InsufficientPrivilege):
        return StoreNotWritable(
            f"PostgreSQL refused: {_said(error)}; this role needs CREATE on the database for 'leasekeeper db migrate', "
            "and to read and write the tables of schema leasekeeper for all else"
        )
    return StoreError(f"PostgreSQL refused: {_said(error)}")


def _said(error: psycopg.Error) -> str:
    """The server's message alone: its details quote rows, with all that is in them."""
    return error.diag.message_primary or type(error).__name__


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection for a few statements. A server that goes away meanwhile is as unavailable as one that is down."""
    try:
        with connect(url, "") as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise unavailable(url, error) from error
    except psycopg.Error as error:
        raise _refused(error) from None


def connect(url: str, options: str) -> Connection:
    """A connection in autocommit mode: transactions are opened by name, and never by accident."""
    extra: dict[str, Any] = {"options": f"-c search_path={schema.SCHEMA} -c client_encoding=UTF8 {options}"}
    try:
        connection = psycopg.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=10,
            application_name="leasekeeper",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,
            **extra,
        )
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise unavailable(url, error) from error
    return connection


def unavailable(url: str, error: Exception) -> StoreUnavailable:
    """The error for a server that cannot be reached, without the password that the URL may hold."""
    said = " ".join(schema.redact(url, str(error)).split())
    return StoreUnavailable(
        f"PostgreSQL at {schema.location(url)} cannot be reached: {said}; check that it runs and that the URL is right"
    )
