"""Ends a browser that outlived its lease because its keeper is stopped, hangs or is gone. Knows no store.

A process belongs to the browser if it has the profile directory's lock file open and the fence file beside it names the
run: only a keeper and the browser that it started have that very file open. A pidfd is opened for each process before
it is identified, so a signal never reaches another program that got the same process id meanwhile.
"""

import fcntl
import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.fence_file import FenceUnreadable, lock_path, read_fence
from leasekeeper.browsers.keeper.processes import family_of, members_of, own_processes
from leasekeeper.browsers.keeper.proof import prove
from leasekeeper.browsers.keeper.report import write_report
from leasekeeper.browsers.keeper.status_file import Status, remove_status
from leasekeeper.browsers.keeper_reports import ReportUnreadable, read_report
from leasekeeper.core.browsers import EndCause
from leasekeeper.core.leases import Lease

# Chromium saves its session on SIGINT and ends in a fraction of a second. Its pages run until then.
INTERRUPT_SECONDS: Final = 2.0
MIN_INTERRUPT_SECONDS: Final = 0.25
KILL_SECONDS: Final = 5.0
# How long a resumed keeper gets to write its report: only the keeper knows the last URL and commands.
KEEPER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBrowser:
    """A browser that was ended. `keeper`: `reported`, `killed` (it did not respond) or `gone` (there was none)."""

    stopped_by: str
    processes: int
    keeper: str
    all_gone: bool


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    handle: int

    def ended(self, seconds: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.handle, number)


def end_overdue(lease: Lease, status: Status, folder: Path, claim: Path, *, expires_in: float) -> EndedBrowser | None:
    """End the browser of this lease, whatever its keeper does, and make sure that `folder` has a report.

    `expires_in` is the time until the lease expires, in seconds: the browser is ended before that if possible.

    Returns None if no process of the browser runs on this machine, or if another program is ending it: only one program
    at a time can lock `claim`, the run's entry in the ledger. Blocks for up to 25 s.
    """
    with ExitStack() as stack:
        if not stack.enter_context(_claimed(claim)):
            return None
        holders = [stack.enter_context(_closing(each)) for each in _holders(status.user_data_dir)]
        if not holders or not _is_fenced_for(status.user_data_dir, lease):
            return None
        keepers = [each for each in holders if each.pid == status.keeper_pid]
        browsers = [each for each in holders if each.pid != status.keeper_pid]
        sessions = [each.pid for each in browsers]
        family = [stack.enter_context(_closing(each)) for each in _family(sessions)]
        stopped_by = _stop(browsers, family, expires_in / 2) if browsers else ""
        for each in keepers:
            each.send(signal.SIGCONT)
        if not browsers:
            return None  # the browser has ended: its keeper can report now
        keeper = _end_keeper(keepers, lease, folder)
        all_gone = not any(family_of(pid, status.user_data_dir) for pid in sessions)
        if keeper != "reported":
            _report(lease, status, folder, stopped_by, all_gone=all_gone)
        if all_gone:
            remove_status(str(folder))
        processes = len({each.pid for each in (*browsers, *family)})
        return EndedBrowser(stopped_by=stopped_by, processes=processes, keeper=keeper, all_gone=all_gone)


@contextmanager
def _claimed(claim: Path) -> Iterator[bool]:
    """Lock the claim file. Yields False if another program of this machine has locked it, or if there is none."""
    try:
        handle = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)


@contextmanager
def _closing(process: _Process) -> Iterator[_Process]:
    try:
        yield process
    finally:
        os.close(process.handle)


def _pinned(pid: int) -> _Process | None:
    try:
        return _Process(pid, os.pidfd_open(pid))
    except OSError:
        return None


def _holders(user_data_dir: str) -> list[_Process]:
    """Every process of this user that has the directory's lock file open."""
    try:
        wanted = Path(lock_path(user_data_dir)).stat()
    except OSError:
        return []
    found = []
    for pid in own_processes():
        process = _pinned(pid)
        if process is None:
            continue
        if _has_open(pid, wanted) and not process.ended():
            found.append(process)
        else:
            os.close(process.handle)
    return found


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):
        for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False


def _is_fenced_for(user_data_dir: str, lease: Lease) -> bool:
    """Whether the directory was last opened under this very lease. Nobody else can open it while the lock is taken."""
    try:
        fence = read_fence(user_data_dir)
    except FenceUnreadable:
        return False
    return fence is not None and (fence.token, fence.lease_id, fence.run_id) == (
        lease.token,
        lease.lease_id,
        lease.run_id,
    )


def _family(sessions: list[int]) -> list[_Process]:
    """The members of these process sessions: a keeper starts each browser in a session of its own."""
    found = []
    for session in sessions:
        for pid in members_of(session):
            process = _pinned(pid)
            if process is not None and pid in members_of(session):
                found.append(process)
            elif process is not None:
                os.close(process.handle)
    return found


def _stop(browsers: list[_Process], family: list[_Process], seconds: float) -> str:
    """Send SIGINT, then SIGKILL. Returns the name of the signal that ended the browser."""
    for each in browsers:
        each.send(signal.SIGINT)
    until = boot_time() + max(MIN_INTERRUPT_SECONDS, min(seconds, INTERRUPT_SECONDS))
    if all(each.ended(max(0.0, until - boot_time())) for each in (*browsers, *family)):
        return "SIGINT"
    by = "SIGINT" if all(each.ended() for each in browsers) else "SIGKILL"
    for each in (*browsers, *family):
        each.send(signal.SIGKILL)
    until = boot_time() + KILL_SECONDS
    for each in (*browsers, *family):
        each.ended(max(0.0, until - boot_time()))
    return by


def _end_keeper(keepers: list[_Process], lease: Lease, folder: Path) -> str:
    """Wait for the keepers to report and end; kill those that do not: they would keep the directory locked.

    Returns what `EndedBrowser.keeper` says.
    """
    for each in keepers:
        if not each.ended(KEEPER_SECONDS):
            each.send(signal.SIGKILL)
            each.ended(KILL_SECONDS)
    if _reported(lease, folder):
        return "reported"
    return "killed" if keepers else "gone"


def _reported(lease: Lease, folder: Path) -> bool:
    try:
        report = read_report(folder)
    except (ReportUnreadable, OSError):
        return False
    return report is not None and report.lease_id == lease.lease_id


def _report(lease: Lease, status: Status, folder: Path, stopped_by: str, *, all_gone: bool) -> None:
    proof = prove(status.user_data_dir, "Default", stopped_by, None, None, all_gone)
    write_report(
        str(folder),
        profile_id=lease.profile_id,
        run_id=lease.run_id,
        lease_id=lease.lease_id,
        token=lease.token,
        cause=EndCause.OVERDUE,
        stopped_by=stopped_by,
        proof={**proof, "failing_clause": f"its keeper did not end it in time, another program did ({stopped_by})"},
        untouched=False,
    )
