"""Those who wait for a file to change. Stores of one process on one file, in whatever thread, tell each other at once;
what other processes change is found by looking."""

import asyncio
import os
import threading
import time
from pathlib import Path
from weakref import WeakSet

_LOCK = threading.Lock()
_OPEN: dict[Path, WeakSet["Sleepers"]] = {}


class Sleepers:
    """Those who wait in one store."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._asleep: set[asyncio.Future[None]] = set()
        self.changes = 0
        self.changed_at = float("-inf")
        with _LOCK:
            self._neighbours = _OPEN.setdefault(self._path, WeakSet())
            self._neighbours.add(self)

    def close(self) -> None:
        """Hear no more."""
        with _LOCK:
            self._neighbours.discard(self)
            if not self._neighbours:
                _OPEN.pop(self._path, None)

    def tell(self) -> None:
        """The file was changed: wake all that wait for that in this process."""
        with _LOCK:
            stores = list(self._neighbours)
        for store in stores:
            store.wake()

    def wake(self) -> None:
        """Wake those who wait in this store. Any thread may call this."""
        self.changes += 1
        self.changed_at = time.monotonic()
        for asleep in list(self._asleep):
            loop = asleep.get_loop()
            try:
                loop.call_soon_threadsafe(_rouse, asleep)
            except RuntimeError:
                self._asleep.discard(asleep)  # its loop is over

    async def sleep(self, seconds: float) -> None:
        """Until somebody wakes us, at most so long."""
        asleep: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asleep.add(asleep)
        try:
            await asyncio.wait({asleep}, timeout=seconds)
        finally:
            self._asleep.discard(asleep)


def _forget() -> None:
    """A child has none of its parent's loops, and nobody who would release its parent's lock."""
    global _LOCK  # noqa: PLW0603 - replaced where it may be held for ever
    _LOCK = threading.Lock()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forget)


def _rouse(asleep: "asyncio.Future[None]") -> None:
    if not asleep.done():
        asleep.set_result(None)
