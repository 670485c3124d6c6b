"""Who moves SQLite's log into its file: one process per file at a time, held by a lock on a file beside it.

SQLite before 3.51.3 can corrupt a file when several processes write and checkpoint at once. So automatic
checkpoints are off, and the process that holds the lock does them; when it ends, another one takes over.
"""

import fcntl
import os
import sqlite3
from pathlib import Path

EVERY_COMMITS = 400


class Checkpoints:
    """Counts commits, and every so many of them checkpoints if this process is the one that may."""

    def __init__(self, path: Path) -> None:
        self._lock_path = path.with_name(path.name + "-checkpointer")
        self._file: int | None = None
        self._commits = 0

    def after_commit(self, connection: sqlite3.Connection) -> None:
        self._commits += 1
        if self._commits % EVERY_COMMITS or not self._mine():
            return
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _mine(self) -> bool:
        if self._file is not None:
            return True
        file = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def close(self) -> None:
        """Let another process take over. The lock file stays: removing it would let two hold it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
