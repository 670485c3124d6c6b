"""Renews leases in the background, in a thread with its own event loop and store connection.

A task that blocks its event loop must not lose its lease; a process that is stopped must. So renewal depends on this
thread only. Each holder has its own deadline, counted from when the last acknowledged renewal was sent. After it the
lease counts as lost, whatever the store would answer. A renewal that is not answered soon enough blocks no other: the
next one goes over a connection of its own, and whichever is acknowledged first counts.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from leasekeeper.core.control import PersonAnswer
from leasekeeper.core.leases import DEAD_BY, Lease, LeaseStatus, Refusal, Timing
from leasekeeper.core.notes import NoteAbout, shortened
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict, LeaseExpired, LeaseLost, StoreError, StoreUnavailable
from leasekeeper.ports import MAX_IN_BATCH, Renewal, Settled, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.wording import REFUSALS

OpenStore = Callable[[], Awaitable[Store]]

CLOSE_SECONDS = 10.0
MAX_PAUSE = 1.0
PAUSE_SECONDS = 2.0
PAUSE_STEPS = 400
# The share of the time until the first deadline that a renewal may take, before another one is sent.
PATIENCE = 1 / 3
MAX_UNANSWERED = 8
NOT_RENEWED = "leases could not be renewed"


def dead_by(deadline: float, timing: Timing) -> float:
    """When the browser of a holder that had to stop at `deadline` must be gone: well before the lease expires."""
    return deadline + (timing.ttl - timing.holder_stops_after).total_seconds() * DEAD_BY


@dataclass(slots=True, eq=False)
class KeptLease:
    """One lease that is being renewed. `lost` is the reason once the lease is lost, else None.

    `on_answer` is called in the heartbeat's thread with a person's answer, for each renewal that returns one.
    """

    lease: Lease
    timing: Timing
    deadline: float
    next_at: float
    on_lost: Callable[[str], None]
    on_renewed: Callable[[float, float], None] | None = None
    on_answer: Callable[[PersonAnswer], None] | None = None
    status: LeaseStatus = LeaseStatus.RUNNING
    stop_at: float | None = None
    lost: str | None = None
    refusal: Refusal | None = None
    trouble: FailureLog = field(default_factory=FailureLog)
    _reported: bool = field(default=False)
    _paused: bool = field(default=False)
    _in_progress: int = field(default=0)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise LeaseLost after the deadline, or once the lease is lost. Needs neither the thread nor the store."""
        if self.lost is None and boot_time() >= self.deadline:
            seconds = self.timing.holder_stops_after.total_seconds()
            self.lose(f"no renewal was acknowledged for {seconds:g} s")
        if self.lost is not None:
            raise LeaseLost(
                f"lease {self.lease.lease_id} is lost: {self.lost}. Stop using profile {self.lease.profile_id}",
                refusal=self.refusal,
                lease_id=self.lease.lease_id,
                profile_id=self.lease.profile_id,
            )

    async def retry_until_deadline(
        self, write: Callable[[], Awaitable[None]], done: Callable[[], Awaitable[bool]]
    ) -> None:
        """Retry a write under the lease until the holder's deadline, while the store is unavailable or says that the
        lease has expired. Before the deadline that can only be a jump of the store's clock, which a sweeper detects.

        `done` returns whether an earlier attempt without a response has reached the store.
        """
        unanswered, what = False, f"run {self.lease.run_id}: a write could not be stored"
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

    def hear_answers(self, on_answer: Callable[[PersonAnswer], None]) -> None:
        """Call `on_answer` in the running loop with a person's answer to the run, for each renewal that returns it."""
        loop = asyncio.get_running_loop()

        def in_loop(said: PersonAnswer) -> None:
            with suppress(RuntimeError):  # the loop has ended, and so has the run
                loop.call_soon_threadsafe(on_answer, said)

        self.on_answer = in_loop

    @property
    def again_seconds(self) -> float:
        """The pause before a write that failed is retried."""
        return self.timing.renew_every.total_seconds() / 10

    async def pause_renewal(self) -> None:
        """Pause renewal during a settle: a renewal that arrives after it would be recorded as a late write."""
        with self._lock:
            self._paused = True
        for _ in range(PAUSE_STEPS):
            if not self._in_progress:
                return
            await asyncio.sleep(PAUSE_SECONDS / PAUSE_STEPS)

    def resume_renewal(self) -> None:
        """Resume renewal: the lease was not settled."""
        self._paused = False

    def begin(self) -> bool:
        """Call before a renewal is sent. False if renewal is paused: do not send it."""
        with self._lock:
            self._in_progress += not self._paused
            return not self._paused

    def end(self) -> None:
        """Call after the renewal was acknowledged or failed."""
        with self._lock:
            self._in_progress -= 1

    @property
    def dead_by(self) -> float:
        """When the holder's browser must be gone: after its deadline, well before the store may expire the lease."""
        return dead_by(self.deadline, self.timing)

    def renewed(self, sent_at: float) -> None:
        """A renewal was acknowledged: extend the deadline, counted from when the renewal was sent. Ignored if a later
        one was acknowledged before it."""
        if not self.waits_since(sent_at):
            return
        self.deadline = sent_at + self.timing.holder_stops_after.total_seconds()
        self.next_at = sent_at + self.timing.renew_every.total_seconds()
        if self.on_renewed is not None:
            self.on_renewed(self.deadline, self.dead_by)

    def waits_since(self, sent_at: float) -> bool:
        """False once a renewal that was sent at that time or later was acknowledged."""
        return self.deadline < sent_at + self.timing.holder_stops_after.total_seconds()

    def lose(self, why: str, refusal: Refusal | None = None) -> None:
        """Mark the lease as lost and call `on_lost`, once. `refusal` is the store's reason, if it refused a write."""
        if self.lost is None:
            self.lost, self.refusal = why, refusal
        if not self._reported:
            self._reported = True
            self.on_lost(self.lost)


async def settle_with_retries(store: Store, ending: Ending, kept: KeptLease) -> Settled:
    """Settle the run. Retries until the deadline while the store is unavailable or its clock has jumped (see
    `KeptLease.retry_until_deadline`); renewal resumes between attempts."""
    what = f"run {kept.lease.run_id}: not settled yet"
    while True:
        await kept.pause_renewal()
        try:
            (settled,) = await store.settle([ending])
            kept.trouble.over(what)
            if settled.refused is not Refusal.OVERDUE:
                return settled
        except StoreError as error:
            kept.trouble.again(what, error)
        except BaseException:
            kept.resume_renewal()
            raise
        kept.resume_renewal()
        kept.check()
        await asyncio.sleep(kept.again_seconds)


async def checkpoint_with_retries(store: Store, kept: KeptLease, step: str, url: str | None) -> None:
    """Record a safe step; retries until the deadline."""
    await kept.retry_until_deadline(lambda: store.checkpoint(kept.lease.ref, step, url=url), _never)


async def note_with_retries(store: Store, kept: KeptLease, text: str, about: NoteAbout) -> None:
    """Write a note; retries until the deadline. The note is stored once."""
    await kept.retry_until_deadline(lambda: store.write_note(kept.lease.ref, shortened(text), about=about), _never)


async def request_person_with_retries(store: Store, kept: KeptLease, what: str | None) -> None:
    """Ask for a person, or with None stop asking; retries until the deadline."""
    await kept.retry_until_deadline(lambda: store.request_person(kept.lease.ref, what), _never)


async def enter_section_with_retries(store: Store, kept: KeptLease, name: str, *, idempotent: bool = False) -> None:
    """Enter a mutating section; retries until the deadline."""
    await kept.retry_until_deadline(
        lambda: store.enter_section(kept.lease.ref, name, idempotent=idempotent), lambda: _section_is(store, kept, name)
    )


async def leave_section_with_retries(store: Store, kept: KeptLease, name: str) -> None:
    """Leave a mutating section; retries until the deadline."""
    await kept.retry_until_deadline(
        lambda: store.leave_section(kept.lease.ref, name), lambda: _section_is(store, kept, None)
    )


async def _never() -> bool:
    return False


async def _section_is(store: Store, kept: KeptLease, section: str | None) -> bool:
    return (await store.get(Lease, kept.lease.lease_id)).open_section == section


def _soon(kept: KeptLease) -> float:
    """How long to wait before a renewal is tried again."""
    return kept.timing.renew_every.total_seconds() / 4


class Heartbeat:
    """Renews any number of leases from one background thread."""

    def __init__(self, open_store: OpenStore, timing: Timing) -> None:
        self._open_store = open_store
        self._timing = timing
        self._kept: dict[str, KeptLease] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing = False
        self._store: Store | None = None
        self._unanswered: frozenset[asyncio.Future[None]] = frozenset()
        self._newest: asyncio.Future[None] | None = None
        self._overdue_at = 0.0
        self.trouble = FailureLog()

    def start(self) -> None:
        """Start the thread, if it does not run yet. Call this before a lease is requested: a lease that nobody renews
        expires. Raises RuntimeError if no thread can be started now; the next call tries again."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._main, name="leasekeeper-heartbeat", daemon=True)
                thread.start()
                self._thread = thread  # not before: if it cannot be started now, the next call tries again

    def keep(
        self,
        lease: Lease,
        granted_at: float,
        on_lost: Callable[[str], None],
        on_renewed: Callable[[float, float], None] | None = None,
    ) -> KeptLease:
        """Start renewing. `granted_at` is when the request for the lease was sent, by `boot_time`.

        Both callbacks are called in the heartbeat's thread: `on_renewed` with the holder's new deadline and the time by
        which its browser must be gone.
        """
        timing = self.timing_of(lease)
        kept = KeptLease(
            lease=lease,
            timing=timing,
            deadline=granted_at + timing.holder_stops_after.total_seconds(),
            next_at=granted_at + timing.renew_every.total_seconds(),
            on_lost=on_lost,
            on_renewed=on_renewed,
            trouble=self.trouble,
        )
        self.start()
        with self._lock:
            self._kept[lease.lease_id] = kept
        self._wake_thread()
        return kept

    def timing_of(self, lease: Lease) -> Timing:
        """The durations of this lease: a job may have its own TTL, and the others scale with it."""
        return self._timing.scaled(timedelta(milliseconds=lease.ttl_ms))

    def drop(self, kept: KeptLease) -> None:
        """Stop renewing: the lease was settled, or is lost. From here on `check` raises LeaseLost."""
        with self._lock:
            self._kept.pop(kept.lease.lease_id, None)
        kept.lost = kept.lost or "it was released"

    def close(self) -> None:
        """End the thread. Leases that were not released expire."""
        self._closing = True
        self._wake_thread()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _wake_thread(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(wake.set)

    def _main(self) -> None:
        asyncio.run(self._renew_until_closed())

    async def _renew_until_closed(self) -> None:
        """Renew leases and watch deadlines, also while renewals wait for the store."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closing:
                self._wake.clear()
                self._leave_behind()
                due = self._due()
                if due and self._newest is None and len(self._unanswered) < MAX_UNANSWERED:
                    self._begin(due)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._pause_seconds())
        finally:
            for renewing in self._unanswered:
                renewing.cancel()
            await asyncio.gather(*self._unanswered, return_exceptions=True)
            store, self._store, self._newest, self._unanswered = self._store, None, None, frozenset()
            if store is not None:
                await store.close()

    def _begin(self, due: Sequence[KeptLease]) -> None:
        """Send a renewal. Until it is answered, or overdue, no other one is sent."""
        renewing = asyncio.ensure_future(self._renew(due))
        self._newest, self._unanswered = renewing, self._unanswered | {renewing}
        now = boot_time()
        left = min(kept.deadline for kept in (*self._current(), *due)) - now
        self._overdue_at = now + max(PATIENCE * left, min(_soon(kept) for kept in due))
        renewing.add_done_callback(self._answered)

    def _answered(self, renewing: "asyncio.Future[None]") -> None:
        self._unanswered = self._unanswered - {renewing}
        if self._newest is renewing:
            self._newest = None
        self._wake_thread()

    def _leave_behind(self) -> None:
        """If the newest renewal is overdue, wait for it no longer: the next one opens a connection of its own."""
        if self._newest is not None and boot_time() >= self._overdue_at:
            self._newest, self._store = None, None
            self.trouble.again(NOT_RENEWED, StoreUnavailable("the store does not answer; opening another connection"))

    def _current(self) -> list[KeptLease]:
        with self._lock:
            return [kept for kept in self._kept.values() if kept.lost is None]

    def _due(self) -> list[KeptLease]:
        """The leases that are due for renewal. One past its deadline is lost, not renewed."""
        now = boot_time()
        due = []
        for kept in self._current():
            if kept.stop_at is not None and now >= kept.stop_at:
                kept.lose("the task is past its time limit and does not answer")
            with suppress(LeaseLost):
                kept.check()
                if kept.next_at <= now:
                    due.append(kept)
                    # Renewal may be paused for a settle: check again later, not at once.
                    kept.next_at = now + _soon(kept)
        return due

    def _pause_seconds(self) -> float:
        """Seconds until something is due. While a renewal is in progress, only deadlines count, and the time when that
        renewal is overdue."""
        busy = self._newest is not None
        times = [kept.deadline if busy else min(kept.next_at, kept.deadline) for kept in self._current()]
        if busy and times:
            times.append(self._overdue_at)
        pause = max(0.0, min(times, default=boot_time() + 3600.0) - boot_time())
        # The loop's timeouts do not count suspend, deadlines do: so read the clock at least every second.
        return min(pause, MAX_PAUSE) if times else pause

    async def _renew(self, due: Sequence[KeptLease]) -> None:
        """Renew in batches. What fails is retried soon: an unavailable store must not end this thread."""
        store = self._store
        try:
            for start in range(0, len(due), MAX_IN_BATCH):
                batch = [kept for kept in due[start : start + MAX_IN_BATCH] if kept.begin()]
                if not batch:
                    continue
                sent_at = boot_time()
                try:
                    store = store or await self._open_store()
                    self._store = self._store or store
                    answers = await store.renew([Renewal(ref=kept.lease.ref, status=kept.status) for kept in batch])
                except Exception as error:  # noqa: BLE001 - whatever it is, retry until the deadline
                    self._failed(batch, sent_at, error)
                    continue
                finally:
                    for kept in batch:
                        kept.end()
                self.trouble.over(NOT_RENEWED)
                for kept, answer in zip(batch, answers, strict=True):
                    self._apply_answer(kept, answer.refused, sent_at)
                    if answer.answer is not None and kept.on_answer is not None:
                        kept.on_answer(answer.answer)
        finally:
            if store is not None and store is not self._store:
                with suppress(Exception):  # this connection was given up, because it did not answer
                    await store.close()

    def _failed(self, batch: Sequence[KeptLease], sent_at: float, error: Exception) -> None:
        self.trouble.again(NOT_RENEWED, error)
        for kept in batch:
            if kept.waits_since(sent_at):
                kept.next_at = boot_time() + _soon(kept)

    def _apply_answer(self, kept: KeptLease, refused: Refusal | None, sent_at: float) -> None:
        with self._lock:
            known = kept.lease.lease_id in self._kept
        if refused is None:
            kept.renewed(sent_at)
        elif refused is Refusal.OVERDUE:
            kept.next_at = boot_time() + _soon(kept)
        elif known:
            kept.lose(REFUSALS[refused], refused)
