"""Brief changes made at once, in the thread of whoever asks for them, and looks for the changes of others.

The hop to the writer's thread and back costs as much as a small transaction. So a brief change is made on the spot, on
a connection of its own that never waits: while somebody else writes or checkpoints, and for a while after the disk was
found slow, changes take the way to the writer like all others.
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

# How long a change usually takes, beyond which they rest: a disk that is slow now and then is not yet a slow disk.
SLOW_SECONDS = 0.005
NEWEST_COUNTS = 1 / 8
REST_SECONDS = 1.0


class AtOnce:
    """The connection for brief changes."""

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._rest_until = 0.0
        self._usual = 0.0
        self._version = -1
        self._closed = False
        self.aside = False
        """Set while this process wants to checkpoint: its own brief changes must not keep it from that for ever."""
        # Its lock belongs to whoever opened its file: what two threads may hold, they open twice.
        self._checkpoints = Checkpoints(path)

    def run(self, change: Callable[[sqlite3.Connection, Committing], T]) -> "asyncio.Future[T] | None":
        """The change, done or failed; None if it would have to wait, and nothing was done.

        `change` gets a connection whose transaction has begun, and has to end it.
        """
        began = time.monotonic()
        if self._closed or self.aside or began < self._rest_until or not self._lock.acquire(blocking=False):
            return None
        try:
            connection = None if self._checkpoints.under_way() else self._begin()
            if connection is None:
                return None
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            try:
                future.set_result(change(connection, self._checkpoints.committing_at_once()))
            except MustWait:
                return None  # it was taken back: the writer makes it once more
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
                future.set_exception(error)
            self._note(began, time.monotonic())
            return future
        finally:
            self._lock.release()

    def _note(self, began: float, ended: float) -> None:
        """Remember how long a change took, and rest if they take long."""
        self._usual += (ended - began - self._usual) * NEWEST_COUNTS
        if self._usual > SLOW_SECONDS:
            self._usual, self._rest_until = 0.0, ended + REST_SECONDS

    def _begin(self) -> sqlite3.Connection | None:
        """The connection with a transaction that has begun, if that needed no waiting."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return None  # it is locked; or what is wrong, the writer will find too, and say
        return self._connection

    def others_wrote(self) -> bool:
        """Whether another connection has changed the file since this was last asked. A look that needs no waiting."""
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
        """Let go of the file."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._checkpoints.close()
