"""Sweeps: expired leases become stale, stale ones are resolved, due jobs enter their lanes, old records go.

Safe to run many times at once, on any number of machines. A sweeper that sees the store's clock jump against its own
lets nothing expire for one TTL, and says so in the log.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from leasehold.config import Config
from leasehold.core.events import Event, EventType
from leasehold.core.leases import Lease, clock_jump
from leasehold.core.settle import LostFacts
from leasehold.errors import StoreError
from leasehold.ports import MOST_IN_BATCH, Resolution, Store
from leasehold.runtime.clocks import boot_time

_LOG = logging.getLogger(__name__)

MOST_BATCHES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep did."""

    expired: int = 0
    resolved: int = 0
    promoted: int = 0
    healed: int = 0
    pruned: int = 0
    paused: bool = False


def nothing_known(_lease: Lease) -> LostFacts:
    """What is known of a lost run when nobody left a report: nothing."""
    return LostFacts()


async def sweep_once(
    store: Store, config: Config, facts: Callable[[Lease], LostFacts] = nothing_known, *, expire: bool = True
) -> Swept:
    """One pass over everything."""
    expired = len(await store.expire()) if expire else 0
    lost = await store.unresolved()
    resolved = await store.resolve([Resolution(lease_id=lease.lease_id, facts=facts(lease)) for lease in lost])
    promoted = pruned = 0
    for _ in range(MOST_BATCHES):
        moved = await store.promote()
        promoted += moved
        if moved < MOST_IN_BATCH:
            break
    healed = await store.heal()
    for _ in range(MOST_BATCHES):
        gone = await store.prune(config.retention)
        pruned += gone
        if gone < MOST_IN_BATCH:
            break
    return Swept(
        expired=expired,
        resolved=len(resolved),
        promoted=promoted,
        healed=healed,
        pruned=pruned,
        paused=not expire,
    )


class Sweeper:
    """Sweeps every so often, and watches the store's clock against its own."""

    def __init__(self, store: Store, config: Config, facts: Callable[[Lease], LostFacts] = nothing_known) -> None:
        self._store = store
        self._config = config
        self._facts = facts
        self._seen: tuple[datetime, float] | None = None
        self._paused_until = 0.0

    async def tick(self) -> Swept:
        """One sweep, without expiry while the clock is in doubt."""
        await self._watch_clock()
        return await sweep_once(self._store, self._config, self._facts, expire=boot_time() >= self._paused_until)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until told to stop. A store that is away is tried again at the next turn."""
        while not stop.is_set():
            try:
                await self.tick()
            except StoreError as error:
                _LOG.warning("sweep failed, trying again in %s: %s", self._config.sweep_every, error)
                self._seen = None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._config.sweep_every.total_seconds())

    async def _watch_clock(self) -> None:
        store_now, own = (await self._store.check()).now, boot_time()
        seen, self._seen = self._seen, (store_now, own)
        if seen is None:
            return
        jump = clock_jump(store_now - seen[0], timedelta(seconds=own - seen[1]), self._config.clock_tolerance)
        if jump is None:
            return
        ttl = self._config.policy.timing.ttl
        self._paused_until = own + ttl.total_seconds()
        await self._store.record(
            Event(
                at=store_now,
                type=EventType.CLOCK_JUMPED,
                data={"jump_seconds": jump.total_seconds(), "expiry_paused_seconds": ttl.total_seconds()},
            )
        )
