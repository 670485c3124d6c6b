"""One transaction of the PostgreSQL store: which statements share a round trip, and which writes share a statement."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from leasekeeper.stores.postgres import schema
from leasekeeper.stores.postgres.combined_writes import KEYS, can_be_merged, combine, text_of
from leasekeeper.stores.postgres.pipeline import Call, Link, Statement
from leasekeeper.stores.postgres.values import encode
from leasekeeper.stores.sql.codec import Row, dump, from_us, to_us
from leasekeeper.stores.sql.engine import Memory, Params, TxState
from leasekeeper.stores.sql.statements import for_one, for_postgres, for_setting, lists, load

_CLOCK = Statement(
    "clock",
    "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) AS us, revision, schema, expiry_resumes_at "
    "FROM fleet_lock",
)


class _Statements(dict[str, Statement]):
    """Statements by name; `a+b` is the pieces a and b joined, `a=1` the read a for lists of one item, `a=ready` for the
    lanes that `lock_ready` locked."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, tuple[str, ...]] = {}

    def __missing__(self, name: str) -> Statement:
        pieces, _, variant = name.partition("=")
        text = _text(pieces)
        if variant:
            text = for_one(text) if variant == "1" else for_setting(text, f"leasekeeper.{variant}")
        statement = self[name] = Statement(name, for_postgres(text))
        return statement

    def call(self, name: str, params: Params) -> Call:
        """The named statement with these values; its variant for single items if each list has one item."""
        if name not in self.lists:
            self.lists[name] = lists(_text(name))
        several = self.lists[name]
        if several and all(len(params[each]) == 1 for each in several):
            one = self[name + "=1"]
            return one, [encode(params[each][0] if each in several else params[each]) for each in one.names]
        statement = self[name]
        return statement, [encode(params[each]) for each in statement.names]


def _text(name: str) -> str:
    return "\n".join(_TEXTS[piece] for piece in name.split("+"))


class _CombinedStatements(dict[str, Statement]):
    """Statements that combine several writes, by their parts."""

    def __missing__(self, parts: str) -> Statement:
        statement = self[parts] = Statement(parts, text_of(parts))
        return statement


_TEXTS = {
    **load(
        "leasekeeper.stores.sql", "queries.sql", "finds.sql", "find_prefixes.sql", "find_snapshots.sql", "schedules.sql"
    ),
    **load("leasekeeper.stores.postgres", "reads.sql", "writes.sql", "schedules.sql"),
}
STATEMENTS = _Statements()
_COMBINED = _CombinedStatements()
_BEGIN = Statement("begin", "BEGIN")
_BEGIN_VIEW = Statement("begin_view", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = Statement("commit", "COMMIT")
_ROLLBACK = Statement("rollback", "ROLLBACK")


class PostgresTx(TxState):
    """One transaction. Pending writes are sent with the next read or the commit, an expected read with the clock."""

    __slots__ = (
        "_expected",
        "_found",
        "_in_advance",
        "_link",
        "_locked",
        "_memory",
        "_pending",
        "_touched",
        "begun",
        "committing",
        "nonce",
        "writes",
        "wrote",
    )

    def __init__(self, link: Link, clock: Callable[[datetime], datetime], memory: Memory, *, writes: bool) -> None:
        super().__init__(clock, memory)
        self._link = link
        self._memory = memory
        self._pending: list[tuple[str, list[Params]]] = []
        self._touched: set[str | None] = set()  # the profiles of pending writes; None: unknown
        self._expected: tuple[str, Params] | None = None
        self._in_advance: tuple[tuple[str, Params], list[Row]] | None = None
        self._locked: set[str] = set()
        self._found: dict[str, dict[str, Row]] = {}
        self.writes = writes
        self.wrote = False
        self.begun = False
        self.committing = False
        self.nonce = ""

    def read(self, *queries: tuple[str, Params]) -> list[list[Row]]:
        if len(queries) == 1 and queries[0][0] in _READY:
            return [self._ready(queries[0])]
        answers = [self._already_read(name, params) for name, params in queries]
        wanted = [query for query, answer in zip(queries, answers, strict=True) if answer is None]
        if wanted:
            if any(name.startswith("lock_") for name, _ in wanted):
                self._now = None
            calls = [STATEMENTS.call(name, params) for name, params in wanted]
            sent = iter(self._send(calls, after_writes=not all(self._is_independent(*query) for query in wanted)))
            answers = [next(sent) if answer is None else answer for answer in answers]
        return [answer for answer in answers if answer is not None]

    def _ready(self, query: tuple[str, Params]) -> list[Row]:
        """The ready lanes: locked in advance, or now."""
        if self._in_advance is None or self._in_advance[0] != query:
            self._expected, self._now = query, None
            self.clock()
        rows = self._in_advance[1] if self._in_advance is not None else []
        self._in_advance = None
        return [row for row in rows if row["profile_id"] not in self._touched]

    def _already_read(self, name: str, params: Params) -> list[Row] | None:
        """The rows of a query about lanes that were just locked, if they were read together with them."""
        if name in self._found and self._locked.issuperset(params["ids"]) and self._is_independent(name, params):
            return [self._found[name][each] for each in params["ids"] if each in self._found[name]]
        if name == "configs":
            self._memory.new_ones = True
        return None

    def _is_independent(self, name: str, params: Params) -> bool:
        """Whether no pending write is about the profiles of this query: then it can be sent before them."""
        return name in _OF_PROFILES and None not in self._touched and self._touched.isdisjoint(params["ids"])

    def clock(self, *queries: tuple[str, Params]) -> tuple[datetime, list[list[Row]]]:
        if self._now is not None and not any(name.startswith("lock_") for name, _ in queries):
            return self._now, self.read(*queries)
        calls = [STATEMENTS.call(name, params) for name, params in queries]
        ready, self._expected = self._expected, None
        along = [STATEMENTS.call(*ready), (STATEMENTS["heads=ready"], ())] if ready else []
        # Configuration is read after the revision: it may be newer than that, and then is read again, but never older.
        after = [(STATEMENTS["configs=ready"], ())] if ready and self._memory.new_ones else []
        answers = self._send([*calls, *along, (_CLOCK, ()), *after])
        (row,) = answers[len(calls) + len(along)]
        schema.refuse(row["schema"])
        self._now = self._clock(from_us(row["us"]))
        self.revision = row["revision"]
        self.lenient = to_us(self._now) < row["expiry_resumes_at"]
        if ready:
            lanes, heads = answers[len(calls) : len(calls) + 2]
            self._keep(ready, lanes, heads, answers[-1] if after else None)
        return self._now, answers[: len(calls)]

    def _keep(
        self, ready: tuple[str, Params], lanes: list[Row], heads: Sequence[Row], configs: Sequence[Row] | None
    ) -> None:
        """Keep what was read with the ready lanes, for the queries that will follow."""
        self._in_advance = (ready, lanes)
        self._locked = {row["profile_id"] for row in lanes}
        self._found = {"heads": {row["profile_id"]: row for row in heads}}
        if configs is not None:
            self._found["configs"] = {row["profile_id"]: row for row in configs}
            self._memory.new_ones = not all(each in self.cached for each in self._locked)

    def expect(self, query: tuple[str, Params]) -> None:
        if query[0] in _READY:
            self._expected = query

    def write(self, name: str, rows: Sequence[Params]) -> None:
        """Add rows to the pending writes; rows for one table are merged unless a key would be written twice."""
        self.wrote = True
        if name in _READ_BY_CLOCK:
            self._now = None
        for row in rows:
            self._touched.add(row.get("profile_id"))
        if name in KEYS:
            for other, waiting in self._pending:
                if other == name and can_be_merged(name, waiting, rows):
                    waiting.extend(rows)
                    return
        self._pending.append((name, list(rows)))

    def flush_writes(self) -> None:
        if self._pending:
            self._link.start(self._after_begin(self._flush()))

    def commit(self) -> None:
        """Send pending writes and the commit in one round trip."""
        if not self.begun and not self._pending:
            return
        self.committing = True
        if self.wrote:
            self.nonce = secrets.token_hex(12)
            self._pending.append(("unmark_commit", [{"nonce": self._link.mark}]))
            self._pending.append(("mark_commit", [{"nonce": self.nonce}]))
        self._send([(_COMMIT, ())])
        if self.wrote:
            self._link.mark = self.nonce

    def roll_back(self) -> None:
        """Roll back the transaction."""
        self._pending.clear()
        if self.begun:
            self._send([(_ROLLBACK, ())])

    def _send(self, calls: Sequence[Call], *, after_writes: bool = True) -> list[list[Row]]:
        """One round trip: pending writes, then these calls."""
        before = self._after_begin(self._flush() if after_writes else [])
        return self._link.run([*before, *calls])[len(before) :]

    def _after_begin(self, calls: list[Call]) -> list[Call]:
        if self.begun:
            return calls
        self.begun = True
        return [(_BEGIN if self.writes else _BEGIN_VIEW, ()), *calls]

    def _flush(self) -> list[Call]:
        """Pending writes as calls. What was read in advance about their profiles is discarded."""
        calls, self._pending = _calls(self._pending), []
        if self._touched:
            if self._in_advance is not None:
                ready, rows = self._in_advance
                self._in_advance = (ready, [row for row in rows if row["profile_id"] not in self._touched])
            self._locked = {each for each in self._locked if each not in self._touched}
            self._touched.clear()
        return calls


# The queries that lock ready lanes: further reads about those lanes are sent with them.
_READY = frozenset({"lock_ready"})
# Reads of single profiles: writes about other profiles do not change them.
_OF_PROFILES = frozenset({"configs", "heads", "open_runs"})
# Writes that change what `clock` reads besides the time.
_READ_BY_CLOCK = frozenset({"count_change", "pause_expiry"})


def _calls(pending: Sequence[tuple[str, Sequence[Params]]]) -> list[Call]:
    """Pending writes as calls, in order; those that can be parts of one statement as one."""
    calls: list[Call] = []
    lots: dict[str, Sequence[Params]] = {}
    for name, rows in pending:
        if name in KEYS and name not in lots:
            lots[name] = rows
            continue
        if lots:
            calls.append(_combined(lots))
        lots = {name: rows} if name in KEYS else {}
        if name not in KEYS:
            calls.append((STATEMENTS[name], [encode(dump(rows))]))
    if lots:
        calls.append(_combined(lots))
    return calls


def _combined(lots: Mapping[str, Sequence[Params]]) -> Call:
    parts, values = combine(lots.items())
    return _COMBINED[parts], values
