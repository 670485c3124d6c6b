"""Records as tables of fields. Parsing, JSON Schema and the table in the docs come from that one table, so they cannot
disagree. Knows nothing of jobs or fleets.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from leasekeeper.core.ids import is_id
from leasekeeper.errors import nearest
from leasekeeper.wire.kinds import Kind, Problems, Text, type_name

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


class Alias:
    """Another name for a field. `means` translates the alias's own values (true → exclusive)."""

    def __init__(self, name: str, kind: Kind | None = None, means: Mapping[object, str] | None = None) -> None:
        self.name = name
        self.kind = kind
        self.means = means


class Field:
    """One field of a record. `into` is the attribute of the core type; empty: checked, then left out."""

    def __init__(
        self,
        *,
        name: str,
        kind: Kind,
        doc: str,
        required: bool = False,
        aliases: tuple[Alias, ...] = (),
        into: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.doc = doc
        self.required = required
        self.aliases = aliases
        self.attribute = name if into is None else into


class Record:
    """An object with these fields and no others. Null is the same as leaving a field out.

    With `camel`, the camelCase form of every name is an alias too. `of` are the core types, for the defaults.
    """

    def __init__(self, table: Sequence[Field], *, of: type | tuple[type, ...] = (), camel: bool = False) -> None:
        self.table = tuple(table)
        self.rule = "an object"
        self._defaults = _defaults(*of) if isinstance(of, tuple) else _defaults(of)
        self._names: dict[str, tuple[Field, Alias | None]] = {}
        for field in self.table:
            self._names[field.name] = (field, None)
            for alias in _all_aliases(field, camel=camel):
                self._names[alias.name] = (field, alias)

    def read(self, value: object, where: str, problems: Problems) -> dict[str, Any]:
        """The values by attribute of the core type. A wrong value is None."""
        if not isinstance(value, Mapping):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return {}
        found: dict[str, Any] = {}
        named: dict[str, str] = {}
        for name, raw in value.items():
            known = self._names.get(name) if isinstance(name, str) else None
            if known is None:
                problems.add(at(where, name), self._unknown(name))
            elif raw is not None:
                field, alias = known
                meaning = _read(field, alias, raw, at(where, name), problems)
                first = named.setdefault(field.name, name)
                other = found.setdefault(field.name, meaning)
                if meaning is not None and other is not None and meaning != other:
                    problems.add(at(where, name), f"differs from {first}, and both are {field.name}: give one of them")
        for field in self.table:
            if field.required and field.name not in found:
                problems.add(at(where, field.name), f"is required: {field.doc}")
        return {field.attribute: found[field.name] for field in self.table if field.attribute and field.name in found}

    def knows(self, name: str) -> bool:
        """Whether this is the name or an alias of a field."""
        return name in self._names

    def names(self, field_name: str) -> list[str]:
        """The field's own name and all its aliases."""
        return [name for name, (field, _) in self._names.items() if field.name == field_name]

    def _unknown(self, name: object) -> str:
        near = nearest(name, self._names) if isinstance(name, str) else None
        if near:
            return f"no such field; did you mean {self._names[near][0].name}?"
        return f"no such field; there are: {', '.join(field.name for field in self.table)}"

    def schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, (field, alias) in self._names.items():
            properties[name] = self._property(field) if alias is None else _alias_property(field, alias)
        shape: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        needed = [any_of(self.names(field.name)) for field in self.table if field.required]
        return {**shape, "allOf": needed} if needed else shape

    def _property(self, field: Field) -> dict[str, Any]:
        shape = {"description": f"{field.doc}. Must be {field.kind.rule}.", **field.kind.schema()}
        if not field.required:
            shape = _or_null(shape)
            if field.attribute in self._defaults:
                shape["default"] = self._defaults[field.attribute]
        return shape

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Name, rule, default and description: one line of the docs' table per field."""
        for field in self.table:
            usual = "required" if field.required else f"{self._defaults.get(field.attribute, '')}".lower()
            aliases = [f"`{alias.name}`" for alias in field.aliases]
            also = f" (alias {', '.join(aliases)})" if aliases else ""
            yield f"`{field.name}`", field.kind.rule, usual, field.doc + also


class ListOf:
    """A list of at most so many values of one kind, read as a tuple."""

    def __init__(self, kind: Kind, maximum: int) -> None:
        self.rule = f"a list of at most {maximum}, each {kind.rule}"
        self.kind = kind
        self.maximum = maximum

    def read(self, value: object, where: str, problems: Problems) -> tuple[Any, ...] | None:
        if not isinstance(value, list | tuple):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return None
        if len(value) > self.maximum:
            problems.add(where, f"must be {self.rule}")
            return None
        return tuple(self.kind.read(item, f"{where}[{n}]", problems) for n, item in enumerate(value))

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.kind.schema(), "maxItems": self.maximum}


class MapOf:
    """An object with keys of one kind and values of another. A record that is null is an empty one."""

    def __init__(self, rule: str, keys: Text, values: Kind, maximum: int) -> None:
        self.rule = rule
        self.keys = keys
        self.values = values
        self.maximum = maximum

    def read(self, value: object, where: str, problems: Problems) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            problems.add(where, f"must be {self.rule}, not {type_name(value)}")
            return None
        if len(value) > self.maximum:
            problems.add(where, f"must be {self.rule}: there are {len(value)}")
            return None
        read = {}
        for name, item in value.items():
            if self.keys.read(name, "", Problems()) is None:
                hint = "" if isinstance(name, str) else problems.hint
                problems.add(at(where, name), f"the key must be {self.keys.rule}{hint}")
                continue
            empty = item is None and isinstance(self.values, Record)
            read[str(name)] = self.values.read({} if empty else item, at(where, name), problems)
        return read

    def schema(self) -> dict[str, Any]:
        values = self.values.schema()
        return {
            "type": "object",
            "propertyNames": self.keys.schema(),
            "additionalProperties": _or_null(values) if isinstance(self.values, Record) else values,
            "maxProperties": self.maximum,
        }


def any_of(names: Sequence[str]) -> dict[str, Any]:
    """The schema of 'at least one of these fields is present'."""
    return {"anyOf": [{"required": [name]} for name in names]}


def at(where: str, name: object) -> str:
    """The path of a field. A name that is not a plain word is shortened and quoted."""
    if isinstance(name, str):
        shown = name if is_id(name) else ascii(name[:64])
    else:
        shown = str(name) if isinstance(name, bool | int) and abs(name) < 10**18 else f"({type_name(name)})"
    return f"{where}.{shown}" if where else shown


def table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """The rows as a Markdown table."""
    lines = ["| field | must be | default | notes |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _all_aliases(field: Field, *, camel: bool) -> list[Alias]:
    aliases = list(field.aliases)
    if camel:
        forms = [Alias(field.name), *field.aliases]
        aliases += [Alias(camel_case(form.name), form.kind, form.means) for form in forms]
    return [alias for alias in aliases if alias.name != field.name]


def _read(field: Field, alias: Alias | None, raw: object, where: str, problems: Problems) -> Any:
    if alias is None or alias.kind is None or alias.means is None:
        return field.kind.read(raw, where, problems)
    said = alias.kind.read(raw, where, problems)
    return None if said is None else field.kind.read(alias.means[said], where, problems)


def _alias_property(field: Field, alias: Alias) -> dict[str, Any]:
    if alias.kind is None or alias.means is None:
        return _or_null({"description": f"Alias of {field.name}.", "deprecated": True, **field.kind.schema()})
    meanings = ", ".join(f"{said} means {meant}".lower() for said, meant in alias.means.items())
    about = f"Alias of {field.name}: {meanings}."
    return _or_null({"description": about, "deprecated": True, **alias.kind.schema()})


def _or_null(shape: dict[str, Any]) -> dict[str, Any]:
    types = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
    null = {**shape, "type": [*types, "null"]}
    return {**null, "enum": [*shape["enum"], None]} if "enum" in shape else null


def _defaults(*of: type) -> dict[str, object]:
    """The defaults of dataclasses that have a short form."""
    known: dict[str, object] = {}
    for field in (field for kind in of for field in fields(kind)):
        default = field.default
        if isinstance(default, timedelta):
            default = default.total_seconds()
        if isinstance(default, Enum):
            default = default.value
        if default != "" and isinstance(default, str | int | float):
            known[field.name] = default
    return known
