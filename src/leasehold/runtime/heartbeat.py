"""Renewal of leases, in a thread with an event loop and a store connection of its own.

A task that blocks its event loop must not lose its lease; a process that is stopped must. So renewal depends on
nothing but this thread, and each holder has a deadline of its own, counted from when the last acknowledged renewal
was sent, after which the lease counts as lost whatever the store would say.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from leasehold.core.leases import Lease, LeaseStatus, Timing
from leasehold.errors import LeaseLost
from leasehold.ports import MOST_IN_BATCH, Renewal, Store
from leasehold.runtime.clocks import boot_time

OpenStore = Callable[[], Awaitable[Store]]

CLOSE_SECONDS = 10.0

_LOG = logging.getLogger(__name__)


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
        self._store: Store | None = None

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
        """Stop renewing: the lease was settled, or is lost. From here on `check` says no."""
        with self._lock:
            self._holds.pop(hold.lease.lease_id, None)
        hold.lost = hold.lost or "it was released"

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
        """Watch deadlines all the time, whatever a renewal that is under way is waiting for."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        renewing: asyncio.Task[None] | None = None
        try:
            while not self._closing:
                self._wake.clear()
                due = self._look()
                if due and (renewing is None or renewing.done()):
                    renewing = asyncio.create_task(self._renew(due))
                    renewing.add_done_callback(lambda _: self._poke())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._pause(renewing))
        finally:
            if renewing is not None:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            if self._store is not None:
                await self._store.close()

    def _current(self) -> list[Hold]:
        with self._lock:
            return [hold for hold in self._holds.values() if hold.lost is None]

    def _look(self) -> list[Hold]:
        """The leases that are due. One past its deadline is lost, not renewed."""
        now = boot_time()
        due = []
        for hold in self._current():
            with suppress(LeaseLost):
                hold.check()
                if hold.next_at <= now:
                    due.append(hold)
        return due

    def _pause(self, renewing: "asyncio.Task[None] | None") -> float:
        """How long nothing will be due. While a renewal is under way only deadlines count."""
        busy = renewing is not None and not renewing.done()
        times = [hold.deadline if busy else min(hold.next_at, hold.deadline) for hold in self._current()]
        return max(0.0, min(times, default=boot_time() + 3600.0) - boot_time())

    async def _renew(self, due: Sequence[Hold]) -> None:
        """Renew in batches. What fails is due again soon: a store that is away must not end this thread."""
        for start in range(0, len(due), MOST_IN_BATCH):
            batch = due[start : start + MOST_IN_BATCH]
            sent_at = boot_time()
            try:
                self._store = self._store or await self._open_store()
                answers = await self._store.renew([Renewal(ref=hold.lease.ref, status=hold.status) for hold in batch])
            except Exception as error:  # noqa: BLE001 - whatever it is, the deadline is the answer to it
                _LOG.warning("%d leases could not be renewed, trying again: %s", len(batch), error)
                for hold in batch:
                    hold.next_at = boot_time() + hold.timing.renew_every.total_seconds() / 4
                continue
            for hold, answer in zip(batch, answers, strict=True):
                self._take(hold, answer.refused, sent_at)

    def _take(self, hold: Hold, refused: str | None, sent_at: float) -> None:
        with self._lock:
            held = hold.lease.lease_id in self._holds
        if refused is None:
            hold.deadline = sent_at + hold.timing.holder_stops_after.total_seconds()
            hold.next_at = sent_at + hold.timing.renew_every.total_seconds()
        elif held:
            hold.lose(refused)
