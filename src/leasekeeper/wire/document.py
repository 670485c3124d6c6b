"""YAML text → plain values. Strict: no duplicate keys, no cycles, no alias bombs, no tags, one document.

Reads YAML's events instead of letting the library build objects: so the line of every key is known, no recursion is
needed, and `no` and `018` are what YAML 1.2 says. Aliases and merge keys (`<<`) work.
"""

import re
from collections.abc import Hashable
from typing import Any, Final

from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.errors import InputError
from leasekeeper.wire.kinds import Problems

MAX_NODES: Final = 5_000_000

_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = re.compile("|~|null|Null|NULL")
_TRUE: Final = re.compile("true|True|TRUE")
_FALSE: Final = re.compile("false|False|FALSE")
_INTEGER: Final = re.compile("[-+]?[0-9]{1,300}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MERGE: Final = object()
_NO_KEY: Final = object()


class _Open:
    """A mapping or list whose end has not come yet. `size` counts its values, also those behind aliases."""

    def __init__(self, value: dict[Any, Any] | list[Any], mark: Any, anchor: str | None) -> None:
        self.value = value
        self.mark = mark
        self.anchor = anchor
        self.key: object = _NO_KEY
        self.lines: dict[Any, int] = {}
        self.merged: list[dict[Any, Any]] = []
        self.size = 0


class _Builder:
    """Builds the values of one document, event by event."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: object = None
        self.complete = False
        self.duplicates = Problems()
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._size = 0

    def start(self, value: dict[Any, Any] | list[Any], event: Any) -> None:
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            raise self._wrong(event.start_mark, "tags are not used in this file")
        if len(self._stack) >= MAX_DEPTH:
            raise self._wrong(event.start_mark, f"nested deeper than {MAX_DEPTH} levels")
        self._anchors.pop(event.anchor, None)
        self._stack.append(_Open(value, event.start_mark, event.anchor))

    def end(self) -> None:
        done = self._stack.pop()
        if isinstance(done.value, dict):
            for fallback in done.merged:
                for key, item in fallback.items():
                    done.value.setdefault(key, item)
        self._keep(done.value, done.size, done.anchor)
        self._put(done.value, done.size, done.mark)

    def scalar(self, event: Any) -> None:
        if event.tag not in (None, "!", f"{_TAG}str"):
            raise self._wrong(event.start_mark, "tags are not used in this file")
        is_plain = event.implicit[0] and event.tag is None
        frame = self._stack[-1] if self._stack else None
        if is_plain and event.value == "<<" and frame and isinstance(frame.value, dict) and frame.key is _NO_KEY:
            frame.key = _MERGE
            return
        value = resolve(event.value) if is_plain else event.value
        self._keep(value, 1, event.anchor)
        self._put(value, 1, event.start_mark)

    def alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            if any(frame.anchor == event.anchor for frame in self._stack):
                raise self._wrong(event.start_mark, f"cyclic: *{event.anchor} is inside of the value that it refers to")
            raise self._wrong(
                event.start_mark, f"*{event.anchor} refers to nothing: there is no &{event.anchor} before it"
            )
        self._put(*self._anchors[event.anchor], event.start_mark)

    def _keep(self, value: object, size: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)

    def _put(self, value: object, size: int, mark: Any) -> None:
        if not self._stack:
            self.root, self.complete = value, True
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > MAX_NODES:
            raise self._wrong(mark, f"more than {MAX_NODES:,} values, counting what aliases repeat")
        if isinstance(frame.value, list):
            frame.value.append(value)
        elif frame.key is _NO_KEY:
            self._put_key(frame, value, mark)
        elif frame.key is _MERGE:
            frame.merged += self._mappings(value, mark)
            frame.key = _NO_KEY
        else:
            frame.value[frame.key] = value
            frame.key = _NO_KEY

    def _put_key(self, frame: _Open, key: object, mark: Any) -> None:
        if isinstance(key, dict | list) or not isinstance(key, Hashable):
            raise self._wrong(mark, "a key must be a word, not a mapping or a list")
        if key in frame.lines:
            shown = ascii(key)[:80]
            self.duplicates.add(_place(mark), f"key {shown} is there twice, first on line {frame.lines[key]}")
        frame.lines.setdefault(key, mark.line + 1)
        frame.key = key

    def _mappings(self, value: object, mark: Any) -> list[dict[Any, Any]]:
        mappings = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
        if not mappings or (isinstance(value, list) and len(mappings) < len(value)):
            raise self._wrong(mark, "'<<' takes a mapping, or a list of mappings")
        return mappings

    def _wrong(self, mark: Any, message: str) -> InputError:
        return InputError(f"{self.name}, {_place(mark)}: {message}")


def read_yaml(text: str, name: str) -> object:
    """The one document in the text. `name` is used in messages. Raises InputError that names the line."""
    import yaml

    builder = _Builder(name)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            match event:
                case yaml.MappingStartEvent():
                    builder.start({}, event)
                case yaml.SequenceStartEvent():
                    builder.start([], event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    builder.end()
                case yaml.ScalarEvent():
                    builder.scalar(event)
                case yaml.AliasEvent():
                    builder.alias(event)
                case yaml.DocumentStartEvent() if builder.complete:
                    raise InputError(f"{name}, {_place(event.start_mark)}: a second document begins; one is allowed")
    except yaml.MarkedYAMLError as error:
        place = f", {_place(error.problem_mark)}" if error.problem_mark else ""
        raise InputError(f"{name}{place}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise InputError(f"{name}: not YAML: character {error.position} is not allowed") from None
    builder.duplicates.raise_any(f"{name} says something twice")
    return builder.root


def resolve(text: str) -> object:
    """The value of an unquoted word. As in YAML 1.2: `yes`, `no`, `on`, `off` and dates are text."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text[0] in "tT"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
