"""Callers that wait for an SQLite file to change. Stores of one process on the same file, in any thread, notify each
other at once; changes of other processes are found by polling."""

import asyncio
import os
import threading
import time
from pathlib import Path
from weakref import WeakSet

# A write so soon after the last one wakes no caller: they are awake and check often.
QUIET_SECONDS = 0.1

_LOCK = threading.Lock()
_OPEN: dict[Path, WeakSet["Waiters"]] = {}


class Waiters:
    """The callers that wait in one store."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._waiting: set[asyncio.Future[None]] = set()
        self.changes = 0
        self.changed_at = float("-inf")
        self.written_at = float("-inf")
        with _LOCK:
            self._neighbours = _OPEN.setdefault(self._path, WeakSet())
            self._neighbours.add(self)

    def close(self) -> None:
        """Get no more notifications."""
        with _LOCK:
            self._neighbours.discard(self)
            if not self._neighbours:
                _OPEN.pop(self._path, None)

    def notify(self) -> None:
        """The file was changed: wake all callers of this process that wait for it."""
        with _LOCK:
            stores = list(self._neighbours)
        for store in stores:
            store.wake()

    def wake(self) -> None:
        """Wake the callers that wait in this store. Thread-safe."""
        self.changes += 1
        self.changed_at = time.monotonic()
        self._wake_waiting()

    def written(self) -> None:
        """The file is being written to: waiters check it more often for a while."""
        before, self.written_at = self.written_at, time.monotonic()
        if self.written_at - before > QUIET_SECONDS:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        for waiting in list(self._waiting):
            loop = waiting.get_loop()
            try:
                loop.call_soon_threadsafe(_complete, waiting)
            except RuntimeError:
                self._waiting.discard(waiting)  # its loop is closed

    async def wait(self, seconds: float) -> None:
        """Wait for a notification, at most `seconds`."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            self._waiting.discard(waiting)


def _forget() -> None:
    """After a fork the child has none of its parent's event loops, and nobody would release a locked lock."""
    global _LOCK  # noqa: PLW0603 - nobody would release a lock that was held at the fork
    _LOCK = threading.Lock()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget)


def _complete(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
