"""Mistyped tasks: `submit` warns and says what was meant, and refuses with --strict or the setting."""

import json

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import WorkerReport
from tests.cli.workplace import Workplace

SUBMIT = ("submit", "bye", "--profile", "shop_us_main")


def test_a_task_that_no_worker_offers_is_accepted_with_a_warning(place: Workplace) -> None:
    result = place.cli(*SUBMIT)
    assert result.exit_code == 0
    assert "blocked_by_no_worker" in result.stdout
    assert result.stderr == "leasekeeper: no worker offers bye; did you mean buy? It waits until one does\n"


def test_a_task_that_is_near_nothing_is_answered_with_those_there_are(place: Workplace) -> None:
    result = place.cli("submit", "rename_the_shop", "--profile", "shop_us_main")
    assert result.stderr.startswith("leasekeeper: no worker offers rename_the_shop; there are: buy, look.")


def test_the_warning_is_part_of_the_document_for_programs(place: Workplace) -> None:
    result = place.cli(*SUBMIT, "--json")
    assert json.loads(result.stdout)["warnings"] == ["no worker offers bye; did you mean buy? It waits until one does"]
    assert result.stderr == ""
    assert place.json("submit", "buy", "--profile", "shop_us_main")["warnings"] == []


def test_a_job_that_is_due_later_is_warned_about_too(place: Workplace) -> None:
    assert "did you mean buy?" in place.cli(*SUBMIT, "--run-at", "+1h").stderr


def test_each_task_of_a_file_is_warned_about_once(place: Workplace) -> None:
    jobs = [{"task": task, "profile_id": "shop_us_main"} for task in ("bye", "bye", "lock", "buy")]
    result = place.cli("submit", "--file", "-", stdin=json.dumps(jobs))
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "leasekeeper: no worker offers bye; did you mean buy? It waits until one does",
        "leasekeeper: no worker offers lock; did you mean look? It waits until one does",
    ]


def test_a_task_that_a_stopped_worker_offered_is_no_typing_mistake(place: Workplace) -> None:
    gone = WorkerReport(
        worker_id=WorkerId("w1"), incarnation="w1-1", pool="default", tasks=("buy", "look"), stopping=True
    )
    place.do(lambda store: store.report(gone))
    assert place.cli("submit", "look", "--profile", "shop_us_main").stderr == ""


def test_before_the_first_worker_of_a_pool_it_says_how_to_start_one(empty: Workplace) -> None:
    empty.apply()
    result = empty.cli(*SUBMIT)
    assert result.exit_code == 0
    assert result.stderr == "leasekeeper: no worker has run yet; start one: leasekeeper up MODULE:APP, e.g. tasks:app\n"
    assert "blocked_by_no_worker" in result.stdout


def test_strict_refuses_it_and_submits_nothing(place: Workplace) -> None:
    reported = place.fails(2, *SUBMIT, "--strict")
    assert "no worker of pool default has ever offered task bye" in reported
    assert "bye: did you mean buy?" in reported
    assert place.json("jobs")["items"] == []
    assert place.cli("submit", "buy", "--profile", "shop_us_main", "--strict").exit_code == 0


def test_the_setting_refuses_it_too(place: Workplace) -> None:
    (place.directory / "leasekeeper.toml").write_text("strict_tasks = true\n")
    assert "bye: did you mean buy?" in place.fails(2, *SUBMIT)


def test_one_mistyped_task_of_a_file_refuses_the_whole_file_when_strict(place: Workplace) -> None:
    jobs = [{"task": task, "profile_id": "shop_us_main"} for task in ("buy", "bye")]
    assert "jobs[1].task" in place.fails(2, "submit", "--file", "-", "--strict", stdin=json.dumps(jobs))
    assert place.json("jobs")["items"] == []


def test_in_a_pool_of_its_own_the_pool_is_named(place: Workplace) -> None:
    rack = WorkerReport(worker_id=WorkerId("r1"), incarnation="r1-1", pool="rack-1", tasks=("sync_orders",))
    place.do(lambda store: store.report(rack))
    reported = place.cli("submit", "sync_order", "--profile", "shop_us_main", "--pool", "rack-1").stderr
    assert "no worker of pool rack-1 offers sync_order; did you mean sync_orders?" in reported
