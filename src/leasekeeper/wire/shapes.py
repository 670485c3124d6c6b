"""Any type of core or of the port ⇄ plain JSON types, derived from the type itself: reading, JSON Schema.

Writing is `encoding`; both take the names of fields from one table, so what is written can be read back. Unknown fields
are faults, and so are missing ones without a default (I14).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from leasekeeper.core.depth import MAX_DEPTH, too_deep
from leasekeeper.core.why_answer import Why
from leasekeeper.lists import LISTS
from leasekeeper.ports import Page, Store
from leasekeeper.wire.encoding import encode_in_full, wire_names
from leasekeeper.wire.kinds import Choice, Flag, Kind, Problems, Scalar, Time, Wrong, mistyped, type_name
from leasekeeper.wire.records import DRAFT, at

T = TypeVar("T")
VERSION: Final = 1
_MAX_INTEGER: Final = 2**63 - 1
_MAX_SECONDS: Final = timedelta.max.total_seconds()


class _Text(Scalar):
    rule = "text"

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise mistyped(self.rule, value)
        return str.__str__(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


class _Integer(Scalar):
    rule = "a whole number of at most 64 bits"

    def parse(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise mistyped(self.rule, value)
        if not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
            raise Wrong(f"must be {self.rule}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer"}


class _Number(Scalar):
    rule = "a finite number"

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mistyped(self.rule, value)
        if not math.isfinite(value):
            raise Wrong(f"must be {self.rule}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number"}


class _Duration(_Number):
    rule = "a number of seconds"

    def parse(self, value: object) -> Any:
        seconds = super().parse(value)
        if abs(seconds) > _MAX_SECONDS:
            raise Wrong(f"must be {self.rule}")
        return timedelta(seconds=seconds)


class _AnyJson(Scalar):
    rule = f"JSON of at most {MAX_DEPTH} levels"

    def parse(self, value: object) -> object:
        if too_deep(value):
            raise Wrong(f"must be {self.rule}")
        return value

    def schema(self) -> dict[str, Any]:
        return {}


class _Null(Scalar):
    rule = "null"

    def parse(self, value: object) -> None:
        if value is not None:
            raise mistyped(self.rule, value)

    def schema(self) -> dict[str, Any]:
        return {"type": "null"}


class _OrNull:
    """A value, or null."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rule = f"{kind.rule}, or null"

    def read(self, value: object, where: str, problems: Problems) -> Any:
        return None if value is None else self.kind.read(value, where, problems)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.kind.schema(), {"type": "null"}]}


class _Items:
    """A list, read as a tuple. With several kinds: exactly these, in this order."""

    def __init__(self, kinds: Sequence[Kind], *, exactly: bool) -> None:
        self.rule = f"a list of {len(kinds)}" if exactly else "a list"
        self.kinds = kinds
        self.exactly = exactly

    def read(self, value: object, where: str, problems: Problems) -> Any:
        if not isinstance(value, list | tuple) or (self.exactly and len(value) != len(self.kinds)):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return None
        kinds = self.kinds if self.exactly else [self.kinds[0]] * len(value)
        return tuple(
            kind.read(item, f"{where}[{n}]", problems) for n, (kind, item) in enumerate(zip(kinds, value, strict=True))
        )

    def schema(self) -> dict[str, Any]:
        if not self.exactly:
            return {"type": "array", "items": self.kinds[0].schema()}
        return {"type": "array", "prefixItems": [kind.schema() for kind in self.kinds], "items": False}


class _ByName:
    """An object with any names, and values of one kind."""

    rule = "an object"

    def __init__(self, values: Kind) -> None:
        self.values = values

    def read(self, value: object, where: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return None
        return {name: self.values.read(item, at(where, name), problems) for name, item in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.values.schema()}


class Shape:
    """A dataclass as an object: its table of fields, by their names on the wire."""

    def __init__(self, kind: Any, arguments: Mapping[Any, Any]) -> None:
        inner = "".join(f"Of{getattr(each, '__name__', each)}" for each in arguments.values())
        self.name = f"{kind.__name__}{inner}"
        self.rule = f"an object of type {self.name}"
        self._kind = kind
        hints = get_type_hints(kind)
        names = dict(wire_names(kind))
        usual = {field.name: _usual(field) for field in fields(kind)}
        self.table: Mapping[str, tuple[str, Kind, Any]] = {
            names[name]: (name, shape_of(arguments.get(hints[name], _filled(hints[name], arguments))), usual[name])
            for name in usual
        }

    def read(self, value: object, where: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return None
        before = problems.count
        for name in value:
            if name not in self.table:
                problems.add(at(where, name), f"{self.name} has no such field: it may be of a newer version")
        found: dict[str, Any] = {}
        for name, (attribute, kind, usual) in self.table.items():
            if name in value:
                found[attribute] = kind.read(value[name], at(where, name), problems)
            elif usual is MISSING:
                problems.add(at(where, name), "is required")
        return self._kind(**found) if problems.count == before else None

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.name}"}

    def definition(self) -> dict[str, Any]:
        """The schema itself; other schemas refer to it."""
        needed = [name for name, (_, _, usual) in self.table.items() if usual is MISSING]
        return {
            "type": "object",
            "properties": {name: kind.schema() for name, (_, kind, _) in self.table.items()},
            "required": needed,
            "additionalProperties": False,
        }

    def inner(self) -> list[Kind]:
        """The kinds of its fields."""
        return [kind for _, kind, _ in self.table.values()]


def decode(hint: type[T], data: object) -> T:
    """The value of this type that `encode_in_full` wrote. Raises InputError that names every field at fault."""
    problems = Problems()
    wanted: Any = hint
    kind = shape_of(wanted)
    value: T = kind.read(data, "", problems)
    problems.raise_any(f"this is not {kind.rule}")
    return value


def port_types() -> list[Any]:
    """Every type in the arguments and answers of store operations, and every record that can be listed."""
    from inspect import isfunction

    found: dict[Any, None] = {kind: None for listed in LISTS for kind in (listed, _page_of(listed))}
    for operation in filter(isfunction, vars(Store).values()):
        for hint in get_type_hints(operation).values():
            found |= dict.fromkeys(_dataclasses(hint))
    return list(found)


def port_schema() -> dict[str, Any]:
    """The JSON Schema of every type of the port, and of what `why` answers."""
    return {
        "$id": f"urn:leasekeeper:port:{VERSION}",
        "title": "Leasekeeper port",
        "description": "Each type that the store takes or answers with, as `to_document` writes it under `value`.",
        **schema_of(*port_types(), Why),
    }


def _page_of(kind: Any) -> Any:
    return Page[kind]


def _dataclasses(hint: Any) -> Iterator[Any]:
    """The dataclasses in a type hint, generic ones with their arguments."""
    if is_dataclass(get_origin(hint) or hint):
        if not any(isinstance(each, TypeVar) for each in get_args(hint)):
            yield hint
    else:
        for inner in get_args(hint):
            yield from _dataclasses(inner)


def to_document(value: object) -> dict[str, object]:
    """The value in full, with the version of its format: what one program sends to another."""
    return {"version": VERSION, "value": encode_in_full(value)}


def from_document(hint: type[T], document: object) -> T:
    """The value of a document. Any other version is refused, whatever is in it (I14)."""
    problems = Problems()
    if not isinstance(document, Mapping) or "value" not in document:
        problems.add("", "must be an object with version and value")
    elif isinstance(document.get("version"), bool) or document.get("version") != VERSION:
        problems.add("version", f"must be {VERSION}, the one this program knows; for a newer one upgrade it")
    problems.raise_any("the document cannot be read")
    return decode(hint, document["value"] if isinstance(document, Mapping) else None)


def schema_of(*hints: Any) -> dict[str, Any]:
    """One JSON Schema document that defines these types and those of their fields, each under `$defs`."""
    found: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = [shape_of(hint) for hint in hints]
    while waiting:
        kind = waiting.pop()
        match kind:
            case Shape() if kind.name not in found:
                found[kind.name] = kind.definition()
                waiting += kind.inner()
            case _OrNull():
                waiting.append(kind.kind)
            case _Items():
                waiting += kind.kinds
            case _ByName():
                waiting.append(kind.values)
    return {"$schema": DRAFT, "$defs": dict(sorted(found.items()))}


@cache
def shape_of(hint: Any) -> Kind:
    """The kind that parses and describes values of a type."""
    hint = getattr(hint, "__supertype__", hint)
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _OrNull(shape_of(inner))
    if isinstance(origin, type) and issubclass(origin, StrEnum):
        return Choice(origin)
    if is_dataclass(origin):
        parameters = getattr(origin, "__parameters__", ())
        return Shape(origin, dict(zip(parameters, arguments, strict=True)))
    if origin is tuple and arguments[-1] is not ...:
        return _Items([shape_of(each) for each in arguments], exactly=True)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _ByName(shape_of(arguments[1]))
    if isinstance(origin, type) and issubclass(origin, Sequence | Collection):
        return _Items([shape_of(arguments[0])], exactly=False)
    raise TypeError(f"{hint} has no form on the wire")


_PLAIN: Final[Mapping[Any, Kind]] = {
    str: _Text(),
    int: _Integer(),
    float: _Number(),
    bool: Flag(),
    datetime: Time(),
    timedelta: _Duration(),
    object: _AnyJson(),
    NoneType: _Null(),
}


def _filled(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """The hint with its type variables replaced: in a page of jobs, `Sequence[T]` is `Sequence[Job]`."""
    found = tuple(arguments.get(each, each) for each in get_args(hint))
    return hint[found] if found and found != get_args(hint) else hint


def _usual(field: Any) -> Any:
    """The default of a field; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory
