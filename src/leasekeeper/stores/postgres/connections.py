"""Connections to the PostgreSQL server. Every wait for it has a timeout: a server or proxy that keeps a connection open
without a response must not block a process.
"""

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.rows import DictRow, dict_row

from leasekeeper.errors import StoreError, StoreNotWritable, StoreUnavailable
from leasekeeper.stores.postgres import schema

_LOG = logging.getLogger(__name__)

CONNECT_SECONDS = 10
DEFAULT_TIMEOUT = timedelta(seconds=15)
# How often a connection without a timeout logs that it still waits.
REPORT_SECONDS = 15.0


class NoResponse(psycopg.OperationalError):
    """The server sent nothing within the timeout. The connection was dropped."""


class Connection(psycopg.Connection[DictRow]):
    """A connection that is dropped when the server sends nothing for `timeout` seconds. None: it waits for ever, and
    logs every 15 seconds what it `waits_for`."""

    timeout: float | None = None
    waits_for = ""

    def wait(self, gen: Any, *arguments: Any, **named: Any) -> Any:
        return super().wait(self._watched(gen) if self.timeout or self.waits_for else gen, *arguments, **named)

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Run psycopg's generator with a timeout. It resumes ten times a second, with 0 if the socket is not ready."""
        seconds = self.timeout or REPORT_SECONDS
        since = time.monotonic()
        deadline = since + seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    since, deadline = now, now + seconds
                elif now >= deadline:
                    self._on_silence(now - since)
                    deadline = now + seconds
                wanted = gen.send(ready)
        except StopIteration as over:
            return over.value

    def _on_silence(self, seconds: float) -> None:
        """Drop the connection and raise NoResponse if there is a timeout."""
        if self.timeout:
            raise self.drop()
        _LOG.warning(
            "PostgreSQL at %s: no response for %.0f s, waiting for %s", self._location, seconds, self.waits_for
        )

    @property
    def _location(self) -> str:
        return f"{self.info.host}:{self.info.port}/{self.info.dbname}"

    def drop(self) -> NoResponse:
        """Close the socket without a message to the server. Returns the error to raise."""
        where = self._location
        self.pgconn.finish()
        _LOG.warning("PostgreSQL at %s: no response within %g s; the connection was dropped", where, self.timeout)
        return NoResponse(f"no response within {self.timeout:g} s")


def connect(url: str, options: str = "", timeout: timedelta | None = DEFAULT_TIMEOUT) -> Connection:
    """A connection in autocommit mode: transactions are always started explicitly."""
    extra: dict[str, Any] = {"options": f"-c search_path={schema.SCHEMA} -c client_encoding=UTF8 {options}"}
    try:
        connection = Connection.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=CONNECT_SECONDS,
            application_name="leasekeeper",
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,
            **extra,
        )
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise unavailable(url, error) from error
    connection.timeout = timeout.total_seconds() if timeout is not None else None
    return connection


@contextmanager
def connected(url: str, timeout: timedelta | None = DEFAULT_TIMEOUT) -> Iterator[Connection]:
    """A connection for a few statements. Raises StoreUnavailable if the server cannot be reached or disconnects."""
    try:
        with connect(url, timeout=timeout) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise unavailable(url, error) from error
    except psycopg.Error as error:
        raise refused(error) from None


def unavailable(url: str, error: Exception) -> StoreUnavailable:
    """The error for a server that cannot be reached, without the URL's password."""
    said = " ".join(schema.redact(url, str(error)).split())
    return StoreUnavailable(
        f"PostgreSQL at {schema.location(url)} cannot be reached: {said}; check that it runs and that the URL is right"
    )


def refused(error: psycopg.Error) -> StoreError:
    """The error for a statement that the server refused."""
    if isinstance(error, pg.InsufficientPrivilege):
        return StoreNotWritable(
            f"PostgreSQL refused: {message_of(error)}; this role needs CREATE on the database to migrate "
            "it, and to read and write the tables of schema leasekeeper for all else"
        )
    return StoreError(f"PostgreSQL refused: {message_of(error)}")


def message_of(error: psycopg.Error) -> str:
    """The server's main message only: its details quote rows, which may contain secrets."""
    return error.diag.message_primary or type(error).__name__
