"""`leasekeeper submit`: one job by options, many from a file, all or nothing."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import MAX_IN_BATCH
from tests.cli.workplace import Workplace, in_terminal

JOBS = [{"task": "buy", "profile_id": "shop_us_main"}, {"task": "look", "account_id": "shop_de"}]


def test_one_job_by_options(place: Workplace) -> None:
    text = place.text("submit", "buy", "--account", "shop_us", "--priority", "5", "--payload", '{"sku": 7}')
    (job,) = place.json("jobs")["items"]
    assert text == f"job {job['job_id']} is queued, profile shop_us_main\n"
    assert (job["task"], job["priority"]) == ("buy", 5)


def test_every_option_arrives(place: Workplace) -> None:
    (place.directory / "payload.json").write_text('{"sku": 7}')
    answer = place.json(
        "submit", "look", "--profile", "twin_a", "--payload", "@payload.json",
        "--run-at", "2099-01-01T00:00:00Z", "--key", "k-1", "--pool", "slow",
        "--mode", "shared", "--label", "team=a", "--label", "why=b=c", "--callback", "https://hook.test/?key=1",
    )  # fmt: skip
    assert (answer["submitted"], answer["already_handled"]) == (1, 0)
    job = place.json("jobs", "show", answer["items"][0]["job_id"], "--payload")
    assert job["payload"] == {"sku": 7}
    assert job["labels"] == {"team": "a", "why": "b=c"}
    assert job["run_at"].startswith("2099-01-01T00:00:00")
    assert (job["state"], job["pool"], job["mode"]) == ("scheduled", "slow", "shared")
    assert job["idempotency_key"] == "k-1"
    assert job["callback_url"] == "https://hook.test/?[redacted]"


@pytest.mark.parametrize(("text", "hours"), [("+90s", 0), ("+120m", 2), ("+3h", 3), ("+2d", 48)])
def test_a_time_may_be_given_from_now(place: Workplace, text: str, hours: int) -> None:
    job = place.json("jobs", "show", place.submit("--run-at", text))
    run_at = datetime.fromisoformat(job["run_at"])
    assert abs(run_at - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=2)


def test_the_same_key_again_gives_the_first_job(place: Workplace) -> None:
    first = place.submit("--key", "k-1")
    assert place.text("submit", "buy", "--profile", "shop_us_main", "--key", "k-1") == (
        f"already handled: key k-1 is job {first}, queued\n"
    )
    assert place.json("submit", "buy", "--profile", "shop_us_main", "--key", "k-1")["already_handled"] == 1
    assert len(place.json("jobs")["items"]) == 1


def test_the_same_key_for_another_job_is_a_conflict(place: Workplace) -> None:
    place.submit("--key", "k-1")
    assert "k-1" in place.fails(4, "submit", "look", "--profile", "shop_us_main", "--key", "k-1")
    assert len(place.json("jobs")["items"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JOBS),
        "\n".join(json.dumps(job) for job in JOBS) + "\n",
        "\n\n".join(json.dumps(job, indent=2) for job in JOBS),
        "\ufeff" + json.dumps(JOBS),
    ],
    ids=["array", "lines", "objects", "byte order mark"],
)
def test_many_jobs_from_a_file_or_stdin(place: Workplace, text: str) -> None:
    path = place.directory / "jobs.json"
    path.write_text(text, encoding="utf-8")
    assert place.text("submit", "--file", str(path)) == "submitted 2 jobs, 0 were already handled\n"
    assert place.json("submit", "--file", "-", stdin=text)["submitted"] == 2
    assert len(place.json("jobs")["items"]) == 4


def test_more_jobs_than_one_batch_holds(place: Workplace) -> None:
    number = MAX_IN_BATCH + 200
    text = json.dumps([{**JOBS[0], "idempotency_key": f"k-{n}"} for n in range(number)])
    assert place.json("submit", "--file", "-", stdin=text)["submitted"] == number
    again = place.text("submit", "--file", "-", stdin=text)
    assert again.startswith(f"submitted 0 jobs, {number:,} were already handled\n  already handled: key k-0 is job ")
    assert again.endswith(f"  … and {number - 20:,} more\n")


def test_a_refusal_in_a_later_batch_says_how_far_it_came(place: Workplace) -> None:
    jobs = [JOBS[0]] * (MAX_IN_BATCH + 5)
    jobs[-1] = {"task": "buy", "account_id": "nobody"}
    result = place.cli("submit", "--file", "-", stdin=json.dumps(jobs))
    assert result.exit_code == 7
    assert "jobs 1,001 to 1,005 of 1,005; the 1,000 before them were accepted" in result.stderr
    assert "jobs[1004].account_id" in result.stderr
    assert "Nothing was submitted" not in result.stderr
    assert place.json("stats")["jobs"]["queued"] + place.json("stats")["jobs"].get("blocked", 0) == MAX_IN_BATCH


def test_progress_is_shown_on_a_terminal(place: Workplace) -> None:
    path = place.directory / "jobs.json"
    path.write_text(json.dumps([JOBS[0]] * (2 * MAX_IN_BATCH)))
    code, screen = in_terminal("submit", "--file", str(path), url=place.url)
    assert code == 0
    assert "\rsubmitted 1,000 of 2,000 jobs" in screen


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ((), "name the task"),
        (("buy",), "name the profile: --account or --profile"),
        (("buy", "--account", "nobody"), "nobody"),
        (("buy", "--account", "twins"), "twin_a"),
        (("buy", "--profile", "nowhere"), "nowhere"),
        (("bad task", "--account", "shop_us"), "task"),
        (("buy", "--account", "shop_us", "--payload", "{"), "--payload"),
        (("buy", "--account", "shop_us", "--payload", "[1]"), "payload"),
        (("buy", "--account", "shop_us", "--payload", '{"a": 1, "a": 2}'), "twice"),
        (("buy", "--account", "shop_us", "--payload", '{"a": NaN}'), "NaN"),
        (("buy", "--account", "shop_us", "--payload", "@nowhere.json"), "nowhere.json"),
        (("buy", "--account", "shop_us", "--priority", "many"), "--priority"),
        (("buy", "--account", "shop_us", "--priority", "1000000"), "priority"),
        (("buy", "--account", "shop_us", "--run-at", "tomorrow"), "run_at"),
        (("buy", "--account", "shop_us", "--run-at", "+5x"), "+90s"),
        (("buy", "--account", "shop_us", "--run-at", "+9999999999d"), "too far"),
        (("buy", "--account", "shop_us", "--mode", "loud"), "--mode"),
        (("buy", "--account", "shop_us", "--label", "nothing"), "NAME=VALUE"),
        (("buy", "--file", "-"), "--file has whole jobs"),
        (("--file", "nowhere.json"), "nowhere.json"),
    ],
)
def test_a_wrong_job_is_refused_and_nothing_is_written(
    place: Workplace, arguments: tuple[str, ...], reported: str
) -> None:
    assert reported in place.fails(2, "submit", *arguments)
    assert place.json("jobs")["items"] == []


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "has no jobs in it"),
        ("[]", "has no jobs in it"),
        ("{", "not JSON"),
        ("[1]", "object"),
        ('{"task": "buy", "task": "look"}', "twice"),
        ('{"task": "buy"}\n\n{"task": "buy", "task": "look"}', "line 3: an object has one key twice"),
        ('{"task": "buy"}\n{"task": "buy", "priority": }', "line 2 column 29"),
        ('{"task": "buy", "profile_id": "twin_a", "priority": NaN}', "NaN"),
        ('{"task": "buy", "profile_id": "twin_a", "colour": 1}', "colour"),
        (json.dumps([JOBS[0], {**JOBS[0], "priority": "high"}]), "jobs[1].priority"),
        (json.dumps([{**JOBS[0], "job_id": "j"}] * 2), "jobs[1].job_id"),
        (json.dumps([JOBS[0], {**JOBS[0], "account_id": "nobody"}]), "nobody"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_wrong_file_is_refused_whole(place: Workplace, text: str, reported: str) -> None:
    assert reported in place.fails(2, "submit", "--file", "-", stdin=text)
    assert place.json("jobs")["items"] == []


def test_a_file_that_is_not_utf8_is_refused(place: Workplace) -> None:
    path = place.directory / "jobs.json"
    path.write_bytes(b'{"task": "\xff"}')
    assert "cannot be read" in place.fails(2, "submit", "--file", str(path))


def test_many_faults_are_named_up_to_a_limit(place: Workplace) -> None:
    reported = place.fails(2, "submit", "--file", "-", stdin=json.dumps([{**JOBS[0], "priority": "x"}] * 100))
    assert reported.count("priority") == 20
    assert "and perhaps more" in reported


def test_a_blocked_job_says_so(place: Workplace) -> None:
    job = {"task": "buy", "profile_id": "shop_us_main", "expected_language": "fr"}
    text = place.text("submit", "--file", "-", stdin=json.dumps(job))
    assert "is blocked, profile shop_us_main, blocked_by_environment_mismatch" in text


def test_a_job_whose_profile_is_taken_says_what_was_decided(place: Workplace) -> None:
    place.lease("shop_us_main")
    job = {"task": "buy", "profile_id": "shop_us_main", "on_conflict": "skip"}
    assert "skip" in place.text("submit", "--file", "-", stdin=json.dumps(job))


def test_a_payload_appears_only_when_asked_for(place: Workplace) -> None:
    job_id = place.submit("--payload", '{"card": "4111"}')
    for arguments in (("jobs",), ("jobs", "show", job_id), ("events",), ("why", "job", job_id)):
        assert "4111" not in place.text(*arguments)
        assert "4111" not in place.text(*arguments, "--json")
    assert "4111" in place.text("jobs", "show", job_id, "--payload")


def test_a_file_name_is_not_read_as_a_payload(place: Workplace, tmp_path: Path) -> None:
    assert "is not JSON" in place.fails(2, "submit", "buy", "--account", "shop_us", "--payload", str(tmp_path))


def test_what_the_store_refuses_of_json_lines_is_named_by_line_too(place: Workplace) -> None:
    jobs: list[dict[str, object]] = [
        {"profile_id": "twin_a"},
        {"profile_id": "twin_c"},
        {"account_id": "nobody"},
        {"account_id": "twins"},
    ]
    text = "\n\n".join(json.dumps({"task": "buy", **job}) for job in jobs)
    said = place.fails(2, "submit", "--file", "-", stdin=text)
    assert "line 3, jobs[1].profile_id: there is no profile twin_c" in said
    assert "line 5, jobs[2].account_id: there is no account nobody" in said
    assert "line 7, jobs[3].profile_id: account twins has 2 profiles, say which: twin_a, twin_b" in said
    many = "\n".join([json.dumps({"task": "buy", "profile_id": "twin_c"})] * 25)
    assert "and 5 more" in place.fails(2, "submit", "--file", "-", stdin=many)
    assert place.json("jobs")["items"] == []


def test_faults_of_json_lines_name_their_lines_all_at_once(place: Workplace) -> None:
    good = json.dumps({"task": "buy", "profile_id": "twin_a"})
    lines = [
        good,
        '{"task": "buy", oops}',
        good,
        json.dumps({"task": "buy", "profile_id": "p", "priority": "x"}),
        "",
        '{"a"',
    ]
    said = place.fails(2, "submit", "--file", "-", stdin="\n".join([*lines, good]))
    assert "line 2 column 17: " in said
    assert "line 4, jobs[2].priority: " in said
    assert "line 6 column 5: " in said
    assert place.json("jobs")["items"] == []


def test_a_file_may_stand_where_the_task_stands(place: Workplace) -> None:
    path = place.directory / "orders.jsonl"
    path.write_text(json.dumps({"task": "buy", "profile_id": "twin_a"}))
    assert place.json("submit", str(path))["submitted"] == 1
    assert "cannot be read" in place.fails(2, "submit", "missing.json")
    assert "--file has whole jobs" in place.fails(2, "submit", str(path), "--priority", "1")


def test_what_people_set_of_a_job_has_an_option(place: Workplace) -> None:
    options = {
        "--max-attempts": ("max_attempts", "7"),
        "--on-conflict": ("on_conflict", "skip"),
        "--conflict-delay": ("conflict_delay_seconds", "60"),
        "--risk": ("risk_level", "medium"),
        "--expect-region": ("expected_proxy_region", "US"),
        "--expect-language": ("expected_language", "en-US"),
        "--expect-timezone": ("expected_timezone", "UTC"),
        "--proxy": ("proxy_id", "us-1"),
        "--run-mode": ("run_mode", "visible"),
        "--session-mode": ("session_mode", "isolated"),
        "--release-policy": ("release_policy", "quarantine"),
        "--lock-timeout": ("lock_timeout_seconds", "900"),
        "--notes": ("notes", "by hand"),
        "--job-id": ("job_id", "mine"),
    }
    given = [text for option, (_, value) in options.items() for text in (option, value)]
    job_id = place.submit(*given, "--allow", "read", "--allow", "write")
    job = place.json("jobs", "show", job_id)
    assert {option: str(job[name]) for option, (name, _) in options.items()} == {o: v for o, (_, v) in options.items()}
    assert job["allowed_actions"] == ["read", "write"]


def test_a_duplicate_keeps_the_id_that_it_was_submitted_with(place: Workplace) -> None:
    first = place.submit("--key", "k")
    answer = place.json("submit", "buy", "--profile", "shop_us_main", "--key", "k", "--job-id", "second")["items"][0]
    assert (answer["job_id"], answer["asked_id"], answer["already_handled"]) == (first, "second", True)
    said = place.text("submit", "buy", "--profile", "shop_us_main", "--key", "k", "--job-id", "second")
    assert said == f"job second was already handled: key k is job {first}, queued\n"


def test_while_all_workers_are_stopped_a_new_job_says_so_at_once(place: Workplace) -> None:
    report = WorkerReport(worker_id=WorkerId("w1"), incarnation="w1-1", pool="default", tasks=("buy",), stopping=True)
    place.do(lambda store: store.report(report))
    assert "blocked_by_no_worker" in place.text("submit", "buy", "--profile", "shop_us_main")
