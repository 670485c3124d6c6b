"""Wakes waiting processes by PUBLISH and SUBSCRIBE. For latency only: polling finds the work anyway."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import redis

from leasekeeper.errors import StoreError
from leasekeeper.stores.redis.sentinel import server_url
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import clean_url

CHANNEL: Final = f"{PREFIX}work"
PAUSE_SECONDS: Final = 0.025
LISTEN_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0


class Notifications:
    """One thread that sends, and, once somebody waits, one that listens."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        self._url = url
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

    def _client(self) -> Any:
        """For the server that is there now: with sentinels it may be another one each time."""
        url = clean_url(server_url(self._url, timedelta(seconds=self._timeout)))
        return redis.Redis.from_url(url, socket_timeout=self._timeout)

    def _send_loop(self) -> None:
        client: Any = None
        while self._requested.wait() and not self._closing.is_set():
            self._requested.clear()
            try:
                client = client or self._client()
                client.publish(CHANNEL, "")
                self._closing.wait(PAUSE_SECONDS)
            except (redis.RedisError, StoreError, OSError):
                _close(client)
                client = None
                self._closing.wait(RETRY_SECONDS)
        _close(client)

    def _listen_loop(self) -> None:
        while not self._closing.is_set():
            client: Any = None
            try:
                client = self._client()
                with client.pubsub(ignore_subscribe_messages=True) as channel:
                    channel.subscribe(CHANNEL)
                    while not self._closing.is_set():
                        if channel.get_message(timeout=LISTEN_SECONDS) is not None:
                            self._wake_waiters()
            except (redis.RedisError, StoreError, OSError):
                self._closing.wait(RETRY_SECONDS)
            finally:
                _close(client)

    def _wake_waiters(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)


def _close(client: Any) -> None:
    if client is not None:
        client.close()
