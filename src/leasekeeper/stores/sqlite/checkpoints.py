"""WAL checkpoints of SQLite, never during a commit: a lock file beside the database separates them.

SQLite before 3.51.3 can corrupt a file when a checkpoint runs while another connection commits and resets the log.
So automatic checkpoints are off, every commit takes a shared lock, and a checkpoint takes the exclusive lock.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leasekeeper.errors import StoreNotWritable

# A commit that extends the log is slower than one that overwrites what was there before the last checkpoint: so the
# log is kept short.
EVERY_COMMITS = 100

# Timeouts for the lock, in case a process was stopped while it had it: a commit fails as if the database were locked,
# a checkpoint is postponed.
COMMIT_TIMEOUT_SECONDS = 30.0
CHECKPOINT_TIMEOUT_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.0005
_MAX_PAUSE_SECONDS = 0.005


class MustWait(Exception):
    """A checkpoint is in progress."""


class Checkpoints:
    """The lock, and the count of this process's commits: it checkpoints every 100 commits and at the end."""

    def __init__(self, path: Path) -> None:
        self._store = path
        self._path = path.with_name(path.name + "-checkpoint")
        self._file: int | None = None
        self._commits = 0

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around a commit: waits for a checkpoint in progress."""
        with self._lock(fcntl.LOCK_SH, COMMIT_TIMEOUT_SECONDS):
            yield
        self._commits += 1

    @contextmanager
    def committing_at_once(self) -> Iterator[None]:
        """Around a commit that must not wait: raises MustWait instead, and nothing was committed."""
        file = self._open()
        if not _try_lock(file, fcntl.LOCK_SH, 0.0):
            raise MustWait
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def block_commits(self) -> Iterator[None]:
        """Blocks commits and checkpoints of all processes."""
        with self._lock(fcntl.LOCK_EX, COMMIT_TIMEOUT_SECONDS):
            yield

    def in_progress(self) -> bool:
        """Whether a commit would have to wait now. Releases the lock at once, so that checkpoints are not delayed."""
        file = self._open()
        if not _try_lock(file, fcntl.LOCK_SH, 0.0):
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False

    def count(self) -> bool:
        """Count a commit of the inline connection. True if a checkpoint is due now."""
        self._commits += 1
        return self._commits % EVERY_COMMITS == 0

    def if_due(self, connection: sqlite3.Connection) -> None:
        """Checkpoint if 100 commits were made since the last one."""
        if self._commits >= EVERY_COMMITS:
            self._checkpoint(connection)

    def at_end(self, connection: sqlite3.Connection) -> None:
        """Checkpoint before a process that wrote something ends: else many short-lived ones would grow the log."""
        if self._commits:
            self._checkpoint(connection)

    def close(self) -> None:
        """Close the lock file. It is not deleted: two processes could then lock two different files."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        self._commits = 1  # if it fails (disk full): commits are safe in the log until the next one
        with suppress(sqlite3.Error), self._lock(fcntl.LOCK_EX, CHECKPOINT_TIMEOUT_SECONDS):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._commits = 0

    @contextmanager
    def _lock(self, how: int, timeout: float) -> Iterator[None]:
        file = self._open()
        if not _try_lock(file, how, timeout):
            raise sqlite3.OperationalError(f"{self._path} is locked")
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _open(self) -> int:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._give_to_owner(self._file)
            except OSError as error:
                raise StoreNotWritable(
                    f"{self._path} cannot be used: {error.strerror}; check the disk's space and the file's owner: it "
                    "must be that of the store itself. Nothing was changed"
                ) from error
        return self._file

    def _give_to_owner(self, file: int) -> None:
        """A file created by root gets the owner of the database, as SQLite does with its own files."""
        if os.geteuid() == 0:
            owner = self._store.stat()
            if os.fstat(file).st_uid != owner.st_uid:
                os.fchown(file, owner.st_uid, owner.st_gid)


def _try_lock(file: int, how: int, timeout: float) -> bool:
    """Take the lock; False after a timeout of `timeout` seconds."""
    end = time.monotonic() + timeout
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        else:
            return True
        time.sleep(pause)  # waits: flock has no notification
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
