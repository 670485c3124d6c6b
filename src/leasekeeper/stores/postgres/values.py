"""Encodes values for the server: text, integers, booleans and lists of text, as bytes.

The store knows its few types, so it does not need the slower type detection of psycopg.
"""

from collections.abc import Callable, Sequence
from typing import Any

from leasekeeper.core.records import compiled
from leasekeeper.stores.sql.codec import Row, clean

Values = Sequence[bytes | None]


def encode(value: Any) -> bytes | None:
    """One value, by its own type."""
    if value is None:
        return None
    kind = type(value)
    if kind is str:
        return clean(value).encode()
    if kind is int:
        return b"%d" % value
    if kind is bool:
        return b"t" if value else b"f"
    if kind is list:
        return clean("{" + ",".join(map(_quote, value)) + "}").encode()
    if isinstance(value, str):
        return clean(str(value)).encode()
    raise TypeError(f"a column cannot hold {kind.__name__}")


def _quote(item: str) -> str:
    escaped = item.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# The same, as source code for a column of a known type.
_BY_TYPE = {
    "text": "None if (v := row['{}']) is None else v.encode() if v.isascii() and '\\0' not in v else clean(v).encode()",
    "bigint": "None if (v := row['{}']) is None else b'%d' % v",
    "boolean": "flags[row['{}']]",
}
_FLAGS = {None: None, True: b"t", False: b"f"}


def packer(columns: Sequence[tuple[str, str]]) -> Callable[[Row], list[bytes | None]]:
    """A function that encodes these columns (name, type) of a row."""
    items = ", ".join(_BY_TYPE[kind].format(name) for name, kind in columns)
    pack: Callable[[Row], list[bytes | None]] = compiled(
        f"def made(row):\n return [{items}]", clean=clean, flags=_FLAGS
    )
    return pack
