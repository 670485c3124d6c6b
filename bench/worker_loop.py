"""The worker's whole loop, as it ships: claim, lease, ledger, evidence, settle, warm hand-over; only the browser does
nothing (driver `null`). One process; measuring starts when the worker does.

An idle worker has nothing to do: what is measured is the processor time that its process uses all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import leasekeeper.stores
from bench.load import TASK
from leasekeeper import config as settings
from leasekeeper.app import App, Run
from leasekeeper.ports import Store
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions

IDLE_SECONDS = float(os.environ.get("BENCH_IDLE_SECONDS", "30"))
SETTLED_SECONDS = 5.0
"""Until an idle worker has done what a start needs, and all its intervals have grown."""
ON_DISK = "/var/tmp"  # noqa: S108 - the folder inside it is private


def rate(url: str, concurrency: int, seconds: float) -> float:
    """Jobs per second of one worker process."""
    command = [sys.executable, "-m", "bench.worker_loop", url, str(concurrency), str(seconds)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    return float(found["jobs"] / found["seconds"])


def idle_percent(url: str) -> float:
    """Percent of a core that one worker process uses while there are no jobs."""
    command = [sys.executable, "-m", "bench.worker_loop", url, "1", str(SETTLED_SECONDS + IDLE_SECONDS)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return 100 * float(json.loads(answer.stdout)["idle_cpu_seconds"]) / IDLE_SECONDS


async def _work(url: str, concurrency: int, seconds: float, folder: str) -> None:
    app, done = App(), 0

    @app.task(TASK)
    async def count(_run: Run) -> None:
        nonlocal done
        done += 1

    config = settings.load({}, store=url, data_dir=folder, drivers="null")

    async def open_store() -> Store:
        return await leasekeeper.stores.open_store(url, policy=config.policy)

    store, stop = await open_store(), Shutdown(timedelta(seconds=30))
    worker = Worker(
        app, store, config, WorkerOptions(concurrency=concurrency, worker_id="bench"), open_store=open_store, stop=stop
    )
    started = time.perf_counter()
    running = asyncio.create_task(worker.run())
    await asyncio.wait({running}, timeout=min(SETTLED_SECONDS, seconds))
    used = time.process_time()
    await asyncio.wait({running}, timeout=max(0.0, seconds - SETTLED_SECONDS))
    used = time.process_time() - used
    if not running.done():
        stop.ask()
    await running
    took = time.perf_counter() - started
    stop.done()
    await store.close()
    print(json.dumps({"jobs": done, "seconds": took, "idle_cpu_seconds": used}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lk-bench-", dir=ON_DISK) as data:
        asyncio.run(_work(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), data))
