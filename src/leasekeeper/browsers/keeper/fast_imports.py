"""The parts of the standard library that a launch needs, by way of the C modules they are made of.

Before the browser runs, every module that the keeper loads keeps a task waiting: json, signal and socket bring regular
expressions, enumerations and selectors along, which takes as long as all the rest of the keeper's work.
"""

import _signal as signals  # type: ignore[import-not-found] # the signal module's own
import _socket as sockets
from _json import encode_basestring_ascii, make_scanner

__all__ = ["from_json", "signals", "sockets", "to_json"]


class _Rules:
    """What the scanner asks its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = make_scanner(_Rules())  # type: ignore[arg-type] # it asks for no more than this


def from_json(text: bytes) -> dict[str, object]:
    """The object that the text is. Raises ValueError if it is not one object in JSON and nothing more."""
    line = text.decode().strip()
    try:
        found, end = _scan(line, 0)
    except (StopIteration, SystemError):
        raise ValueError("not JSON") from None  # what is wrong, only the module's other half could say
    if end != len(line) or not isinstance(found, dict):
        raise ValueError("not one object")
    return found


def to_json(fields: dict[str, str | int | float]) -> bytes:
    """A flat object of texts and numbers."""
    parts = [
        f"{encode_basestring_ascii(name)}: {encode_basestring_ascii(value) if isinstance(value, str) else repr(value)}"
        for name, value in fields.items()
    ]
    return ("{" + ", ".join(parts) + "}").encode()
