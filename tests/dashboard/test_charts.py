"""Times and numbers → bars and lines. Pure."""

from datetime import UTC, datetime, timedelta

from leasekeeper.service.pages.charts import BARS, SPANS, highest_at_once, lines, stacked, typical_and_longest, window

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def test_a_window_is_the_shortest_that_holds_everything() -> None:
    assert window([], NOW).since == NOW - SPANS[0]
    assert window([ago(61)], NOW).since == NOW - SPANS[1]
    assert window([ago(10**6)], NOW).since == NOW - SPANS[-1]


def test_a_window_begins_with_the_oldest_that_is_known_if_there_are_older_ones() -> None:
    assert window([ago(7), ago(3)], NOW, complete=False).since == ago(7)
    assert window([NOW], NOW, complete=False).since == NOW - SPANS[0]


def test_bars_count_every_time_in_the_window_once() -> None:
    shows = window([ago(60)], NOW)
    chart = stacked([("completed", [ago(60), ago(30), NOW]), ("failed", [ago(30), ago(61)])], shows)
    assert [sum(bar.numbers[series] for bar in chart.bars) for series in (0, 1)] == [3, 1]
    assert (chart.highest, chart.bars[BARS // 2].numbers, chart.bars[-1].numbers) == (2, (1, 1), (1, 0))


def test_what_is_open_counts_in_every_bucket_until_it_ends() -> None:
    shows = window([ago(60)], NOW)
    found = highest_at_once([(ago(90), ago(45)), (ago(50), ago(40)), (ago(5), None)], shows)
    assert found[0] == 1
    assert found[int((60 - 48) / 60 * BARS)] == 2
    assert found[int((60 - 42) / 60 * BARS)] == 1
    assert found[BARS // 2] == 0
    assert found[-1] == 1


def test_a_bucket_without_a_number_interrupts_the_line() -> None:
    shows = window([ago(60)], NOW)
    series = typical_and_longest([(ago(60), 1.0), (ago(60), 2.0), (ago(60), 9.0), (NOW, 3.0)], shows)
    assert (series["median"][0], series["longest"][0], series["median"][1], series["median"][-1]) == (
        2.0,
        9.0,
        None,
        3.0,
    )
    drawn = lines(series, shows)
    assert drawn.highest == 9.0
    assert [len(line.parts) for line in drawn.series] == [2, 2]
    assert drawn.series[1].parts[0] == "0,0.0 10,0.0"
