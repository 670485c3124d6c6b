"""One transaction of the Redis store: loads records when they are needed, and commits with one script.

The rows that a statement needs are loaded into a scratch database, where the statement runs. `loads`, `finds` and
`writes` know which rows those are.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from leasekeeper.stores.redis.connections import Link
from leasekeeper.stores.redis.loads import loader_of
from leasekeeper.stores.redis.records import Load, Records, Rows
from leasekeeper.stores.redis.tables import PREFIX, TABLES
from leasekeeper.stores.redis.writes import WRITES
from leasekeeper.stores.sql.codec import Row, clean, from_us, to_us
from leasekeeper.stores.sql.engine import Memory, Params, TxState
from leasekeeper.stores.sqlite.scratch import Scratch

# Writes whose new rows get a number (`seq`) of the store, with their tables.
_NUMBERED: Final = {"insert_jobs": "jobs", "insert_deliveries": "deliveries"}
_FLEET: Final = "1"


class RedisTx(Records, TxState):
    """One transaction, or one read-only view."""

    def __init__(
        self,
        link: Link,
        scratch: Scratch,
        clock: Callable[[datetime], datetime],
        memory: Memory,
        *,
        writes: bool,
        busy: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        Records.__init__(self, link, scratch, writes=writes, busy=busy)
        TxState.__init__(self, clock, memory)

    @property
    def doubtful_up_to(self) -> int:
        return self.link.lowest_token

    @property
    def incomplete_up_to(self) -> int:
        return self.link.incomplete_token

    def read(self, *queries: tuple[str, Params]) -> list[list[Row]]:
        return self._read([(name, _cleaned(params)) for name, params in queries], [])

    def clock(self, *queries: tuple[str, Params]) -> tuple[datetime, list[list[Row]]]:
        also = [self._time()] if queries or self._now is None else []
        rows = self._read([(name, _cleaned(params)) for name, params in queries], also)
        fleet = dict(zip(self.scratch.columns["fleet_lock"], self._fleet(), strict=True))
        self.revision = fleet["revision"]
        now = self._now or from_us(0)
        self.lenient = to_us(now) < fleet["expiry_resumes_at"]
        return now, rows

    def _read(self, queries: Sequence[tuple[str, Params]], also: Sequence[Load]) -> list[list[Row]]:
        """Load the records that the queries need, in as few round trips as possible, and run the queries on them."""
        answers = self.run([*[loader_of(name)(self, params) for name, params in queries], *also])
        return [
            self.scratch.read(name, params) if answer is None else answer
            for (name, params), answer in zip(queries, answers[: len(queries)], strict=True)
        ]

    def _fleet(self) -> Sequence[Any]:
        return self.scratch.row("fleet_lock", ("only_row",), (1,)) or (1, 0, 0)

    def _time(self) -> Load:
        """The server's time, and the configuration's revision."""
        fleet = [] if _FLEET in self.loaded["fleet_lock"] else [("HMGET", TABLES["fleet_lock"].hash, _FLEET)]
        time, *found = yield [("TIME",), *fleet]
        self._now = self._clock(from_us(int(time[0]) * 1_000_000 + int(time[1])))
        if found:
            self.keep("fleet_lock", [_FLEET], found[0])

    def expect(self, query: tuple[str, Params]) -> None:
        """Does nothing: no query is sent in advance."""

    def flush_writes(self) -> None:
        """Does nothing: all writes are sent with the commit."""

    def write(self, name: str, rows: Rows) -> None:
        if name == "insert_events":
            self.events_new.extend(rows)
            return
        if name == "insert_runs":
            self.link.check_grants()
            self.link.remember_ttl(max(int(row["ttl_ms"]) for row in rows))
        table, load = WRITES[name]
        (touched,) = self.run([load(self, rows)])
        self.scratch.write(name, rows)
        if name in _NUMBERED:
            self._number(table, touched)
        for key in touched:
            self.touched[table][key] = None

    def _number(self, table: str, keys: Sequence[str]) -> None:
        (last,) = self.link.call([("INCRBY", f"{PREFIX}{table}:last", len(keys))])
        # From the last one on: their old numbers are not higher than the new ones, so that no two are equal meanwhile.
        for seq, key in zip(range(int(last), 0, -1), reversed(keys), strict=False):
            self.scratch.number(table, TABLES[table].key[0], key, seq)
            self.aliases[table][(seq,)] = key


def _cleaned(params: Params) -> Params:
    """The parameters with text that can be sent. Text that no store can keep would match nothing anyway."""
    return {
        name: clean(value)
        if type(value) is str
        else [clean(each) if type(each) is str else each for each in value]
        if type(value) is list
        else value
        for name, value in params.items()
    }
