"""The fence file and the lock of a profile directory.

The fence file has the highest fencing token that the directory was ever opened under, and its lease and run. It stays
for ever, so a lower token is always refused. The lock is a flock whose descriptor the browser inherits: the directory
stays locked while the browser lives, even if its keeper was killed.
"""

# pathlib would add 5 ms to every launch.
# ruff: noqa: PTH103, PTH105, PTH108, PTH120, PTH123

import fcntl
import os

from leasekeeper.browsers.keeper.fast_imports import from_json, to_json
from leasekeeper.browsers.keeper.orders import STALE_TOKEN, Refused
from leasekeeper.browsers.keeper.reasons import BROWSER_LAUNCH_FAILED, PROFILE_IN_USE_ELSEWHERE

OWN_FOLDER = ".leasekeeper"


class FenceUnreadable(Exception):
    """The fence file exists but cannot be read: nobody knows who used the directory last."""


class Fence:
    """The token that a directory was last opened under, and the lease and run that had the token."""

    def __init__(self, token: int, lease_id: object, run_id: object) -> None:
        self.token = token
        self.lease_id = lease_id
        self.run_id = run_id

    def refuses(self, token: int, run_id: str) -> bool:
        """Whether a lease with this token must not open the directory: its token is lower, or the same of another run
        (then another store granted it)."""
        return token < self.token or (token == self.token and run_id != self.run_id)


def fence_path(user_data_dir: str) -> str:
    return f"{user_data_dir}/{OWN_FOLDER}/fence"


def lock_path(user_data_dir: str) -> str:
    return f"{user_data_dir}/{OWN_FOLDER}/lock"


def read_fence(user_data_dir: str) -> Fence | None:
    """The content of the fence file; None if there is no file. Raises FenceUnreadable."""
    try:
        with open(fence_path(user_data_dir), "rb") as file:
            found = from_json(file.read())
        return Fence(int(str(found["token"])), found.get("lease_id"), found.get("run_id"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FenceUnreadable(str(error)) from None


def record_token(user_data_dir: str, token: int, lease_id: str, run_id: str) -> int | None:
    """Write the token to the fence file, durably. Returns the token before; None if there was none. Needs the lock.

    Raises Refused for a lower token, and for the same token of another run.
    """
    path = fence_path(user_data_dir)
    try:
        fence = read_fence(user_data_dir)
    except FenceUnreadable as error:
        message = f"{path} cannot be read ({error}), so nobody knows who was here last; check it, then remove the file"
        raise Refused(STALE_TOKEN, message) from None
    if fence is not None:
        if fence.refuses(token, run_id):
            message = f"lease {lease_id} has token {token}, but {user_data_dir} was already opened under {fence.token}"
            raise Refused(STALE_TOKEN, message)
        if fence.token == token:
            return token
    try:
        write_fence(user_data_dir, token, lease_id, run_id)
    except OSError as error:
        raise Refused(BROWSER_LAUNCH_FAILED, f"cannot write {path}: {error}") from None
    return None if fence is None else fence.token


def write_fence(user_data_dir: str, token: int, lease_id: str, run_id: str) -> None:
    """Write the fence file without any check of its content before. Raises OSError."""
    content = to_json({"version": 1, "token": token, "lease_id": lease_id, "run_id": run_id})
    write_durably(fence_path(user_data_dir), content)


def lock_directory(user_data_dir: str, *, shared: bool = False) -> int:
    """Lock the directory without waiting; returns the lock's descriptor. Raises Refused if it is locked already."""
    try:
        os.makedirs(f"{user_data_dir}/{OWN_FOLDER}", mode=0o700, exist_ok=True)
        lock = os.open(lock_path(user_data_dir), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(BROWSER_LAUNCH_FAILED, f"cannot use {user_data_dir}: {error}") from None
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        message = f"{user_data_dir} is locked: a browser of another lease still lives in it"
        raise Refused(PROFILE_IN_USE_ELSEWHERE, message) from None
    return lock


def unlock_directory(lock: int) -> None:
    """Release the directory's lock, also for a forked child process that inherited it and has not called exec yet.

    Not for a lock that a browser was started with: the browser keeps that one as long as it lives.
    """
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def write_durably(path: str, content: bytes) -> None:
    """Write a file atomically and durably: after a power cut there is the old file or the new one, never a part."""
    part = f"{path}.part"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)  # on a full disk, free the space of the unfinished file
        raise
    finally:
        os.close(handle)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
