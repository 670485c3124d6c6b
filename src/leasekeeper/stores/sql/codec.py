"""Rows ⇄ core records, derived from the records' own fields: column name = field name.

Times are integers (microseconds since 1970, UTC) and structures are JSON text in every dialect, so that one
codec serves them all. Knows nothing of statements or connections.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from leasekeeper.core.depth import MAX_DEPTH, too_deep
from leasekeeper.core.jobs import Backoff, Retry
from leasekeeper.core.records import compiled, draft

T = TypeVar("T")
Row = Mapping[str, Any]
Encoder = Callable[[Any], Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Until 2096 a float of seconds tells all microseconds apart.
_EXACT_AS_FLOAT = 4_000_000_000_000_000


def to_us(at: datetime) -> int:
    """A time as the stores keep it."""
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def from_us(us: int) -> datetime:
    """A time as core knows it."""
    if 0 <= us < _EXACT_AS_FLOAT:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    return EPOCH + timedelta(microseconds=us)


_quoted = json.encoder.encode_basestring
_to_ascii_json = json.JSONEncoder(separators=(",", ":")).encode
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _made_once() -> Callable[[object, int], Sequence[str]] | None:
    """What `encode` makes anew at every call. It is no part of `json`'s documentation: where it is missing, or wants
    something else, there is `encode`."""
    try:
        make: Any = json.encoder.__dict__["c_make_encoder"]
        pieces: Callable[[object, int], Sequence[str]] = make(
            None, _json.default, _quoted, None, ":", ",", False, False, True
        )
    except (KeyError, TypeError):
        return None
    return pieces


_pieces = _made_once()
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_CANNOT_KEEP = re.compile("[\0\ud800-\udfff]")


def check_structure(value: object) -> None:
    """Raise TypeError or ValueError for what cannot be JSON, or is nested too deep to be read again."""
    if value:
        if too_deep(value):
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        _json.encode(value)


def dump(value: object) -> str:
    """A structure as JSON text. What comes from outside is for `check_structure` first."""
    if not value:
        return "[]" if isinstance(value, (tuple, list)) else "{}"
    text = "".join(_pieces(value, 0)) if _pieces else _json.encode(value)
    return text if text.isascii() or not _HALF_PAIR.search(text) else _to_ascii_json(value)


def dump_texts(texts: Sequence[str]) -> str:
    """A list of texts as JSON text: `dump`, several times as fast."""
    return f"[{','.join(map(_quoted, texts))}]"


def clean(text: str) -> str:
    """Text that every dialect can keep. Pages put zero bytes and halves of characters into titles and messages."""
    return text if text.isascii() and "\0" not in text else _CANNOT_KEEP.sub("\ufffd", text)


def load(text: str) -> Any:
    """A structure out of JSON text. Most are empty, and cost nothing."""
    return {} if text == "{}" else json.loads(text)


def _dump_retry(retry: Retry) -> str:
    backoff = retry.backoff and [
        retry.backoff.first.total_seconds(),
        retry.backoff.factor,
        retry.backoff.max.total_seconds(),
    ]
    return dump({"reasons": retry.reasons, "backoff": backoff})


def _load_retry(text: str) -> Retry:
    data = json.loads(text)
    reasons, backoff = data["reasons"], data["backoff"]
    return Retry(
        reasons=None if reasons is None else tuple(reasons),
        backoff=backoff
        and Backoff(first=timedelta(seconds=backoff[0]), factor=backoff[1], max=timedelta(seconds=backoff[2])),
    )


def _load_tuple(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(text))


def _tuple_loader(hint: Any) -> Encoder:
    """For a tuple of an enum's members, one that makes them; for others the plain one."""
    kind = next(iter(get_args(hint)), None)
    if not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return _load_tuple
    return lambda text: tuple(map(kind, json.loads(text)))


def _bare(hint: Any) -> Any:
    """The type inside `X | None`, and the class behind a NewType or a generic."""
    if get_origin(hint) in (Union, type(int | None)):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    hint = getattr(hint, "__supertype__", hint)
    return get_origin(hint) or hint


def _pair(hint: Any) -> tuple[Encoder | None, Encoder | None]:
    kind = _bare(hint)
    if kind is datetime:
        return to_us, from_us
    if kind is Retry:
        return _dump_retry, _load_retry
    if kind is tuple:
        return dump, _tuple_loader(hint)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return str, dict(zip(map(str, kind), kind, strict=True)).__getitem__
    if kind is bool:
        return None, bool
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return dump, load
    return None, None


@cache
def _codecs(kind: Any) -> tuple[tuple[str, Encoder | None, Encoder | None], ...]:
    hints = get_type_hints(kind)
    return tuple((f.name, *_pair(hints[f.name])) for f in fields(kind))


def decoder(kind: type[T], prefix: str = "", *, writable: bool = False) -> Callable[[Row], T]:
    """A function that makes a record out of a row whose columns may carry a prefix. A writable one stays a draft."""
    record_kind: Any = kind
    decode: Callable[[Row], T] = _decoder(record_kind, prefix, writable)
    return decode


@cache
def _decoder(kind: Any, prefix: str, writable: bool) -> Any:
    lines = ["def made(row):", " record = new(draft)"]
    for name, _, dec in _codecs(kind):
        if dec is None:
            lines.append(f" record.{name} = row[{prefix + name!r}]")
        else:
            lines.append(f" value = row[{prefix + name!r}]")
            lines.append(f" record.{name} = None if value is None else dec_{name}(value)")
    lines += [" return record"] if writable else [" record.__class__ = kind", " return record"]
    decoders = {f"dec_{name}": dec for name, _, dec in _codecs(kind)}
    return compiled("\n".join(lines), kind=kind, draft=draft(kind), new=object.__new__, **decoders)


def reviser(kind: type[T], only: tuple[str, ...]) -> Callable[[T, Row], T]:
    """A function that makes a copy of a record, with some of its fields out of a row."""
    record_kind: Any = kind
    lines = ["def made(record, row):", " copy = new(draft)"]
    for name, _, dec in _codecs(record_kind):
        if name not in only:
            lines.append(f" copy.{name} = record.{name}")
        elif dec is None:
            lines.append(f" copy.{name} = row[{name!r}]")
        else:
            lines.append(f" copy.{name} = None if row[{name!r}] is None else dec_{name}(row[{name!r}])")
    lines += [" copy.__class__ = kind", " return copy"]
    decoders = {f"dec_{name}": dec for name, _, dec in _codecs(record_kind)}
    revise: Callable[[T, Row], T] = compiled(
        "\n".join(lines), kind=kind, draft=draft(record_kind), new=object.__new__, **decoders
    )
    return revise


def encoder(kind: type[T], only: tuple[str, ...] | None = None) -> Callable[[T], dict[str, Any]]:
    """A function that makes a row out of a record: all its columns, or only some."""
    record_kind: Any = kind
    chosen = [(name, enc) for name, enc, _ in _codecs(record_kind) if only is None or name in only]
    items = ", ".join(
        f"{name!r}: record.{name}"
        if enc is None
        else f"{name!r}: None if record.{name} is None else enc_{name}(record.{name})"
        for name, enc in chosen
    )
    encode: Callable[[T], dict[str, Any]] = compiled(
        f"def made(record):\n return {{{items}}}", **{f"enc_{name}": enc for name, enc in chosen}
    )
    return encode
