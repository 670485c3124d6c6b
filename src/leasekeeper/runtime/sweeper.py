"""Sweeps: expired leases become stale, stale ones are resolved, due jobs enter their lanes, due schedules make jobs,
old records are deleted.

Any number of sweepers may run at once, on any number of machines. A sweeper that detects a jump of the store's clock,
compared with its own, lets nothing expire for one TTL and writes an event. At its first reading it has nothing to
compare with, so it ends no lease and deletes nothing: sweepers that already run get the time to detect a jump.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.config import BrowserConfig, Config
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import Lease, clock_jump
from leasekeeper.core.settle import LostFacts
from leasekeeper.errors import EvidenceUnavailable, InputError, PartlyDone
from leasekeeper.evidence.files import prune_evidence
from leasekeeper.evidence.places import open_place
from leasekeeper.evidence.retention import Limits, prune_place
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import MAX_IN_BATCH, Resolution, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.launcher_checks import LauncherAsker
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.runtime.outbox import Outbox, check_somebody_sends, sender_of
from leasekeeper.runtime.overdue_browsers import OverdueBrowsers
from leasekeeper.runtime.proxy_checks import ProxyAsker
from leasekeeper.runtime.scheduler import fire_due
from leasekeeper.runtime.snapshot_housekeeping import keep_snapshots_in_order
from leasekeeper.runtime.sweep_log import log_expired, log_resolved, log_swept
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCHES = 20
PRUNE_EVERY_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep did."""

    expired: int = 0
    resolved: int = 0
    promoted: int = 0
    healed: int = 0
    fired: int = 0
    overdue: int = 0
    proxies: int = 0
    pruned: int = 0
    silent: int = 0
    reports: int = 0
    webhooks: int = 0
    webhooks_failed: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClockReading:
    """The store's clock, read at some time between `began` and `ended` of our own."""

    store: datetime
    began: float
    ended: float

    def jump_since(self, before: "_ClockReading", tolerance: timedelta) -> timedelta | None:
        least, limit = (timedelta(seconds=s) for s in (self.began - before.ended, self.ended - before.began))
        return clock_jump(self.store - before.store, least, limit, tolerance)


async def nothing_known(_lease: Lease) -> LostFacts:
    """The facts about a lost run without a keeper's report: none."""
    return LostFacts()


async def _sweep(
    store: Store,
    config: Config,
    facts: Callable[[Lease], Awaitable[LostFacts]],
    *,
    skipping: Callable[[list[Lease]], Awaitable[list[Lease]]],
    seen: datetime | None,
    prune: bool,
    quiet_counts: bool,
) -> Swept:
    """One pass over everything. Only leases that had expired when the store's clock was `seen` are ended.

    `skipping` removes the leases whose launchers are asked first. `quiet_counts`: the clock can be trusted to say how
    long a worker did not report.
    """
    expired = resolved = 0
    for _ in range(MAX_BATCHES):
        over = await store.expire(seen=seen) if seen is not None else []
        ended = len(over)
        if seen is not None:
            log_expired(over, seen)
        lost = await skipping(await store.unresolved())
        done = await store.resolve([Resolution(lease_id=lease.lease_id, facts=await facts(lease)) for lease in lost])
        log_resolved(done, lost)
        expired, resolved = expired + ended, resolved + len(done)
        if ended < MAX_IN_BATCH and (len(lost) < MAX_IN_BATCH or not done):
            break
    promoted = await _batches(store.promote)
    healed = await store.heal()
    silent = await _batches(lambda: _mark_silent(store)) if quiet_counts else 0
    pruned = await _batches(lambda: store.prune(config.retention)) if prune else 0
    return Swept(expired=expired, resolved=resolved, promoted=promoted, healed=healed, pruned=pruned, silent=silent)


async def _mark_silent(store: Store) -> int:
    silent = await store.mark_silent()
    for worker in silent:
        _LOG.warning(
            "worker %s no longer reports; its last report was at %s",
            worker.worker_id,
            worker.heartbeat_at,
            extra={"worker_id": worker.worker_id},
        )
    return len(silent)


async def _batches(operation: Callable[[], Awaitable[int]]) -> int:
    """Repeat while batches are full, at most `MAX_BATCHES` times."""
    total = 0
    for _ in range(MAX_BATCHES):
        done = await operation()
        total += done
        if done < MAX_IN_BATCH:
            break
    return total


async def _prune_evidence(store: Store, config: BrowserConfig, reports: LostRunReports) -> None:
    """Delete old evidence: from this machine, and from the place that evidence is delivered to."""
    limits = Limits(older_than=config.keep_evidence, max_bytes=config.keep_evidence_bytes)
    wanted = await _to_be_reviewed(store)
    try:
        await run_in_thread(_prune_here, limits, reports, wanted)
        place = reports.place
        if place is not None and place.prunes:
            await prune_place(place, limits, in_use=wanted | await _under_way(store))
    except (OSError, EvidenceUnavailable) as error:
        _LOG.warning("old evidence was not deleted: %s", error)


def _prune_here(limits: Limits, reports: LostRunReports, wanted: frozenset[str]) -> None:
    prune_evidence(
        reports.ledger.runs_dir,
        older_than=limits.older_than,
        max_bytes=limits.max_bytes,
        in_use=reports.ledger.under_way() | wanted,
    )


async def _to_be_reviewed(store: Store) -> frozenset[str]:
    """The runs with an open review: their evidence is kept."""
    return frozenset([run async for review in _all(store, Review, {"open": "1"}) if (run := review.run_id) is not None])


async def _under_way(store: Store) -> frozenset[str]:
    """The runs in progress, wherever they are."""
    return frozenset([lease.run_id async for lease in _all(store, Lease, {"live": "1"})])


async def _all(store: Store, kind: type[T], where: Mapping[str, str]) -> AsyncIterator[T]:
    after: str | None = None
    while True:
        page = await store.find(kind, where, after=after, limit=MAX_IN_PAGE)
        for each in page.items:
            yield each
        after = page.after
        if after is None:
            return


async def sweep_here(store: Store, config: Config) -> Swept:
    """One pass on this machine: keepers' reports are stored, old evidence is deleted, webhooks are sent.

    Leases come first: an error of webhooks does not prevent that.
    """
    reports = LostRunReports(Path(config.browsers.data_dir), open_place(config.browsers))
    sweeper = Sweeper(store, config, reports=reports)
    await sweeper.check_clock()
    swept = await sweeper.tick()
    try:
        sender = await sender_of(store, config)
    except InputError as error:
        raise PartlyDone(f"the sweep is done, but webhooks were not sent: {error}", stopped_by=error.code) from error
    if sender is None:
        try:
            await check_somebody_sends(store)
        except InputError as error:
            _LOG.warning("webhooks were not sent: %s", error)
        return swept
    sent = await Outbox(store, config, sender).once()
    return replace(swept, webhooks=sent.delivered, webhooks_failed=sent.failed)


class Sweeper:
    """Sweeps at an interval, and compares the store's clock with its own.

    On a machine that runs browsers it also stores the reports of their keepers, and deletes old evidence.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        facts: Callable[[Lease], Awaitable[LostFacts]] = nothing_known,
        *,
        reports: LostRunReports | None = None,
        trouble: FailureLog | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._facts = reports.facts if reports is not None else facts
        self._reports = reports
        self._overdue = OverdueBrowsers(reports.ledger, config.policy.timing) if reports is not None else None
        self._trouble = trouble or FailureLog()
        self._asker = ProxyAsker(store, config.browsers)
        self.launchers = LauncherAsker(
            store, lambda: known_machine_name(config.browsers) if reports is not None else None, self._facts
        )
        self._last: _ClockReading | None = None
        self._prune_at = 0.0

    async def tick(self) -> Swept:
        """One sweep. Old records are deleted every 10 minutes only."""
        first = self._last is None
        reading, paused = await self.check_clock()
        seen = None if first else reading.store
        prune = not first and not paused and boot_time() >= self._prune_at
        if prune or paused:
            self._prune_at = boot_time() + PRUNE_EVERY_SECONDS
        overdue = await self.end_overdue_browsers()
        swept = await _sweep(
            self._store,
            self._config,
            self._facts,
            skipping=self.without_askable,
            seen=seen,
            prune=prune,
            quiet_counts=not (first or paused),
        )
        answered = await self.launchers.ask_due()
        fired = await fire_due(self._store, self._trouble)
        delivered = await self._reports.deliver(self._store) if self._reports is not None else 0
        if prune and self._reports is not None:
            await _prune_evidence(self._store, self._config.browsers, self._reports)
            await keep_snapshots_in_order(self._store, self._config.browsers)
        freed = await self._asker.ask_due()
        swept = replace(swept, paused=paused, overdue=overdue, fired=fired, reports=delivered, proxies=freed)
        swept = replace(swept, resolved=swept.resolved + len(answered))
        log_swept(swept)
        return swept

    async def without_askable(self, lost: list[Lease]) -> list[Lease]:
        """The lost runs, without those whose launcher can be asked from this machine: they are decided on after
        that."""
        asked = {each.lease.lease_id for each in await self.launchers.askable(lost)}
        return [lease for lease in lost if lease.lease_id not in asked]

    async def end_overdue_browsers(self) -> int:
        """End browsers of this machine that outlived their leases. Returns how many."""
        return await self._overdue.round(self._store) if self._overdue is not None else 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop` is set. Errors are logged and retried at the next interval."""
        while not stop.is_set():
            try:
                await self.tick()
                self._trouble.over("sweep failed")
            except Exception as error:  # noqa: BLE001 - the sweeper must survive every error
                self._trouble.again("sweep failed", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._config.sweep_every.total_seconds())

    async def check_clock(self) -> tuple[_ClockReading, bool]:
        """Compare the store's clock with our own. If it jumped since the last call, pause expiry and return True."""
        began = boot_time()
        reading = _ClockReading(store=(await self._store.check()).now, began=began, ended=boot_time())
        jump = reading.jump_since(self._last, self._config.clock_tolerance) if self._last is not None else None
        if jump is not None:
            await self._store.pause_expiry(self._config.policy.timing.ttl, jump)
        self._last = reading  # only now: a jump that could not be recorded is detected again
        return reading, jump is not None
