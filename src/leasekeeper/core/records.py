"""Fast construction and copies of frozen dataclasses, for records that are made by the thousand.

The usual constructor of a frozen class sets each field past the class's own guard, which takes most of its time. Here a
record is filled in as a draft, a class with the same slots and no guard, and then gets its real class.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def compiled(source: str, **names: Any) -> Any:
    """The function `made` that the source defines. The source consists of field names and of the given names only."""
    exec(source, names)  # noqa: S102 - as dataclasses make their own methods
    return names["made"]


@cache
def draft(kind: Any) -> Any:
    """A class with the slots of a frozen record, but writable."""
    return type(f"{kind.__name__}Draft", (), {"__slots__": kind.__slots__})


def quick_init(kind: type[T]) -> type[T]:
    """Give a frozen dataclass (slots, keywords only) a constructor that is several times as fast.

    Only for a class without bases and subclasses that does nothing but keep its fields. Raises TypeError for others.
    """
    record_kind: Any = kind
    if kind.__bases__ != (object,) or hasattr(kind, "__post_init__"):
        raise TypeError(f"{kind.__qualname__} is more than its fields")
    names: dict[str, Any] = {}
    arguments, lines = [], [" _put(record, '__class__', _draft)"]
    for field in fields(record_kind):
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_new_{name}"], names["_missing"] = field.default_factory, MISSING
            arguments.append(f"{name}=_missing")
            value = f"_new_{name}() if {name} is _missing else {name}"
        elif field.default is not MISSING:
            names[f"_usual_{name}"] = field.default
            arguments.append(f"{name}=_usual_{name}")
        else:
            arguments.append(name)
        lines.append(f" record.{name} = {value}")
    lines.append(" record.__class__ = _kind")
    source = "\n".join([f"def made(record, *, {', '.join(arguments)}):", *lines])
    made: Callable[..., None] = compiled(
        source, _put=object.__setattr__, _draft=draft(record_kind), _kind=kind, **names
    )
    made.__name__, made.__qualname__ = "__init__", f"{kind.__qualname__}.__init__"
    record_kind.__init__ = made
    return kind


@cache
def _copier(kind: Any) -> Any:
    copied = "\n".join(f" copy.{name} = record.{name}" for name in kind.__slots__)
    return compiled(
        f"def made(record):\n copy = new(draft)\n{copied}\n return copy", draft=draft(kind), new=object.__new__
    )


def evolve(record: T, **changes: object) -> T:
    """A copy of the record with some fields changed: `dataclasses.replace`, many times as fast."""
    kind: Any = type(record)
    copy: T = _copier(kind)(record)
    for name, value in changes.items():
        setattr(copy, name, value)
    copy.__class__ = kind
    return copy


def changer(kind: type[T], *names: str) -> Callable[..., T]:
    """A function that makes a copy of a record with these fields changed: `evolve`, for fields known beforehand."""
    record_kind: Any = kind
    lines = [f"def made(record, *, {', '.join(names)}):", " copy = new(draft)"]
    lines += [f" copy.{name} = {name if name in names else f'record.{name}'}" for name in record_kind.__slots__]
    lines += [" copy.__class__ = kind", " return copy"]
    change: Callable[..., T] = compiled("\n".join(lines), kind=kind, draft=draft(record_kind), new=object.__new__)
    return change
