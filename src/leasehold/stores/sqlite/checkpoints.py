"""When SQLite's log moves into its file: never while anybody commits, by a lock on a file beside it.

SQLite before 3.51.3 can corrupt a file when a checkpoint runs while another connection commits and resets the log.
So automatic checkpoints are off, every commit holds the lock shared, and a checkpoint holds it alone.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A commit that makes the log longer takes the disk longer than one that writes over what was there before the last
# checkpoint: so the log is kept short.
EVERY_COMMITS = 100


class Checkpoints:
    """The lock, and a count of this process's commits: every so many, and at the end, it checkpoints."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-checkpoint")
        self._file: int | None = None
        self._commits = 0

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around a commit: waits for a checkpoint that is under way."""
        file = self._open()
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
        self._commits += 1

    def under_way(self) -> bool:
        """Whether a commit would have to wait now. Held for the commit alone: else no checkpoint would get its turn."""
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
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
        file = self._open()
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            # It failed (a full disk, say): what was committed is safe in the log, and the next one tries again.
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
        self._commits = 0

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file
