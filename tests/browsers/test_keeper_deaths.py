"""Whoever dies or is stopped, in whatever order: the browser ends, its profile is intact, and there is a report.

The worker is a process of its own here. It acts on the page all the time and renews its lease while it can.
"""

import asyncio
import fcntl
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_reports import read_report
from leasekeeper.core.browsers import BrowserReport
from tests.browsers.keeper_stage import PATIENCE, Stage, Worker, boot_time, eventually, eventually_async, send, stage_in

KILL, STOP, CONT = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
        stage.all_gone()


def kill_worker(worker: Worker) -> None:
    send(worker.process.pid, KILL)


def kill_driver(worker: Worker) -> None:
    send(worker.driver, KILL)


def kill_both(worker: Worker) -> None:
    send(worker.driver, STOP)
    send(worker.process.pid, KILL)
    worker.process.wait()  # a killed process takes a moment to go, and the other one may be quicker
    send(worker.driver, KILL)


def kill_group(worker: Worker) -> None:
    os.killpg(worker.process.pid, KILL)


def stop_driver_kill_worker(worker: Worker) -> None:
    send(worker.driver, STOP)
    send(worker.process.pid, KILL)


def ask_keeper_to_stop(worker: Worker) -> None:
    send(worker.keeper, signal.SIGTERM)


def ask_front_to_stop(worker: Worker) -> None:
    send(worker.front, signal.SIGTERM)


def check_saved(stage: Stage) -> None:
    """The cookie that was set just before is on disk: nothing was torn."""
    eventually(lambda: not stage.browsers(), "the end of the browser")
    with sqlite3.connect(f"file:{stage.profile}/Default/Cookies?mode=ro", uri=True) as cookies:
        assert ("kept",) in cookies.execute("SELECT name FROM cookies").fetchall()


def check_evidence(stage: Stage, report: BrowserReport) -> None:
    assert report.final_url == stage.site.url + "/start"
    assert report.screenshot == "last.png"
    assert (stage.folder() / "last.png").read_bytes().startswith(b"\x89PNG")
    assert report.stopped_by == "Browser.close"
    assert report.proof.holds, report.proof
    assert report.final_url in {command.url for command in report.commands}


# Each process alone dies every day; several at once, and the process in front of the keeper, before a release.
@pytest.mark.release_if(when=lambda chosen: chosen["kill"] in (kill_both, kill_group, ask_front_to_stop))
@pytest.mark.parametrize(
    ("kill", "causes"),
    [
        (kill_worker, {"worker_gone"}),
        (kill_driver, {"driver_gone"}),
        (kill_both, {"worker_gone"}),
        (kill_group, {"worker_gone", "driver_gone"}),
        (stop_driver_kill_worker, {"worker_gone"}),
        (ask_keeper_to_stop, {"terminated"}),
        (ask_front_to_stop, {"terminated"}),
    ],
)
def test_a_death_ends_the_browser_at_once_with_its_cookies_and_evidence(
    stage: Stage, kill: Callable[[Worker], None], causes: set[str]
) -> None:
    worker = stage.start_worker(stage.orders(), settle=3)
    kill(worker)
    report = stage.report()  # waited for, but not until the deadline: that is minutes away
    check_evidence(stage, report)
    assert report.cause in causes
    check_saved(stage)
    if kill is stop_driver_kill_worker:
        send(worker.driver, CONT)


def stop_worker(worker: Worker) -> list[int]:
    return [worker.process.pid]


def stop_driver(worker: Worker) -> list[int]:
    return [worker.driver]


def stop_both(worker: Worker) -> list[int]:
    return [worker.process.pid, worker.driver]


@pytest.mark.release_if(when=lambda chosen: chosen["stopped"] is stop_both)  # each alone is daily
@pytest.mark.parametrize("stopped", [stop_worker, stop_driver, stop_both])
def test_what_was_stopped_past_the_deadline_cannot_act_when_it_wakes_up(
    stage: Stage, stopped: Callable[[Worker], list[int]]
) -> None:
    # A stopped driver does not keep the worker from renewing, so that worker does it once only.
    worker = stage.start_worker(stage.orders(seconds=60), renew=2.5, once=stopped is stop_driver)
    for pid in stopped(worker):
        send(pid, STOP)
    stopped_at = boot_time()
    report = stage.report()
    assert report.cause == "deadline"
    check_evidence(stage, report)
    eventually(lambda: not stage.browsers(), "the end of the browser")
    before = len(stage.site.requests)
    for pid in reversed(stopped(worker)):
        send(pid, CONT)
    assert worker.next_line()["error"] == "TargetClosedError"
    assert len(stage.site.requests) == before
    assert max(float(path.partition("sent=")[2]) for path in stage.site.acts()) < stopped_at + 2.5


async def test_a_keeper_that_was_stopped_past_the_deadline_forwards_nothing_it_had_buffered(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/start")
        await link.started()
        assert link.keeper_pid is not None
        deadline = boot_time() + 10
        link.extend(deadline, deadline + 60)
        await page.evaluate("1")
        send(link.keeper_pid, STOP)
        acts = [asyncio.create_task(page.evaluate("fetch('/act').then(() => 1)")) for _ in range(5)]
        await eventually_async(lambda: boot_time() > deadline + 0.5, "the deadline")
        assert stage.browsers(), "a stopped keeper cannot end anything: the commands wait in its pipe"
        send(link.keeper_pid, CONT)
        report = await link.ended(PATIENCE)
        assert {type(error).__name__ for error in await asyncio.gather(*acts, return_exceptions=True)} == {
            "TargetClosedError"
        }
    assert report is not None
    assert report.cause == "deadline"
    assert stage.site.acts() == []
    check_evidence(stage, report)
    link.close()


def test_a_killed_keeper_leaves_no_orphan_and_loses_no_cookie(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders(), settle=3)
    send(worker.keeper, KILL)
    check_saved(stage)
    assert worker.next_line()["error"] == "TargetClosedError"
    assert worker.next_line()["cause"] is None
    assert read_report(stage.folder()) is None


def test_a_live_browser_keeps_its_directory_locked_though_its_keeper_was_killed(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders())
    send(worker.browser, STOP)
    send(worker.keeper, KILL)
    eventually(lambda: not Path(f"/proc/{worker.keeper}").exists(), "the keeper's end")
    with (stage.profile / ".leasekeeper" / "lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        send(worker.browser, CONT)
        eventually(lambda: not stage.browsers(), "the end of the browser")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_killed_browser_is_reported_and_never_proven_clean(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders())
    socket = (stage.profile / "SingletonSocket").readlink()
    assert socket.exists()
    send(worker.browser, KILL)
    report = stage.report()
    assert (report.cause, report.stopped_by, report.signal) == ("browser_gone", "itself", KILL)
    assert not report.proof.holds
    assert report.proof.failing_clause == "the browser was ended by signal 9 without having been asked to close"
    assert report.final_url == stage.site.url + "/start"
    assert worker.next_line()["error"] == "TargetClosedError"
    assert not socket.parent.exists(), "the dead browser's temporary folder is removed"


def test_a_browser_stopped_by_somebody_else_is_not_proven_clean(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders())
    send(worker.browser, signal.SIGTERM)
    report = stage.report()
    assert (report.cause, report.stopped_by) == ("browser_gone", "itself")
    assert not report.proof.holds


def test_a_browser_that_does_not_close_is_killed_with_all_its_children(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders(close_seconds=1.0, interrupt_seconds=1.0))
    assert len(stage.browsers()) > 3
    for pid in stage.browsers():
        send(pid, STOP)
    kill_worker(worker)
    report = stage.report()
    assert (report.cause, report.stopped_by, report.signal) == ("worker_gone", "SIGKILL", KILL)
    assert report.final_url == stage.site.url + "/start", "what was last seen of the page"
    assert report.proof.processes_gone
    assert not report.proof.holds
    assert stage.browsers() == []


async def test_a_hung_browser_is_dead_by_the_time_of_the_orders(stage: Stage) -> None:
    """Had it the time that a close may take, this test would not wait for it."""
    link = KeeperLink(stage.orders(close_seconds=1000.0, interrupt_seconds=1000.0))
    async with stage.browser(link) as context:
        await context.pages[0].goto(stage.site.url)
        send(await link.started(), STOP)
        deadline = boot_time() + 1
        link.extend(deadline, deadline + 3)
        report = await link.ended(PATIENCE)
        assert stage.browsers() == []
    assert report is not None
    assert (report.cause, report.stopped_by) == ("deadline", "SIGKILL")
    link.close()


async def test_a_browser_that_hangs_in_its_close_is_interrupted_or_killed(stage: Stage) -> None:
    link = KeeperLink(stage.orders(close_seconds=1.0, interrupt_seconds=1.0))
    async with stage.browser(link) as context:
        await context.pages[0].goto(stage.site.url)
        send(await link.started(), STOP)
        await context.close()
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.cause, report.stopped_by) == ("closed", "SIGKILL")
    assert report.proof.failing_clause == "the browser did not close and was killed (SIGKILL)"
    link.close()
