"""The writes of a claim and of a settle: each is about a table of its own, so all of them are parts of one statement.

A part takes its rows as `:rows (column type, ...)`. Few rows are parameters, as many places as the next power of two
(those left over hold nothing, and do nothing): so there are few statements to plan. Many rows are one JSON array.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from leasekeeper.stores.postgres.values import Values, encode, packer
from leasekeeper.stores.sql.codec import dump
from leasekeeper.stores.sql.engine import Params
from leasekeeper.stores.sql.statements import load, renamed

MOST_AS_PARAMETERS: Final = 16
_ROWS: Final = re.compile(r":rows \(([^)]*)\)")

# What identifies a row tells whether two lots of rows may be one. There may be any number of the same event.
KEYS: Final[Mapping[str, Callable[[Params], Any] | None]] = {
    "end_runs": itemgetter("profile_id", "token"),
    "insert_events": None,
    "insert_runs": itemgetter("profile_id", "token"),
    "mark_commit": itemgetter("nonce"),
    "unmark_commit": itemgetter("nonce"),
    "update_jobs": itemgetter("seq"),
    "update_lanes": itemgetter("profile_id"),
}


class _Write:
    """One of these writes: its text, its columns, and how a row of them is sent."""

    __slots__ = ("blank", "columns", "pack", "text")

    def __init__(self, text: str) -> None:
        declared = _ROWS.search(text)
        if declared is None:
            raise ValueError(f"a write without :rows (...): {text}")
        self.text = text
        self.columns = [(name, kind) for name, kind in (column.split() for column in declared[1].split(","))]
        self.pack = packer(self.columns)
        self.blank: Values = [None] * len(self.columns)

    def as_json(self) -> str:
        return _ROWS.sub(r"json_to_recordset(:rows) AS r (\1)", self.text)

    def as_parameters(self, places: int) -> str:
        rows = ", ".join(
            f"({', '.join(f'CAST(:r{n}_{name} AS {kind})' for name, kind in self.columns)})" for n in range(places)
        )
        return _ROWS.sub(f"(VALUES {rows}) AS r ({', '.join(name for name, _ in self.columns)})", self.text)


_WRITES: Final = {
    name: _Write(text) for name, text in load("leasekeeper.stores.postgres", "writes_together.sql").items()
}


def may_be_one(name: str, some: Sequence[Params], others: Sequence[Params]) -> bool:
    """Whether two lots of rows for one write may be written together: no row is in both."""
    key = KEYS[name]
    return key is None or set(map(key, some)).isdisjoint(map(key, others))


def text_of(parts: str) -> str:
    """The statement made of these parts: `a&b*4` is many rows for the write a, and four places for b."""
    texts = []
    for number, part in enumerate(parts.split("&")):
        name, _, places = part.partition("*")
        write = _WRITES[name]
        text = write.as_parameters(int(places)) if places else write.as_json()
        texts.append(f"part_{number} AS (\n{renamed(text, f'p{number}_')}\n)")
    return f"WITH {', '.join(texts)}\nSELECT 1 AS done"


def put_together(lots: Iterable[tuple[str, Sequence[Params]]]) -> tuple[str, Values]:
    """The parts for these lots of rows, and their values."""
    parts: list[str] = []
    values: list[bytes | None] = []
    for name, rows in lots:
        write, count = _WRITES[name], len(rows)
        if count > MOST_AS_PARAMETERS:
            parts.append(name)
            values.append(encode(dump(rows)))
            continue
        places = 1 << (count - 1).bit_length()
        parts.append(f"{name}*{places}")
        for row in rows:
            values += write.pack(row)
        for _ in range(places - count):
            values += write.blank
    return "&".join(parts), values
