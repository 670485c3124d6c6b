"""How many messages one bridge takes from a Redis list into PostgreSQL.

The list is full, the bridge is a process of its own with its default batches, both servers wait for the disk. Counted
is from its start to its end, less what a bridge on an empty list takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import redis

from bench import load
from bench.report import ROUNDS, Report, in_turns
from leasekeeper.stores import open_store
from tests.redis_store import redis_server
from tests.servers import new_database, postgres_server

MESSAGES: Final = int(os.environ.get("BENCH_MESSAGES", "20000"))
PROFILES: Final = 200
LIST: Final = "mlx:jobs"
OUT: Final = Path("bench/out/bridges.json")
ON_DISK: Final = Path("/var/tmp")  # noqa: S108 - folders inside it are made private


def fill(address: str, count: int) -> None:
    """Messages as the recipe has them, round-robin over profiles."""
    with redis.Redis.from_url(address) as client:
        for start in range(0, count, 1_000):
            client.lpush(LIST, *(message(n) for n in range(start, min(count, start + 1_000))))


def message(n: int) -> str:
    profile = f"profile_{n % PROFILES:05}"
    job = {"profile_id": profile, "task": load.TASK, "payload": load.PAYLOAD, "attempt": 1, "max_attempts": 3}
    return json.dumps(job)


def drain(store: str, address: str) -> float:
    """Seconds that a bridge takes for what is in the list."""
    command = [sys.executable, "-m", "leasekeeper", "bridge", "redis", "env:QUEUE", "--list", LIST, "--drain"]
    started = time.perf_counter()
    environment = {**os.environ, "LEASEKEEPER_STORE": store, "QUEUE": address}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - started


async def submitted(url: str) -> int:
    store = await open_store(url)
    try:
        jobs = (await store.stats()).jobs
        return sum(jobs.values())
    finally:
        await store.close()


def main() -> None:
    report = Report()
    print(f"messages/s of one bridge, {MESSAGES:,} in the list, {ROUNDS} rounds\n")
    with (
        tempfile.TemporaryDirectory(prefix="lk-bench-", dir=ON_DISK) as folder,
        postgres_server(parent=ON_DISK) as postgres,
        redis_server(Path(folder)) as queue,
    ):
        address = f"unix://{queue.socket}"

        def rate() -> float:
            url = new_database(postgres)
            asyncio.run(load.make_world(url, PROFILES, 0, 0))
            empty = drain(url, address)
            fill(address, MESSAGES)
            seconds = drain(url, address) - empty
            assert asyncio.run(submitted(url)) == MESSAGES
            return MESSAGES / seconds

        (rates,) = in_turns(rate)
    report.row("Redis list → bridge → PostgreSQL, batches of 200", max(rates), f"of {len(rates)} rounds the best")
    report.ratio("bridge_per_second_to_1000", sorted(rates)[len(rates) // 2] / 1_000)
    report.save(OUT)


if __name__ == "__main__":
    main()
