"""Follows the event log: one reader of the store per process, for any number of listeners.

Events of two transactions may become visible in another order than their `seq` (see the reference of events). So a gap
in the numbers is read again for a while, and `position` is a number up to which no event can still appear: a reader
that continues from it misses nothing, and may see some events twice. A listener that does not keep up is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from leasekeeper.core.events import Event
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.failure_log import FailureLog

MAX_REMEMBERED: Final = 10_000
MAX_BEHIND: Final = 1_000
MAX_LISTENERS: Final = 1_000
MAX_PAGES: Final = 20
GAP_SECONDS: Final = 10.0
MIN_PAUSE_SECONDS: Final = 0.1
_WHAT: Final = "the event log could not be read"


@dataclass(slots=True, eq=False)
class FeedItem:
    """An event, and the position to continue from. `text` caches the event as streams send it."""

    event: Event
    position: int
    text: str | None = None


@dataclass(slots=True, eq=False)
class Listener:
    """One reader of the feed. `wanted`: fields of an event, each with its accepted values."""

    wanted: Mapping[str, frozenset[str]]
    waiting: "asyncio.Queue[FeedItem | None]" = field(default_factory=lambda: asyncio.Queue(MAX_BEHIND))
    cut_off: bool = False

    def wants(self, event: Event) -> bool:
        return all(getattr(event, name) in values for name, values in self.wanted.items())

    def put(self, item: FeedItem) -> bool:
        """Queue an event. False: the listener is too far behind."""
        try:
            self.waiting.put_nowait(item)
        except asyncio.QueueFull:
            self.cut_off = True
            return False
        return True


class EventFeed:
    """Reads the event log of one store and passes every new event to all listeners."""

    def __init__(self, store: Store, poll_every: timedelta, trouble: FailureLog | None = None) -> None:
        self._store = store
        self._poll_every = poll_every
        self._trouble = trouble or FailureLog()
        self._listeners: set[Listener] = set()
        self._open: set[Listener] = set()  # until they leave: a dropped listener may still have a connection
        self._observers: list[Callable[[Event], None]] = []
        self._recent: deque[FeedItem] = deque(maxlen=MAX_REMEMBERED)
        self._position: int | None = None  # everything up to here was published
        self._above: set[int] = set()  # published too, although a smaller number is missing
        self._missing: dict[int, float] = {}  # number → until when to wait for it
        self.reads = 0

    @property
    def position(self) -> int:
        return self._position or 0

    def observe(self, observer: Callable[[Event], None]) -> None:
        """Call this with every new event."""
        self._observers.append(observer)

    def listen(self, wanted: Mapping[str, frozenset[str]], after: int | None = None) -> Listener | None:
        """Listen from now on, or from a position on. None: that position is too old, or there are too many listeners.

        Recent events are kept in memory, so a reader that reconnects costs no read of the store.
        """
        listener = Listener(wanted)
        if len(self._open) >= MAX_LISTENERS:
            return None
        if after is not None:
            oldest = min((item.event.seq for item in self._recent), default=self.position + 1)
            if after + 1 < min(oldest, self.position + 1):
                return None
            missed = [item for item in self._recent if item.event.seq > after and listener.wants(item.event)]
            if not all(listener.put(item) for item in missed):
                return None
        self._listeners.add(listener)
        self._open.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self._open.discard(listener)

    async def run(self) -> None:
        """Read until cancelled. Retries while the store is unavailable."""
        while True:
            try:
                await self.read()
                self._trouble.over(_WHAT)
                await self._store.wait("", self._poll_every)
            except Exception as error:  # noqa: BLE001 - without this task no stream gets events any more
                self._trouble.again(_WHAT, error)
                await asyncio.sleep(self._poll_every.total_seconds())
            await asyncio.sleep(MIN_PAUSE_SECONDS)

    def close(self) -> None:
        """End the feed: every listener is notified."""
        for listener in self._listeners:
            with suppress(asyncio.QueueFull):  # it ends after it has read what is queued
                listener.waiting.put_nowait(None)
            listener.cut_off = True
        self._listeners.clear()

    async def read(self) -> None:
        """Read new events and publish them. The first call only finds the end of the log."""
        self.reads += 1
        if self._position is None:
            newest = (await self._store.find(Event, limit=1)).items
            self._position = newest[0].seq if newest else 0
            return
        found: list[Event] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._store.find(Event, {"since": str(self._position)}, after=after, limit=MAX_IN_PAGE)
            found += page.items
            after = page.after
            if after is None:
                break
        new = sorted((event for event in found if event.seq not in self._above), key=lambda event: event.seq)
        if after is not None:
            # There are more than one read returns: those before the oldest that was read are skipped.
            self._position = max(self._position, new[0].seq - 1)
            self._recent.clear()
        self._advance([event.seq for event in new])
        for event in new:
            self._publish(FeedItem(event, min(self.position, event.seq)))

    def _advance(self, numbers: list[int]) -> None:
        """Advance the position over events that were read, and over gaps whose wait is over."""
        now = boot_time()
        self._above.update(numbers)
        position, highest = self.position, max(self._above, default=0)
        for number in range(position + 1, highest):
            if number not in self._above:
                self._missing.setdefault(number, now + GAP_SECONDS)
        while position < highest:
            following = position + 1
            if following not in self._above and self._missing.get(following, 0.0) > now:
                break
            self._above.discard(following)
            self._missing.pop(following, None)
            position = following
        self._position = position
        for number in [number for number in self._missing if number in self._above]:
            del self._missing[number]

    def _publish(self, item: FeedItem) -> None:
        self._recent.append(item)
        for observer in self._observers:
            observer(item.event)
        late = [each for each in self._listeners if each.wants(item.event) and not each.put(item)]
        for listener in late:
            self._listeners.discard(listener)
