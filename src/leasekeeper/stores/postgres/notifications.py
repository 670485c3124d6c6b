"""Wakes waiting processes by LISTEN and NOTIFY. For latency only: polling finds the work anyway.

NOTIFY locks the whole database at its commit, so it is sent in a transaction of its own, at most every 25 ms.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from leasekeeper.errors import StoreError
from leasekeeper.stores.sql.notifications import LISTEN_SECONDS, PAUSE_SECONDS, RETRY_SECONDS, Notifications

CHANNEL = "leasekeeper_work"


class PostgresNotifications(Notifications):
    """LISTEN and NOTIFY."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], timeout: timedelta) -> None:
        super().__init__(timeout)
        self._connect = connect

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
