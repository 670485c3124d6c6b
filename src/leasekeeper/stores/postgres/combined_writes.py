"""Combines the writes of a claim or a settle into one statement: each write is to a different table.

A part takes its rows as `:rows (column type, ...)`. Up to 16 rows are sent as parameters, padded with empty rows to the
next power of two, so that there are few statements to plan. More rows are sent as one JSON array.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from leasekeeper.stores.postgres.values import Values, encode, packer
from leasekeeper.stores.sql.codec import dump
from leasekeeper.stores.sql.engine import Params
from leasekeeper.stores.sql.statements import load, renamed

MAX_AS_PARAMETERS: Final = 16
_ROWS: Final = re.compile(r":rows \(([^)]*)\)")

# The key of a row. Two lots of rows can be merged if they share no key; events have none.
KEYS: Final[Mapping[str, Callable[[Params], Any] | None]] = {
    "end_runs": itemgetter("profile_id", "token"),
    "insert_events": None,
    "insert_runs": itemgetter("profile_id", "token"),
    "put_answers": itemgetter("slot"),
    "mark_commit": itemgetter("nonce"),
    "unmark_commit": itemgetter("nonce"),
    "update_jobs": itemgetter("seq"),
    "update_lanes": itemgetter("profile_id"),
}


class _Write:
    """One of these writes: its SQL, its columns, and how a row is encoded."""

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


def can_be_merged(name: str, some: Sequence[Params], others: Sequence[Params]) -> bool:
    """Whether two lots of rows for one write can be merged: no key is in both."""
    key = KEYS[name]
    return key is None or set(map(key, some)).isdisjoint(map(key, others))


def text_of(parts: str) -> str:
    """The SQL for these parts: `a&b*4` is a JSON array of rows for the write a, and four rows of parameters for b."""
    texts = []
    for number, part in enumerate(parts.split("&")):
        name, _, places = part.partition("*")
        write = _WRITES[name]
        text = write.as_parameters(int(places)) if places else write.as_json()
        texts.append(f"part_{number} AS (\n{renamed(text, f'p{number}_')}\n)")
    return f"WITH {', '.join(texts)}\nSELECT 1 AS done"


def combine(lots: Iterable[tuple[str, Sequence[Params]]]) -> tuple[str, Values]:
    """The parts for these lots of rows, and their values."""
    parts: list[str] = []
    values: list[bytes | None] = []
    for name, rows in lots:
        write, count = _WRITES[name], len(rows)
        if count > MAX_AS_PARAMETERS:
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
