"""Charts over time: the bucket of each time, the height of each bar, the points of each line. Templates draw SVG."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

BARS: Final = 48
HEIGHT: Final = 60.0
# From the shortest to the longest time that a chart shows; the first one that holds everything is taken.
SPANS: Final = (timedelta(hours=1), timedelta(hours=6), timedelta(days=1), timedelta(days=7), timedelta(days=30))


@dataclass(frozen=True, slots=True)
class Window:
    """The time that a chart shows, in buckets of the same width."""

    since: datetime
    until: datetime

    @property
    def width(self) -> timedelta:
        return (self.until - self.since) / BARS

    def place(self, at: datetime) -> int | None:
        """The bucket of a time; None: it is not shown."""
        if not self.since <= at <= self.until:
            return None
        return min(int((at - self.since) / self.width), BARS - 1)

    def begin(self, place: int) -> datetime:
        return self.since + self.width * place


def window(times: Iterable[datetime], now: datetime, *, complete: bool = True) -> Window:
    """A window that holds all the times. If not `complete`, older ones exist, and it begins with the oldest known."""
    oldest = min(times, default=now)
    if not complete and timedelta(seconds=1) < now - oldest < SPANS[-1]:
        return Window(oldest, now)
    return Window(now - next((each for each in SPANS if now - oldest <= each), SPANS[-1]), now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bucket: the number of each series, and the rectangles from the bottom up, as (series, top, height)."""

    at: datetime
    numbers: tuple[int, ...]
    parts: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Bars of one or more series, stacked."""

    series: tuple[str, ...]
    bars: Sequence[Bar]
    highest: int
    shows: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series: its number in each bucket (None: nothing is known), and the parts of the line as SVG points."""

    name: str
    numbers: tuple[float | None, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One or more series as lines over the same buckets."""

    series: Sequence[Line]
    highest: float
    shows: Window


def stacked(series: Sequence[tuple[str, Iterable[datetime]]], shows: Window) -> Chart:
    """Count the times of each series in the buckets of a window."""
    counts = [[0] * BARS for _ in series]
    for number, (_, times) in enumerate(series):
        for at in times:
            place = shows.place(at)
            if place is not None:
                counts[number][place] += 1
    highest = max((sum(column) for column in zip(*counts, strict=True)), default=0)
    bars = [
        Bar(at=shows.begin(place), numbers=tuple(column), parts=_parts(column, highest))
        for place, column in enumerate(zip(*counts, strict=True))
    ]
    return Chart(series=tuple(name for name, _ in series), bars=bars, highest=highest, shows=shows)


def _parts(column: Sequence[int], highest: int) -> tuple[tuple[int, float, float], ...]:
    parts, base = [], HEIGHT
    for number, count in enumerate(column):
        if count:
            height = HEIGHT * count / highest
            base -= height
            parts.append((number, round(base, 2), round(height, 2)))
    return tuple(parts)


def lines(series: Mapping[str, Sequence[float | None]], shows: Window) -> Lines:
    """Series of one number for each bucket as lines. A bucket without a number interrupts the line."""
    highest = max((each for numbers in series.values() for each in numbers if each is not None), default=0.0)
    return Lines(
        series=[
            Line(name=name, numbers=tuple(numbers), parts=_points(numbers, highest)) for name, numbers in series.items()
        ],
        highest=highest,
        shows=shows,
    )


def _points(numbers: Sequence[float | None], highest: float) -> tuple[str, ...]:
    """Where the line goes: a bucket is 10 wide, and drawn from its left to its right side."""
    parts: list[list[str]] = [[]]
    for place, number in enumerate(numbers):
        if number is None:
            parts.append([])
            continue
        y = round(HEIGHT - (HEIGHT * number / highest if highest else 0.0), 2)
        parts[-1] += [f"{place * 10},{y}", f"{place * 10 + 10},{y}"]
    return tuple(" ".join(each) for each in parts if each)


def highest_at_once(spans: Iterable[tuple[datetime, datetime | None]], shows: Window) -> list[float]:
    """How many of the spans were open at once, at most, in each bucket. One without an end is open now."""
    changes = []
    for begin, end in spans:
        if end is None or end >= shows.since:
            changes.append((max(begin, shows.since), 1))
            if end is not None:
                changes.append((end, -1))
    changes.sort()
    found = [0.0] * BARS
    at_once, filled = 0, 0
    for at, change in changes:
        place = shows.place(at)
        if place is None:
            continue
        for bucket in range(filled + 1, place + 1):  # what was open goes on into the buckets between
            found[bucket] = at_once
        filled = max(filled, place)
        at_once += change
        found[place] = max(found[place], at_once)
    for bucket in range(filled + 1, BARS):
        found[bucket] = at_once
    return found


def typical_and_longest(values: Iterable[tuple[datetime, float]], shows: Window) -> dict[str, list[float | None]]:
    """The median and the longest of the values in each bucket."""
    buckets: list[list[float]] = [[] for _ in range(BARS)]
    for at, value in values:
        place = shows.place(at)
        if place is not None:
            buckets[place].append(value)
    return {
        "median": [sorted(each)[len(each) // 2] if each else None for each in buckets],
        "longest": [max(each) if each else None for each in buckets],
    }
