"""Procrastinate with `lock=<profile>`: the nearest PostgreSQL peer, as it is shipped and with a tuned pool.

As shipped: its own connector as its documentation opens it, spread over processes in the fastest way. Tuned: a pool
that spares it the check of the connection before each use and the transaction around each statement.
Jobs are deferred before the start, the task does nothing, and the time comes from the database's own
events, from the first job finished to the last: start-up and polling are not counted.
With `blocked` > 0 as many older jobs wait for one lock. Its holder is only marked `doing` in the
table, which the fetch query cannot tell from a running task (a known cost: procrastinate issue 1242).
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

import psycopg
import psycopg_pool
from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Job
from psycopg.conninfo import make_conninfo

from bench.peers import Result

SCHEMA = "bench_procrastinate"
TASK = "noop"
HELD = "held"
BATCH = 1_000
TRIAL_SECONDS = 4.0
GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What waits in the queue at the start."""

    profiles: int
    jobs_per_profile: int
    blocked: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How the parallel jobs are spread: processes, and concurrency inside each; and by which pool they connect."""

    processes: int
    concurrency: int
    tuned: bool = False

    def __str__(self) -> str:
        return f"processes={self.processes} concurrency={self.concurrency}"


def run(
    dsn: str,
    profiles: int,
    jobs_per_profile: int,
    workers: int,
    blocked: int,
    seconds_cap: float,
    *,
    tuned: bool = False,
) -> Result:
    """Try each shape of `workers` parallel jobs for a moment, then measure the fastest.

    A fetch is the cheaper the fewer jobs wait, so without `blocked` the cap should let all jobs
    finish. Uses a schema of its own in the database of `dsn`, and drops it.
    """
    dsn = make_conninfo(dsn, options=f"-csearch_path={SCHEMA}")
    load = Load(profiles, jobs_per_profile, blocked)
    trials = {shape: _run_shape(dsn, load, shape, TRIAL_SECONDS) for shape in shapes(workers, tuned=tuned)}
    fastest = max(trials, key=lambda shape: trials[shape].jobs_per_s)
    return _run_shape(dsn, load, fastest, seconds_cap)


def shapes(workers: int, *, tuned: bool) -> list[Shape]:
    """Every way to spread `workers` parallel jobs evenly, from one process to one process each."""
    counts = [count for count in range(1, workers + 1) if workers % count == 0]
    return [Shape(count, workers // count, tuned) for count in counts]


def _run_shape(dsn: str, load: Load, shape: Shape, seconds_cap: float) -> Result:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            asyncio.run(_defer_all(dsn, load))
            connection.execute("VACUUM ANALYZE procrastinate_jobs")
            _work(dsn, shape, seconds_cap)
            return _read_result(connection, shape, seconds_cap)
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


async def _noop() -> None:
    """The task: nothing but the queue's own cost is measured."""


def _app(dsn: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=dsn))
    app.task(name=TASK)(_noop)
    return app


async def _defer_all(dsn: str, load: Load) -> None:
    """Defer the holder and what it blocks first, then the open jobs in rounds over the profiles."""
    async with _app(dsn).open_async() as app:
        await app.schema_manager.apply_schema_async()
        if load.blocked:
            await _defer(app, [HELD])
            await app.connector.execute_query_async("UPDATE procrastinate_jobs SET status = 'doing'")
            await _defer(app, [HELD] * load.blocked)
        await _defer(app, [f"profile-{n}" for n in range(load.profiles)] * load.jobs_per_profile)


async def _defer(app: App, locks: list[str]) -> None:
    for start in range(0, len(locks), BATCH):
        jobs = [
            Job(id=None, queue="default", lock=lock, queueing_lock=None, task_name=TASK)
            for lock in locks[start : start + BATCH]
        ]
        await app.job_manager.batch_defer_jobs_async(jobs)


def _work(dsn: str, shape: Shape, seconds_cap: float) -> None:
    """Start the worker processes, let them begin together, and wait until all have ended."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(shape.processes)
    processes = [
        context.Process(target=_worker, args=(dsn, shape, seconds_cap, barrier), daemon=True)
        for _ in range(shape.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds_cap + GRACE_SECONDS)
        if process.exitcode != 0:
            raise RuntimeError(f"a procrastinate worker ended with {process.exitcode}")


def _worker(dsn: str, shape: Shape, seconds_cap: float, barrier: Barrier) -> None:
    asyncio.run(_worker_async(dsn, shape, seconds_cap, barrier))


async def _worker_async(dsn: str, shape: Shape, seconds_cap: float, barrier: Barrier) -> None:
    """Work until no job can be fetched or the time is up; a fetch under way is finished first."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(_pool(dsn, shape.concurrency + 1)) if shape.tuned else None
        app = await stack.enter_async_context(_app(dsn).open_async(pool))
        await asyncio.to_thread(barrier.wait, GRACE_SECONDS)
        work = asyncio.create_task(app.run_worker_async(concurrency=shape.concurrency, wait=False))
        asyncio.get_running_loop().call_later(seconds_cap, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _pool(dsn: str, size: int) -> psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection]:
    """A pool that spares procrastinate the check before each use and a transaction block around it.

    Each of its queue operations is one statement, so autocommit changes nothing but round trips.
    """
    return psycopg_pool.AsyncConnectionPool(dsn, min_size=size, max_size=size, configure=_set_autocommit, open=False)


async def _set_autocommit(connection: psycopg.AsyncConnection) -> None:
    await connection.set_autocommit(True)


def _read_result(connection: psycopg.Connection, shape: Shape, seconds_cap: float) -> Result:
    row = connection.execute(
        "SELECT count(*), coalesce(extract(epoch FROM max(at) - min(at)), 0)::float"
        " FROM procrastinate_events WHERE type = 'succeeded'"
    ).fetchone()
    assert row is not None
    done, seconds = int(row[0]), float(row[1])
    if not done:
        raise RuntimeError(f"procrastinate finished no job in {seconds_cap} s ({shape})")
    rate = (done - 1) / seconds if seconds > 0 else done / seconds_cap
    return Result(jobs_per_s=rate, done=done, seconds=seconds or seconds_cap, setup=str(shape))
