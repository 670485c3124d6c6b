"""The kinds of single values that fields hold: how each is read, described to people, put into a JSON Schema.

Faults go to `Problems` and reading goes on, so that one answer names every fault; the value is then None. Values are
never echoed: a message says what is allowed, not what was sent. These are plain classes because the command line must
start fast, and each dataclass takes a millisecond to make.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from leasekeeper.core.ids import ID_PATTERN, ID_RULE
from leasekeeper.errors import InputError, Problem

MAX_PROBLEMS: Final = 100

_TIME_PATTERN: Final = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_TIME: Final = re.compile(_TIME_PATTERN)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Problems:
    """The faults of an input, in the order they were found. `hint` is added where text was expected."""

    def __init__(self, hint: str = "") -> None:
        self.hint = hint
        self._found: list[Problem] = []
        self._more = 0

    def add(self, where: str, message: str) -> None:
        if len(self._found) < MAX_PROBLEMS:
            self._found.append(Problem(where, message))
        else:
            self._more += 1

    @property
    def count(self) -> int:
        return len(self._found) + self._more

    def raise_any(self, message: str) -> None:
        """Raise InputError with everything found; nothing found, nothing raised."""
        more = [Problem("", f"and {self._more} more")] if self._more else []
        if self._found:
            raise InputError(message, [*self._found, *more])


class Kind(Protocol):
    """A kind of value. `rule` completes the sentence 'must be …'."""

    rule: str

    def read(self, value: object, where: str, problems: Problems) -> Any: ...

    def schema(self) -> dict[str, Any]: ...


class Wrong(Exception):
    """One value that its kind refuses. Becomes a problem; never raised to the caller."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Scalar(ABC):
    """The shared part of these kinds: `parse` raises Wrong, `read` makes a problem of it."""

    rule: str

    @abstractmethod
    def parse(self, value: object) -> Any: ...

    def read(self, value: object, where: str, problems: Problems) -> Any:
        try:
            return self.parse(value)
        except Wrong as wrong:
            wants_text = isinstance(self, Text | Choice) and not isinstance(value, str)
            problems.add(where, wrong.message + (problems.hint if wants_text else ""))
            return None


def mistyped(rule: str, value: object) -> Wrong:
    """The value is of another type than the rule asks for."""
    return Wrong(f"must be {rule}, not {type_name(value)}")


def type_name(value: object) -> str:
    """The name of this type of value, for people."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case date():
            return "a date"
        case _:
            return f"a Python {type(value).__name__}"


def is_storable(text: str) -> bool:
    """Whether every store and every encoder can hold the text: no NUL, no half of a surrogate pair."""
    return "\0" not in text and _SURROGATE.search(text) is None


class Text(Scalar):
    """Text of `least` to `limit` characters. `check` gives a sentence if something else is wrong with it.

    With `lines` it may hold line breaks, and `limit` counts bytes of UTF-8.
    """

    def __init__(
        self,
        rule: str,
        *,
        maximum: int,
        minimum: int = 1,
        pattern: str | None = None,
        lines: bool = False,
        check: Callable[[str], str | None] | None = None,
    ) -> None:
        self.rule = rule
        self.maximum = maximum
        self.minimum = minimum
        self.pattern = pattern
        self.lines = lines
        self.check = check

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise mistyped(self.rule, value)
        if not self._fits(value):
            raise Wrong(f"must be {self.rule}")
        sentence = self.check(value) if self.check is not None else None
        if sentence is not None:
            raise Wrong(sentence)
        return str.__str__(value)  # `str(enum member)` would be the member's name

    def _fits(self, text: str) -> bool:
        if not is_storable(text) or not (self.lines or text.isprintable()):
            return False
        length = len(text.encode()) if self.lines else len(text)
        if not self.minimum <= length <= self.maximum:
            return False
        return self.pattern is None or re.fullmatch(self.pattern, text) is not None

    def schema(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"type": "string", "minLength": self.minimum, "maxLength": self.maximum}
        return shape if self.pattern is None else {**shape, "pattern": f"^(?:{self.pattern})$"}


ID: Final = Text(ID_RULE, maximum=128, pattern=ID_PATTERN)


class Integer(Scalar):
    """A whole number between two bounds. 900.0 is one too, as JSON Schema has it."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self.rule = str(minimum) if minimum == maximum else f"a whole number from {minimum} to {maximum}"
        self.minimum = minimum
        self.maximum = maximum

    def parse(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mistyped(self.rule, value)
        if (isinstance(value, float) and not value.is_integer()) or not self.minimum <= value <= self.maximum:
            raise Wrong(f"must be {self.rule}")
        return int(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


class Number(Scalar):
    """A number between two bounds; as `seconds` it is read as a duration."""

    def __init__(self, minimum: float, maximum: float, *, seconds: bool = False) -> None:
        self.rule = f"a number{' of seconds' if seconds else ''} from {minimum:.12g} to {maximum:.12g}"
        self.minimum = minimum
        self.maximum = maximum
        self.seconds = seconds

    def parse(self, value: object) -> float | timedelta:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mistyped(self.rule, value)
        if not self.minimum <= value <= self.maximum:
            raise Wrong(f"must be {self.rule}")
        return timedelta(seconds=value) if self.seconds else float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}


class Flag(Scalar):
    """True or false, and nothing that looks like it."""

    rule = "true or false"

    def parse(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise mistyped(self.rule, value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Choice(Scalar):
    """One of the values of an enum."""

    def __init__(self, enum: type[StrEnum], synonyms: Mapping[str, StrEnum] | None = None) -> None:
        self.synonyms = dict(synonyms or {})
        self.rule = f"one of {', '.join([*enum, *self.synonyms])}"
        self.enum = enum

    def parse(self, value: object) -> StrEnum:
        if not isinstance(value, str):
            raise mistyped(self.rule, value)
        if value in self.synonyms:
            return self.synonyms[value]
        if value not in set(self.enum):
            raise Wrong(f"must be {self.rule}")
        return self.enum(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": [*(member.value for member in self.enum), *self.synonyms]}


class Time(Scalar):
    """A moment with its time zone, read as UTC. From Python it may be an aware datetime."""

    rule = "a time with its zone, as 2026-05-01T09:30:00Z or 2026-05-01T11:30:00+02:00"

    def parse(self, value: object) -> datetime:
        if not isinstance(value, str | datetime):
            raise mistyped(self.rule, value)
        if isinstance(value, str) and _TIME.fullmatch(value) is None:
            raise Wrong(f"must be {self.rule}")
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value.upper())
            utc = moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise Wrong(f"must be {self.rule}") from None
        if moment.utcoffset() is None:
            raise Wrong(f"must be {self.rule}")
        return utc

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time", "pattern": f"^{_TIME_PATTERN}$"}


class JsonObject(Scalar):
    """Any JSON object up to a size and a depth. It is copied, so later changes to the original do not matter.

    Neither its values nor its keys enter a message: they are the user's, and may be secret.
    """

    def __init__(self, max_bytes: int, max_depth: int) -> None:
        self.rule = f"a JSON object of at most {max_bytes // 1024} KiB and {max_depth} levels"
        self.max_bytes = max_bytes
        self.max_depth = max_depth

    def parse(self, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise mistyped(self.rule, value)
        # Every value takes at least two bytes of JSON, so more values than this would be too large anyway.
        copy: dict[str, Any] = self._copy(value, 1, [self.max_bytes // 2])
        try:
            size = len(json.dumps(copy, separators=(",", ":"), ensure_ascii=False).encode())
        except ValueError:
            raise self._wrong("it holds a number with too many digits") from None
        if size > self.max_bytes:
            raise self._wrong(f"it takes {size} bytes")
        return copy

    def _wrong(self, reason: str) -> Wrong:
        return Wrong(f"must be {self.rule}: {reason}")

    def _copy(self, value: object, depth: int, left: list[int]) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise self._wrong("it holds too many values")
        match value:
            case None | bool() | int():
                return value
            case float():
                if not math.isfinite(value):
                    raise self._wrong("it holds a number that is not finite")
                return value
            case str():
                return self._text(value)
        if depth > self.max_depth:
            raise self._wrong("it is nested too deep")
        match value:
            case Mapping():
                return {self._text(key): self._copy(item, depth + 1, left) for key, item in value.items()}
            case list() | tuple():
                return [self._copy(item, depth + 1, left) for item in value]
            case _:
                raise self._wrong(f"it holds {type_name(value)}, which JSON does not have")

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong("it holds a key that is not text")
        if not is_storable(value):
            raise self._wrong("it holds text with a NUL or half a surrogate pair, which stores cannot keep")
        return str.__str__(value)  # `str(enum member)` would be the member's name

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}
