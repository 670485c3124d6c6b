"""Procrastinate with `lock=<profile>` and `queueing_lock=<job>`, and its documented way with jobs of dead workers:
heartbeats, and somebody who retries stalled jobs. A worker that ended because of an error is started again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from contextlib import suppress
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ProcrastinateException

from bench.players import BEAT_SECONDS, PACE_SECONDS, TASK, TTL_SECONDS, Log, Orders, grant_of, work_seconds

TROUBLE = (ProcrastinateException, psycopg.Error, OSError)
SWEEP_SECONDS = 0.1


def app_of(url: str, seed: int) -> App:
    app = App(connector=PsycopgConnector(conninfo=url))
    chance = random.Random(seed)

    @app.task(name=TASK)
    async def buy(profile: str, job: str) -> None:  # noqa: ARG001 - the job acts in its profile, and nothing else
        await asyncio.sleep(work_seconds(chance))

    return app


def watch(app: App, log: Log) -> None:
    """Log what the worker asks of its queue."""
    manager: Any = app.job_manager
    fetch, finish = manager.fetch_job, manager.finish_job
    grants: dict[int, dict[str, Any]] = {}

    async def fetch_job(**arguments: Any) -> Any:
        answered = log.sent("claim", {"limit": 1})
        job = await fetch(**arguments)
        if job is not None:
            grants[id(job)] = grant_of(job.lock, str(job.id))
        answered([grants[id(job)]] if job is not None else [])
        return job

    async def finish_job(job: Any, **arguments: Any) -> None:
        grant = grants.pop(id(job))
        answered = log.sent("settle", {name: grant[name] for name in ("profile", "token", "job")})
        await finish(job=job, **arguments)
        answered({"job_state": "completed"})

    manager.fetch_job, manager.finish_job = fetch_job, finish_job


async def work(app: App, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        async with app.open_async():
            working = asyncio.ensure_future(
                app.run_worker_async(
                    concurrency=1,
                    fetch_job_polling_interval=0.1,
                    update_heartbeat_interval=BEAT_SECONDS,
                    stalled_worker_timeout=TTL_SECONDS,
                    install_signal_handlers=False,
                )
            )
            stop = asyncio.ensure_future(stopping.wait())
            await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            stop.cancel()
            with suppress(asyncio.CancelledError, *TROUBLE):
                await working


async def retry_stalled(app: App, stopping: asyncio.Event) -> None:
    """As its documentation has it, only more often."""
    async with app.open_async():
        while not stopping.is_set():
            with suppress(*TROUBLE):
                for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=TTL_SECONDS):
                    await app.job_manager.retry_job(job)
            await asyncio.sleep(SWEEP_SECONDS)


async def submit(app: App, log: Log, orders: Orders, stopping: asyncio.Event) -> None:
    waiting = list(orders.specs)
    async with app.open_async():
        while waiting and not stopping.is_set():
            name, profile = waiting[0]["notes"], waiting[0]["profile_id"]
            answered = log.sent("submit", {"jobs": 1})
            task = app.configure_task(TASK, lock=profile, queueing_lock=name)
            try:
                number = await task.defer_async(profile=profile, job=name)
            except AlreadyEnqueued:
                answered([])
            except TROUBLE:
                continue
            else:
                answered([{"job": str(number), "key": name, "already": False}])
            del waiting[0]
            await asyncio.sleep(PACE_SECONDS)


async def main(orders: Orders) -> None:
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    app, log = app_of(orders.url, orders.seed), Log(orders)
    if orders.role == "submitter":
        await submit(app, log, orders, stopping)
    elif orders.role == "sweeper":
        await retry_stalled(app, stopping)
    else:
        watch(app, log)
        await work(app, stopping)


if __name__ == "__main__":
    asyncio.run(main(Orders.load(sys.argv[1])))
