"""What is only looked at: leases, runs, events, workers, conflicts, why, stats."""

import json
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from leasekeeper.cli.events import FOLLOW_PAGE, Tail
from leasekeeper.cli.evidence import evidence_lines
from leasekeeper.cli.table import Screen
from leasekeeper.cli.workers import view
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import Worker, WorkerReport
from leasekeeper.ports import Page, Store
from tests.cli.workplace import Workplace, environment, in_terminal, program


def test_empty_lists_say_so(empty: Workplace) -> None:
    assert "--all" in empty.text("leases")
    assert empty.text("runs").startswith("no runs: ")
    assert empty.text("workers") == "no workers: none has ever reported to this store\n"
    assert empty.text("conflicts").startswith("no conflicts")
    for noun in ("leases", "runs", "workers", "events"):
        assert empty.json(noun)["after"] is None


def test_live_leases_and_with_all_those_that_ended(place: Workplace) -> None:
    ended, live = place.lease("twin_a"), place.lease("shop_us_main")
    place.end(ended)
    text = place.text("leases")
    assert live.lease.lease_id in text
    assert ended.lease.lease_id not in text
    assert "ends" not in text
    assert ended.lease.lease_id in place.text("leases", "--all")
    assert len(place.json("leases", "--all")["items"]) == 2
    (lease,) = place.json("leases", "--profile", "shop_us_main")["items"]
    assert (lease["worker_id"], lease["fencing_token"]) == ("script", live.lease.token)
    assert place.json("leases", "--worker", "somebody")["items"] == []


def test_a_lease_is_revoked(place: Workplace) -> None:
    lease_id = place.lease("twin_a").lease.lease_id
    assert place.json("leases", "revoke", lease_id, "--note", "stuck")["target"] == "lease"
    (lease,) = place.json("leases")["items"]
    assert lease["status"] == "revoked"
    assert f"lease {lease_id} was revoked already" in place.fails(4, "leases", "revoke", lease_id, "--note", "again")
    assert "ENDS" in place.text("leases")
    why = place.text("why", "profile", "twin_a")
    assert f"lease {lease_id} was revoked" in why
    assert "leases revoke" not in why
    place.fails(3, "leases", "revoke", "nothing", "--note", "x")
    place.fails(2, "leases", "revoke", lease_id)


def test_runs_are_listed_and_shown(place: Workplace) -> None:
    job_id = place.submit()
    run_id = place.run_one("TIMEOUT", "the page did not answer").lease.run_id
    assert "TIMEOUT" in place.text("runs")
    for arguments in (
        ("--job", job_id),
        ("--profile", "shop_us_main"),
        ("--worker", "w1"),
        ("--result", "failed"),
    ):
        assert [run["run_id"] for run in place.json("runs", *arguments)["items"]] == [run_id]
    assert place.json("runs", "--result", "completed")["items"] == []
    assert "the page did not answer" in place.text("runs", "show", run_id)
    assert place.json("runs", "show", run_id)["stop_reason"] == "TIMEOUT"
    place.fails(3, "runs", "show", "nothing")
    place.fails(2, "runs", "--result", "great")


def test_a_picture_that_the_keeper_took_is_not_called_missing(tmp_path: Path) -> None:
    def reported(*names: str) -> str:
        artifacts = [{"name": name, "size": 17, "sha256": "0" * 64} for name in names]
        evidence = {"folder": "r", "artifacts": artifacts, "no_screenshot": "the page was closed"}
        return "\n".join(evidence_lines(evidence, tmp_path, Screen(width=80, colours=False)))

    assert reported().endswith("  no final.png: the page was closed")
    assert reported("last.png").endswith("  no final.png: the page was closed; last.png is what the keeper took")


def test_events_are_listed_newest_first_and_filtered(place: Workplace) -> None:
    job_id = place.submit()
    run_id = place.run_one().lease.run_id
    types = [event["type"] for event in place.json("events", "--job", job_id)["items"]]
    assert types == ["run_settled", "lease_granted", "job_submitted"]
    assert {event["run_id"] for event in place.json("events", "--run", run_id)["items"]} == {run_id}
    assert "fleet_applied" in place.text("events")
    page = place.json("events", "--limit", "1", "--profile", "shop_us_main")
    assert len(page["items"]) == 1
    assert place.json("events", "--after", page["after"], "--limit", "1")["items"] != page["items"]
    place.fails(2, "events", "--type", "nonsense")
    place.fails(2, "events", "--follow", "--after", "1")


def test_following_prints_what_comes_and_ends_quietly(place: Workplace) -> None:
    place.submit()
    code, screen = in_terminal("events", "--follow", "--limit", "1", url=place.url, interrupt_at="job_submitted")
    assert code == 130
    assert "Traceback" not in screen
    assert len([line for line in screen.splitlines() if "  " in line]) == 1


def test_following_as_json_is_one_document_per_line(place: Workplace) -> None:
    place.submit()
    place.submit()
    _, screen = in_terminal(
        "events", "--follow", "--json", "--type", "job_submitted", url=place.url, interrupt_at="}\r\n"
    )
    events = [json.loads(line) for line in screen.splitlines() if line.startswith("{")]
    assert [event["type"] for event in events] == ["job_submitted", "job_submitted"]
    assert events[0]["seq"] < events[1]["seq"]


def test_following_shows_what_happens_meanwhile(place: Workplace) -> None:
    child = subprocess.Popen(
        [*program(), "events", "--follow", "--json", "--limit", "1"],
        env=environment(place.url),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["type"] == "worker_started"
        job_id = place.submit()
        event = json.loads(child.stdout.readline())
        assert (event["type"], event["job_id"]) == ("job_submitted", job_id)
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)


async def test_nothing_is_reported_twice_and_a_late_commit_is_not_missed() -> None:
    log = Log()
    tail = Tail()
    assert await seqs(tail, log, *range(100, 400)) == list(range(200, 400)), "one page back, no further"
    assert await seqs(tail, log) == []
    assert await seqs(tail, log, 401, 403) == [401, 403]
    assert await seqs(tail, log, 402) == [402], "402 was committed after 403"
    many = range(500, 500 + 3 * FOLLOW_PAGE)
    assert await seqs(tail, log, *many) == list(many)


async def test_an_empty_log_is_followed_from_its_first_event() -> None:
    log, tail = Log(), Tail()
    assert await seqs(tail, log) == []
    assert await seqs(tail, log, 1, 2) == [1, 2]


class Log:
    """The newest events first, page by page, as a store gives them."""

    def __init__(self) -> None:
        self.seqs: list[int] = []

    async def find(self, _kind: object, _where: object, *, after: str | None, limit: int) -> Page[Event]:
        found = sorted((seq for seq in self.seqs if after is None or seq < int(after)), reverse=True)
        items = [Event(seq=seq, at=datetime.now(UTC), type=EventType.JOB_DUE) for seq in found[:limit]]
        return Page(items=items, after=str(items[-1].seq) if len(found) > limit else None)


async def seqs(tail: Tail, log: Log, *new: int) -> list[int]:
    log.seqs += new
    return [event.seq for event in await tail.read(cast(Store, log), {})]


def test_workers_show_whether_they_still_report(place: Workplace) -> None:
    place.start_worker("w2", ["look"])
    text = place.text("workers")
    assert "w2" in text
    assert "reporting" in text
    assert {worker["worker_id"] for worker in place.json("workers")["items"]} == {"w1", "w2"}
    assert place.text("workers", "--pool", "other") == "no workers match\n"


def test_workers_that_report_stand_above_those_that_went_each_newest_first(place: Workplace) -> None:
    for name in ("z2", "a1", "m3"):
        place.start_worker(name)
    gone = WorkerReport(worker_id=WorkerId("m3"), incarnation="m3-1", pool="default", tasks=("buy",), stopping=True)
    place.do(lambda store: store.report(gone))
    names = [line.split()[0] for line in place.text("workers").splitlines()[1:]]
    assert names == ["a1", "z2", "w1", "m3"]


def test_a_worker_that_does_not_report_is_silent_unless_it_said_goodbye() -> None:
    now, ttl = datetime.now(UTC), timedelta(seconds=90)
    state = next(column for column in view(now, ttl).columns if column.title == "STATE")
    worker = Worker(
        worker_id=WorkerId("w1"),
        incarnation="w1-1",
        pool="default",
        tasks=("buy",),
        started_at=now - timedelta(hours=1),
        heartbeat_at=now - ttl / 2,
    )
    late = replace(worker, heartbeat_at=now - ttl)
    assert [state.of(each) for each in (worker, late)] == ["reporting", "silent"]
    assert state.of(replace(late, stopped_at=now)) == "stopped"


def conflict(place: Workplace, profile: str, *tasks: str) -> None:
    """The first task runs while the others become due."""
    first, *others = tasks
    place.submit(task=first, profile=profile)
    (grant,) = place.claim()
    for task in others:
        place.submit(task=task, profile=profile)
    place.end(grant)
    for _ in others:
        place.run_one()


def test_conflicts_are_counted_by_profile_and_by_pair(place: Workplace) -> None:
    conflict(place, "shop_us_main", "buy", "look", "look")
    conflict(place, "shop_de_main", "look", "buy")
    place.lease("twin_a")
    place.submit(profile="twin_a")
    report = place.json("conflicts")
    assert report["events"] == 4
    assert report["complete"] is True
    assert [(line["profile_id"], line["count"]) for line in report["profiles"]] == [
        ("shop_us_main", 2),
        ("shop_de_main", 1),
        ("twin_a", 1),
    ]
    assert {(line["blocked_task"], line["current_task"]): line["count"] for line in report["pairs"]} == {
        ("look", "buy"): 2,
        ("buy", "look"): 1,
        ("buy", "(no job)"): 1,
    }
    assert all(line["last_at"].endswith("Z") for line in report["pairs"])
    text = place.text("conflicts", "--top", "1")
    assert "look waits for buy" in text
    assert "shop_de_main" not in text
    assert text.endswith("from 4 conflicts\n")


def test_jobs_that_came_before_the_lease_follow_their_policy_too(place: Workplace) -> None:
    first, review, skip = (place.submit("--on-conflict", policy) for policy in ("wait", "review", "skip"))
    (grant,) = place.claim()
    assert grant.lease.job_id == first
    assert [place.json("jobs", "show", job)["state"] for job in (first, review, skip)] == [
        "running",
        "review",
        "skipped",
    ]
    met = place.json("events", "--type", "profile_lock_conflict")["items"]
    assert {(event["job_id"], event["data"]["decision"]) for event in met} == {(review, "review"), (skip, "skip")}


def test_a_refused_visit_names_the_holder_of_the_accounts_key_and_is_a_conflict(place: Workplace) -> None:
    run_id = place.lease("twin_a").lease.run_id
    refused = place.cli("open", "twin_b")
    assert refused.exit_code == 4
    assert f"script has twin_a (run {run_id})" in refused.stderr
    (event,) = place.json("events", "--type", "profile_lock_conflict")["items"]
    assert (event["profile_id"], event["data"]["current_profile_id"]) == ("twin_b", "twin_a")


def test_why_names_job_and_task_of_the_holder(place: Workplace) -> None:
    running = place.submit(task="look")
    place.claim()
    for about in (("job", place.submit()), ("profile", "shop_us_main")):
        (holder,) = place.json("why", *about)["holders"]
        assert (holder["job_id"], holder["task"]) == (running, "look")
        assert f"{running}, task look\n" in place.text("why", *about)


def test_a_job_that_needs_a_display_says_so(place: Workplace) -> None:
    job_id = place.submit("--run-mode", "visible")
    place.run_one("VISIBLE_NEEDS_DISPLAY", "this machine has no display")
    assert place.json("jobs", "show", job_id)["stop_reason"] == "VISIBLE_NEEDS_DISPLAY"
    assert "VISIBLE_NEEDS_DISPLAY: this machine has no display" in place.text("why", "job", job_id)


def test_why_a_job_waits(place: Workplace) -> None:
    grant = place.lease("shop_us_main")
    job_id = place.submit()
    text = place.text("why", "job", job_id)
    assert text.startswith(f"job {job_id} is blocked_by_profile_lease\n")
    assert "\nwhat happens next\n" in text
    assert f"  leasekeeper jobs cancel {job_id} --note …\n" in text
    assert grant.lease.run_id in text
    answer = place.json("why", "job", job_id)
    assert (answer["target"], answer["id"], answer["state"]) == ("job", job_id, "blocked")
    assert answer["reason"] == "blocked_by_profile_lease"
    (holder,) = answer["holders"]
    assert (holder["run_id"], holder["fencing_token"]) == (grant.lease.run_id, grant.lease.token)
    assert holder["expires_at"].endswith("Z")
    assert [step["code"] for step in answer["next"]] == ["unblocked"]
    assert [(each["target"], each["action"]) for each in answer["possible"]] == [("job", "cancel")]
    assert "holder" in {fact["name"] for fact in answer["text"]["facts"]}


def test_why_a_profile_is_not_available(place: Workplace) -> None:
    place.reviewed_profile()
    text = place.text("why", "profile", "shop_us_main")
    assert text.startswith("profile shop_us_main is review_required\n")
    (run,) = place.json("runs")["items"]
    assert f"what you can do\n  leasekeeper runs show {run['run_id']}\n  leasekeeper login shop_us_main" in text
    assert "\n  leasekeeper open shop_us_main" in text
    assert "\n  leasekeeper profiles clear shop_us_main" in text
    assert place.json("why", "profile", "twin_a")["text"]["headline"] == "profile twin_a is available"


def test_why_fits_a_screen(place: Workplace) -> None:
    place.reviewed_profile()
    _, screen = in_terminal("why", "profile", "shop_us_main", url=place.url, columns=80, NO_COLOR="1")
    lines = screen.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_why_needs_something_that_exists(place: Workplace) -> None:
    place.fails(3, "why", "job", "nothing")
    place.fails(3, "why", "profile", "nowhere")
    place.fails(2, "why", "account", "shop_us")
    place.fails(2, "why", "job")


def test_stats_count_everything(place: Workplace) -> None:
    place.reviewed_profile()
    place.submit()
    place.submit(profile="twin_a")
    stats = place.json("stats")
    assert stats["jobs"]["review"] == 1
    assert stats["profiles"] == {"available": 3, "review_required": 1}
    assert stats["reviews"] == 2
    text = place.text("stats")
    assert "  3  available\n  1  review_required\n" in text
    assert text.endswith("reviews\n  2 open: leasekeeper reviews\n")
