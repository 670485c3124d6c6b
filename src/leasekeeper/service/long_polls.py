"""Remote workers that wait for work. The server waits once at its store for all of them, and answers them all at a
change there. Without a change it lets one waiter of each pool claim at every poll: notification only saves time, and
work without a notification is found as soon as by a worker at the database.
"""

import asyncio
from datetime import timedelta
from typing import Final

from leasekeeper.core.calls import LONG_POLL
from leasekeeper.errors import LeasekeeperError
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time

# A wait that ended before this share of its timeout was ended by a change: timers are not exact.
NOTIFIED: Final = 0.95


class LongPolls:
    """The waiting calls of one server."""

    def __init__(self, store: Store, poll_every: timedelta) -> None:
        self._store = store
        self._poll_every = poll_every
        # Sorted by how long they wait, the longest first.
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
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
        """Answer all waiting calls, and accept no more."""
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
                # Their claims will report what is wrong with the store.
                await asyncio.sleep(self._poll_every.total_seconds())
            if boot_time() - began < NOTIFIED * self._poll_every.total_seconds():
                self._answer_all()
            else:
                self._answer_first()
            # Answered calls must have left before the check for waiting ones.
            await asyncio.sleep(0)
        self._watching = None

    def _answer_all(self) -> None:
        for waiter in self._waiting:
            _answer(waiter)

    def _answer_first(self) -> None:
        """Answer the longest-waiting call of each pool."""
        first: dict[str, asyncio.Future[None]] = {}
        for waiter, pool in self._waiting.items():
            first.setdefault(pool, waiter)
        for waiter in first.values():
            _answer(waiter)


def _answer(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
