"""Converts rows to core records and back, by the records' own fields: column name = field name.

In every dialect times are integers (microseconds since 1970, UTC) and structures are JSON text, so that one codec is
enough. Knows nothing of statements or connections.
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
    """A time as stores keep it: microseconds since 1970."""
    since = at - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def from_us(us: int) -> datetime:
    """A stored time as an aware UTC datetime."""
    if 0 <= us < _EXACT_AS_FLOAT:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    return EPOCH + timedelta(microseconds=us)


_quoted = json.encoder.encode_basestring
_to_ascii_json = json.JSONEncoder(separators=(",", ":")).encode
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _c_encoder() -> Callable[[object, int], Sequence[str]] | None:
    """The C encoder that `JSONEncoder.encode` creates at every call, created once. None if this Python lacks it or it
    takes other arguments, as it is not a documented part of `json`: then `encode` is used."""
    try:
        make: Any = json.encoder.__dict__["c_make_encoder"]
        pieces: Callable[[object, int], Sequence[str]] = make(
            None, _json.default, _quoted, None, ":", ",", False, False, True
        )
    except (KeyError, TypeError):
        return None
    return pieces


_pieces = _c_encoder()
_SURROGATE = re.compile("[\ud800-\udfff]")
_CANNOT_KEEP = re.compile("[\0\ud800-\udfff]")


def check_structure(value: object) -> None:
    """Raise TypeError or ValueError for a value that cannot be JSON, or is nested too deep to be read again."""
    if value:
        if too_deep(value):
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        _json.encode(value)


def dump(value: object) -> str:
    """A structure as JSON text. Values from outside must have passed `check_structure`."""
    if not value:
        return "[]" if isinstance(value, (tuple, list)) else "{}"
    text = "".join(_pieces(value, 0)) if _pieces else _json.encode(value)
    return text if text.isascii() or not _SURROGATE.search(text) else _to_ascii_json(value)


def dump_texts(texts: Sequence[str]) -> str:
    """A list of texts as JSON text: like `dump`, but several times as fast."""
    return f"[{','.join(map(_quoted, texts))}]"


def clean(text: str) -> str:
    """Text that every dialect can store: NUL and lone surrogates, which pages put into titles and messages, become
    U+FFFD."""
    return text if text.isascii() and "\0" not in text else _CANNOT_KEEP.sub("\ufffd", text)


def load(text: str) -> Any:
    """A structure from JSON text. Most are `{}`, which is not parsed."""
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
    """The loader of a tuple. The items become enum members if the hint says so."""
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
    """A function that makes a record from a row whose columns may have a prefix. A `writable` record can be changed."""
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
    """A function that copies a record, with the fields `only` taken from a row."""
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
    """A function that makes a row from a record: all its columns, or those in `only`."""
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
