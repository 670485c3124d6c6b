"""JSON, signals and sockets from the standard library's C modules, which load faster than `json` and the others.

Every module that the keeper loads before the browser runs delays the launch. `json`, `signal` and `socket` also load
`re`, `enum` and `selectors`, which takes as long as all the other work of the keeper.
"""

import _signal as signals  # type: ignore[import-not-found] # the signal module's own
import _socket as sockets
from _json import encode_basestring_ascii, make_scanner

__all__ = ["from_json", "signals", "sockets", "to_json"]


class _Rules:
    """The options that the C scanner reads from its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_scan = make_scanner(_Rules())  # type: ignore[arg-type] # it reads only these options


def from_json(text: bytes) -> dict[str, object]:
    """Parse one JSON object. Raises ValueError for anything else."""
    line = text.decode().strip()
    try:
        found, end = _scan(line, 0)
    except (StopIteration, SystemError):
        raise ValueError("not JSON") from None  # only the Python half of `json` could say more
    if end != len(line) or not isinstance(found, dict):
        raise ValueError("not one object")
    return found


def to_json(fields: dict[str, str | int | float]) -> bytes:
    """Encode a flat object of strings and numbers."""
    parts = [
        f"{encode_basestring_ascii(name)}: {encode_basestring_ascii(value) if isinstance(value, str) else repr(value)}"
        for name, value in fields.items()
    ]
    return ("{" + ", ".join(parts) + "}").encode()
