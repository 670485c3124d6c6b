"""Workers, as tables: what a report changes, who takes jobs, and whose homes they serve. No store."""

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.pauses import Pause, Scope, pause_id_of
from leasekeeper.core.workers import Earlier, Worker, WorkerReport, homes_served, news_in, reported, serving
from tests.unit.records import NOW, before

WELL = Earlier()
UNWELL = Earlier(unwell_reason="DISK_FULL", unwell_since=before(60))
SILENT = Earlier(silent_since=before(90))
LOST = Earlier(unwell_reason="DISK_FULL", unwell_since=before(200), silent_since=before(90))


def said(**changes: Any) -> WorkerReport:
    return WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="eu", tasks=("visit",), **changes)


@pytest.mark.parametrize(
    ("earlier", "changes", "news"),
    [
        (None, {}, ["worker_started"]),
        (None, {"unwell_reason": "NO_BROWSER"}, ["worker_unwell", "worker_started"]),
        (None, {"stopping": True}, ["worker_stopped"]),
        (WELL, {}, []),
        (WELL, {"unwell_reason": "NO_BROWSER"}, ["worker_unwell"]),
        (WELL, {"stopping": True}, ["worker_stopped"]),
        (UNWELL, {}, ["worker_well"]),
        (UNWELL, {"unwell_reason": "DISK_FULL"}, []),
        (UNWELL, {"unwell_reason": "NO_BROWSER"}, []),
        (UNWELL, {"unwell_reason": "DISK_FULL", "stopping": True}, ["worker_stopped"]),
        (SILENT, {}, ["worker_returned"]),
        (SILENT, {"stopping": True}, ["worker_returned", "worker_stopped"]),
        (LOST, {}, ["worker_well", "worker_returned"]),
        (LOST, {"unwell_reason": "DISK_FULL"}, ["worker_returned"]),
    ],
)
def test_a_report_is_news_only_if_something_changed(
    earlier: Earlier | None, changes: dict[str, Any], news: list[str]
) -> None:
    found = dict(news_in(said(**changes), earlier, NOW))
    assert list(found) == news
    assert all(data["incarnation"] == "i1" for data in found.values())
    assert [data["silent_seconds"] for data in found.values() if "silent_seconds" in data] == [
        90.0 for kind in news if kind == "worker_returned"
    ]


@pytest.mark.parametrize(
    ("earlier", "reason", "since"),
    [
        (None, None, None),
        (None, "DISK_FULL", NOW),
        (WELL, "DISK_FULL", NOW),
        (UNWELL, "DISK_FULL", before(60)),
        (UNWELL, "NO_BROWSER", before(60)),
        (UNWELL, None, None),
    ],
)
def test_a_worker_is_unwell_since_it_first_said_so(earlier: Earlier | None, reason: str | None, since: object) -> None:
    worker = reported(said(unwell_reason=reason), earlier, NOW)
    assert (worker.unwell_reason, worker.unwell_since) == (reason, since)


def test_a_worker_that_reports_is_not_silent_and_one_that_stops_has_stopped() -> None:
    worker = reported(said(engine=140, machine="rack1"), SILENT, NOW)
    assert (worker.silent_since, worker.stopped_at, worker.heartbeat_at) == (None, None, NOW)
    assert (worker.pool, worker.tasks, worker.engine, worker.machine) == ("eu", ("visit",), 140, "rack1")
    assert reported(said(stopping=True), WELL, NOW).stopped_at == NOW


WORKER = Worker(
    worker_id=WorkerId("w1"),
    incarnation="w1-1",
    pool="default",
    tasks=("visit", "sync"),
    started_at=before(600),
    heartbeat_at=before(5),
    machine="rack1",
)


def pause(scope: Scope, name: str = "") -> Pause:
    return Pause(pause_id=pause_id_of(scope, name), scope=scope, name=name, note="night", actor="ann", since=before(9))


@pytest.mark.parametrize(
    ("said", "pauses", "serves"),
    [
        ({}, [], True),
        ({"unwell_reason": "disk full"}, [], False),
        ({}, [pause(Scope.WORKER, "w1")], False),
        ({"unwell_reason": "disk full"}, [pause(Scope.WORKER, "w1")], False),
        ({}, [pause(Scope.WORKER, "w2")], True),
        # These keep jobs back, whoever would take them.
        ({}, [pause(Scope.ALL), pause(Scope.POOL, "default"), pause(Scope.ACCOUNT, "w1")], True),
    ],
)
def test_a_worker_serves_unless_it_is_paused_or_unwell(said: dict[str, Any], pauses: list[Pause], serves: bool) -> None:
    worker = replace(WORKER, **said)
    assert serving([worker], pauses) == ([worker] if serves else [])


@pytest.mark.parametrize(
    ("workers", "served"),
    [
        ([], []),
        ([WORKER, replace(WORKER, incarnation="w2-1")], ["default/sync@rack1", "default/visit@rack1"]),
        ([replace(WORKER, machine=None)], []),
        ([replace(WORKER, tasks=())], []),
        (
            [replace(WORKER, tasks=("visit",)), replace(WORKER, tasks=("visit",), pool="eu", machine="rack2")],
            ["default/visit@rack1", "eu/visit@rack2"],
        ),
    ],
)
def test_a_home_is_served_by_workers_that_say_their_machine(workers: list[Worker], served: list[str]) -> None:
    assert homes_served(workers) == served
