"""`leasekeeper apply`: the difference first, then a question, and nothing that was not agreed to."""

import pytest

from tests.cli.workplace import FLEET, Workplace, in_terminal

CHANGED = FLEET.replace("language: en-US", "language: de-DE").replace("default: 10", "default: 3")


def test_a_new_fleet_is_shown_line_by_line(empty: Workplace) -> None:
    text = empty.text("apply", empty.fleet(), "--yes")
    assert "+ proxy us-1\n" in text
    assert "+ account shop_us\n" in text
    assert "+ profile twin_b\n" in text
    assert "+ limit default\n" in text
    assert text.endswith("applied 9 changes (9 added)\n")


def test_a_missing_file_is_answered_with_how_to_begin(empty: Workplace) -> None:
    told = empty.fails(2, "apply", "flet.yaml", "--yes")
    assert "there is no file flet.yaml" in told
    assert "leasekeeper init" in told


def test_the_same_file_again_changes_nothing(place: Workplace) -> None:
    assert place.text("apply", place.fleet()) == "nothing to change\n"
    assert place.json("apply", place.fleet(), "--yes") == {"changes": [], "applied": True, "used_directories": []}


def test_a_changed_field_is_shown_as_old_and_new(place: Workplace) -> None:
    lines = place.text("apply", place.fleet(CHANGED), "--yes").splitlines()
    assert "~ profile shop_us_main" in lines
    assert "    language: en-US → de-DE" in lines
    assert "    max_leases: 10 → 3" in lines
    assert lines[-1] == "applied 2 changes (2 changed)"
    assert place.json("profiles", "show", "shop_us_main")["profile"]["language"] == "de-DE"


def test_a_changed_structure_is_shown_as_it_is_written(place: Workplace) -> None:
    schedule = "schedules:\n  night: {cron: '0 3 * * *', task: buy, select: {labels: {tier: gold}}}\n"
    place.apply(FLEET + schedule)
    lines = place.text("apply", place.fleet(FLEET + schedule.replace("gold", "silver")), "--yes").splitlines()
    assert "    select: {labels: {tier: gold}} → {labels: {tier: silver}}" in lines


def test_a_dry_run_applies_nothing(place: Workplace) -> None:
    text = place.text("apply", place.fleet(CHANGED), "--dry-run")
    assert text.endswith("dry run: 2 changes (2 changed) not applied\n")
    assert place.json("profiles", "show", "shop_us_main")["profile"]["language"] == "en-US"


def test_programs_get_the_difference_as_json(place: Workplace) -> None:
    answer = place.json("apply", place.fleet(CHANGED), "--dry-run")
    assert answer["applied"] is False
    assert {"kind": "change", "what": "limit", "id": "default", "fields": {"max_leases": [10, 3]}} in answer["changes"]
    assert place.json("apply", place.fleet(CHANGED), "--yes")["applied"] is True


def test_without_prune_what_the_file_does_not_name_stays(place: Workplace) -> None:
    smaller = FLEET.replace("  twin_b: {account: twins}\n", "")
    assert place.text("apply", place.fleet(smaller)) == "nothing to change\n"
    assert "- profile twin_b\n" in place.text("apply", place.fleet(smaller), "--prune", "--yes")
    assert "twin_b" not in place.text("profiles")


def test_a_profile_in_use_is_not_pruned(place: Workplace) -> None:
    place.lease("twin_b")
    smaller = FLEET.replace("  twin_b: {account: twins}\n", "")
    result = place.cli("apply", place.fleet(smaller), "--prune", "--yes")
    assert result.exit_code == 4
    assert "twin_b" in result.stderr
    assert "twin_b" in place.text("profiles")


def test_with_nobody_to_ask_it_needs_yes(empty: Workplace) -> None:
    result = empty.cli("apply", empty.fleet())
    assert result.exit_code == 2
    assert "use --yes" in result.stderr
    assert empty.json("profiles")["items"] == []
    as_json = empty.cli("apply", empty.fleet(), "--json")
    assert as_json.exit_code == 2
    assert as_json.stdout == ""


def test_a_fleet_can_come_from_stdin(empty: Workplace) -> None:
    assert "+ profile twin_a" in empty.text("apply", "-", "--yes", stdin=FLEET)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("accounts: [", "line"),
        ("", "empty"),
        ("accounts: {a: {}, a: {}}", "twice"),
        ("accounts: {.bad: {}}", ".bad"),
        ("accounts: {a: {routing: sideways}}", "routing"),
        ("profiles: {p: {account: nobody}}", "nobody"),
        ("accounts: {a: {}}\nprofiles: {p: {account: a, max_active_runs: -1}}", "max_active_runs"),
        ("accounts: &a {x: *a}", "cyclic"),
        ("colour: red", "colour"),
    ],
)
def test_a_wrong_fleet_is_refused_whole(empty: Workplace, text: str, reported: str) -> None:
    assert reported in empty.fails(2, "apply", empty.fleet(text), "--yes")
    assert empty.json("accounts")["items"] == []


def test_a_file_that_is_not_there_is_named(empty: Workplace) -> None:
    assert "nowhere.yaml" in empty.fails(2, "apply", "nowhere.yaml", "--yes")


def test_who_applied_is_in_the_log(empty: Workplace) -> None:
    empty.text("apply", empty.fleet(), "--yes", "--by", "ada")
    (event,) = empty.json("events", "--type", "fleet_applied")["items"]
    assert event["actor"] == "ada"


def test_on_a_terminal_a_person_is_asked(empty: Workplace) -> None:
    code, screen = in_terminal("apply", empty.fleet(), url=empty.url, typed="n\n")
    assert code == 130
    assert screen.endswith("nothing was applied\n")
    assert empty.json("accounts")["items"] == []
    code, screen = in_terminal("apply", empty.fleet(), url=empty.url, typed="y\n")
    assert code == 0
    assert "\x1b[32m+ account shop_us\x1b[0m" in screen
    assert "applied 9 changes" in screen
