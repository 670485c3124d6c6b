"""When SQLite's log moves into its file: never while anybody commits, by a lock on a file beside it.

SQLite before 3.51.3 can corrupt a file when a checkpoint runs while another connection commits and resets the log.
So automatic checkpoints are off, every commit holds the lock shared, and a checkpoint holds it alone.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leasekeeper.errors import StoreNotWritable

# A commit that makes the log longer takes the disk longer than one that writes over what was there before the last
# checkpoint: so the log is kept short.
EVERY_COMMITS = 100

# Whoever was stopped while it held the lock must not stop all others: a commit fails after a while like one that finds
# the file locked, and a checkpoint is left for later.
COMMIT_WAITS_SECONDS = 30.0
CHECKPOINT_WAITS_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.005


class MustWait(Exception):
    """A checkpoint is under way."""


class Checkpoints:
    """The lock, and a count of this process's commits: every so many, and at the end, it checkpoints."""

    def __init__(self, path: Path) -> None:
        self._store = path
        self._path = path.with_name(path.name + "-checkpoint")
        self._file: int | None = None
        self._commits = 0

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around a commit: waits for a checkpoint that is under way."""
        with self._held(fcntl.LOCK_SH, COMMIT_WAITS_SECONDS):
            yield
        self._commits += 1

    @contextmanager
    def committing_at_once(self) -> Iterator[None]:
        """Around a commit that does not wait: raises MustWait, and then it was not made."""
        file = self._open()
        if not _locked(file, fcntl.LOCK_SH, 0.0):
            raise MustWait
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    @contextmanager
    def nobody_commits(self) -> Iterator[None]:
        """Around what no commit and no checkpoint may meet."""
        with self._held(fcntl.LOCK_EX, COMMIT_WAITS_SECONDS):
            yield

    def under_way(self) -> bool:
        """Whether a commit would have to wait now. Held for the commit alone: else no checkpoint would get its turn."""
        file = self._open()
        if not _locked(file, fcntl.LOCK_SH, 0.0):
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False

    def count(self) -> bool:
        """One more commit was made under another's lock. Whether it is time for a checkpoint now."""
        self._commits += 1
        return self._commits % EVERY_COMMITS == 0

    def if_due(self, connection: sqlite3.Connection) -> None:
        """Checkpoint after every so many commits."""
        if self._commits >= EVERY_COMMITS:
            self._checkpoint(connection)

    def at_end(self, connection: sqlite3.Connection) -> None:
        """Before a process that wrote something goes: many short-lived ones must not let the log grow for ever."""
        if self._commits:
            self._checkpoint(connection)

    def close(self) -> None:
        """The lock file itself stays: removing it would let two hold it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        self._commits = 1  # if it fails (a full disk, say): what was committed is safe in the log until the next one
        with suppress(sqlite3.Error), self._held(fcntl.LOCK_EX, CHECKPOINT_WAITS_SECONDS):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._commits = 0

    @contextmanager
    def _held(self, how: int, patience: float) -> Iterator[None]:
        file = self._open()
        if not _locked(file, how, patience):
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
        """What root makes belongs to whoever owns the store, as SQLite does with its own files."""
        if os.geteuid() == 0:
            owner = self._store.stat()
            if os.fstat(file).st_uid != owner.st_uid:
                os.fchown(file, owner.st_uid, owner.st_gid)


def _locked(file: int, how: int, patience: float) -> bool:
    """Take the lock; False if nobody let go of it in that many seconds."""
    end = time.monotonic() + patience
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        else:
            return True
        time.sleep(pause)  # waits: for a lock that tells nobody when it is free
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
