"""Text for people: tables that fit the screen, and sheets of one record's fields. Pure, except `Screen.now`.

A cell is a value, not text: times are shown relative to the store's clock, numbers are aligned right, states have a
colour. Only printable characters are written, so text of other programs cannot move the cursor or change colours.
"""

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from textwrap import wrap
from typing import Final, Generic, TypeVar

from leasekeeper.wording import ago

T = TypeVar("T")
Timely = Callable[[datetime], str]  # a value that depends on the store's time

ID_WIDTH: Final = 36  # of a UUID
NAME_WIDTH: Final = 22  # on a full screen the widest name: it keeps its beginning and its end
SHORT_IDS: Final = (18, ID_WIDTH)  # the time to the millisecond, and the order within it: the jobs of a batch differ
MAX_NEEDED: Final = 3
_NARROWEST: Final = 8
_GAP: Final = "  "
_LEAST_WRAP: Final = 30
_GREEN, _YELLOW, _RED, _DIM, _BOLD = "32", "33", "31", "2", "1"
# Green: fine. Yellow: waits, and will go on by itself. Red: needs a person. Dim: ended or out of rotation.
_COLOURS: Final = {
    **dict.fromkeys(("available", "running", "completed", "released", "active", "reporting", "delivered"), _GREEN),
    **dict.fromkeys(("leased", "scheduled", "queued", "blocked", "stale", "releasing", "started", "pending"), _YELLOW),
    **dict.fromkeys(("review", "review_required", "quarantined", "dead", "failed", "expired", "silent"), _RED),
    **dict.fromkeys(("paused", "revoked", "open", "exhausted", "mismatch", "unreachable"), _RED),
    **dict.fromkeys(("disabled", "skipped", "cancelled", "stopped", "decided"), _DIM),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The output: its width (None: no terminal, nothing is shortened), and whether it has colours."""

    width: int | None
    colours: bool

    @classmethod
    def now(cls) -> "Screen":
        terminal = sys.stdout.isatty()
        sized = terminal or "COLUMNS" in os.environ
        plain = not terminal or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return cls(width=shutil.get_terminal_size().columns if sized else None, colours=not plain)

    def paint(self, text: str, colour: str | None) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colours and colour else text

    def title(self, text: str) -> str:
        return self.paint(text, _BOLD)

    def dim(self, text: str) -> str:
        return self.paint(text, _DIM)

    def state(self, text: str) -> str:
        """The text in the colour of the state that it begins with."""
        return self.paint(text, _COLOURS.get(text.strip().partition(" ")[0]))


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: `value` is an attribute's name or a function of the row.

    With `id`, a screen shows as much of a UUID as tells it apart from the others there, and commands take it. `spare`
    is the order of shortening: 0 is never shortened, the highest first. Columns are shortened to `least` first. If that
    is not enough, those with a `spare` above MAX_NEEDED are left out, and then the others get narrower.
    """

    title: str
    value: str | Callable[[T], object]
    spare: int = 0
    least: int = 14
    state: bool = False
    id: bool = False

    def of(self, row: T) -> object:
        return attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)


def cell(value: object, now: datetime) -> str:
    """A value as a person reads it, on one line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return ago(value, now)
        case Callable():
            return printable(str(value(now)))
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """The text without control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def render_table(columns: Sequence[Column[T]], rows: Sequence[T], now: datetime, screen: Screen) -> list[str]:
    """The lines of a table, header first. Columns without any value are left out."""
    values = [[column.of(row) for row in rows] for column in columns]
    cells = [[cell(value, now) for value in column] for column in values]
    if screen.width is not None:
        cells = [short_ids(texts) if columns[i].id else texts for i, texts in enumerate(cells)]
    shown = [i for i, texts in enumerate(cells) if any(texts)]
    natural = {i: max(_width(columns[i].title), *map(_width, cells[i])) for i in shown}
    texts = {i for i in shown if _is_text(values[i])}
    names = {i: _enough(columns[i], cells[i]) for i in texts if not any(" " in text for text in cells[i])}
    widths, left_out = _fit(columns, natural, texts, names, screen.width)
    right = {i for i in widths if _are_numbers(values[i])}
    last = next(reversed(widths), None)

    def line(cut: dict[int, str], paint: Callable[[int, str], str]) -> str:
        parts = (paint(i, _pad(cut[i], width, right=i in right, trailing=i != last)) for i, width in widths.items())
        return _GAP.join(parts).rstrip()

    lines = [line({i: columns[i].title for i in widths}, lambda _, text: screen.dim(text))]
    for number in range(len(rows)):
        row = {i: cells[i][number] for i in widths}
        lines.append(line(row, lambda i, text: screen.state(text) if columns[i].state else text))
    if left_out:
        hidden = f"not shown, no room: {', '.join(left_out).lower()}"
        lines += [screen.dim(line) for line in wrapped(hidden, screen, indent="")]
    return lines


def short_ids(texts: Sequence[str]) -> list[str]:
    """UUIDs as short as they are still different, also from those that a filter leaves out; anything else as it is."""
    made = {text for text in texts if _is_uuid(text)}
    length = next(n for n in SHORT_IDS if len({text[:n] for text in made}) == len(made))
    return [text[:length] if text in made else text for text in texts]


def _is_uuid(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and text.replace("-", "").isalnum()


def _is_text(values: Iterable[object]) -> bool:
    """Whether the values may be shortened. Half a number or half a time would be a wrong one."""
    return any(isinstance(value, str) for value in values)


def _enough(column: Column[T], texts: Iterable[str]) -> int:
    """How wide a column of names has to be. What is typed stays whole if it is no longer than a UUID."""
    whole = [len(text) for text in texts if len(text) <= ID_WIDTH] if column.id else []
    return max([NAME_WIDTH, *whole])


def _fit(
    columns: Sequence[Column[T]],
    natural: Mapping[int, int],
    texts: Container[int],
    names: Mapping[int, int],
    room: int | None,
) -> tuple[dict[int, int], list[str]]:
    """The width of each column that is shown, and the titles of those that are not. `names`: how wide columns without
    sentences have to be."""
    kept, left_out = dict(natural), list[str]()
    while room is not None:
        widths = dict(kept)
        excess = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - room
        # One very long name costs no other column its place: the longest are shortened before anything else is.
        for i in sorted((i for i in kept if i in names), key=lambda i: -widths[i]):
            cut = min(max(excess, 0), max(widths[i] - names[i], 0))
            widths[i] -= cut
            excess -= cut
        spared = sorted((i for i in kept if columns[i].spare), key=lambda i: -columns[i].spare)
        comfortable = bool(spared) and columns[spared[0]].spare > MAX_NEEDED
        for i in spared:
            least = max(columns[i].least if comfortable else _NARROWEST, _width(columns[i].title))
            cut = min(max(excess, 0), max(widths[i] - least, 0)) if i in texts else 0
            widths[i] -= cut
            excess -= cut
        if excess <= 0 or not spared:
            return widths, left_out
        left_out.append(columns[spared[0]].title)
        del kept[spared[0]]
    return kept, left_out


def _are_numbers(values: Iterable[object]) -> bool:
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)


def _pad(text: str, width: int, *, right: bool, trailing: bool) -> str:
    text = _shortened(text, width)
    space = " " * (width - _width(text))
    if right:
        return space + text
    return text + space if trailing else text


def _shortened(text: str, width: int) -> str:
    """A sentence loses its end, a name its middle: names of a fleet begin alike."""
    if _width(text) <= width:
        return text
    if " " in text:
        return _first(text, width - 1).rstrip() + "…"
    end = _first(text[::-1], (width - 1) // 2)[::-1]
    return _first(text, width - 1 - _width(end)) + "…" + end


def _first(text: str, width: int) -> str:
    """The beginning that fits."""
    taken, kept = 0, ""
    for character in text:
        taken += _width(character)
        if taken > width:
            break
        kept += character
    return kept


def _width(text: str) -> int:
    """Columns on the screen: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def render_sheet(fields: Sequence[tuple[str, object]], now: datetime, screen: Screen) -> list[str]:
    """One record: a line per field that says something, names in one column, long values wrapped."""
    shown = [(name, value) for name, value in fields if _has_value(value)]
    name_width = max((len(name) for name, _ in shown), default=0)
    lines = []
    for name, value in shown:
        text = _full(value, now)
        for number, part in enumerate(_wrapped(text, screen.width, name_width + 4)):
            label = screen.dim(f"  {name:<{name_width}}") if number == 0 else " " * (name_width + 2)
            lines.append(f"{label}{_GAP}{screen.state(part)}")
    return lines


def _has_value(value: object) -> bool:
    return value is not None and value is not False and value not in ("", (), {}, [])


def _full(value: object, now: datetime) -> str:
    """A value where there is room for all of it: times exactly and relative, mappings as pairs."""
    match value:
        case datetime():
            return f"{ago(value, now)} ({value.isoformat(sep=' ', timespec='seconds')})"
        case dict():
            return ", ".join(f"{printable(str(k))}={cell(v, now)}" for k, v in value.items())
        case tuple() | list():
            return ", ".join(cell(v, now) for v in value)
        case timedelta():
            return f"{value.total_seconds():g} s"
        case _ if is_dataclass(value) and not isinstance(value, type):
            named = ((field.name, getattr(value, field.name)) for field in fields(value))
            return ", ".join(f"{name}={_full(inner, now)}" for name, inner in named if _has_value(inner))
        case _:
            return cell(value, now)


def _wrapped(text: str, width: int | None, indent: int) -> list[str]:
    if width is None or width - indent < _LEAST_WRAP:
        return [text]
    return wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [""]


def wrapped(text: str, screen: Screen, indent: str = "  ") -> list[str]:
    """A sentence as indented lines that fit the screen."""
    return [indent + line for line in _wrapped(printable(text), screen.width, len(indent))]
