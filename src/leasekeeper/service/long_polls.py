"""Remote workers that wait for work. However many wait, the server waits once at its store, and answers all of them at
a change there. Without a change it lets one waiter of each pool claim at every poll: notification is for latency, and
what nobody was notified of is found within the same time as by a worker at the database.
"""

import asyncio
from datetime import timedelta
from typing import Final

from leasekeeper.core.calls import LONG_POLL
from leasekeeper.errors import LeasekeeperError
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time

# A wait that ended before this part of its timeout was ended by a change: timers are not exact.
NOTIFIED: Final = 0.95


class LongPolls:
    """Those who wait at one server."""

    def __init__(self, store: Store, poll_every: timedelta) -> None:
        self._store = store
        self._poll_every = poll_every
        # Whoever waits longest is first.
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return len(self._waiting)

    async def wait(self, pool: str, timeout: timedelta) -> None:
        """Return when there may be work for this pool, after the timeout, or when the server stops."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = pool
        if self._watching is None:
            self._watching = loop.create_task(self._watch())
        over = loop.call_later(min(timeout, LONG_POLL).total_seconds(), _answer, waiter)
        try:
            await waiter
        finally:
            over.cancel()
            self._waiting.pop(waiter, None)

    async def close(self) -> None:
        """Answer all who wait; nobody waits any more."""
        self._closed = True
        self._answer_all()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while self._waiting:
            began = boot_time()
            try:
                await self._store.wait("", self._poll_every)
            except LeasekeeperError:
                # Their claims say what is wrong with the store.
                await asyncio.sleep(self._poll_every.total_seconds())
            if boot_time() - began < NOTIFIED * self._poll_every.total_seconds():
                self._answer_all()
            else:
                self._answer_first()
            # Those who were answered leave before it is asked whether anybody waits.
            await asyncio.sleep(0)
        self._watching = None

    def _answer_all(self) -> None:
        for waiter in self._waiting:
            _answer(waiter)

    def _answer_first(self) -> None:
        """One of each pool, who waits longest."""
        first: dict[str, asyncio.Future[None]] = {}
        for waiter, pool in self._waiting.items():
            first.setdefault(pool, waiter)
        for waiter in first.values():
            _answer(waiter)


def _answer(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
