"""The status file of a running browser, in its run's folder: its lease, its keeper, and when it must be dead.

If the keeper is stopped or hangs, other programs of this machine see from the file that its browser is overdue. The
file is only a hint: before it acts on it, a program asks the store and identifies processes by the directory's lock.
"""

# pathlib is not loaded in the keeper.
# ruff: noqa: PTH105, PTH108, PTH123

import os

from leasekeeper.browsers.keeper.fast_imports import from_json, to_json
from leasekeeper.browsers.keeper.orders import Orders, as_number

NAME = "status.json"
VERSION = 1
MAX_BYTES = 16 * 1024


class Status:
    """The content of a status file. `kill_at` is in seconds of CLOCK_BOOTTIME."""

    def __init__(self, user_data_dir: str, lease_id: str, run_id: str, keeper_pid: int, kill_at: float) -> None:
        self.user_data_dir = user_data_dir
        self.lease_id = lease_id
        self.run_id = run_id
        self.keeper_pid = keeper_pid
        self.kill_at = kill_at


def write_status(orders: Orders) -> None:
    """Write the file, atomically. Not synced: after a power cut there is no browser anyway. Disk errors are ignored."""
    path = f"{orders.folder}/{NAME}"
    content = to_json(
        {
            "version": VERSION,
            "user_data_dir": orders.user_data_dir,
            "lease_id": orders.lease_id,
            "run_id": orders.run_id,
            "keeper_pid": os.getpid(),
            "kill_at": orders.kill_at,
        }
    )
    try:
        handle = os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, content)
        finally:
            os.close(handle)
        os.replace(f"{path}.part", path)
    except OSError:
        return


def remove_status(folder: str) -> None:
    """Delete the file: the browser has ended, or continues under another run. Errors are ignored."""
    try:
        os.unlink(f"{folder}/{NAME}")
    except OSError:
        return


def read_status(folder: str) -> Status | None:
    """The status in this folder; None if there is no file, or none that this program understands."""
    try:
        with open(f"{folder}/{NAME}", "rb") as file:
            found = from_json(file.read(MAX_BYTES))
        kill_at = as_number(found["kill_at"])
        if found["version"] != VERSION or kill_at is None:
            return None
        return Status(
            str(found["user_data_dir"]),
            str(found["lease_id"]),
            str(found["run_id"]),
            int(str(found["keeper_pid"])),
            kill_at,
        )
    except (OSError, ValueError, KeyError):
        return None
