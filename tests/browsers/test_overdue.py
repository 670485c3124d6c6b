"""Who is ended when a browser is overdue: the processes that have the directory's lock, if its fence names the lease.

Small programs stand in for the browser; a real one is in tests/e2e/test_overdue_browsers.py.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.fence_file import lock_directory, lock_path, record_token
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.status_file import Status, read_status, remove_status, write_status
from leasekeeper.browsers.keeper_reports import read_report
from leasekeeper.browsers.overdue import EndedBrowser, end_overdue
from leasekeeper.core.leases import Lease
from leasekeeper.runtime.lost_runs import Ledger
from tests.unit.records import a_lease

LEASE = a_lease()
PROGRAM = """
import os, signal, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, b"ready")
signal.pause()
"""


class Place:
    """A profile directory that was opened under `LEASE`, with an entry in the ledger, and programs around it."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "profile"
        self.directory.mkdir()
        self.ledger = Ledger(folder)
        self.ledger.note(LEASE.run_id, LEASE.lease_id)
        self.folder = self.ledger.runs_dir / LEASE.run_id
        self.folder.mkdir(parents=True)
        self.programs: list[subprocess.Popen[bytes]] = []
        lock = lock_directory(str(self.directory))
        record_token(str(self.directory), LEASE.token, LEASE.lease_id, LEASE.run_id)
        os.close(lock)

    def start(self, *arguments: str, with_lock: bool) -> "subprocess.Popen[bytes]":
        """A program in a session of its own that has the lock, as a browser has, or that only looks like one."""
        lock = os.open(lock_path(str(self.directory)), os.O_RDWR)
        try:
            program = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, f"--user-data-dir={self.directory}", *arguments],
                stdout=subprocess.PIPE,
                pass_fds=[lock] if with_lock else [],
                start_new_session=True,
            )
        finally:
            os.close(lock)
        self.programs.append(program)
        assert program.stdout is not None
        assert program.stdout.read(5) == b"ready"
        return program

    def end(self, lease: Lease = LEASE, keeper_pid: int = 0) -> EndedBrowser | None:
        status = Status(str(self.directory), lease.lease_id, lease.run_id, keeper_pid, 0.0)
        return end_overdue(lease, status, self.folder, self.ledger.path_of(LEASE.run_id), expires_in=1.0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for program in made.programs:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


def test_the_holder_of_the_lock_is_ended_and_reported(place: Place) -> None:
    browser = place.start(with_lock=True)
    ended = place.end()
    assert ended == EndedBrowser(stopped_by="SIGINT", processes=1, keeper="gone", all_gone=True)
    assert browser.wait() == -signal.SIGINT
    report = read_report(place.folder)
    assert report is not None
    assert (report.lease_id, report.cause, report.proof.processes_gone) == (LEASE.lease_id, "overdue", True)
    assert not report.proof.holds


def test_what_does_not_end_when_interrupted_is_killed(place: Place) -> None:
    browser = place.start("stubborn", with_lock=True)
    ended = place.end()
    assert ended is not None
    assert ended.stopped_by == "SIGKILL"
    assert browser.wait() == -signal.SIGKILL


def test_a_program_with_the_same_command_line_is_left_alone(place: Place) -> None:
    """A name and a path prove nothing: a person may have started it."""
    stranger = place.start(with_lock=False)
    assert place.end() is None
    assert stranger.poll() is None


@pytest.mark.parametrize(
    "other", [a_lease(token=LEASE.token + 1), a_lease(run_id="01a1e1a7-d9fa-7081-988b-181cbd6564a8")]
)
def test_a_directory_that_was_opened_under_another_lease_is_left_alone(place: Place, other: Lease) -> None:
    browser = place.start(with_lock=True)
    assert place.end(other) is None
    assert browser.poll() is None


def test_the_number_of_a_keeper_that_another_program_has_by_now_is_not_signalled(place: Place) -> None:
    stranger = place.start(with_lock=False)
    browser = place.start(with_lock=True)
    ended = place.end(keeper_pid=stranger.pid)
    assert ended is not None
    assert browser.wait() == -signal.SIGINT
    assert (ended.keeper, stranger.poll()) == ("gone", None)


def test_a_keeper_without_a_browser_is_woken_and_not_killed(place: Place) -> None:
    keeper = place.start("stubborn", with_lock=True)
    keeper.send_signal(signal.SIGSTOP)
    assert place.end(keeper_pid=keeper.pid) is None
    assert keeper.poll() is None
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait() == -signal.SIGTERM  # a stopped process would not hear of it


def test_only_one_program_of_the_machine_does_it(place: Place) -> None:
    browser = place.start(with_lock=True)
    with place.ledger.path_of(LEASE.run_id).open() as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        assert place.end() is None
    assert browser.poll() is None
    assert place.end() is not None


def test_a_run_that_was_settled_meanwhile_is_left_alone(place: Place) -> None:
    browser = place.start(with_lock=True)
    place.ledger.strike(LEASE.run_id)
    assert place.end() is None
    assert browser.poll() is None


def test_the_status_file_says_whose_browser_it_is_until_when(tmp_path: Path) -> None:
    orders = Orders(
        browser="b", user_data_dir="/d", profile_id="p", lease_id="p:1", token=1, run_id="r", folder=str(tmp_path),
        deadline=1.0, kill_at=2.5,
    )  # fmt: skip
    write_status(orders)
    status = read_status(str(tmp_path))
    assert status is not None
    assert vars(status) == {
        "user_data_dir": "/d", "lease_id": "p:1", "run_id": "r", "keeper_pid": os.getpid(), "kill_at": 2.5,
    }  # fmt: skip
    remove_status(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert read_status(str(tmp_path)) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "kill_at": "soon"}'])
def test_a_status_file_that_is_not_understood_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "status.json").write_bytes(content)
    assert read_status(str(tmp_path)) is None
