"""Wakes the waiting callers of a process when another process has changed the store, with two threads.

For latency only: polling finds the work anyway. A store's subclass sends and receives the notifications of its server.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

PAUSE_SECONDS: Final = 0.025
LISTEN_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


class Notifications(ABC):
    """One thread that sends, and one that listens once a caller waits. Both end when `self._closing` is set."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @abstractmethod
    def _send_loop(self) -> None:
        """Send one notification each time `self._requested` is set, at most every PAUSE_SECONDS."""

    @abstractmethod
    def _listen_loop(self) -> None:
        """Call `_wake_waiters` at each notification. Check `self._closing` every LISTEN_SECONDS."""

    def send(self) -> None:
        """Send a notification in the background; several within 25 ms become one."""
        if not self._requested.is_set():
            with suppress(RuntimeError):  # no more threads: polling finds the work
                self._start("sender", self._send_loop)
                self._requested.set()

    async def wait(self, timeout: timedelta) -> None:
        """Return at a notification, or after the timeout."""
        self._start("listener", self._listen_loop)
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters.add(waiter)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter[1].wait(), timeout.total_seconds())
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def close(self) -> None:
        """End both threads. A notification that was not sent yet is dropped: polling finds the work."""
        self._closing.set()
        self._requested.set()
        for thread in list(self._threads.values()):
            thread.join()

    def _start(self, name: str, loop: Callable[[], None]) -> None:
        if name in self._threads or self._closing.is_set():
            return
        with self._lock:
            if name not in self._threads:
                thread = threading.Thread(target=loop, name=f"leasekeeper-{name}", daemon=True)
                thread.start()
                self._threads[name] = thread

    def _wake_waiters(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)
