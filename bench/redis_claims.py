"""The Redis part of `bench.claims`: our store on a server that waits for the disk (`always`) or syncs once a second
(`everysec`), beside the SET NX recipe on a server that keeps nothing.

The recipe is neither durable nor safe, and once only jobs of taken profiles are left it pops and pushes them for ever:
`redis_idle_cores` shows what that costs beside a worker of ours that waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

import leasekeeper.stores
from bench import load, redis_memory
from bench.peers import redis_recipe
from bench.report import ROUNDS, Report, in_turns, middle_ratio
from leasekeeper.core.ids import WorkerId
from leasekeeper.ports import ClaimRequest
from tests.redis_store import redis_server
from tests.servers import start_redis

PROFILES: Final = 2_000
JOBS_EACH: Final = int(os.environ.get("BENCH_REDIS_JOBS", "10"))
WORKERS: Final = 8
SPREADS: Final = (2, 4, 8)
SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "4"))
IDLE_SECONDS: Final = 5.0
# How many jobs are blocked beside the recipe, and what the ratio is called.
BESIDE_RECIPE: Final = {
    0: "redis_eight_workers_to_recipe",
    20_000: "redis_blocked_20k_to_recipe",
    100_000: "redis_blocked_100k_to_recipe",
}
IDLE_BLOCKED: Final = 20_000
BLOCKED: Final = {"always": "redis_always_blocked_100k_to_none", "everysec": "redis_blocked_100k_to_none"}
POLL: Final = timedelta(seconds=1)


@dataclass
class RedisBench:
    """Worlds are whole servers: a store is alone on its Redis."""

    folder: Path
    report: Report

    def run(self) -> None:
        with start_redis(self.folder) as url:
            self._beside_recipe(url)
        for fsync in ("always", "everysec"):
            self._rates(fsync)
            self._blocked(fsync)
        self._memory()

    def _rates(self, fsync: str) -> None:
        with redis_server(self.folder, fsync=fsync) as server:
            submitted = _world(server.url)
            ones = [_rate(server.url, 1, 1, 1) for _ in range(ROUNDS)]
            many = [_rate(server.url, 1, 16, 1) for _ in range(ROUNDS)]
        self.report.row(f"Redis ({fsync}), 1 worker × 1", median(ones))
        self.report.row(f"Redis ({fsync}), 1 worker × 16", median(many))
        self.report.row(f"Redis ({fsync}), submit in batches", submitted.per_second, submitted.setup)

    def _beside_recipe(self, recipe: str) -> None:
        """Eight workers, with nothing and much blocked, and what remains when only that is left."""
        for blocked, name in BESIDE_RECIPE.items():
            theirs = redis_recipe.run(recipe, PROFILES, 10, WORKERS, blocked, 10.0)
            among = f", {blocked:,} blocked" if blocked else ""
            self._eight("always", blocked, among)
            ours, idle = self._eight("everysec", blocked, among)
            self.report.row(f"  SET NX recipe (not durable), 8 workers{among}", theirs.jobs_per_s, theirs.setup)
            self.report.ratio(name, ours / theirs.jobs_per_s)
            if blocked == IDLE_BLOCKED:
                spinning = redis_recipe.spin(recipe, WORKERS, blocked, IDLE_SECONDS)
                self.report.row("  cores used by 8 workers when only blocked jobs are left", idle, "ours")
                self.report.row("  the same, SET NX recipe", spinning, "it pops and pushes them for ever")
                self.report.ratio("redis_idle_cores_to_recipe", idle / spinning)

    def _eight(self, fsync: str, blocked: int, among: str) -> tuple[float, float]:
        """Jobs per second of eight workers, and the cores that they use once only blocked jobs are left."""
        with redis_server(self.folder, fsync=fsync) as server:
            _world(server.url, blocked)
            spread = max(SPREADS, key=lambda p: _rate(server.url, WORKERS, 1, p, 1.5))
            ours = median(_rate(server.url, WORKERS, 1, spread) for _ in range(ROUNDS))
            idle = _idle_cores(server.url) if (blocked, fsync) == (IDLE_BLOCKED, "everysec") else 0.0
        self.report.row(f"Redis ({fsync}), 8 workers × 1{among}", ours, f"{spread} processes")
        return ours, idle

    def _blocked(self, fsync: str) -> None:
        """What is blocked behind one profile costs nothing, whatever the server's disk costs."""
        with redis_server(self.folder, fsync=fsync) as one, redis_server(self.folder, fsync=fsync) as other:
            _world(one.url)
            _world(other.url, 100_000)
            none, many = in_turns(lambda: _rate(one.url, 1, 1, 1), lambda: _rate(other.url, 1, 1, 1))
        self.report.row(f"Redis ({fsync}), 1 × 1, none blocked", median(none))
        self.report.row(f"Redis ({fsync}), 1 × 1, 100,000 blocked behind one profile", median(many))
        self.report.ratio(BLOCKED[fsync], middle_ratio(many, none))

    def _memory(self) -> None:
        with redis_server(self.folder, fsync="everysec") as server:
            kept = redis_memory.measure(server.url)
        self.report.row("Redis, bytes of a waiting job, its event included", kept.waiting)
        each = f"{kept.events_each:.1f} events each"
        self.report.row("Redis, bytes of a finished job, its run and events included", kept.finished, each)
        self.report.row("Redis, bytes of an event, its indexes included", kept.event)


def _world(url: str, blocked: int = 0) -> load.Rate:
    return asyncio.run(load.make_world(url, PROFILES, JOBS_EACH, blocked))


def _rate(url: str, workers: int, batch: int, processes: int, seconds: float = SECONDS) -> float:
    return load.run_workers(url, workers, batch, seconds, processes).per_second


def _idle_cores(url: str) -> float:
    """How many cores our workers use when nothing can be claimed. First all open jobs are worked off."""
    load.run_workers(url, WORKERS, 16, 1800.0, 2)
    commands = [[sys.executable, "-m", "bench.redis_claims", url] for _ in range(WORKERS)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return sum(float(child.communicate()[0]) for child in children) / IDLE_SECONDS


async def _idle(url: str) -> float:
    """The CPU seconds of one worker that finds nothing, and waits as the worker's loop does."""
    store = await leasekeeper.stores.open_store(url)
    try:
        request = ClaimRequest(
            worker_id=WorkerId("bench"), incarnation="bench", tasks=(load.TASK,), machine=load.MACHINE
        )
        used, until = time.process_time(), time.monotonic() + IDLE_SECONDS
        while time.monotonic() < until:
            if await store.claim(replace(request, limit=1)):
                raise RuntimeError("there was still a job to claim")
            await store.wait("default", POLL)
        return time.process_time() - used
    finally:
        await store.close()


if __name__ == "__main__":
    logging.getLogger("leasekeeper.store").setLevel(logging.ERROR)
    print(asyncio.run(_idle(sys.argv[1])))
