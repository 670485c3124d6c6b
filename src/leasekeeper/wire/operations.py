"""Operations of the store as calls over a wire: their arguments and answers, derived from the port's signatures.

A call is `{"version": 1, "request_id": …, "sequence": …, "arguments": {…}}`, an answer is a document
(`shapes.to_document`). A new operation of the port needs nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, Signature, isfunction, signature
from typing import Any, Final, get_origin, get_type_hints

from leasekeeper.errors import InputError, Problem
from leasekeeper.lists import LISTS
from leasekeeper.ports import Page, Store
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.kinds import Kind, Problems, Scalar, Wrong, mistyped, type_name
from leasekeeper.wire.records import at
from leasekeeper.wire.shapes import VERSION, shape_of

# `close` is local, and `once` is sent as the name of the next call.
LOCAL: Final = frozenset({"close", "once"})
# Says whether a call was sent before; without it a call is treated as a repeated one.
ATTEMPT_HEADER: Final = "Leasekeeper-Attempt"
MAX_REQUEST_ID: Final = 64
MAX_SEQUENCE: Final = 2**53
_FIELDS: Final = ("version", "request_id", "sequence", "arguments")
_KINDS: Final[Mapping[str, type]] = {kind.__name__: kind for kind in LISTS}


class _KindName(Scalar):
    """A kind of record, by its name."""

    rule = f"one of {', '.join(sorted(_KINDS))}"

    def parse(self, value: object) -> type:
        if not isinstance(value, str):
            raise mistyped(self.rule, value)
        if value not in _KINDS:
            raise Wrong(f"must be {self.rule}")
        return _KINDS[value]

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": sorted(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: how its arguments and its answer are read and described."""

    name: str
    doc: str
    arguments: Mapping[str, tuple[Kind, Any]]
    answers: Any
    form: Signature

    def bind(self, *positional: Any, **named: Any) -> dict[str, Any]:
        """The arguments of a call in Python, by name."""
        return self.form.bind(*positional, **named).arguments

    def write(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """The arguments in plain JSON types, without those at their default."""
        return {
            name: value.__name__ if isinstance(value, type) else encode_in_full(value)
            for name, value in arguments.items()
            if not (self.arguments[name][1] is not Parameter.empty and value == self.arguments[name][1])
        }

    def read(self, data: object) -> dict[str, Any]:
        """The arguments of a call. Raises InputError that names every one at fault."""
        problems = Problems()
        found: dict[str, Any] = {}
        if not isinstance(data, Mapping):
            problems.add("arguments", f"must be an object, not {type_name(data)}")
            data = {}
        for name in data:
            if name not in self.arguments:
                problems.add(at("arguments", name), f"{self.name} has no such argument: it may be of a newer version")
        for name, (kind, usual) in self.arguments.items():
            if name in data:
                found[name] = kind.read(data[name], at("arguments", name), problems)
            elif usual is Parameter.empty:
                problems.add(at("arguments", name), "is required")
        problems.raise_any(f"{self.name} was not called")
        return found

    def answer_kind(self, arguments: Mapping[str, Any]) -> Kind:
        """The kind of the answer to a call with these arguments."""
        asked: Any = arguments.get("kind")
        if self.name == "get":
            return shape_of(asked)
        return shape_of(Page[asked] if self.name == "find" else self.answers)

    def read_answer(self, arguments: Mapping[str, Any], document: object) -> Any:
        """The value of an answer. Any other version is refused, whatever is in it (I14)."""
        if not isinstance(document, Mapping) or document.get("version") != VERSION or "value" not in document:
            raise InputError(
                f"the answer to {self.name} cannot be read",
                [Problem("version", f"must be {VERSION}, the one this program knows")],
            )
        problems = Problems()
        value = self.answer_kind(arguments).read(document["value"], "", problems)
        problems.raise_any(f"the answer to {self.name} cannot be read")
        return list(value) if get_origin(self.answers) is list and isinstance(value, tuple) else value

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a call."""
        needed = [name for name, (_, usual) in self.arguments.items() if usual is Parameter.empty]
        arguments = {
            "type": "object",
            "properties": {name: kind.schema() for name, (kind, _) in self.arguments.items()},
            "required": needed,
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "properties": {
                "version": {"const": VERSION},
                "request_id": {"type": "string", "minLength": 1, "maxLength": MAX_REQUEST_ID},
                "sequence": {"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
                "arguments": arguments,
            },
            "required": ["version", "arguments"],
            "additionalProperties": False,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCall:
    """One call of an operation as it was read. `request_id` names the caller's slot, `sequence` the call in it."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | None = None
    sequence: int = 0


def read_call(operation: Operation, data: object) -> StoreCall:
    """A call out of plain JSON types. Raises InputError."""
    problems = Problems()
    if not isinstance(data, Mapping):
        problems.add("", f"must be an object, not {type_name(data)}")
        data = {}
    for name in data:
        if name not in _FIELDS:
            problems.add(str(name), f"no such field; there are: {', '.join(_FIELDS)}")
    if isinstance(data.get("version"), bool) or data.get("version") != VERSION:
        problems.add("version", f"must be {VERSION}, the one this program knows; for a newer one upgrade it")
    request_id = data.get("request_id")
    if request_id is not None and not (
        isinstance(request_id, str) and request_id.isascii() and request_id.isprintable()
        and 1 <= len(request_id) <= MAX_REQUEST_ID
    ):  # fmt: skip
        problems.add("request_id", f"must be 1 to {MAX_REQUEST_ID} printable characters")
    sequence = data.get("sequence", 0)
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= MAX_SEQUENCE:
        problems.add("sequence", f"must be a whole number from 0 to {MAX_SEQUENCE}")
    problems.raise_any(f"{operation.name} was not called")
    arguments = operation.read(data.get("arguments", {}))
    return StoreCall(arguments=arguments, request_id=request_id, sequence=sequence)


@cache
def operations() -> Mapping[str, Operation]:
    """Every operation that can be called over a wire, by name."""
    found = {name: each for name, each in vars(Store).items() if isfunction(each) and name not in LOCAL}
    return {name: _operation(name, each) for name, each in found.items() if not name.startswith("_")}


def _operation(name: str, function: Any) -> Operation:
    hints = get_type_hints(function)
    form = signature(function)
    parameters = list(form.parameters.values())[1:]
    return Operation(
        name=name,
        doc=_summary(function.__doc__ or ""),
        arguments={
            each.name: (
                _KindName() if get_origin(hints[each.name]) is type else shape_of(hints[each.name]),
                each.default,
            )
            for each in parameters
        },
        answers=hints["return"],
        form=form.replace(parameters=parameters),
    )


def _summary(docstring: str) -> str:
    """The first line of a docstring, and what follows it up to the end of its last sentence."""
    line = docstring.partition("\n")[0].strip()
    text = " ".join(docstring.partition("\n\n")[0].split())
    end = text.find(". ", len(line) - 1)
    return text if end < 0 else text[: end + 1]
