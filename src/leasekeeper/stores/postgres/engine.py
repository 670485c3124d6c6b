"""Connections and threads of the PostgreSQL store.

A few threads, each with its own connection. An operation is one call of a thread and one transaction, in as few round
trips as possible (pipeline mode). If the response to a commit is lost, a row that the transaction wrote shows whether
it was committed.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg
from psycopg import errors as pg

from leasekeeper.errors import StoreError, StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.postgres import schema
from leasekeeper.stores.postgres.connections import (
    DEFAULT_TIMEOUT,
    connect,
    connected,
    message_of,
    refused,
    unavailable,
)
from leasekeeper.stores.postgres.notifications import PostgresNotifications
from leasekeeper.stores.postgres.pipeline import Link
from leasekeeper.stores.postgres.transaction import PostgresTx
from leasekeeper.stores.sql.engine import ANSWERS_IN_ORDER, AnsweredBefore, Memory, Tx
from leasekeeper.stores.sql.threaded_engine import ThreadedEngine

T = TypeVar("T")

WRITERS = 4
READERS = 2
MAX_CONFLICTS = 8
MAX_DISCONNECTS = 1
COMMIT_LOOKUP_SECONDS = 30.0
MAX_SERVER_TIMEOUT = timedelta(seconds=10)

_INSERT_NONCE = (
    "INSERT INTO commits AS c (nonce, barred) VALUES (%s, TRUE) "
    "ON CONFLICT (nonce) DO UPDATE SET nonce = c.nonce RETURNING c.barred"
)
_DELETE_OLD_NONCES = "DELETE FROM commits WHERE made_at < now() - interval '1 day'"

# Hot statements are planned once, for any parameters, and by index: their tables may look empty when first planned.
_WRITER_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off "
    "-c enable_mergejoin=off -c jit=off -c synchronous_commit=on "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30000"
)
_READER_OPTIONS = "-c plan_cache_mode=force_custom_plan -c default_transaction_read_only=on"


class PostgresEngine(ThreadedEngine):
    """Operations of PostgreSQL. See `ThreadedEngine`."""

    def __init__(
        self,
        url: str,
        clock: Callable[[datetime], datetime] = lambda real: real,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._writer_options = f"{_WRITER_OPTIONS} {_server_timeouts(timeout)}"
        self._clock = clock
        self._local = threading.local()
        self._memory = Memory()
        notifications = PostgresNotifications(lambda: connect(url, timeout=timeout), timeout)
        super().__init__("pg", notifications, self._drop_link, writers=WRITERS, readers=READERS)

    def _check(self) -> int:
        with connected(self._url, self._timeout) as connection:
            return schema.check(connection, self._url)

    def _info(self) -> StoreInfo:
        with connected(self._url, self._timeout) as connection:
            return schema.info(connection, self._url, self._clock)

    def _link(self, options: str) -> Link:
        """This thread's connection, opened at first use and after the last one broke."""
        link: Link | None = getattr(self._local, "link", None)
        if link is None or link.broken:
            connection = connect(self._url, options, self._timeout)
            try:
                if options is self._writer_options:
                    connection.execute(_DELETE_OLD_NONCES)
            except psycopg.OperationalError as error:
                raise unavailable(self._url, error) from error
            except psycopg.Error as error:  # a read-only server, or a role that may not write
                connection.close()
                raise refused(error) from None
            link = self._local.link = Link(connection)
        return link

    def _drop_link(self) -> None:
        link: Link | None = getattr(self._local, "link", None)
        self._local.link = None
        if link is not None:
            with suppress(psycopg.Error):
                link.close()

    def _change(self, operation: Callable[[Tx], T]) -> T:
        """Run the operation until it commits. Retried only if it was rolled back; never after a commit."""
        conflicts = disconnects = 0
        while True:
            tx = PostgresTx(self._link(self._writer_options), self._clock, self._memory, writes=True)
            answer: list[T] = []
            try:
                answer.append(operation(tx))
                tx.commit()
                self._memory.committed(tx)
                return answer[0]
            except _RETRYABLE as error:
                if _is_disconnect(error) and tx.nonce and self._committed(tx.nonce):
                    self._drop_link()
                    return answer[0]
                conflicts, disconnects = self._clean_up(tx, error, conflicts, disconnects)
            except psycopg.Error as error:
                self._roll_back(tx)
                if error.diag.constraint_name == ANSWERS_IN_ORDER:
                    raise AnsweredBefore from None
                raise refused(error) from None
            except BaseException:
                self._roll_back(tx)
                raise

    def _clean_up(self, tx: PostgresTx, error: psycopg.Error, conflicts: int, disconnects: int) -> tuple[int, int]:
        """Clean up after a transaction that did not commit. Raises after the maximum number of retries."""
        if _is_disconnect(error):
            self._drop_link()
            if disconnects >= MAX_DISCONNECTS:
                raise unavailable(self._url, error) from error
            return conflicts, disconnects + 1
        self._roll_back(tx)
        if conflicts >= MAX_CONFLICTS:
            raise StoreError(
                f"gave up after {conflicts} conflicts with other transactions: {message_of(error)}"
            ) from None
        return conflicts + 1, disconnects

    def _roll_back(self, tx: PostgresTx) -> None:
        try:
            tx.roll_back()
        except psycopg.Error:
            self._drop_link()

    def _committed(self, nonce: str) -> bool:
        """Whether the transaction has committed whose response was lost. Retries until the server responds.

        Its last write was a row with a random nonce. If the row exists, the transaction has committed. If not, it is
        inserted here, and the transaction can never commit any more, even if the server has yet to execute it. The
        column `barred` says that it was inserted here, because the response to this query may be lost too.
        """
        until = time.monotonic() + COMMIT_LOOKUP_SECONDS
        while True:
            try:
                with connect(self._url, timeout=self._timeout) as connection:
                    row = connection.execute(_INSERT_NONCE, (nonce,)).fetchone()
                    return row is not None and not row["barred"]
            except (psycopg.OperationalError, StoreUnavailable) as error:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        "the connection broke during a commit and the server does not respond; check, then repeat it"
                    ) from error
            except psycopg.Error as error:
                raise StoreUnavailable(
                    f"the connection broke during a commit ({error}); check, then repeat it"
                ) from error
            time.sleep(0.1)

    def _view(self, operation: Callable[[Tx], T]) -> T:
        for attempt in range(2):
            tx = PostgresTx(self._link(_READER_OPTIONS), self._clock, self._memory, writes=False)
            try:
                tx.clock()  # also checks the schema version: an unknown schema is not read
                result = operation(tx)
                tx.roll_back()
                return result
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self._drop_link()
                if attempt:
                    raise unavailable(self._url, error) from error
            except psycopg.Error as error:
                self._roll_back(tx)
                raise refused(error) from None
            except BaseException:
                self._roll_back(tx)
                raise
        raise StoreError("unreachable")


def _server_timeouts(timeout: timedelta) -> str:
    """Server-side timeouts: a writer that stopped or lost its network must not keep profiles locked.

    They are shorter than the client's own timeout.
    """
    ms = max(1, int(min(MAX_SERVER_TIMEOUT, timeout * 2 / 3).total_seconds() * 1000))
    return f"-c idle_in_transaction_session_timeout={ms} -c lock_timeout={ms}"


_CONFLICTS = (pg.DeadlockDetected, pg.SerializationFailure, pg.UniqueViolation, pg.LockNotAvailable)
_RETRYABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    pg.UniqueViolation,
    pg.IdleInTransactionSessionTimeout,
)


def _is_disconnect(error: psycopg.Error) -> bool:
    """Whether the connection itself broke, and not only the transaction (a deadlock, a lock timeout)."""
    return not isinstance(error, _CONFLICTS)
