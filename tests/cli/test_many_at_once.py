"""Ids by their beginning, several at once, all that match: what is the same for every noun."""

import json

import pytest

from tests.cli.workplace import Workplace, in_terminal

NAMED = [{"task": "buy", "profile_id": "shop_us_main", "job_id": name} for name in ("night_1", "night_2", "noon")]


def submit_named(place: Workplace) -> None:
    place.text("submit", "--file", "-", stdin=json.dumps(NAMED))


def review_all(place: Workplace, *profiles: str, reason: str = "LOGIN_REQUIRED") -> None:
    for profile in profiles:
        place.submit(profile=profile)
        place.run_one(reason, "the session is over")


def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(place: Workplace) -> None:
    assert "there is no profile shop_us_mian; did you mean shop_us_main?" in place.fails(
        3, "why", "profile", "shop_us_mian"
    )
    assert "there is no account shpo_us; did you mean shop_us?" in place.fails(
        3, "accounts", "pause", "shpo_us", "--note", "x"
    )
    assert "there is no account zebra\n" in place.fails(3, "accounts", "pause", "zebra", "--note", "x")
    submitted = place.fails(2, "submit", "buy", "--profile", "shop_us_mian")
    assert "shop_us_mian: did you mean shop_us_main?" in submitted
    assert "shpo_us: did you mean shop_us?" in place.fails(2, "submit", "buy", "--account", "shpo_us")


def test_an_id_may_be_given_by_its_beginning(place: Workplace) -> None:
    submit_named(place)
    assert place.json("jobs", "show", "noo")["job_id"] == "noon"
    assert place.json("why", "job", "no")["job"]["job_id"] == "noon"
    assert place.json("profiles", "show", "shop_d")["profile"]["profile_id"] == "shop_de_main"
    assert place.text("accounts", "pause", "tw", "--note", "x") == "account twins is now paused\n"
    assert [job["job_id"] for job in place.json("events", "--job", "noo")["items"]] == ["noon"]
    lease = place.lease("shop_de_main").lease.lease_id
    assert place.json("leases", "revoke", "shop_de", "--note", "x")["id"] == lease


def test_whoever_opens_a_profile_may_name_it_by_its_beginning(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":99")
    place.lease("shop_de_main")
    for arguments in (("open", "shop_d"), ("login", "shop_d"), ("exec", "--profile", "shop_d", "true")):
        held = place.cli(*arguments)
        assert (held.exit_code, "profile shop_de_main" in held.stderr) == (4, True), held.output
        several = place.cli(*(word.replace("shop_d", "twin") for word in arguments))
        assert several.exit_code == 2
        assert "twin is the beginning of several profile ids: twin_a, twin_b" in several.stderr
    assert "profile shop_de_main has no launcher" in place.fails(2, "launchers", "running", "shop_d")


def test_a_beginning_that_several_have_is_refused_with_their_ids(place: Workplace) -> None:
    submit_named(place)
    said = place.fails(2, "jobs", "show", "night")
    assert "night is the beginning of several job ids: night_1, night_2" in said
    assert json.loads(place.cli("jobs", "show", "n", "--json").stderr)["error"]["data"]["ids"] == [
        "night_1",
        "night_2",
        "noon",
    ]


def test_a_whole_id_is_not_the_beginning_of_a_longer_one(place: Workplace) -> None:
    documents = [{"task": "buy", "profile_id": "twin_a", "job_id": name} for name in ("sync", "sync_2")]
    place.text("submit", "--file", "-", stdin=json.dumps(documents))
    assert place.json("jobs", "show", "sync")["job_id"] == "sync"


def test_several_are_shown_at_once(place: Workplace) -> None:
    submit_named(place)
    shown = place.json("jobs", "show", "noon", "night_2")["items"]
    assert [job["job_id"] for job in shown] == ["noon", "night_2"]
    assert place.text("jobs", "show", "noon", "night_2").count("job id ") == 2
    assert [why["profile"]["profile_id"] for why in place.json("why", "profile", "twin_a", "twin_b")["items"]] == [
        "twin_a",
        "twin_b",
    ]


def test_several_are_decided_at_once(place: Workplace) -> None:
    submit_named(place)
    raised = place.text("jobs", "prioritize", "noon", "night_2", "--to", "7", "--note", "x")
    assert raised == "job noon has priority 7\njob night_2 has priority 7\n"
    moved = place.json("profiles", "move", "twin_a", "shop_d", "--to", "m2", "--note", "x")["items"]
    assert [item["id"] for item in moved] == ["twin_a", "shop_de_main"]
    assert "name that one alone" in place.fails(
        2, "jobs", "prioritize", "a", "b", "--to", "1", "--if-version", "1", "--note", "x"
    )
    answer = place.text("jobs", "cancel", "noon", "night_1", "--note", "x")
    assert answer == "job noon is now cancelled\njob night_1 is now cancelled\n"
    refused = place.cli("jobs", "cancel", "noon", "night", "--note", "x")
    assert refused.exit_code == 4
    assert "cancelled" in refused.stderr


def test_all_that_match_are_decided_after_a_question(place: Workplace) -> None:
    review_all(place, "shop_us_main", "shop_de_main")
    review_all(place, "twin_a", reason="PROFILE_MISMATCH")
    arguments = ("reviews", "decide", "--reason", "LOGIN_REQUIRED", "--all", "clear", "--note", "logged in by hand")
    said = place.fails(2, *arguments)
    assert "would clear 2 profiles that wait for a person" in said
    assert "--yes" in said
    code, screen = in_terminal(*arguments, url=place.url, typed="n\n", type_at="?")
    assert (code, "clear 2 profiles that wait for a person?" in screen) == (130, True)
    assert len(place.json("reviews")["items"]) == 6
    answer = place.json(*arguments, "--yes")
    assert sorted(item["id"] for item in answer["items"]) == ["shop_de_main", "shop_us_main"]
    states = {lane["profile_id"]: lane["state"] for lane in place.json("profiles")["items"]}
    assert states["twin_a"] == "review_required"
    assert states["shop_us_main"] == "available"


def test_of_all_only_those_are_chosen_that_have_this_decision(place: Workplace) -> None:
    review_all(place, "shop_us_main")
    answer = place.json("profiles", "clear", "--all", "--yes", "--note", "x")
    assert [item["id"] for item in answer["items"]] == ["shop_us_main"]
    assert place.text("profiles", "clear", "--all", "--note", "x") == "no profiles: nothing to do\n"
    paused = place.json("accounts", "pause", "--all", "--yes", "--note", "x")["items"]
    assert [item["id"] for item in paused] == ["shop_de", "shop_us", "twins"]


def test_filters_and_ids_do_not_go_together(place: Workplace) -> None:
    assert "they cannot be combined with ids" in place.fails(2, "jobs", "cancel", "x", "--task", "buy", "--note", "x")
    assert "or say --all" in place.fails(2, "jobs", "cancel", "--task", "buy", "--note", "x")
    assert "name that one alone" in place.fails(2, "jobs", "cancel", "a", "b", "--if-version", "1", "--note", "x")


def test_quiet_prints_whole_ids_only(place: Workplace) -> None:
    first, second = place.submit(), place.submit()
    assert place.text("jobs", "-q") == f"{second}\n{first}\n"
    assert place.text("profiles", "-q").split() == ["shop_de_main", "shop_us_main", "twin_a", "twin_b"]
    assert place.text("workers", "--quiet") == "w1-1\n"
    assert in_terminal("jobs", "-q", url=place.url)[1] == f"{second}\n{first}\n"


def test_a_screen_shows_ids_as_short_as_commands_take_them(place: Workplace) -> None:
    profiles = ("twin_a", "twin_b", "shop_us_main")
    job_ids = [f"01a1f562-d809-7{n:03x}-8000-00000000000{n}" for n in range(3)]  # made within one millisecond
    batch = [{"task": "buy", "profile_id": p, "job_id": i} for p, i in zip(profiles, job_ids, strict=True)]
    place.text("submit", "--file", "-", stdin=json.dumps(batch))
    _, screen = in_terminal("jobs", url=place.url)
    _, filtered = in_terminal("jobs", "--profile", "twin_b", url=place.url)
    shown = [line.split()[0] for line in (*screen.splitlines()[1:4], *filtered.splitlines()[1:2])]
    assert all(len(each) < 36 for each in shown)
    assert [place.json("jobs", "show", each)["job_id"] for each in shown] == [*job_ids[::-1], job_ids[1]]


def test_one_very_long_id_pushes_nothing_off_the_screen(place: Workplace) -> None:
    long = "x" * 128
    place.text("submit", "--file", "-", stdin=json.dumps({"task": "buy", "profile_id": "twin_a", "job_id": long}))
    place.submit()
    _, screen = in_terminal("jobs", url=place.url, NO_COLOR="1")
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert screen.split("\n")[0].split()[:4] == ["JOB", "STATE", "TASK", "PROFILE"]


def test_runs_are_found_by_reason_and_profiles_by_label(place: Workplace) -> None:
    review_all(place, "shop_us_main")
    assert len(place.json("runs", "--reason", "LOGIN_REQUIRED")["items"]) == 1
    assert place.json("runs", "--reason", "TIMEOUT")["items"] == []
    fleet = "accounts: {a: {}}\nprofiles: {p: {account: a, labels: {tier: gold}}, q: {account: a}}\n"
    place.apply(fleet)
    assert [lane["profile_id"] for lane in place.json("profiles", "--label", "tier=gold")["items"]] == ["p"]
    assert "NAME=VALUE" in place.fails(2, "profiles", "--label", "gold")


def test_who_holds_a_profile_and_what_blocks_its_next_job(place: Workplace) -> None:
    place.submit()
    place.submit()
    place.claim()
    header, *rows = place.text("profiles").splitlines()
    assert "HELD BY" in header
    assert "BLOCKED BY" in header
    (row,) = (row for row in rows if row.startswith("shop_us_main"))
    assert " w1 " in row
    assert "profile_lease" in row


def test_job_and_task_of_a_lease_and_a_run_are_listed(place: Workplace) -> None:
    job_id = place.submit()
    grant = place.claim()[0]
    for noun in ("leases", "runs"):
        (item,) = place.json(noun)["items"]
        assert (item["job_id"], item["task"]) == (job_id, "buy")
        assert {"JOB", "TASK"} <= set(place.text(noun).splitlines()[0].split())
    assert grant.lease.task == "buy"


def test_a_list_is_watched_until_somebody_ends_it(place: Workplace) -> None:
    place.submit()
    code, screen = in_terminal("jobs", "--watch", "0.2", url=place.url, interrupt_at="\x1b[H\x1b[2J")
    assert code == 130
    assert "Traceback" not in screen


def test_the_help_of_a_noun_has_the_options_of_its_list(place: Workplace) -> None:
    for noun, option in (("jobs", "--state"), ("events", "--follow"), ("leases", "--all"), ("profiles", "--label")):
        text = place.text(noun, "--help")
        assert option in text
        assert "--watch" in text
