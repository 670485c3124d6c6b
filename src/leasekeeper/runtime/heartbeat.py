"""Renewal of leases, in a thread with an event loop and a store connection of its own.

A task that blocks its event loop must not lose its lease; a process that is stopped must. So renewal depends on
nothing but this thread, and each holder has a deadline of its own, counted from when the last acknowledged renewal
was sent, after which the lease counts as lost whatever the store would say.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from leasekeeper.core.leases import EXPIRED, Lease, LeaseStatus, Timing
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict, LeaseExpired, LeaseLost, StoreError, StoreUnavailable
from leasekeeper.ports import MOST_IN_BATCH, Renewal, Settled, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.trouble import Trouble

OpenStore = Callable[[], Awaitable[Store]]

CLOSE_SECONDS = 10.0
DEAD_BY = 0.75
LONGEST_PAUSE = 1.0
HUSH_SECONDS = 2.0
HUSH_STEPS = 400
NOT_RENEWED = "leases could not be renewed"


def dead_by(deadline: float, timing: Timing) -> float:
    """When all that a holder started must be gone that had to stop at `deadline`."""
    return deadline + (timing.ttl - timing.holder_stops_after).total_seconds() * DEAD_BY


@dataclass(slots=True, eq=False)
class Hold:
    """One lease that is kept alive. `lost` is why it is not, once it is not."""

    lease: Lease
    timing: Timing
    deadline: float
    next_at: float
    on_lost: Callable[[str], None]
    on_renewed: Callable[[float, float], None] | None = None
    status: LeaseStatus = LeaseStatus.RUNNING
    stop_at: float | None = None
    lost: str | None = None
    trouble: Trouble = field(default_factory=Trouble)
    _told: bool = field(default=False)
    _quiet: bool = field(default=False)
    _asking: bool = field(default=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise LeaseLost once the holder must not act any more. Asks no thread: the deadline itself decides."""
        if self.lost is None and boot_time() >= self.deadline:
            seconds = self.timing.holder_stops_after.total_seconds()
            self.lose(f"no renewal was acknowledged for {seconds:g} s")
        if self.lost is not None:
            raise LeaseLost(
                f"lease {self.lease.lease_id} is lost: {self.lost}. Stop using profile {self.lease.profile_id}"
            )

    async def insist(self, write: Callable[[], Awaitable[None]], done: Callable[[], Awaitable[bool]]) -> None:
        """A write under the lease, tried again until the holder's own deadline while the store is away, or says that
        the lease's time is up: then its clock has leapt, and a sweeper will see that.

        `done` tells whether an earlier try that was not answered has reached the store.
        """
        unanswered, what = False, f"run {self.lease.run_id}: a write was not taken"
        while True:
            self.check()
            try:
                await write()
            except LeaseExpired:
                pass
            except StoreUnavailable as error:
                unanswered = True
                self.trouble.again(what, error)
            except Conflict:
                if not (unanswered and await done()):
                    raise
                return
            else:
                self.trouble.over(what)
                return
            await asyncio.sleep(self.again_seconds)

    @property
    def again_seconds(self) -> float:
        """How soon to try again what the store could not take."""
        return self.timing.renew_every.total_seconds() / 10

    async def hush(self) -> None:
        """Stop renewing while the lease is being settled: a renewal that came after would look like a late write."""
        with self._lock:
            self._quiet = True
        for _ in range(HUSH_STEPS):
            if not self._asking:
                return
            await asyncio.sleep(HUSH_SECONDS / HUSH_STEPS)

    def speak(self) -> None:
        """The lease was not settled after all: renew it again."""
        self._quiet = False

    def begin(self) -> bool:
        """A renewal is about to be sent. False: not now, the lease is being settled."""
        with self._lock:
            self._asking = not self._quiet
            return self._asking

    def end(self) -> None:
        """The renewal was answered, or failed."""
        self._asking = False

    @property
    def dead_by(self) -> float:
        """When whatever the holder started must be gone: after its deadline, well before the store may expire it."""
        return dead_by(self.deadline, self.timing)

    def renewed(self, sent_at: float) -> None:
        """A renewal was acknowledged: the holder may go on, counted from when it was asked for."""
        self.deadline = sent_at + self.timing.holder_stops_after.total_seconds()
        self.next_at = sent_at + self.timing.renew_every.total_seconds()
        if self.on_renewed is not None:
            self.on_renewed(self.deadline, self.dead_by)

    def lose(self, why: str) -> None:
        """The lease is lost; tell the holder, once."""
        self.lost = self.lost or why
        if not self._told:
            self._told = True
            self.on_lost(self.lost)


async def settle_held(store: Store, ending: Ending, hold: Hold) -> Settled:
    """Hand in the ending, again and again while the store is away or its clock has leapt (see `Hold.insist`). Until
    then the lease goes on being renewed."""
    what = f"run {hold.lease.run_id}: not settled yet"
    while True:
        await hold.hush()
        try:
            (settled,) = await store.settle([ending])
            hold.trouble.over(what)
            if settled.refused != EXPIRED:
                return settled
        except StoreError as error:
            hold.trouble.again(what, error)
        except BaseException:
            hold.speak()
            raise
        hold.speak()
        hold.check()
        await asyncio.sleep(hold.again_seconds)


async def checkpoint_held(store: Store, hold: Hold, step: str, url: str | None) -> None:
    """Record a safe step."""
    await hold.insist(lambda: store.checkpoint(hold.lease.ref, step, url=url), _never)


async def enter_held(store: Store, hold: Hold, name: str) -> None:
    """Enter a mutating section."""
    await hold.insist(lambda: store.enter_section(hold.lease.ref, name), lambda: _is_in(store, hold, name))


async def leave_held(store: Store, hold: Hold, name: str) -> None:
    """Leave it."""
    await hold.insist(lambda: store.leave_section(hold.lease.ref, name), lambda: _is_in(store, hold, None))


async def _never() -> bool:
    return False


async def _is_in(store: Store, hold: Hold, section: str | None) -> bool:
    return (await store.get(Lease, hold.lease.lease_id)).open_section == section


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
        self.trouble = Trouble()

    def hold(
        self,
        lease: Lease,
        granted_at: float,
        on_lost: Callable[[str], None],
        on_renewed: Callable[[float, float], None] | None = None,
    ) -> Hold:
        """Start renewing. `granted_at` is when the request for the lease was sent, by `boot_time`.

        Both callbacks come from the heartbeat's thread: `on_renewed` with the holder's new deadline and the time by
        which all that it started must be gone.
        """
        timing = self.timing_of(lease)
        hold = Hold(
            lease=lease,
            timing=timing,
            deadline=granted_at + timing.holder_stops_after.total_seconds(),
            next_at=granted_at + timing.renew_every.total_seconds(),
            on_lost=on_lost,
            on_renewed=on_renewed,
            trouble=self.trouble,
        )
        with self._lock:
            self._holds[lease.lease_id] = hold
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="leasekeeper-heartbeat", daemon=True)
                self._thread.start()
        self._poke()
        return hold

    def timing_of(self, lease: Lease) -> Timing:
        """The durations of this lease: a job may have its own TTL, and the others go with it."""
        return self._timing.scaled(timedelta(milliseconds=lease.ttl_ms))

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
            if hold.stop_at is not None and now >= hold.stop_at:
                hold.lose("the task is past its time limit and does not answer")
            with suppress(LeaseLost):
                hold.check()
                if hold.next_at <= now:
                    due.append(hold)
                    # A hold that is being settled is not asked for: look again after a while, not at once.
                    hold.next_at = now + hold.timing.renew_every.total_seconds() / 4
        return due

    def _pause(self, renewing: "asyncio.Task[None] | None") -> float:
        """How long nothing will be due. While a renewal is under way only deadlines count."""
        busy = renewing is not None and not renewing.done()
        times = [hold.deadline if busy else min(hold.next_at, hold.deadline) for hold in self._current()]
        pause = max(0.0, min(times, default=boot_time() + 3600.0) - boot_time())
        # The loop's timeouts do not count suspend, deadlines do: look at the clock every so often.
        return min(pause, LONGEST_PAUSE) if times else pause

    async def _renew(self, due: Sequence[Hold]) -> None:
        """Renew in batches. What fails is due again soon: a store that is away must not end this thread."""
        for start in range(0, len(due), MOST_IN_BATCH):
            batch = [hold for hold in due[start : start + MOST_IN_BATCH] if hold.begin()]
            if not batch:
                continue
            sent_at = boot_time()
            try:
                self._store = self._store or await self._open_store()
                answers = await self._store.renew([Renewal(ref=hold.lease.ref, status=hold.status) for hold in batch])
            except Exception as error:  # noqa: BLE001 - whatever it is, the deadline is the answer to it
                self.trouble.again(NOT_RENEWED, error)
                for hold in batch:
                    hold.next_at = boot_time() + hold.timing.renew_every.total_seconds() / 4
                continue
            finally:
                for hold in batch:
                    hold.end()
            self.trouble.over(NOT_RENEWED)
            for hold, answer in zip(batch, answers, strict=True):
                self._take(hold, answer.refused, sent_at)

    def _take(self, hold: Hold, refused: str | None, sent_at: float) -> None:
        with self._lock:
            held = hold.lease.lease_id in self._holds
        if refused is None:
            hold.renewed(sent_at)
        elif refused == EXPIRED:
            hold.next_at = boot_time() + hold.timing.renew_every.total_seconds() / 4
        elif held:
            hold.lose(refused)
