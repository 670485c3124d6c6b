"""What a worker's report changes, and which reports are news."""

from typing import Any

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import Earlier, WorkerReport, news_in, reported
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
