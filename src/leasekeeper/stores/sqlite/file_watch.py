"""Detects writes to a file by any process, through inotify. For latency only: where it is not available, or misses a
write, waiters still poll.
"""

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_MAX_READ: Final = 64 * 1024


class FileWatch:
    """Calls `written` when the file is written to, while somebody waits. Any number of event loops may wait."""

    def __init__(self, path: Path, written: Callable[[], None]) -> None:
        self._path = path
        self._written = written
        self._lock = threading.Lock()
        self._inotify: int | None = None
        self._waiting: dict[asyncio.AbstractEventLoop, int] = {}
        self._works = sys.platform == "linux"

    def begin(self) -> bool:
        """Watch for the running loop, until `end`. False if inotify is not available: then poll more often."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._inotify is None and self._works:
                self._inotify = _watch(self._path)
            if self._inotify is None:
                return False
            self._waiting[loop] = self._waiting.get(loop, 0) + 1
            if self._waiting[loop] == 1:
                try:
                    loop.add_reader(self._inotify, self._read, self._inotify)
                except RuntimeError:  # an event loop that cannot watch files
                    del self._waiting[loop]
                    self._works = False
                    return False
            return True

    def end(self) -> None:
        """The running loop does not wait any more."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._waiting[loop] -= 1
            if not self._waiting[loop]:
                del self._waiting[loop]
                if self._inotify is not None:
                    loop.remove_reader(self._inotify)

    def close(self) -> None:
        """Stop watching. Nobody may be waiting in another loop."""
        with self._lock:
            inotify, self._inotify, self._works = self._inotify, None, False
        if inotify is not None:
            for loop in list(self._waiting):
                with suppress(RuntimeError):
                    loop.remove_reader(inotify)
            os.close(inotify)

    def _read(self, inotify: int) -> None:
        with suppress(BlockingIOError):
            os.read(inotify, _MAX_READ)
        self._written()


def _watch(path: Path) -> int | None:
    """A descriptor that becomes readable when the file was written to; None if the system has no more of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    inotify: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if inotify < 0:
        return None
    if libc.inotify_add_watch(inotify, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(inotify)
        return None
    return inotify
