"""Wakes waiting processes by LISTEN and NOTIFY. For latency only: polling finds the work anyway.

NOTIFY locks the whole database at its commit, so it is sent in a transaction of its own, at most every 25 ms.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg

from leasekeeper.errors import StoreError

CHANNEL = "leasekeeper_work"
PAUSE_SECONDS = 0.025
LISTEN_SECONDS = 0.5
RETRY_SECONDS = 1.0


class Notifications:
    """One thread that sends, and, once somebody waits, one that listens."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], timeout: timedelta) -> None:
        self._connect = connect
        self._timeout = timeout.total_seconds()
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

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

    def _send_loop(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while self._requested.wait() and not self._closing.is_set():
            self._requested.clear()
            try:
                connection = connection or self._connect()
                connection.execute(f"NOTIFY {CHANNEL}")
                self._closing.wait(PAUSE_SECONDS)
            except (psycopg.Error, StoreError):
                connection = None
                self._closing.wait(RETRY_SECONDS)
        if connection is not None:
            connection.close()

    def _listen_loop(self) -> None:
        while not self._closing.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._receive(connection)
            except (psycopg.Error, StoreError):
                self._closing.wait(RETRY_SECONDS)

    def _receive(self, connection: psycopg.Connection[Any]) -> None:
        """Wake waiters at each notification, until the connection breaks. Checks an idle connection with a query."""
        last_at = time.monotonic()
        while not self._closing.is_set():
            if any(True for _ in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1)):
                last_at = time.monotonic()
                self._wake_waiters()
            elif time.monotonic() > last_at + self._timeout:
                connection.execute("SELECT 1")
                last_at = time.monotonic()

    def _wake_waiters(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)
