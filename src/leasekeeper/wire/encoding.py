"""Core and port values → plain JSON types, for `--json`, HTTP and logs. `shapes` reads back what `encode_in_full`
writes.

A `token` is written `fencing_token`, a duration has its unit in its name.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, get_args

from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.jobs import Job, JobSpec

REDACTED: Final = "[redacted]"

_RENAMED: Final = {"token": "fencing_token"}
_KNOWN: Final[dict[type[Any], tuple[tuple[str, str], ...]]] = {}
_PAYLOADS: Final = frozenset({(Job, "payload"), (JobSpec, "payload")})
_WEBHOOKS: Final = frozenset({(Job, "callback_url"), (JobSpec, "callback_url"), (Delivery, "url")})


def encode(value: object, *, payload: bool = False) -> object:
    """The value in plain JSON types: payloads of jobs only if asked for, the query of a webhook never."""
    return _plain(value, payload=payload, redact=True)


def encode_in_full(value: object) -> object:
    """The value with all its data: for stores and fingerprints, never shown to people."""
    return _plain(value, payload=True, redact=False)


def encode_time(moment: datetime) -> str:
    """`2026-05-01T09:30:00.000000Z`: UTC, always with microseconds, so that times sort as text."""
    if moment.utcoffset() is None:
        raise ValueError("a time without a zone reached the wire")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def without_query(url: str) -> str:
    """The URL with its query replaced: people put keys there."""
    rest, mark, _ = url.partition("?")
    return f"{rest}?{REDACTED}" if mark else url


def _plain(value: object, *, payload: bool, redact: bool) -> object:
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return encode_time(value)
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {
                str(_plain(key, payload=payload, redact=redact)): _plain(item, payload=payload, redact=redact)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_plain(item, payload=payload, redact=redact) for item in value]
        case set() | frozenset():
            return sorted(str(_plain(item, payload=payload, redact=redact)) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value, payload=payload, redact=redact)
    raise TypeError(f"{type(value).__name__} has no form on the wire")


def _record(value: Any, *, payload: bool, redact: bool) -> dict[str, object]:
    kind = type(value)
    plain: dict[str, object] = {}
    for attribute, name in wire_names(kind):
        if (kind, attribute) in _PAYLOADS and not payload:
            continue
        item = getattr(value, attribute)
        if redact and isinstance(item, str) and (kind, attribute) in _WEBHOOKS:
            item = without_query(item)
        plain[name] = _plain(item, payload=payload, redact=redact)
    return plain


def wire_names(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """Attributes of a core type and their names on the wire, worked out once per type."""
    if kind not in _KNOWN:
        _KNOWN[kind] = tuple((field.name, _name(field.name, field.type)) for field in fields(kind))
    return _KNOWN[kind]


def _name(attribute: str, hint: object) -> str:
    is_duration = hint is timedelta or timedelta in get_args(hint)
    return f"{attribute}_seconds" if is_duration else _RENAMED.get(attribute, attribute)
