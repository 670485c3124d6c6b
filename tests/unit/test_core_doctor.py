"""The checks of an installation as tables: facts → status. What is not ok says what to do."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.doctor.findings import (
    CHECKS,
    GB,
    MB,
    Advice,
    Check,
    Finding,
    Group,
    Status,
    Verdict,
    counts,
    exit_code,
    fail,
    names,
    ok,
    skip,
    span,
    warn,
)
from leasekeeper.core.doctor.machine_checks import (
    SCRIPTS,
    DisplayFacts,
    FileSystem,
    FolderFacts,
    LaunchFacts,
    Place,
    Space,
    Sync,
    judge_data_dir,
    judge_display,
    judge_evidence,
    judge_file_systems,
    judge_font_list,
    judge_fonts,
    judge_launch,
    judge_profile_store,
    judge_space,
    judge_sync,
)
from leasekeeper.core.doctor.store_checks import (
    SweepFacts,
    WebhookFacts,
    WorkerFacts,
    judge_clock,
    judge_schema,
    judge_sweeper,
    judge_webhooks,
    judge_workers,
)
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import Worker
from leasekeeper.wording.doctor import ADVICE, todo_text
from tests.unit.records import NOW, before, seconds

OK, WARN, FAIL, SKIP = Status.OK, Status.WARN, Status.FAIL, Status.SKIP
DATA = Place(name="data directory", path="/srv/data")
STORE = Place(name="store", path="/srv")


def sweep(**changes: Any) -> SweepFacts:
    return SweepFacts(now=NOW, sweep_every=seconds(5), **changes)


def worker(name: str = "w1", silent_for: float = 10, **changes: Any) -> Worker:
    given: dict[str, Any] = {"pool": "default", "tasks": ("visit",), "version": "1.0", "engine": 150, **changes}
    return Worker(
        worker_id=WorkerId(name), incarnation=name, started_at=before(900), heartbeat_at=before(silent_for), **given
    )


def workers(*found: Worker, waiting: int = 0) -> WorkerFacts:
    return WorkerFacts(now=NOW, worker_ttl=seconds(90), workers=found, waiting_jobs=waiting, version="1.0")


def webhooks(**changes: Any) -> WebhookFacts:
    return WebhookFacts(**{"now": NOW, "secret": True, **changes})


def folder(**changes: Any) -> FolderFacts:
    return FolderFacts(**{"path": "/srv/data", "user": 1000, "owner": 1000, "mode": 0o700, **changes})


def system(place: Place = DATA, kind: str = "ext4", *, network: bool = False) -> FileSystem:
    return FileSystem(place=place, kind=kind, network=network, is_store=place is STORE)


def space(free: int, files: int = 1_000_000, place: Place = DATA) -> Space:
    return Space(place=place, free=free, total=100 * GB, files_free=files, files_total=2_000_000)


def drawn(*missing: str) -> dict[str, bool]:
    return {script: script not in missing for script in SCRIPTS}


def display(name: str, answers: bool, visible: int) -> DisplayFacts:
    return DisplayFacts(display=name, answers=answers, visible_jobs=visible)


Row = tuple[Callable[[], Verdict], Status, str]

ROWS: Mapping[str, Row] = {
    "schema is the newest": (lambda: judge_schema(4, 4), OK, "schema 4"),
    "schema is older": (lambda: judge_schema(2, 4), FAIL, "Migrate the store"),
    "schema is not there": (lambda: judge_schema(0, 4), FAIL, "no tables yet"),
    "schema is newer": (lambda: judge_schema(5, 4), FAIL, "Upgrade Leasekeeper"),
    "clocks agree": (lambda: judge_clock(seconds(-4), seconds(0), seconds(5)), OK, "within 5 s"),
    "clocks may agree": (lambda: judge_clock(seconds(8), seconds(10), seconds(5)), OK, "within 5 s"),
    "clock is ahead": (lambda: judge_clock(seconds(20), seconds(0), seconds(5)), WARN, "20 s ahead of"),
    "clock is behind": (lambda: judge_clock(seconds(-20), seconds(0), seconds(5)), WARN, "20 s behind"),
    "clock is far away": (lambda: judge_clock(seconds(-400), seconds(0), seconds(5)), FAIL, "7 min behind"),
    "nothing to sweep": (lambda: judge_sweeper(sweep()), OK, "nothing is overdue"),
    "sweeper was seen": (lambda: judge_sweeper(sweep(swept_at=before(3_600))), OK, "60 min ago"),
    "sweep is near": (lambda: judge_sweeper(sweep(expired_since=before(50))), OK, "nothing is overdue"),
    "leases wait": (lambda: judge_sweeper(sweep(expired_since=before(90))), WARN, "expired leases wait"),
    "lost runs wait": (lambda: judge_sweeper(sweep(unresolved_since=before(90))), WARN, "lost runs wait"),
    "due jobs wait": (lambda: judge_sweeper(sweep(due_since=before(90))), WARN, "due jobs wait"),
    "all wait for long": (
        lambda: judge_sweeper(sweep(expired_since=before(90), due_since=before(700))),
        FAIL,
        "expired leases and due jobs wait to be swept, the oldest for 12 min",
    ),
    "no worker is needed": (lambda: judge_workers(workers()), SKIP, "no worker reports"),
    "a worker is needed": (lambda: judge_workers(workers(waiting=3)), FAIL, "3 jobs could run"),
    "the only worker is silent, jobs wait": (
        lambda: judge_workers(workers(worker(silent_for=200), waiting=1)),
        FAIL,
        "1 job could run",
    ),
    "a worker is silent": (
        lambda: judge_workers(workers(worker(), worker("w2", silent_for=200))),
        WARN,
        "1 worker stopped reporting without a goodbye: w2",
    ),
    "workers are alike": (lambda: judge_workers(workers(worker(), worker("w2"))), OK, "2 workers, Leasekeeper 1.0"),
    "versions differ": (
        lambda: judge_workers(workers(worker(), worker("w2", version="1.1"))),
        WARN,
        "Leasekeeper 1.0, 1.1",
    ),
    "a version is not known": (
        lambda: judge_workers(workers(worker(), worker("w2", version=None))),
        WARN,
        "1.0, unknown",
    ),
    "this program differs": (lambda: judge_workers(workers(worker(version="0.9"))), WARN, "this program is 1.0"),
    "browsers differ": (
        lambda: judge_workers(workers(worker(), worker("w2", engine=140))),
        WARN,
        "browser versions 140, 150",
    ),
    "no webhooks": (lambda: judge_webhooks(webhooks(secret=False)), SKIP, "callback_url"),
    "webhooks flow": (lambda: judge_webhooks(webhooks(callbacks=True, pending=2)), OK, "2 wait to be sent"),
    "the secret is wrong": (lambda: judge_webhooks(webhooks(secret=False, problem="not base64")), FAIL, "not base64"),
    "the secret is missing": (
        lambda: judge_webhooks(webhooks(secret=False, callbacks=True)),
        WARN,
        "LEASEKEEPER_WEBHOOK_SECRET",
    ),
    "another machine sends": (
        lambda: judge_webhooks(webhooks(secret=False, callbacks=True, pending=1, tried_at=before(5))),
        OK,
        "1 wait",
    ),
    "nobody sends, without a secret": (
        lambda: judge_webhooks(webhooks(secret=False, callbacks=True, pending=9, due_at=before(7_200))),
        FAIL,
        "Set LEASEKEEPER_WEBHOOK_SECRET",
    ),
    "nobody sends": (
        lambda: judge_webhooks(webhooks(callbacks=True, pending=9, due_at=before(7_200))),
        FAIL,
        "9 messages wait, the oldest is due for 2 h",
    ),
    "messages were given up": (lambda: judge_webhooks(webhooks(exhausted=1)), WARN, "gave up on 1 message"),
    "evidence stays": (lambda: judge_evidence(None, None), OK, "the machine of its run"),
    "evidence travels": (lambda: judge_evidence("s3://shop/runs", None), OK, "put into s3://shop/runs"),
    "evidence cannot travel": (lambda: judge_evidence("s3://shop/runs", "NoSuchBucket"), FAIL, "NoSuchBucket"),
    "data directory is private": (lambda: judge_data_dir(folder()), OK, "this user's alone"),
    "data directory will be made": (lambda: judge_data_dir(folder(owner=None)), OK, "will be made"),
    "data directory cannot be made": (
        lambda: judge_data_dir(folder(owner=None, writable=False)),
        FAIL,
        "cannot be written",
    ),
    "data directory is read-only": (lambda: judge_data_dir(folder(writable=False)), FAIL, "cannot be written"),
    "data directory is a file": (lambda: judge_data_dir(folder(folder=False)), FAIL, "not a folder"),
    "data directory is another's": (lambda: judge_data_dir(folder(owner=0)), FAIL, "belongs to user 0"),
    "data directory is open": (lambda: judge_data_dir(folder(mode=0o755)), WARN, "mode 0755"),
    "local disks": (
        lambda: judge_file_systems([system(), system(STORE, "xfs")]),
        OK,
        "data directory: ext4, store: xfs",
    ),
    "unknown disk": (lambda: judge_file_systems([system(kind="")]), OK, "kind not known"),
    "data in the network": (lambda: judge_file_systems([system(kind="nfs4", network=True)]), WARN, "nfs4"),
    "data in memory": (lambda: judge_file_systems([system(kind="tmpfs")]), WARN, "in memory"),
    "store in the network": (
        lambda: judge_file_systems([system(kind="tmpfs"), system(STORE, "cifs", network=True)]),
        FAIL,
        "PostgreSQL",
    ),
    "room": (lambda: judge_space([space(50 * GB), space(3 * GB, place=STORE)]), OK, "3.0 GB of 100.0 GB free"),
    "little room": (lambda: judge_space([space(50 * GB), space(GB, place=STORE)]), WARN, "at the store /srv"),
    "no room": (lambda: judge_space([space(150 * MB)]), FAIL, "150 MB"),
    "no more files": (lambda: judge_space([space(50 * GB, files=12)]), FAIL, "only 12 more files"),
    "quick disk": (lambda: judge_sync([Sync(place=DATA, seconds=[0.001, 0.002, 9.0])]), OK, "2.0 ms"),
    "slow disk": (
        lambda: judge_sync([Sync(place=DATA, seconds=[0.001]), Sync(place=STORE, seconds=[0.05])]),
        WARN,
        "50.0 ms for a durable write at the store: about 20 commits per second",
    ),
    "broken disk": (
        lambda: judge_sync([Sync(place=DATA, seconds=[0.1]), Sync(place=STORE, problem="Input/output error")]),
        FAIL,
        "Input/output error",
    ),
    "browser starts": (lambda: judge_launch(LaunchFacts(seconds=0.5, close_seconds=0.2)), OK, "0.5 s"),
    "browser starts slowly": (lambda: judge_launch(LaunchFacts(seconds=25, root=True)), WARN, "25 s"),
    "browser runs as root": (lambda: judge_launch(LaunchFacts(seconds=0.5, root=True)), WARN, "sandbox"),
    "browser does not start": (lambda: judge_launch(LaunchFacts(problem="no libnss3")), FAIL, "no libnss3"),
    "browser is not closed": (lambda: judge_launch(LaunchFacts(unclean="lock is left")), FAIL, "lock is left"),
    "fonts for all": (lambda: judge_fonts(drawn()), OK, "every script"),
    "fonts for some": (lambda: judge_fonts(drawn("Korean", "emoji")), WARN, "in place of Korean, emoji"),
    "fonts for none": (lambda: judge_fonts(drawn(*SCRIPTS)), FAIL, "no text at all"),
    "fonts are listed": (lambda: judge_font_list(22), OK, "22 fonts"),
    "no fonts are listed": (lambda: judge_font_list(0), WARN, "no fonts"),
    "fonts cannot be listed": (lambda: judge_font_list(None), SKIP, "fc-list"),
    "display answers": (lambda: judge_display(display(":0", True, 3)), OK, ":0 answers"),
    "display is dead": (lambda: judge_display(display(":0", False, 0)), WARN, "does not answer"),
    "display is dead and needed": (lambda: judge_display(display(":0", False, 3)), FAIL, "3 recent jobs"),
    "display is missing": (lambda: judge_display(display("", False, 1)), WARN, "cannot run here"),
    "display is not needed": (lambda: judge_display(display("", False, 0)), SKIP, "no recent job wants one"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_check_judges_its_facts(name: str) -> None:
    judge, status, words = ROWS[name]
    verdict = judge()
    assert verdict.status is status, verdict
    assert words in f"{verdict.found} {todo_text(verdict)}"
    assert bool(verdict.advice) == (status in (WARN, FAIL)), "what is not ok says what to do"
    assert verdict.answer is None


def finding(verdict: Verdict) -> Finding:
    return Finding(check=Check("x", Group.INSTALLATION, "?"), verdict=verdict)


@pytest.mark.parametrize(
    ("verdicts", "code", "strict_code"),
    [
        ([], 0, 0),
        ([ok("a"), skip("b")], 0, 0),
        ([ok("a"), warn("b", Advice.MAKE_ROOM)], 0, 1),
        ([warn("a", Advice.MAKE_ROOM), fail("c", Advice.USE_DISK)], 2, 2),
    ],
)
def test_the_exit_code_follows_the_worst_finding(verdicts: list[Verdict], code: int, strict_code: int) -> None:
    findings = [finding(verdict) for verdict in verdicts]
    assert (exit_code(findings, strict=False), exit_code(findings, strict=True)) == (code, strict_code)


def test_findings_are_counted_by_status() -> None:
    verdicts = [ok("a"), ok("b"), warn("c", Advice.MAKE_ROOM), skip("e")]
    assert counts([finding(verdict) for verdict in verdicts]) == {"ok": 2, "warn": 1, "fail": 0, "skip": 1}


def test_ids_of_checks_are_distinct_and_can_be_typed() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(name.isidentifier() and name.islower() for name in ids)


def test_a_long_list_is_cut_short_in_a_sentence() -> None:
    assert names(["a", "b"]) == "a, b"
    assert names(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 days")],
)
def test_a_duration_is_said_in_the_largest_unit_that_fits(number: int, words: str) -> None:
    assert span(timedelta(seconds=number)) == words


@pytest.mark.parametrize(
    ("needed", "status", "says"),
    [
        ({}, Status.OK, "can be stored in s3://b"),
        ({"new": 9}, Status.OK, "can be stored in s3://b"),
        ({"new": 9, "old": 3}, Status.OK, "3 snapshots need key old, which is not the first any more"),
        ({"new": 9, "old": 3, "lost": 2}, Status.WARN, "2 snapshots need key lost, which is not set here"),
    ],
)
def test_a_key_that_snapshots_still_need_is_named(needed: dict[str, int], status: Status, says: str) -> None:
    verdict = judge_profile_store("s3://b", None, keys=("new", "old"), needed=needed)
    assert (verdict.status, says in verdict.found) == (status, True)
    assert judge_profile_store("s3://b", None, needed=needed).status is Status.OK  # a server has no keys


def test_every_advice_has_a_sentence() -> None:
    assert set(ADVICE) == set(Advice)
