"""One connection in pipeline mode: several prepared statements share one round trip.

This is libpq through psycopg's own binding, without cursors in between.
"""

import select
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import psycopg
from psycopg import abc, adapt, pq
from psycopg.errors import error_from_result

from leasekeeper.stores.postgres.connections import Connection
from leasekeeper.stores.postgres.values import Values
from leasekeeper.stores.sql.codec import Row
from leasekeeper.stores.sql.statements import positional

_EXEC: Final = pq.ExecStatus


class Statement:
    """A statement with numbered parameters, and the names that fill them."""

    __slots__ = ("name", "names", "text")

    def __init__(self, name: str, text: str) -> None:
        numbered, self.names = positional(text, "$")
        # The server truncates names to 63 bytes: longer ones could become equal.
        self.name = (name if len(name) < 60 else sha256(name.encode()).hexdigest()[:32]).encode()
        self.text = numbered.encode()


Call = tuple[Statement, Values]


class Link:
    """A connection in pipeline mode. Any failure of the connection itself raises psycopg.OperationalError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._prepared: set[bytes] = set()
        self._readers: dict[bytes, tuple[list[str], abc.Transformer]] = {}
        self._in_flight: list[tuple[Statement, bool]] = []
        self.mark = ""
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._timeout_ms = None if connection.timeout is None else connection.timeout * 1000

    @property
    def broken(self) -> bool:
        return self._connection.closed or self._pg.status != pq.ConnStatus.OK

    def close(self) -> None:
        self._connection.close()

    def start(self, calls: Sequence[Call]) -> None:
        """Send these calls without waiting for the results. `run` reads them later."""
        self._queue(calls)
        self._pg.flush()

    def run(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Send all calls, then read all results. The first error is raised after all results were read.

        Values are encoded before: one that cannot be encoded must not leave half a pipeline behind.
        """
        before = sum(executed for _, executed in self._in_flight)
        self._queue(calls)
        self._pg.pipeline_sync()
        sent, self._in_flight = self._in_flight, []
        answers: list[list[Row]] = []
        failed: pq.abc.PGresult | None = None
        for statement, executed in sent:
            result = self._next_result()
            if result is None:
                raise psycopg.OperationalError("the server closed the connection in the middle of an answer")
            if result.status in (_EXEC.FATAL_ERROR, _EXEC.PIPELINE_ABORTED):
                failed = failed or (result if result.status == _EXEC.FATAL_ERROR else None)
                if not executed:
                    self._prepared.discard(statement.name)
            elif executed:
                answers.append(self._rows(statement, result))
            self._next_result()
        sync = self._next_result()
        if sync is None or sync.status != _EXEC.PIPELINE_SYNC:
            raise psycopg.OperationalError("the server's responses do not match the queries; reconnecting")
        if failed is not None:
            raise error_from_result(failed)
        return answers[before:]

    def _queue(self, calls: Sequence[Call]) -> None:
        for statement, values in calls:
            if statement.name not in self._prepared:
                self._pg.send_prepare(statement.name, statement.text)
                self._prepared.add(statement.name)
                self._in_flight.append((statement, False))
            self._pg.send_query_prepared(statement.name, values)
            self._in_flight.append((statement, True))

    def _rows(self, statement: Statement, result: pq.abc.PGresult) -> list[Row]:
        """The rows of a result. The columns of a statement are read once."""
        count = result.ntuples
        if not count:
            return []
        if statement.name not in self._readers:
            columns = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
            self._readers[statement.name] = (columns, adapt.Transformer(self._connection))
            self._readers[statement.name][1].set_pgresult(result)
        columns, reader = self._readers[statement.name]
        reader.set_pgresult(result, set_loaders=False)
        return [dict(zip(columns, row, strict=True)) for row in reader.load_rows(0, count, tuple)]

    def _next_result(self) -> pq.abc.PGresult | None:
        pg = self._pg
        while pg.is_busy():
            # Check is_busy again after every read: one read may also flush the output and complete the result.
            wanted = select.POLLIN | select.POLLOUT if pg.flush() else select.POLLIN
            self._poll.modify(pg.socket, wanted)
            if not self._poll.poll(self._timeout_ms):
                raise self._connection.drop()
            pg.consume_input()
        return pg.get_result()
