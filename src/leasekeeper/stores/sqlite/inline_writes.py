"""Brief writes in the caller's thread, and the check for changes of other processes.

A call of the writer thread costs as much as a small transaction. So a brief write runs in the caller's thread, on its
own connection, which never waits. While another connection writes or checkpoints, and for a second after the disk was
slow, brief writes go to the writer thread like all others.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from leasekeeper.errors import StoreUnavailable
from leasekeeper.stores.sqlite.checkpoints import Checkpoints, MustWait

T = TypeVar("T")
Committing = AbstractContextManager[None]

# Above this average duration, brief writes go to the writer thread for a while. One slow write does not count as slow.
SLOW_SECONDS = 0.005
NEWEST_WEIGHT = 1 / 8
PAUSE_SECONDS = 1.0


class InlineWrites:
    """The connection for brief writes."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._paused_until = 0.0
        self._average = 0.0
        self._version = -1
        self._closed = False
        self.suspended = False
        """Set while this process wants to checkpoint: its own brief writes must not delay that for ever."""
        # A file lock belongs to the open file: two threads that may both lock it must open it twice.
        self._checkpoints = Checkpoints(path)

    def run(self, change: Callable[[sqlite3.Connection, Committing], T]) -> "asyncio.Future[T] | None":
        """Run the change. The future is done or failed; None if it would have to wait, and nothing was done.

        `change` gets a connection whose transaction has begun, and has to end it.
        """
        began = time.monotonic()
        if self._closed or self.suspended or began < self._paused_until or not self._lock.acquire(blocking=False):
            return None
        try:
            connection = None if self._checkpoints.in_progress() else self._begin()
            if connection is None:
                return None
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            try:
                future.set_result(change(connection, self._checkpoints.committing_at_once()))
            except MustWait:
                return None  # it was rolled back: the writer thread repeats it
            except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
                future.set_exception(error)
            self._note(began, time.monotonic())
            return future
        finally:
            self._lock.release()

    def _note(self, began: float, ended: float) -> None:
        """Update the average duration, and pause brief writes if it is above the limit."""
        self._average += (ended - began - self._average) * NEWEST_WEIGHT
        if self._average > SLOW_SECONDS:
            self._average, self._paused_until = 0.0, ended + PAUSE_SECONDS

    def _begin(self) -> sqlite3.Connection | None:
        """The connection with an open transaction; None if it would have to wait."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return None  # it is locked; any other error, the writer thread will meet and report
        return self._connection

    def others_wrote(self) -> bool:
        """Whether another connection has changed the file since the last call. Never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self._connection is None:
                self._connection = self._connect()
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        finally:
            self._lock.release()
        before, self._version = self._version, version
        return bool(version != before)

    def close(self) -> None:
        """Close the connection and the lock file."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._checkpoints.close()
