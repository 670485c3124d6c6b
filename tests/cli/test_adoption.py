"""`leasekeeper apply` and directories of profiles that exist: shown, asked about once, adopted with an event each."""

from pathlib import Path
from typing import Any

import pytest

from leasekeeper.browsers.profile_directory import Condition, inspect
from tests.cli.workplace import Workplace, in_terminal
from tests.unit.used_profiles import make_used


def with_directories(place: Workplace, *names: str) -> str:
    """A fleet file whose profiles point at these directories."""
    lines = ["accounts: {shop: {}}", "profiles:"]
    lines += [f"  {name}: {{account: shop, user_data_dir: used/{name}}}" for name in names]
    return place.fleet("\n".join(lines) + "\n")


def condition(place: Workplace, name: str) -> Condition:
    return inspect(place.directory / "used" / name, engine=200).condition


@pytest.fixture
def fleet(empty: Workplace) -> str:
    for name in ("a", "b"):
        make_used(empty.directory / "used" / name)
    return with_directories(empty, "a", "b", "new")


def events(place: Workplace) -> list[Any]:
    items: list[Any] = place.json("events", "--type", "profile_adopted")["items"]
    return items


def test_adopt_adopts_each_with_an_event_and_once(empty: Workplace, fleet: str) -> None:
    lines = empty.text("apply", fleet, "--yes", "--adopt", "--by", "ann").splitlines()
    assert lines[-4:] == [
        "2 directories contain used profiles:",
        f"  a  {empty.directory}/used/a (browser version 150)",
        f"  b  {empty.directory}/used/b (browser version 150)",
        "adopted 2 profiles",
    ]
    assert [condition(empty, name) for name in "ab"] == [Condition.SEALED, Condition.SEALED]
    reported = {event["profile_id"]: event for event in events(empty)}
    assert reported.keys() == {"a", "b"}
    assert (reported["a"]["actor"], reported["a"]["account_id"]) == ("ann", "shop")
    assert reported["a"]["data"] == {"directory": f"{empty.directory}/used/a", "engine": 150}
    assert empty.text("apply", fleet, "--adopt") == "nothing to change\n"
    assert len(events(empty)) == 2


def test_without_adopt_they_are_shown_with_what_to_type(empty: Workplace, fleet: str) -> None:
    text = empty.text("apply", fleet, "--yes")
    assert "2 directories contain used profiles:" in text
    assert text.endswith(f"to adopt: leasekeeper apply {fleet} --adopt\n")
    assert condition(empty, "a") is Condition.ADOPTED
    assert events(empty) == []
    later = empty.text("apply", fleet, "--adopt")
    assert later.startswith("nothing to change\n")
    assert later.endswith("adopted 2 profiles\n")


def test_a_dry_run_adopts_nothing(empty: Workplace, fleet: str) -> None:
    text = empty.text("apply", fleet, "--dry-run", "--adopt")
    assert "2 directories contain used profiles:" in text
    assert "adopted 2" not in text
    assert condition(empty, "a") is Condition.ADOPTED


def test_a_person_is_asked_once_for_all(empty: Workplace, fleet: str) -> None:
    code, seen = in_terminal("apply", fleet, url=empty.url, typed="y\ny\n", columns=80)
    assert code == 0, seen
    assert seen.count("[y/N]") == 2  # the difference, then all directories together
    assert "adopt these 2 profiles with the sessions in them? [y/N]" in seen
    assert "adopted 2 profiles" in seen
    assert len(events(empty)) == 2


def test_a_person_may_say_no_and_the_fleet_is_in_force(empty: Workplace, fleet: str) -> None:
    code, seen = in_terminal("apply", fleet, url=empty.url, typed="y\nn\n")
    assert code == 0, seen
    assert "not adopted: the first run of each would find it used by hand" in seen
    assert {item["profile_id"] for item in empty.json("profiles")["items"]} == {"a", "b", "new"}
    assert events(empty) == []


def test_one_that_cannot_be_adopted_does_not_stop_the_others(empty: Workplace, fleet: str) -> None:
    (empty.directory / "used" / "b" / "Default" / "Preferences").write_text("{")
    result = empty.cli("apply", fleet, "--yes", "--adopt")
    assert result.exit_code == 7
    assert "adopted 1 profile\n" in result.stdout
    assert "1 profile could not be adopted; the fleet is in force, 1 adopted" in result.stderr
    assert "b: " in result.stderr
    assert [event["profile_id"] for event in events(empty)] == ["a"]


def test_programs_get_them_as_json(empty: Workplace, fleet: str) -> None:
    def used(*arguments: str) -> list[tuple[str, bool, str | None]]:
        answer = empty.json("apply", fleet, "--yes", *arguments)
        return [(each["profile_id"], each["adopted"], each["refused"]) for each in answer["used_directories"]]

    assert used() == [("a", False, None), ("b", False, None)]
    assert used("--adopt") == [("a", True, None), ("b", True, None)]
    assert used("--adopt") == []


def test_a_directory_of_a_profile_that_only_the_store_knows_is_refused(empty: Workplace, fleet: str) -> None:
    empty.text("apply", fleet, "--yes")
    (empty.directory / "used" / "c").symlink_to(empty.directory / "used" / "a")
    other = with_directories(empty, "c")
    result = empty.cli("apply", other, "--yes", "--adopt")
    assert result.exit_code == 7
    assert "it is that of profile a too" in result.stderr
    assert events(empty) == []


def test_it_fits_a_terminal(empty: Workplace, tmp_path: Path) -> None:
    make_used(empty.directory / "used" / "a")
    _, seen = in_terminal("apply", with_directories(empty, "a"), "--yes", url=empty.url, columns=80)
    assert "1 directory contains used profiles:" in seen
    reported = [line for line in seen.splitlines() if str(tmp_path) not in line]
    assert [line for line in reported if len(line) > 80 + len("\x1b[32m\x1b[0m")] == []
