"""Times of cron expressions, in their time zone. Wraps cronsim, which follows Debian's cron.

Daylight saving: an expression with fixed minutes and hours runs once on every day that it names. A time that the clocks
skip runs at the first minute after the gap, a time that they show twice runs the first time. An expression whose minute
or hour field begins with `*` follows real time: it has no time inside the gap, and goes on through the repeated hour.
Knows nothing of schedules; the current time is an argument.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from leasekeeper.errors import InputError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MAX_CRON_LENGTH: Final = 128
RULE: Final = "five cron fields (minute hour day month weekday) as '30 3 * * *', or @hourly, @daily, @weekly, @monthly"
FIELDS: Final = 5
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# How far back to start when only the newest times of a long span are needed.
_WINDOWS: Final = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 400, 24 * 20_000))
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


def fault(expression: str) -> str | None:
    """Why an expression is refused, or None."""
    from cronsim import CronSim, CronSimError

    fields = NICKNAMES.get(expression.lower(), expression).split()
    if len(fields) != FIELDS:
        return f"must be {RULE}"
    try:
        found = next(CronSim(" ".join(fields), _LONG_AGO), None)
    except (CronSimError, AssertionError, ValueError) as error:
        reason = str(error).lower() or "not understood"
        return f"must be {RULE}: {reason}"
    return None if found is not None else "names a time that never comes"


def next_time(expression: str, timezone: str, after: datetime) -> datetime | None:
    """The first time after `after`, in UTC; None if there is none within 50 years."""
    return next(_times(expression, zone_of(timezone), after), None)


def next_times(expression: str, timezone: str, after: datetime, count: int) -> list[datetime]:
    """The first `count` times after `after`, in UTC."""
    return list(islice(_times(expression, zone_of(timezone), after), count))


def times_between(expression: str, timezone: str, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The newest `limit` times after `after` and not after `until`, oldest first.

    The cost depends on `limit`, not on the length of the span.
    """
    zone = zone_of(timezone)
    begin, found = until, list[datetime]()
    for window in _WINDOWS:
        if begin <= after or len(found) > limit:
            break
        begin = max(after, until - window)
        found = list(takewhile(lambda moment: moment <= until, _times(expression, zone, begin)))
    return found[-limit:]


def zone_of(timezone: str) -> "ZoneInfo":
    """The time zone. Raises InputError if this machine does not know it."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise InputError(
            f"this machine does not know the time zone {timezone}: install its tzdata package, or pip's"
        ) from None


def _times(expression: str, zone: "ZoneInfo", after: datetime) -> Iterator[datetime]:
    """Times after `after`, each once, in order. Raises InputError for an expression that `fault` refuses."""
    from cronsim import CronSim, CronSimError

    last = after
    try:
        for local in CronSim(NICKNAMES.get(expression.lower(), expression), after.astimezone(zone)):
            moment = local.astimezone(UTC)
            # Inside the repeated hour cronsim finds the first of two equal times again, which is over.
            if moment > last:
                last = moment
                yield moment
    except (CronSimError, OverflowError) as error:
        raise InputError(f"cron expression {expression!r} is not understood: {error}") from None
