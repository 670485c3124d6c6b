"""Wakes waiting processes by PUBLISH and SUBSCRIBE. For latency only: polling finds the work anyway."""

import time
from datetime import timedelta
from typing import Any, Final

import redis

from leasekeeper.errors import StoreError
from leasekeeper.stores.redis.sentinel import server_url
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import clean_url
from leasekeeper.stores.sql.notifications import LISTEN_SECONDS, PAUSE_SECONDS, RETRY_SECONDS, Notifications

CHANNEL: Final = f"{PREFIX}work"


class RedisNotifications(Notifications):
    """PUBLISH and SUBSCRIBE."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        super().__init__(timeout)
        self._url = url

    def _client(self) -> Any:
        """A client of the current server: with sentinels it may be another one each time."""
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
                    self._receive(channel)
            except (redis.RedisError, StoreError, OSError):
                self._closing.wait(RETRY_SECONDS)
            finally:
                _close(client)

    def _receive(self, channel: Any) -> None:
        """Wake waiters at each notification, until the connection breaks. Checks an idle connection with a ping, and
        raises TimeoutError if nothing comes back."""
        last_at, asked = time.monotonic(), False
        while not self._closing.is_set():
            found = channel.get_message(timeout=LISTEN_SECONDS)
            if found is not None:
                last_at, asked = time.monotonic(), False
                if found["type"] == "message":
                    self._wake_waiters()
            elif time.monotonic() > last_at + self._timeout:
                if asked:
                    raise redis.TimeoutError("no response to a ping")
                channel.ping()
                last_at, asked = time.monotonic(), True


def _close(client: Any) -> None:
    if client is not None:
        client.close()
