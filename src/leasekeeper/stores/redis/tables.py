"""The tables and indexes of the Redis store, as data.

A record is one field of its table's hash: its revision, `|`, and its values as JSON, in the order of the columns. An
index is a sorted set; with `by`, one for each value of these columns. Its members sort as text: the fields of its
order, then the record's key. A unique index is a hash from values to the record's key.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasekeeper.core.homes import ANYONE
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.schedules import KEY_PREFIX

PREFIX: Final = "{leasekeeper}:"
KEY_SEPARATOR: Final = "\x1f"
FIELD_END: Final = "\0"
# Sorts after every UTF-8 text.
LAST: Final = b"\xff"
_HIGHEST_PRIORITY: Final = 10**10

Values = Mapping[str, Any]
Field = tuple[str, Callable[[Any], str]]
_FINAL: Final = frozenset({"completed", "dead", "skipped", "cancelled"})
_WAITING: Final = frozenset({"queued", "blocked"})
# Events that every job has: a scan finds them soon, so they need no index by type.
COMMON_EVENTS: Final = frozenset({"job_submitted", "lease_granted", "run_settled", "checkpoint_saved", "job_due"})


def number(value: int | None) -> str:
    """A number from 0 up as text that sorts like it."""
    return f"{value or 0:020d}"


def first_highest(priority: int) -> str:
    """A priority as text, so that the highest sorts first."""
    return f"{_HIGHEST_PRIORITY - priority:011d}"


def text(value: str | None) -> str:
    """A text field of an index, with its end mark. None is the empty text."""
    return f"{value or ''}{FIELD_END}"


def all_rows(_row: Values) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table's records in one order. With `by`, there is one sorted set for each value of these columns.
    `where` says which records are in it."""

    name: str
    by: tuple[str, ...] = ()
    order: tuple[Field, ...] = ()
    where: Callable[[Values], bool] = all_rows


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique index: no two records for which `where` is true have the same values in these columns."""

    name: str
    columns: tuple[str, ...]
    where: Callable[[Values], bool] = all_rows


@dataclass(frozen=True, slots=True)
class Table:
    """One table: the columns of its key, and its indexes."""

    name: str
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = (Index("all"),)
    uniques: tuple[Unique, ...] = ()

    @property
    def hash(self) -> str:
        return PREFIX + self.name

    def key_of(self, row: Values) -> str:
        """The record's key."""
        return str(row[self.key[0]]) if len(self.key) == 1 else KEY_SEPARATOR.join(str(row[name]) for name in self.key)

    def entries(self, row: Values, key: str) -> Iterator[tuple[str, str]]:
        """The record's index entries: the sorted set and the member of each."""
        for index in self.indexes:
            if index.where(row):
                sorts = "".join([encode(row[name]) for name, encode in index.order])
                yield index_key(self.name, index.name, *[row[name] for name in index.by]), f"{sorts}{FIELD_END}{key}"

    def unique_entries(self, row: Values) -> Iterator[tuple[str, str]]:
        """The record's entries in unique indexes: the hash and the field of each."""
        for unique in self.uniques:
            if unique.where(row):
                yield unique_key(self.name, unique.name), KEY_SEPARATOR.join([str(row[c]) for c in unique.columns])


def index_key(table: str, index: str, *values: object) -> str:
    """The key of an index's sorted set. Each value has its length before it, as it may contain any character."""
    return f"{PREFIX}{table}:{index}" + "".join([f":{len(value)}:{value}" for value in map(str, values)])


def unique_key(table: str, unique: str) -> str:
    """The key of a unique index's hash."""
    return f"{PREFIX}{table}:{unique}"


def key_in(member: str) -> str:
    """The record's key at the end of an index's member."""
    return member[member.rindex(FIELD_END) + 1 :]


def pack(values: Sequence[Any]) -> str:
    """A record's values as they are stored."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def unpack(packed: str) -> tuple[str, list[Any]]:
    """The revision and the values of a stored record."""
    revision, _, values = packed.partition("|")
    return revision, json.loads(values)


def _live(row: Values) -> bool:
    return row["ended_at"] is None


def _state(*states: str) -> Callable[[Values], bool]:
    return lambda row: row["state"] in states


def _has(column: str) -> Callable[[Values], bool]:
    return lambda row: row[column] is not None


def _missing(column: str) -> Callable[[Values], bool]:
    return lambda row: row[column] is None


def _follows_on_conflict(row: Values) -> bool:
    return bool(row["state"] == "queued" and row["on_conflict"] != "wait" and not row["approved"])


def _tried(row: Values) -> bool:
    return row["ended_at"] is None and row["attempted_at"] is not None


def _reserved(row: Values) -> bool:
    ready = row["blocked_by"] is None and row["head_job_id"] is not None
    return bool(row["saved"] and row["reserved_for"] != ANYONE and ready)


_SEQ: Final[Field] = ("seq", number)
# The columns that waiting jobs are counted by.
WAITING_GROUP: Final[tuple[Field, ...]] = tuple(
    (column, text) for column in ("state", "blocked_reason", "pool", "task", "profile_id")
)

TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        Table("fleet_lock", ("only_row",), ()),
        Table("accounts", ("account_id",)),
        Table(
            "proxies", ("proxy_id",), (Index("all"), Index("credentials", ("credentials",), (), _has("credentials")))
        ),
        Table("launchers", ("launcher_id",)),
        Table("limits", ("pool",)),
        Table("endpoints", ("endpoint_id",)),
        Table("pauses", ("pause_id",)),
        Table("secrets", ("name",)),
        Table("schedules", ("schedule_id",)),
        Table("schedule_states", ("schedule_id",)),
        Table("schedule_jobs", ("place",)),
        Table("tasks", ("pool", "task")),
        Table("call_turns", ("key",), ()),
        Table("retired_accounts", ("account_id",), ()),
        Table("retired_lanes", ("profile_id",), (Index("account", ("account_id",)),)),
        Table("answers", ("slot",), (Index("at", (), (("at", number),)),)),
        Table("tokens", ("token_id",), (Index("all"), Index("created", (), (("created_at", number),)))),
        Table(
            "profiles",
            ("profile_id",),
            (
                Index("all"),
                Index("account", ("account_id",)),
                Index("accounts", (), (("account_id", text),)),
                Index("pool", ("pool",)),
                Index("proxy", ("proxy_id",), (), _has("proxy_id")),
            ),
        ),
        Table(
            "workers",
            ("incarnation",),
            (
                Index("all"),
                Index("started", (), (("started_at", number),)),
                Index("live", (), (("heartbeat_at", number),), _missing("stopped_at")),
                Index("worker", ("worker_id",)),
            ),
        ),
        Table(
            "lanes",
            ("profile_id",),
            (
                Index("all"),
                Index("state", ("state",)),
                Index(
                    "ready",
                    ("head_pool", "head_task", "reserved_for"),
                    (("head_priority", first_highest), ("waiting_at", number), ("engine", number)),
                    lambda row: row["blocked_by"] is None and row["head_job_id"] is not None,
                ),
                Index("reserved", (), (("waiting_at", number),), _reserved),
                Index("parked", (), (("waits_on", text),), _has("waits_on")),
                Index(
                    "rested",
                    (),
                    (("state_at", number),),
                    lambda row: row["state"] == "available" and row["blocked_by"] is None,
                ),
                Index(
                    "engine",
                    (),
                    (("engine", number),),
                    lambda row: row["engine"] is not None and row["head_job_id"] is not None,
                ),
            ),
        ),
        Table(
            "jobs",
            ("job_id",),
            (
                Index("ids"),
                Index("all", (), (_SEQ,)),
                Index("profile", ("profile_id",), (_SEQ,)),
                Index("lane", ("profile_id",), (("priority", first_highest), _SEQ), _state("queued")),
                Index("on_conflict", ("profile_id",), (("priority", first_highest), _SEQ), _follows_on_conflict),
                Index("all_on_conflict", (), (("profile_id", text),), _follows_on_conflict),
                Index("due", (), (("run_at", number),), _state("scheduled")),
                Index("blocked", ("profile_id",), (_SEQ,), _state("blocked")),
                Index(
                    "without_worker",
                    ("pool", "task"),
                    (_SEQ,),
                    lambda row: row["state"] == "blocked" and row["blocked_reason"] == Blocked.NO_WORKER,
                ),
                Index("open", ("profile_id",), (_SEQ,), lambda row: row["state"] not in _FINAL),
                Index("finished", (), (("finished_at", number),), _has("finished_at")),
                Index("waiting", (), (_SEQ,), lambda row: row["state"] in _WAITING),
                Index("groups", (), WAITING_GROUP, lambda row: row["state"] in _WAITING),
                Index("state", ("state",), (_SEQ,), lambda row: row["state"] not in _WAITING),
                Index("dropped", (), (_SEQ,), lambda row: bool(row["state"] == "dead" and row["dropped"])),
                Index(
                    "scheduled_keys",
                    (),
                    (("idempotency_key", text),),
                    lambda row: (row["idempotency_key"] or "").startswith(KEY_PREFIX),
                ),
            ),
            (Unique("key", ("idempotency_key",), _has("idempotency_key")),),
        ),
        Table(
            "runs",
            ("run_id",),
            (
                Index("all"),
                Index("profile", ("profile_id",)),
                Index("tokens", ("profile_id",), (("token", number),)),
                Index("open", ("profile_id",), (("token", number),), lambda row: bool(row["open"])),
                Index("all_open", (), (("profile_id", text), ("token", number)), lambda row: bool(row["open"])),
                Index("live", (), (("expires_at", number),), _live),
                Index("pool", ("pool",), (), _live),
                Index("pools", (), (("pool", text),), _live),
                Index("account", ("account_id",), (), _live),
                Index(
                    "unresolved", (), (("ask_at", number), ("ended_at", number)), lambda row: bool(row["unresolved"])
                ),
                Index("job", ("job_id",), (), _has("job_id")),
                Index(
                    "without_job",
                    (),
                    (("ended_at", number),),
                    lambda row: row["job_id"] is None and row["ended_at"] is not None,
                ),
                Index("failed", (), (), lambda row: row["result"] not in ("completed", "started")),
                Index("lost", (), (), lambda row: row["status"] not in ("running", "releasing", "released")),
            ),
            (Unique("lease", ("profile_id", "token")),),
        ),
        Table(
            "reviews",
            ("review_id",),
            (
                Index("all"),
                Index("profile", ("profile_id",)),
                Index("undecided", (), (), _missing("decided_at")),
                Index("open", ("profile_id",), (), _missing("decided_at")),
                Index("subject", (), (("subject", text),), _missing("decided_at")),
            ),
            (Unique("about", ("target", "subject"), _missing("decided_at")),),
        ),
        Table(
            "notes",
            ("note_id",),
            (
                Index("all"),
                Index("subject", ("about", "subject")),
                Index("account", ("account_id",)),
                Index("profile", ("profile_id",), where=_has("profile_id")),
                Index("job", ("job_id",), where=_has("job_id")),
                Index("run", ("run_id",), where=_has("run_id")),
            ),
        ),
        Table("fleet_settings", ("name",)),
        Table(
            "snapshots",
            ("snapshot_id",),
            (
                Index("all"),
                Index("profile", ("profile_id",)),
                Index("account", ("account_id",)),
                Index("discarded", (), (), _has("discarded_at")),
            ),
            (Unique("token", ("profile_id", "token")),),
        ),
        Table(
            "deliveries",
            ("delivery_id",),
            (
                Index("ids"),
                Index("all", (), (_SEQ,)),
                Index("job", ("job_id",), (_SEQ,), _has("job_id")),
                Index("endpoint", ("endpoint_id",), (_SEQ,), _has("endpoint_id")),
                Index("due", ("host",), (("due_at", number), _SEQ), _live),
                Index("hosts", (), (("host", text),), _live),
                Index("next", (), (("due_at", number),), _live),
                Index("tried", (), (("attempted_at", number),), _tried),
                Index("ended", (), (("ended_at", number),), _has("ended_at")),
                Index("undelivered", (), (_SEQ,), lambda row: row["state"] != "delivered"),
            ),
        ),
    )
}


def event_entries(row: Values) -> Iterator[str]:
    """The sorted sets that an event is in; its member is its number."""
    yield index_key("events", "all")
    for column in ("profile_id", "job_id"):
        if row[column] is not None:
            yield index_key("events", column, row[column])
    if row["type"] not in COMMON_EVENTS:
        yield index_key("events", "type", row["type"])
    # Common events of a run with a job are found by the job.
    if row["run_id"] is not None and (row["job_id"] is None or row["type"] not in COMMON_EVENTS):
        yield index_key("events", "run", row["run_id"])


def newest_states(row: Values) -> Iterator[str]:
    """The profile and the job whose newest state the event has, as names like `job:ID`."""
    if row["profile_state"] is not None and row["profile_id"] is not None:
        yield f"profile:{row['profile_id']}"
    if row["job_state"] is not None and row["job_id"] is not None:
        yield f"job:{row['job_id']}"
