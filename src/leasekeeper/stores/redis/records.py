"""The records that one transaction has loaded, and the commit that writes their changes.

The commit compares the revision of every loaded record, so it is made only if no record that the decision is based on
has changed. A locked record gets a new revision even if it is not written: so other transactions that read it conflict,
where a row lock of SQL would make them wait. Knows no names of statements: `transaction` does.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final

from leasekeeper.stores.redis.connections import Link
from leasekeeper.stores.redis.tables import (
    FIELD_END,
    PREFIX,
    TABLES,
    event_entries,
    index_key,
    key_in,
    newest_states,
    number,
    pack,
    unique_key,
    unpack,
)
from leasekeeper.stores.sql.codec import Row
from leasekeeper.stores.sql.engine import Params
from leasekeeper.stores.sqlite.scratch import Scratch

Command = tuple[Any, ...]
Load = Generator[list[Command], list[Any], Any]
Rows = Sequence[Params]
Loader = Callable[["Records", Params], Load]
WriteLoader = Callable[["Records", Rows], Load]

# A command that a script runs can take so many arguments.
MAX_ARGUMENTS: Final = 1000
# One command reads or compares at most so many records, so that it does not block others for long.
AT_ONCE: Final = 1000
# Columns other than the key by which writes name their records.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("seq",),
    "runs": ("profile_id", "token"),
    "deliveries": ("seq",),
}


class Records:
    """The records of one transaction: methods that load them, and the arguments of the commit."""

    def __init__(
        self,
        link: Link,
        scratch: Scratch,
        *,
        writes: bool,
        busy: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        scratch.begin()
        self.link, self.scratch = link, scratch
        self._writes = writes
        self._schema_checked = False
        self.busy = busy
        self.loaded: dict[str, dict[str, tuple[str, list[Any] | None]]] = {name: {} for name in TABLES}
        self.touched: dict[str, dict[str, None]] = {name: {} for name in TABLES}
        self.aliases: dict[str, dict[tuple[Any, ...], str]] = {name: {} for name in ALIASES}
        self.events_read: dict[int, list[Any]] = {}
        self.events_gone: list[int] = []
        self.chosen: list[str] = []
        self._locked: set[tuple[str, str]] = set()
        self._names: dict[str, str] = {}
        self.events_new: list[Params] = []

    def run(self, loads: Sequence[Load]) -> list[Any]:
        """Run several loads together: commands that they send at the same time share a round trip. Returns their
        answers."""
        answers: list[Any] = [None] * len(loads)
        waiting: list[tuple[int, list[Command]]] = []
        for place, load in enumerate(loads):
            self.step(place, load, None, answers, waiting)
        while waiting:
            asked = [command for _, commands in waiting for command in commands]
            if not self._schema_checked:
                asked.insert(0, ("GET", f"{PREFIX}schema"))
            replies = iter(self.link.call(asked))
            if not self._schema_checked:
                self.link.check_schema(next(replies))
                self._schema_checked = True
            stepped, waiting = waiting, []
            for place, commands in stepped:
                self.step(place, loads[place], [next(replies) for _ in commands], answers, waiting)
        return answers

    @staticmethod
    def step(
        place: int, load: Load, replies: Any, answers: list[Any], waiting: list[tuple[int, list[Command]]]
    ) -> None:
        try:
            waiting.append((place, load.send(replies)))
        except StopIteration as stop:
            answers[place] = stop.value

    def rows(self, table: str, keys: Iterable[str | None]) -> Load:
        """Load the records with these keys."""
        known = self.loaded[table]
        missing = [key for key in dict.fromkeys(keys) if key is not None and key not in known]
        if missing:
            parts = [missing[n : n + AT_ONCE] for n in range(0, len(missing), AT_ONCE)]
            found = yield [("HMGET", TABLES[table].hash, *part) for part in parts]
            self.keep(table, missing, [packed for part in found for packed in part])

    def lock(self, table: str, keys: Iterable[str]) -> Load:
        """Load the records with these keys, and lock them until the commit."""
        keys = list(keys)
        yield from self.rows(table, keys)
        self._locked.update((table, key) for key in keys)

    def lock_name(self, name: str) -> Load:
        """Lock a name, for things that have no record."""
        if name not in self._names:
            (revision,) = yield [("HGET", f"{PREFIX}locks", name)]
            self._names[name] = revision or ""

    def keep(self, table: str, keys: Sequence[str], found: Sequence[str | None]) -> None:
        """Keep records that were read. A record that is known already stays as it was read first."""
        known, new = self.loaded[table], []
        alias = ALIASES.get(table)
        columns = self.scratch.columns[table]
        for key, packed in zip(keys, found, strict=True):
            if key in known:
                continue
            if not packed:
                known[key] = ("", None)
                continue
            revision, values = unpack(packed)
            known[key] = (revision, values)
            if alias:
                self.aliases[table][tuple(values[columns.index(name)] for name in alias)] = key
            new.append(values)
        if new:
            self.scratch.load(table, self._with_lowest_token(table, new))

    def _with_lowest_token(self, table: str, rows: list[list[Any]]) -> list[list[Any]]:
        """The rows of lanes with at least the lowest token: a server that lost writes may have lost the last tokens."""
        if not self._writes or not self.link.lowest_token or table not in ("lanes", "retired_lanes"):
            return rows
        place = self.scratch.columns[table].index("token")
        return [[*row[:place], max(row[place], self.link.lowest_token), *row[place + 1 :]] for row in rows]

    def assume_new(self, table: str, key: str) -> None:
        """Assume that this new record does not exist yet: if it does, the commit has a conflict."""
        self.loaded[table].setdefault(key, ("", None))

    def first(
        self,
        table: str,
        index: str,
        *by: object,
        limit: int | None = None,
        low: str = "-",
        high: str = "+",
        lock: bool = False,
    ) -> Load:
        """Load the first records of an index, or all. Loads as many more as this transaction has changed, because those
        may no longer be in the index. Returns the keys."""
        count = -1 if limit is None else limit + len(self.touched[table])
        (members,) = yield [range_of(index_key(table, index, *by), low, high, count)]
        keys = [key_in(member) for member in members]
        yield from self.lock(table, keys) if lock else self.rows(table, keys)
        return keys

    def by_unique(self, table: str, unique: str, values: Sequence[str]) -> Load:
        """Load the records with these values of a unique index. The commit checks that no missing one was added."""
        if values:
            (found,) = yield [("HMGET", unique_key(table, unique), *values)]
            yield from self.rows(table, found)

    def count(self, table: str, index: str, *by: object) -> Load:
        """How many records an index has, with the changes of this transaction."""
        name = index_key(table, index, *by)
        (count,) = yield [("ZCARD", name)]
        count = int(count)
        for key in self.touched[table]:
            before, after = self._before(table, key), self.current(table, key)
            count += (after is not None and _is_in(table, after, key, name)) - (
                before is not None and _is_in(table, before, key, name)
            )
        return count

    def values(self, table: str, keys: Iterable[str], column: str) -> list[Any]:
        """One column of loaded records, as they are now."""
        rows = (self.current(table, key) for key in keys)
        return [row[column] for row in rows if row is not None]

    def current(self, table: str, key: str) -> dict[str, Any] | None:
        """A record as this transaction sees it."""
        if key not in self.touched[table]:
            return self._before(table, key)
        return self._named(table, self._scratch_row(table, key))

    def _scratch_row(self, table: str, key: str) -> tuple[Any, ...] | None:
        names = TABLES[table].key
        values = (key,) if len(names) == 1 else tuple(key.split("\x1f"))
        return self.scratch.row(table, names, values)

    def _before(self, table: str, key: str) -> dict[str, Any] | None:
        found = self.loaded[table].get(key)
        return None if found is None else self._named(table, found[1])

    def _named(self, table: str, values: Sequence[Any] | None) -> dict[str, Any] | None:
        return None if values is None else dict(zip(self.scratch.columns[table], values, strict=True))

    def keep_events(self, seqs: Sequence[str], found: Sequence[str | None]) -> None:
        """Events that were read. They never change."""
        new = []
        place = self.scratch.columns["events"].index("seq")
        for seq, packed in zip(seqs, found, strict=True):
            if packed and int(seq) not in self.events_read:
                _, values = unpack("|" + packed)
                values[place] = int(seq)
                self.events_read[int(seq)] = values
                new.append(values)
        if new:
            self.scratch.load("events", new)

    # The commit.

    def compared(self) -> list[tuple[str, str]]:
        """The records that the commit compares, in its order."""
        return [(table, key) for table, rows in self.loaded.items() for key in rows]

    def commit_arguments(self) -> list[Any] | None:
        """The commit script's arguments after the first four; None if there is nothing to write."""
        writing = Writing(self)
        for table, keys in self.touched.items():
            for key in keys:
                writing.record(table, key, self._before(table, key), self.current(table, key))
        for seq in self.events_gone:
            writing.drop_event(dict(zip(self.scratch.columns["events"], self.events_read[seq], strict=True)))
        if not (writing.records or writing.changed or self.events_new):
            return None
        if self.chosen:
            writing.command("HDEL", f"{PREFIX}chosen", self.chosen)
        commands = writing.commands
        compared = self.compared()
        arguments: list[Any] = [len(compared)]
        for table, key in compared:
            revision, _ = self.loaded[table][key]
            arguments += (TABLES[table].hash, key, revision, "1" if (table, key) in self._locked else "")
        arguments.append(len(writing.expected))
        for (name, field), key in writing.expected.items():
            arguments += (name, field, key)
        arguments.append(len(self._names))
        for name, revision in self._names.items():
            arguments += (name, revision)
        arguments.append(len(writing.records) // 3)
        arguments += writing.records
        arguments.append(len(commands))
        for command in commands:
            arguments += (len(command), *command)
        arguments.append(len(self.events_new))
        columns = self.scratch.columns["events"]
        for event in self.events_new:
            sets, newest = list(event_entries(event)), list(newest_states(event))
            values = pack([event.get(name) for name in columns])
            arguments += (values, len(sets), *sets, len(newest), *newest)
        return arguments


class Writing:
    """The writes of a commit: records, and the changes of their indexes."""

    def __init__(self, tx: Records) -> None:
        self._tx = tx
        self.records: list[str] = []
        # Additions and removals by command and key. A record is in an index once, so their order does not matter, but
        # for this: a value is removed from a unique index before another record gets it.
        self._changes: dict[tuple[str, str], list[str]] = {}
        self.expected: dict[tuple[str, str], str] = {}

    def record(self, table: str, key: str, before: Row | None, after: Row | None) -> None:
        if before == after:
            return
        kind = TABLES[table]
        old = dict(kind.entries(before, key)) if before is not None else {}
        new = dict(kind.entries(after, key)) if after is not None else {}
        for name, member in old.items():
            if new.get(name) != member:
                self.command("ZREM", name, [member])
        for name, member in new.items():
            if old.get(name) != member:
                self.command("ZADD", name, ["0", member])
        self._uniques(kind.unique_entries(before) if before else (), kind.unique_entries(after) if after else (), key)
        if after is None:
            self.command("HDEL", kind.hash, [key])
            if table in ("jobs", "lanes"):
                self.command("HDEL", f"{PREFIX}events:newest", [f"{'job' if table == 'jobs' else 'profile'}:{key}"])
        else:
            self.records += (kind.hash, key, pack(list(after.values())))

    def _uniques(self, before: Iterable[tuple[str, str]], after: Iterable[tuple[str, str]], key: str) -> None:
        old, new = set(before), set(after)
        for entry in old - new:
            self.expected[entry] = key
            self.command("HDEL", entry[0], [entry[1]])
        for entry in new - old:
            self.expected.setdefault(entry, "")
            self.command("HSET", entry[0], [entry[1], key])

    def drop_event(self, row: Row) -> None:
        member = f"{FIELD_END}{row['seq']:020d}"
        for name in event_entries(row):
            self.command("ZREM", name, [member])
        self.command("HDEL", f"{PREFIX}events", [str(row["seq"])])

    def command(self, verb: str, name: str, arguments: Sequence[str]) -> None:
        self._changes.setdefault((verb, name), []).extend(arguments)

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    @property
    def commands(self) -> list[Command]:
        """The commands: as few as possible, because each costs more than its arguments. Removals come first."""
        changes = sorted(self._changes.items(), key=lambda change: change[0][0] not in ("HDEL", "ZREM"))
        return [
            (verb, name, *arguments[place : place + MAX_ARGUMENTS])
            for (verb, name), arguments in changes
            for place in range(0, len(arguments), MAX_ARGUMENTS)
        ]


def _is_in(table: str, row: Row, key: str, name: str) -> bool:
    return any(found == name for found, _ in TABLES[table].entries(row, key))


def range_of(name: str, low: str, high: str, count: int, *, reverse: bool = False) -> Command:
    """The command that reads a range of an index, in its order or in reverse."""
    ends = (high, low, "BYLEX", "REV") if reverse else (low, high, "BYLEX")
    return ("ZRANGE", name, *ends, "LIMIT", 0, count)


def up_to(moment: int) -> str:
    """The high end of a range of numbers that includes this one."""
    return f"({number(moment + 1)}"


def together(tx: Records, *loads: Load) -> Load:
    """Run the loads of one statement together. Returns their answers."""
    answers: list[Any] = [None] * len(loads)
    waiting: list[tuple[int, list[Any]]] = []
    for place, load in enumerate(loads):
        tx.step(place, load, None, answers, waiting)
    while waiting:
        replies = iter((yield [command for _, commands in waiting for command in commands]))
        stepped, waiting = waiting, []
        for place, commands in stepped:
            tx.step(place, loads[place], [next(replies) for _ in commands], answers, waiting)
    return answers


def events(tx: Records, members: Iterable[str]) -> Load:
    """Load events by their members of an index. Returns their numbers."""
    seqs = [str(int(key_in(member))) for member in members]
    missing = [seq for seq in seqs if int(seq) not in tx.events_read]
    if missing:
        (found,) = yield [("HMGET", f"{PREFIX}events", *missing)]
        tx.keep_events(missing, found)
    return seqs
