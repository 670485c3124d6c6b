"""Sweeps: expired leases become stale, stale ones are resolved, due jobs enter their lanes, old records go.

Safe to run many times at once, on any number of machines. A sweeper that sees the store's clock jump against its own
lets nothing expire for one TTL, and says so in the log. One that has nothing to compare with yet ends no lease and
deletes nothing: those that run already are given the time to see a jump.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from leasekeeper.aside import aside
from leasekeeper.config import BrowserConfig, Config
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import Lease, clock_jump
from leasekeeper.core.settle import LostFacts
from leasekeeper.errors import InputError, PartlyDone
from leasekeeper.evidence.files import prune_evidence
from leasekeeper.ports import MOST_IN_BATCH, MOST_IN_PAGE, Resolution, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.outbox import Outbox, check_sent, sender_of
from leasekeeper.runtime.testimony import Testimony
from leasekeeper.runtime.trouble import Trouble

_LOG = logging.getLogger(__name__)

MOST_BATCHES = 20
PRUNE_EVERY_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep did."""

    expired: int = 0
    resolved: int = 0
    promoted: int = 0
    healed: int = 0
    pruned: int = 0
    reports: int = 0
    webhooks: int = 0
    webhooks_failed: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What the store's clock showed, at some time between two of our own."""

    store: datetime
    began: float
    ended: float

    def jump_since(self, before: "_Look", tolerance: timedelta) -> timedelta | None:
        least, most = (timedelta(seconds=s) for s in (self.began - before.ended, self.ended - before.began))
        return clock_jump(self.store - before.store, least, most, tolerance)


def nothing_known(_lease: Lease) -> LostFacts:
    """What is known of a lost run when nobody left a report: nothing."""
    return LostFacts()


async def _sweep(
    store: Store, config: Config, facts: Callable[[Lease], LostFacts], *, seen: datetime | None, prune: bool
) -> Swept:
    """One pass over everything. Nothing expires that was not over when the store's clock was `seen`."""
    expired = resolved = 0
    for _ in range(MOST_BATCHES):
        ended = len(await store.expire(seen=seen)) if seen is not None else 0
        lost = await store.unresolved()
        done = await store.resolve([Resolution(lease_id=lease.lease_id, facts=facts(lease)) for lease in lost])
        expired, resolved = expired + ended, resolved + len(done)
        if ended < MOST_IN_BATCH and (len(lost) < MOST_IN_BATCH or not done):
            break
    promoted = await _batches(store.promote)
    healed = await store.heal()
    pruned = await _batches(lambda: store.prune(config.retention)) if prune else 0
    return Swept(expired=expired, resolved=resolved, promoted=promoted, healed=healed, pruned=pruned)


async def _batches(operation: Callable[[], Awaitable[int]]) -> int:
    """Again and again while there is a full batch of it, but not for ever."""
    total = 0
    for _ in range(MOST_BATCHES):
        done = await operation()
        total += done
        if done < MOST_IN_BATCH:
            break
    return total


def _prune_evidence(config: BrowserConfig, testimony: Testimony, wanted: frozenset[str]) -> None:
    try:
        prune_evidence(
            testimony.ledger.runs_dir,
            older_than=config.keep_evidence,
            most_bytes=config.keep_evidence_bytes,
            in_use=testimony.ledger.under_way() | wanted,
        )
    except OSError as error:
        _LOG.warning("old evidence was not deleted: %s", error)


async def _to_be_reviewed(store: Store) -> frozenset[str]:
    """The runs that a person has yet to look at."""
    found: set[str] = set()
    after: str | None = None
    while True:
        page = await store.find(Review, {"open": "1"}, after=after, most=MOST_IN_PAGE)
        found |= {review.run_id for review in page.items if review.run_id is not None}
        after = page.after
        if after is None:
            return frozenset(found)


async def sweep_here(store: Store, config: Config) -> Swept:
    """One pass, with what keepers on this machine have reported, its old evidence deleted, and webhooks sent.

    Leases come first: nothing that is wrong with webhooks keeps them from it.
    """
    sweeper = Sweeper(store, config, testimony=Testimony(Path(config.browsers.data_dir)))
    await sweeper.look()
    swept = await sweeper.tick()
    try:
        sender = sender_of(config.webhooks)
    except InputError as error:
        raise PartlyDone(f"all but the webhooks was done: {error}") from error
    if sender is None:
        try:
            await check_sent(store)
        except InputError as error:
            _LOG.warning("webhooks were not sent: %s", error)
        return swept
    sent = await Outbox(store, config, sender).once()
    return replace(swept, webhooks=sent.delivered, webhooks_failed=sent.failed)


class Sweeper:
    """Sweeps every so often, and watches the store's clock against its own.

    On a machine that runs browsers it also delivers what their keepers reported, and deletes old evidence.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        facts: Callable[[Lease], LostFacts] = nothing_known,
        *,
        testimony: Testimony | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._facts = testimony.facts if testimony is not None else facts
        self._testimony = testimony
        self._trouble = trouble or Trouble()
        self._seen: _Look | None = None
        self._prune_at = 0.0

    async def tick(self) -> Swept:
        """One sweep. Old records are looked for now and then only."""
        first = self._seen is None
        look, paused = await self.look()
        seen = None if first else look.store
        prune = not first and not paused and boot_time() >= self._prune_at
        if prune or paused:
            self._prune_at = boot_time() + PRUNE_EVERY_SECONDS
        testimony = self._testimony
        swept = await _sweep(self._store, self._config, self._facts, seen=seen, prune=prune)
        reports = await testimony.deliver(self._store) if testimony is not None else 0
        if prune and testimony is not None:
            wanted = await _to_be_reviewed(self._store)
            await aside(_prune_evidence, self._config.browsers, testimony, wanted)
        return replace(swept, paused=paused, reports=reports)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until told to stop. Whatever goes wrong is tried again at the next turn: nobody else would."""
        while not stop.is_set():
            try:
                await self.tick()
                self._trouble.over("sweep failed")
            except Exception as error:  # noqa: BLE001 - dying would be worse than complaining
                self._trouble.again("sweep failed", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._config.sweep_every.total_seconds())

    async def look(self) -> tuple[_Look, bool]:
        """Compare the store's clock with our own, and pause expiry if it jumped since the last look: whether it did."""
        began = boot_time()
        look = _Look(store=(await self._store.check()).now, began=began, ended=boot_time())
        jump = look.jump_since(self._seen, self._config.clock_tolerance) if self._seen is not None else None
        if jump is not None:
            await self._store.pause_expiry(self._config.policy.timing.ttl, jump)
        self._seen = look  # only now: a jump that could not be told is seen again at the next look
        return look, jump is not None
