"""Tables and sheets: what fits, what is shortened first, and what never reaches a terminal."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.cli.table import Column, Screen, render_sheet, render_table

NOW = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
PAPER = Screen(width=None, colours=False)


@dataclass(frozen=True)
class Thing:
    name: str = "thing"
    state: str = "available"
    count: int | None = 1
    at: datetime = NOW - timedelta(seconds=12)
    story: str = ""


COLUMNS = (
    Column[Thing]("NAME", "name"),
    Column[Thing]("STATE", "state", state=True),
    Column[Thing]("COUNT", "count", spare=4),
    Column[Thing]("AT", "at", spare=5),
    Column[Thing]("STORY", "story", spare=6, least=6),
)


def on(width: int | None, *things: Thing, colours: bool = False) -> list[str]:
    return render_table(COLUMNS, things, NOW, Screen(width=width, colours=colours))


def test_numbers_stand_right_and_times_are_relative() -> None:
    lines = on(None, Thing(count=5), Thing(name="other thing", count=12_000))
    assert lines == [
        "NAME         STATE       COUNT  AT",
        "thing        available       5  12 s ago",
        "other thing  available  12,000  12 s ago",
    ]


def test_a_column_without_values_is_left_out() -> None:
    assert on(None, Thing(count=None))[0] == "NAME   STATE      AT"


def test_without_a_terminal_nothing_is_shortened() -> None:
    assert on(None, Thing(story="x" * 500))[1].endswith("x" * 500)


def test_the_most_sparable_column_is_shortened_first() -> None:
    lines = on(45, Thing(story="a long story with many words"))
    assert lines[1] == "thing  available      1  12 s ago  a long st…"
    assert all(len(line) <= 45 for line in lines)


@pytest.mark.parametrize(
    ("story", "shown"),
    [
        ("books_us_1_checkout", "books…kout"),
        ("books_us_1_browsing", "books…sing"),
        ("本本本本本本本本本本", "本本…本本"),
        ("ACTION_NOT_ALLOWED, a person looks", "ACTION_NO…"),
    ],
)
def test_a_name_loses_its_middle_and_a_sentence_its_end(story: str, shown: str) -> None:
    assert on(45, Thing(story=story))[1] == f"thing  available      1  12 s ago  {shown}"


def test_columns_are_left_out_when_shortening_is_not_enough_and_it_is_said() -> None:
    lines = on(30, Thing(story="a long story"))
    assert lines == [
        "NAME   STATE      COUNT",
        "thing  available      1",
        "not shown, no room: story, at",
    ]


def test_columns_that_cannot_be_spared_are_never_shortened() -> None:
    assert on(10, Thing(name="a name that is too long"))[1] == "a name that is too long  available"


def test_wide_characters_take_two_columns() -> None:
    plain, wide = on(None, Thing(name="ab", state="x"), Thing(name="店", state="x"))[1:]
    assert plain.index("x") == wide.index("x") + 1


@pytest.mark.parametrize("evil", ["\x1b[31mred", "a\nb", "a\rb", "\x07", "\x9b2J", "\u202eabc"])
def test_what_a_terminal_would_obey_never_gets_there(evil: str) -> None:
    lines = on(None, Thing(story=evil)) + render_sheet([("story", evil)], NOW, PAPER)
    assert [line for line in lines if not line.isprintable()] == []


@pytest.mark.parametrize(
    ("state", "colour"),
    [("available", 32), ("completed", 32), ("queued", 33), ("stale", 33), ("quarantined", 31), ("dead", 31)],
)
def test_states_have_colours_on_a_terminal(state: str, colour: int) -> None:
    assert f"\x1b[{colour}m{state}" in on(80, Thing(state=state), colours=True)[1]
    assert "\x1b" not in on(80, Thing(state=state))[1]


def test_colours_do_not_move_columns() -> None:
    things = (Thing(), Thing(state="dead", name="longer name"))
    plain, coloured = on(80, *things), on(80, *things, colours=True)
    for code in ("\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"):
        coloured = [line.replace(code, "") for line in coloured]
    assert plain == coloured


def test_a_sheet_leaves_out_what_is_empty_and_wraps_what_is_long() -> None:
    fields: list[tuple[str, object]] = [
        ("name", "thing"),
        ("nothing", None),
        ("empty", {}),
        ("no", False),
        ("zero", 0),
        ("story", "word " * 20),
    ]
    lines = render_sheet(fields, NOW, replace(PAPER, width=50))
    assert lines[0] == "  name   thing"
    assert lines[1] == "  zero   0"
    assert all(len(line) <= 50 for line in lines)
    assert len(lines) > 3


def test_a_sheet_shows_times_exactly_too() -> None:
    assert render_sheet([("at", Thing().at)], NOW, PAPER) == ["  at  12 s ago (2026-05-01 09:29:48+00:00)"]


def test_one_very_long_name_costs_no_other_column_its_place() -> None:
    long = Thing(name="marketplace_seller_germany_electronics_0042_primary", story="a short one")
    lines = on(63, long, Thing())
    assert lines[1] == "marketplace…42_primary  available      1  12 s ago  a short one"
    assert not any("not shown" in line for line in lines)


def test_an_id_longer_than_a_uuid_is_shortened_as_a_name_is_and_the_others_stay_whole() -> None:
    columns = (Column[Thing]("JOB", "name", id=True), Column[Thing]("STORY", "story", spare=6, least=12))
    typed = "orders-2026-01-31-of-store-us"
    things = (Thing(name="x" * 120, story="told"), Thing(name=typed, story="told"))
    lines = render_table(columns, things, NOW, Screen(width=36, colours=False))
    assert [line.split() for line in lines[1:]] == [["x" * 14 + "…" + "x" * 14, "told"], [typed, "told"]]
    assert len(render_table(columns, things[:1], NOW, Screen(width=29, colours=False))[1]) == len("x" * 22 + "  told")
