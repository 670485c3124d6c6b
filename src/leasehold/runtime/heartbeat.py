"""Renewal of leases, in a thread with an event loop and a store connection of its own.

A task that blocks its event loop must not lose its lease; a process that is stopped must. So renewal depends on
nothing but this thread, and each holder has a deadline of its own, counted from when the last acknowledged renewal
was sent, after which the lease counts as lost whatever the store would say.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from leasehold.core.leases import Lease, LeaseStatus, Timing
from leasehold.errors import LeaseLost, StoreError
from leasehold.ports import Renewal, Store
from leasehold.runtime.clocks import boot_time

OpenStore = Callable[[], Awaitable[Store]]

CLOSE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class Hold:
    """One lease that is kept alive. `lost` is why it is not, once it is not."""

    lease: Lease
    timing: Timing
    deadline: float
    next_at: float
    on_lost: Callable[[str], None]
    status: LeaseStatus = LeaseStatus.RUNNING
    lost: str | None = None
    _told: bool = field(default=False)

    def check(self) -> None:
        """Raise LeaseLost once the holder must not act any more. Asks no thread: the deadline itself decides."""
        if self.lost is None and boot_time() >= self.deadline:
            seconds = self.timing.holder_stops_after.total_seconds()
            self.lose(f"no renewal was acknowledged for {seconds:g} s")
        if self.lost is not None:
            raise LeaseLost(
                f"lease {self.lease.lease_id} is lost: {self.lost}. Stop using profile {self.lease.profile_id}"
            )

    def lose(self, why: str) -> None:
        """The lease is lost; tell the holder, once."""
        self.lost = self.lost or why
        if not self._told:
            self._told = True
            self.on_lost(self.lost)


class Heartbeat:
    """Keeps any number of leases alive from one thread."""

    def __init__(self, open_store: OpenStore, timing: Timing) -> None:
        self._open_store = open_store
        self._timing = timing
        self._holds: dict[str, Hold] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing = False

    def hold(self, lease: Lease, granted_at: float, on_lost: Callable[[str], None]) -> Hold:
        """Start renewing. `granted_at` is when the request for the lease was sent, by `boot_time`."""
        timing = self._timing.scaled(timedelta(milliseconds=lease.ttl_ms))
        hold = Hold(
            lease=lease,
            timing=timing,
            deadline=granted_at + timing.holder_stops_after.total_seconds(),
            next_at=granted_at + timing.renew_every.total_seconds(),
            on_lost=on_lost,
        )
        with self._lock:
            self._holds[lease.lease_id] = hold
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="leasehold-heartbeat", daemon=True)
                self._thread.start()
        self._poke()
        return hold

    def drop(self, hold: Hold) -> None:
        """Stop renewing: the lease was settled, or is lost."""
        with self._lock:
            self._holds.pop(hold.lease.lease_id, None)

    def close(self) -> None:
        """End the thread. Leases that are still held expire."""
        self._closing = True
        self._poke()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _poke(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(wake.set)

    def _main(self) -> None:
        asyncio.run(self._beat())

    async def _beat(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        store: Store | None = None
        try:
            while not self._closing:
                self._wake.clear()
                try:
                    store = store or await self._open_store()
                    pause = await self._renew_due(store)
                except StoreError:
                    pause = self._shortest_period() / 4
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
        finally:
            if store is not None:
                await store.close()

    def _current(self) -> list[Hold]:
        with self._lock:
            return list(self._holds.values())

    def _shortest_period(self) -> float:
        periods = [hold.timing.renew_every.total_seconds() for hold in self._current()]
        return min(periods, default=self._timing.renew_every.total_seconds())

    async def _renew_due(self, store: Store) -> float:
        """Renew what is due, and say how long nothing will be. A lease past its deadline is lost, not renewed."""
        now = boot_time()
        due = []
        for hold in self._current():
            with suppress(LeaseLost):
                hold.check()
                if hold.next_at <= now:
                    due.append(hold)
        if due:
            answers = await store.renew([Renewal(ref=hold.lease.ref, status=hold.status) for hold in due])
            for hold, answer in zip(due, answers, strict=True):
                self._take(hold, answer.refused, now)
        later = [min(hold.next_at, hold.deadline) for hold in self._current() if hold.lost is None]
        return max(0.0, min(later, default=now + 3600.0) - boot_time())

    def _take(self, hold: Hold, refused: str | None, sent_at: float) -> None:
        with self._lock:
            held = hold.lease.lease_id in self._holds
        if refused is None:
            hold.deadline = sent_at + hold.timing.holder_stops_after.total_seconds()
            hold.next_at = sent_at + hold.timing.renew_every.total_seconds()
        elif held:
            hold.lose(refused)
