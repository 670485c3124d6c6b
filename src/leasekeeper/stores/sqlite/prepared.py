"""The SQLite dialect's statements by name, with numbered parameters and converted values."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from leasekeeper.stores.sql.codec import clean, dump_texts
from leasekeeper.stores.sql.engine import Params
from leasekeeper.stores.sql.statements import for_one, for_sqlite, lists, load, positional


class Statement:
    """A statement with numbered parameters: SQLite finds those several times as fast as named ones."""

    __slots__ = ("columns", "for_one", "lists", "names", "pick", "text")

    def __init__(self, text: str) -> None:
        self.lists = lists(text)
        self.for_one = Statement(for_one(text)) if self.lists else self
        self.text, self.names = positional(for_sqlite(text), "?")
        self.pick = _picker(self.names)
        self.columns: list[str] = []

    def prepared(self, params: Params) -> tuple["Statement", list[Any]]:
        """The statement to run for these parameters, and its values."""
        if self.lists and all(len(params[name]) == 1 for name in self.lists):
            one = self.for_one
            return one, [_adapted(params[n][0] if n in self.lists else params[n]) for n in one.names]
        return self, [_adapted(value) for value in self.pick(params)]


def _picker(names: Sequence[str]) -> Callable[[Params], Sequence[Any]]:
    """A function that takes these values out of a row."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: [row[name] for name in names]


class _Statements(dict[str, Statement]):
    """Statements by name; `a+b` is the pieces a and b joined."""

    def __missing__(self, name: str) -> Statement:
        statement = self[name] = Statement("\n".join(_TEXTS[piece] for piece in name.split("+")))
        return statement


_TEXTS = {
    **load(
        "leasekeeper.stores.sql", "queries.sql", "finds.sql", "find_prefixes.sql", "find_snapshots.sql", "schedules.sql"
    ),
    **load("leasekeeper.stores.sqlite", "reads.sql", "writes.sql", "schedules.sql"),
}
STATEMENTS = _Statements()


def _adapted(value: object) -> object:
    """Lists become JSON text; text is cleaned of what SQLite cannot store."""
    if type(value) is list:
        return dump_texts([clean(item) for item in value])
    return clean(value) if type(value) is str else value
