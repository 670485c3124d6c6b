"""Times of cron expressions: what is refused, daylight saving, and that windows find what a long walk would."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper import cron
from leasekeeper.errors import InputError

NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # the zone comes by name


def local(expression: str, timezone: str, after: datetime, count: int) -> list[str]:
    """The next times as people of that zone write them."""
    found = cron.next_times(expression, timezone, after, count)
    return [at.astimezone(ZoneInfo(timezone)).strftime("%d %H:%M %Z") for at in found]


def test_a_time_comes_after_the_moment_and_not_at_it() -> None:
    assert cron.next_time("30 3 * * *", "UTC", utc(2026, 5, 1, 3, 29, 59)) == utc(2026, 5, 1, 3, 30)
    assert cron.next_time("30 3 * * *", "UTC", utc(2026, 5, 1, 3, 30)) == utc(2026, 5, 2, 3, 30)
    just_before = utc(2026, 5, 1, 3, 29, 59) + timedelta(microseconds=999_999)
    assert cron.next_time("30 3 * * *", "UTC", just_before) == utc(2026, 5, 1, 3, 30)


def test_the_time_zone_is_that_of_the_expression() -> None:
    assert cron.next_time("0 9 * * MON-FRI", "Asia/Kolkata", utc(2026, 5, 1, 4)) == utc(2026, 5, 4, 3, 30)


@pytest.mark.parametrize("name", cron.NICKNAMES)
def test_nicknames_are_what_cron_has(name: str) -> None:
    assert cron.fault(name) is None
    assert cron.fault(name.upper()) is None
    assert cron.next_time(name, "UTC", utc(2026, 1, 1)) == cron.next_time(cron.NICKNAMES[name], "UTC", utc(2026, 1, 1))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "five cron fields"),
        ("* * * *", "five cron fields"),
        ("0 * * * * *", "five cron fields"),
        ("@reboot", "five cron fields"),
        ("61 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 1 JANUARY *", "bad month"),
        ("0 0 */20 * 1L", "never comes"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(expression: str, why: str) -> None:
    assert why in str(cron.fault(expression))


@given(st.text(alphabet="0123456789*/,-#LW@ SUNMO", max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_either_refused_or_has_times(text: str) -> None:
    if cron.fault(text) is None:
        assert cron.next_time(text, BERLIN, utc(2026, 1, 1)) is not None


def test_a_fixed_time_that_the_clocks_skip_runs_at_the_first_minute_after_the_gap() -> None:
    before = utc(2031, 3, 29, 12)
    assert local("30 2 * * *", BERLIN, before, 3) == ["30 03:00 CEST", "31 02:30 CEST", "01 02:30 CEST"]
    assert local("0,15,30 2 * * *", BERLIN, before, 2) == ["30 03:00 CEST", "31 02:00 CEST"]
    assert local("0 2,3 * * *", BERLIN, before, 2) == ["30 03:00 CEST", "31 02:00 CEST"]
    assert local("30 2 * * *", NEW_YORK, utc(2031, 3, 8, 12), 2) == ["09 03:00 EDT", "10 02:30 EDT"]


def test_a_fixed_time_that_the_clocks_show_twice_runs_the_first_time() -> None:
    assert local("30 2 * * *", BERLIN, utc(2031, 10, 25, 12), 2) == ["26 02:30 CEST", "27 02:30 CET"]
    assert local("30 1 * * *", NEW_YORK, utc(2031, 11, 1, 12), 2) == ["02 01:30 EDT", "03 01:30 EST"]


@pytest.mark.parametrize("minute", [31, 59, 60, 75, 89, 90, 119])
def test_asked_inside_the_repeated_hour_it_does_not_run_again(minute: int) -> None:
    after = utc(2031, 10, 26) + timedelta(minutes=minute)
    assert local("30 2 * * *", BERLIN, after, 1) == ["27 02:30 CET"]


def test_an_expression_with_a_star_follows_real_time() -> None:
    spring, autumn = utc(2031, 3, 30, 0, 0), utc(2031, 10, 25, 23, 30)
    assert local("0 * * * *", BERLIN, spring, 2) == ["30 03:00 CEST", "30 04:00 CEST"]
    assert local("0 * * * *", BERLIN, autumn, 3) == ["26 02:00 CEST", "26 02:00 CET", "26 03:00 CET"]
    times = cron.next_times("*/15 * * * *", BERLIN, autumn, 40)
    assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=15)}


@given(
    expression=st.sampled_from(
        [
            "30 2 * * *",
            "0 * * * *",
            "*/20 * * * *",
            "15,45 1-3 * * *",
            "0 */3 * * *",
            "@weekly",
            "5 0 29 2 *",
            "* 2 * * 0",
        ]
    ),
    timezone=st.sampled_from(["UTC", BERLIN, NEW_YORK, "Australia/Lord_Howe"]),
    until=st.datetimes(datetime(2031, 3, 1), datetime(2031, 11, 30)),  # noqa: DTZ001 - hypothesis wants naive bounds
    minutes=st.integers(0, 60 * 24 * 40),
    limit=st.integers(1, 30),
)
@settings(max_examples=150, deadline=None)
def test_the_newest_times_of_a_span_are_those_that_a_walk_through_it_finds(
    expression: str, timezone: str, until: datetime, minutes: int, limit: int
) -> None:
    end = until.replace(tzinfo=UTC)
    begin = end - timedelta(minutes=minutes)
    walked = []
    at = cron.next_time(expression, timezone, begin)
    while at is not None and at <= end:
        walked.append(at)
        at = cron.next_time(expression, timezone, at)
    assert cron.times_between(expression, timezone, begin, end, limit) == walked[-limit:]


def test_a_span_of_years_costs_no_walk_through_it() -> None:
    begin, end = utc(1990, 1, 1), utc(2030, 1, 1)
    assert cron.times_between("* * * * *", BERLIN, begin, end, 2) == [end - timedelta(minutes=1), end]
    assert len(cron.times_between("* * * * *", BERLIN, begin, end, 1_001)) == 1_001
    assert cron.times_between("0 0 29 2 *", "UTC", begin, end, 1) == [utc(2028, 2, 29)]
    assert cron.times_between("* * * * *", "UTC", end, end, 5) == []


def test_an_unknown_time_zone_says_what_to_do() -> None:
    for timezone in ("Mars/Olympus", "", "../x"):
        with pytest.raises(InputError, match="tzdata"):
            cron.next_time("* * * * *", timezone, utc(2026, 1, 1))
