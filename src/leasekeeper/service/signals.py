"""What a server publishes about its store: the feed of events, and the metrics made from it.

Both start at the first request for them: a server that nobody watches reads nothing.
"""

import asyncio
from typing import TYPE_CHECKING

from leasekeeper.config import Config
from leasekeeper.ports import Store
from leasekeeper.service.event_feed import EventFeed

if TYPE_CHECKING:
    from leasekeeper.service.metrics import Metrics


class Signals:
    """The feed and the metrics of one store."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._feed = EventFeed(store, config.poll_every)
        self._metrics: Metrics | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def feed(self) -> EventFeed:
        """The feed; the first call starts it. Raises StoreError if the store is unavailable."""
        async with self._starting:
            if self._task is None:
                await self._feed.read()
                self._task = asyncio.create_task(self._feed.run())
        return self._feed

    @property
    def position(self) -> int | None:
        """The position up to which the event log was read; None before the feed was started."""
        return self._feed.position if self._task is not None else None

    async def metrics(self) -> "Metrics":
        """The metrics, which count from now on."""
        feed = await self.feed()
        if self._metrics is None:
            from leasekeeper.service.metrics import Metrics

            self._metrics = Metrics(self._store, self._config)
            feed.observe(self._metrics.seen)
        return self._metrics

    def called(self, operation: str, seconds: float) -> None:
        """Observe the duration of a store call. Counted from the first scrape on. Thread-safe."""
        if self._metrics is not None:
            self._metrics.called(operation, seconds)

    async def close(self) -> None:
        """End every stream and stop reading."""
        self._feed.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
