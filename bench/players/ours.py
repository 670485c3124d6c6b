"""Ours, on any store: the chaos arena's worker and submitter, and the product's own sweeper, which notices a clock that
jumps."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from bench.players import Orders, jump_of
from leasekeeper.config import load
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.errors import StoreError
from leasekeeper.ports import Store
from leasekeeper.runtime.sweeper import Sweeper as ProductSweeper
from leasekeeper.stores import open_store
from tests.chaos import client
from tests.chaos.client import DONE, POLICY, Holding, Log, Refused

CONFIG = replace(load({}), policy=POLICY, clock_tolerance=timedelta(seconds=2))


class Worker(client.Worker):
    """Like the arena's, but every job succeeds: the peers' jobs do."""

    async def settle(self, holding: Holding) -> None:
        self.held.remove(holding)
        await self.log.call(
            "settle",
            holding.args,
            self.store.settle([Ending(ref=holding.ref, facts=DONE)]),
            lambda answers: Refused() if answers[0].refused else {"job_state": answers[0].job_state},
        )


class Sweeper(client.Sweeper):
    """The product's sweeper, and the person who clears what waits for one."""

    def __init__(self, store: Store, log: Log, orders: Orders) -> None:
        super().__init__(store, log, orders)
        self.sweeper = ProductSweeper(store, CONFIG, _facts)

    async def sweep(self) -> None:
        await self.sweeper.tick()
        for state in ("review_required", "quarantined"):
            for lane in (await self.store.find(Lane, {"state": state})).items:
                await self.clear(lane)


async def _facts(_lease: Lease) -> LostFacts:
    return LostFacts(final_url="https://shop.example/", browser_dead=True, reported_by="keeper")


async def opened(orders: Orders) -> Store:
    def clock(real: datetime) -> datetime:
        return real + timedelta(seconds=jump_of(orders))

    while True:
        try:
            return await open_store(orders.url, policy=POLICY, clock=clock)
        except StoreError:
            await asyncio.sleep(0.1)


async def main(orders: Orders) -> None:
    logging.disable(logging.CRITICAL)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    store = await opened(orders)
    roles: dict[str, Any] = {"worker": Worker, "sweeper": Sweeper, "submitter": client.Submitter}
    try:
        await roles[orders.role](store, Log(orders), orders).run(stopping)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(Orders.load(sys.argv[1])))
