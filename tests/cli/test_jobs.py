"""`leasekeeper jobs` and `leasekeeper dlq`."""

import json

import pytest

from tests.cli.workplace import Workplace, in_terminal


def test_an_empty_list_says_what_to_do(place: Workplace) -> None:
    assert place.text("jobs") == "no jobs: submit one: leasekeeper submit TASK --account ID\n"
    assert place.text("jobs", "--state", "dead") == "no jobs match\n"
    assert place.json("jobs") == {"items": [], "after": None}


def test_a_list_shows_the_newest_first(place: Workplace) -> None:
    first, second = place.submit(), place.submit(task="look", profile="shop_de_main")
    header, *lines = place.text("jobs").splitlines()
    assert header.split() == ["JOB", "STATE", "TASK", "PROFILE", "TRY", "CREATED"]
    assert lines[0].split()[:4] == [second, "queued", "look", "shop_de_main"]
    assert lines[1].split()[:4] == [first, "queued", "buy", "shop_us_main"]
    assert place.json("jobs", "list") == place.json("jobs")  # not as text: that tells how long ago


def test_filters_narrow_the_list(place: Workplace) -> None:
    place.submit()
    other = place.submit("--pool", "slow", task="look", profile="shop_de_main")
    for arguments in (
        ("--account", "shop_de"),
        ("--profile", "shop_de_main"),
        ("--task", "look"),
        ("--pool", "slow"),
    ):
        (job,) = place.json("jobs", *arguments)["items"]
        assert job["job_id"] == other, arguments
    assert place.json("jobs", "--state", "completed")["items"] == []


def test_a_waiting_job_shows_what_blocks_it(place: Workplace) -> None:
    place.lease("shop_us_main")
    job_id = place.submit()
    (job,) = place.json("jobs", "--state", "blocked")["items"]
    assert (job["job_id"], job["blocked_reason"]) == (job_id, "blocked_by_profile_lease")
    for reason in ("profile_lease", "blocked_by_profile_lease"):
        assert len(place.json("jobs", "--reason", reason)["items"]) == 1
    assert place.json("jobs", "--reason", "capacity")["items"] == []
    assert "BLOCKED BY" in place.text("jobs")


def test_pages_follow_one_another(place: Workplace) -> None:
    submitted = [place.submit() for _ in range(3)]
    page = place.json("jobs", "--limit", "2")
    rest = place.json("jobs", "--limit", "2", "--after", page["after"])
    assert [job["job_id"] for job in page["items"] + rest["items"]] == submitted[::-1]
    assert rest["after"] is None
    assert place.text("jobs", "--limit", "2").splitlines()[-1] == f"showing 2, more: --after {page['after']}"


def test_one_job_with_all_its_fields(place: Workplace) -> None:
    job_id = place.submit("--label", "team=a")
    text = place.text("jobs", "show", job_id)
    assert f"  job id                  {job_id}\n" in text
    assert "  labels                  team=a\n" in text
    document = place.json("jobs", "show", job_id)
    assert document["job_id"] == job_id
    assert "payload" not in document


def test_a_secret_in_a_callback_is_not_shown(place: Workplace) -> None:
    job = {"task": "buy", "profile_id": "twin_a", "callback_url": "https://example.com/hook?key=s3cret"}
    answer = place.json("submit", "--file", "-", stdin=json.dumps(job))
    job_id = answer["items"][0]["job_id"]
    assert "s3cret" not in place.text("jobs", "show", job_id)
    assert "s3cret" not in place.text("jobs", "show", job_id, "--json")


def test_cancel(place: Workplace) -> None:
    job_id = place.submit()
    assert place.text("jobs", "cancel", job_id, "--note", "not needed") == f"job {job_id} is now cancelled\n"
    assert "cancelled" in place.fails(4, "jobs", "cancel", job_id, "--note", "again")


def test_a_decision_is_kept_with_who_and_why(place: Workplace) -> None:
    job_id = place.submit()
    answer = place.json("jobs", "cancel", job_id, "--note", "not needed", "--by", "ada")
    assert answer["state"] == "cancelled"
    assert answer["version"] > 1
    (event,) = place.json("events", "--job", job_id, "--type", "job_decided")["items"]
    assert (event["actor"], event["data"]["note"]) == ("ada", "not needed")


def test_requeue_after_review(place: Workplace) -> None:
    job_id = place.reviewed_profile()
    place.text("profiles", "clear", "shop_us_main", "--note", "logged in again")
    assert place.text("jobs", "requeue", job_id, "--note", "try again") == f"job {job_id} is now queued\n"


def test_approve(place: Workplace) -> None:
    job = {"task": "buy", "profile_id": "twin_a", "risk_level": "review_required"}
    job_id = place.json("submit", "--file", "-", stdin=json.dumps(job))["items"][0]["job_id"]
    assert place.json("jobs", "--reason", "approval")["items"][0]["job_id"] == job_id
    assert place.text("jobs", "approve", job_id, "--note", "fine") == f"job {job_id} is now queued\n"


@pytest.mark.parametrize("verb", ["cancel", "requeue", "approve"])
def test_a_decision_needs_a_note_and_a_job(place: Workplace, verb: str) -> None:
    job_id = place.submit()
    assert "--note" in place.fails(2, "jobs", verb, job_id)
    assert "say why" in place.fails(2, "jobs", verb, job_id, "--note", "  ")
    assert "the maximum is" in place.fails(2, "jobs", verb, job_id, "--note", "x" * 3_000)
    assert "nothing" in place.fails(3, "jobs", verb, "nothing", "--note", "x")
    assert place.json("jobs", "show", job_id)["state"] == "queued"


def test_a_decision_on_another_version_is_refused(place: Workplace) -> None:
    job_id = place.submit()
    version = place.json("jobs", "show", job_id)["version"]
    place.fails(4, "jobs", "cancel", job_id, "--note", "x", "--if-version", str(version + 1))
    assert place.json("jobs", "show", job_id)["state"] == "queued"
    place.text("jobs", "cancel", job_id, "--note", "x", "--if-version", str(version))


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "--state", "asleep"),
        ("jobs", "--reason", "mood"),
        ("jobs", "--limit", "0"),
        ("jobs", "--limit", "1001"),
        ("jobs", "--after", "nonsense"),
        ("jobs", "--colour", "red"),
        ("jobs", "frobnicate"),
        ("jobs", "show"),
    ],
)
def test_wrong_usage_is_refused(place: Workplace, arguments: tuple[str, ...]) -> None:
    place.fails(2, *arguments)


def test_a_job_that_does_not_exist(place: Workplace) -> None:
    assert "nothing" in place.fails(3, "jobs", "show", "nothing")


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_a_table_fits_the_terminal(place: Workplace, columns: int) -> None:
    place.reviewed_profile()
    place.submit()
    code, screen = in_terminal("jobs", url=place.url, columns=columns, NO_COLOR="1")
    assert code == 0
    assert max(map(len, screen.splitlines())) <= columns
    assert "\x1b" not in screen
    assert "\x1b[31mreview" in in_terminal("jobs", url=place.url, columns=columns)[1]


def test_dead_jobs_are_listed(place: Workplace) -> None:
    assert place.text("dlq") == "no dead jobs: none has used up its attempts, or all that did were dropped\n"
    job_id = place.dead_job()
    place.submit()
    (job,) = place.json("dlq")["items"]
    assert (job["job_id"], job["stop_reason"]) == (job_id, "TIMEOUT")
    assert "TIMEOUT" in place.text("dlq")
    assert place.json("dlq", "--task", "look")["items"] == []


def test_dead_jobs_are_retried(place: Workplace) -> None:
    job_id = place.dead_job()
    assert place.text("dlq", "retry", job_id, "--note", "site is back") == f"job {job_id} is now queued\n"
    assert place.json("dlq")["items"] == []
    assert " 1/1 " in place.text("jobs")
    place.run_one("TIMEOUT", "the page did not answer")
    assert " 2 " in place.text("jobs")
    assert "2/1" not in place.text("jobs")
    assert "attempt 2, 1 more than 1 because a person reopened the job" in place.text("why", "job", job_id)


def test_all_dead_jobs_are_retried_at_once(place: Workplace) -> None:
    dead = {place.dead_job(), place.dead_job("shop_de_main")}
    answer = place.json("dlq", "retry", "--all", "--yes", "--note", "site is back")
    assert {item["id"] for item in answer["items"]} == dead
    assert answer["refused"] == []
    assert place.text("dlq", "retry", "--all", "--note", "again") == "no dead jobs: nothing to do\n"


def test_dead_jobs_are_dropped(place: Workplace) -> None:
    job_id = place.dead_job()
    assert place.text("dlq", "drop", job_id, "--note", "too late") == f"job {job_id} is dropped from the dead jobs\n"
    assert place.json("dlq")["items"] == []
    assert place.json("jobs", "show", job_id)["dropped"] is True


def test_one_refusal_does_not_stop_the_others(place: Workplace) -> None:
    dead, living = place.dead_job(), place.submit()
    result = place.cli("dlq", "retry", living, "nothing", dead, "--note", "x")
    assert result.exit_code == 4
    assert result.stdout == f"job {dead} is now queued\n"
    assert living in result.stderr
    assert "nothing" in result.stderr
    as_json = place.cli("dlq", "drop", "nothing", "--note", "x", "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["refused"][0]["code"] == "NOT_FOUND"


def test_retry_needs_ids_or_all(place: Workplace) -> None:
    assert "--all" in place.fails(2, "dlq", "retry", "--note", "x")
    assert "--all" in place.fails(2, "dlq", "retry", "some", "--all", "--note", "x")
    place.fails(2, "dlq", "drop", "--note", "x")
