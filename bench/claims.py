"""Claim rates: Leasekeeper beside its peers and beside what the machine can do, in one run, as one table and a file.

Machines are noisy, so what is compared is measured in turns, several rounds, and the middle ratio counts. Every figure
is jobs per second of claim + settle, durable (fsync on), unless its name says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import leasekeeper.stores
from bench import history, limits, load, worker_loop
from bench.peers import procrastinate_locks
from bench.redis_claims import RedisBench
from bench.report import ROUNDS, Report, in_turns, middle_ratio
from leasekeeper.core.jobs import Job
from tests.servers import PostgresServer, new_database, postgres_server

PROFILES = 2_000
JOBS_EACH = 10
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
FINISHED = int(os.environ.get("BENCH_FINISHED", "1000000"))
OUT = Path("bench/out/claims.json")
LOOP_CONCURRENCY = 8
ALL_JOBS = 120.0
"""Seconds that are more than enough for all the jobs."""
PROCESSES = (1, 2, 4)
# Not /tmp: where that is memory, fsync costs nothing.
ON_DISK = Path("/var/tmp")  # noqa: S108 - folders inside it are made private


class PostgresBench:
    """The PostgreSQL part. Worlds are databases, each filled once and filled up again as rounds empty it."""

    def __init__(self, server: PostgresServer, report: Report) -> None:
        self._server = server
        self._report = report
        self._peer_setup: dict[bool, str] = {}

    def world(self, blocked: int = 0, jobs_each: int = JOBS_EACH) -> str:
        url = new_database(self._server)
        self.submitted = asyncio.run(load.make_world(url, PROFILES, jobs_each, blocked))
        return url

    def limit(self, *, same_rows: bool, pipelined: bool = False) -> float:
        where = (self._server.host, self._server.port, "postgres", "postgres", min(SECONDS, 3.0))
        if same_rows:
            return limits.postgres_two_commits_same_rows(*where, pipelined=pipelined)
        return limits.postgres_two_commits(*where)

    def rate(self, url: str, workers: int, batch: int, processes: int = 1) -> float:
        return load.run_workers(url, workers, batch, SECONDS, processes).per_second

    def best_processes(self, url: str, workers: int, batch: int) -> int:
        """How many processes to spread the workers over: the peers choose their best spread too."""
        tried = {p: load.run_workers(url, workers, batch, 2.0, p).per_second for p in PROCESSES if p <= workers}
        return max(tried, key=lambda p: tried[p])

    def run(self) -> None:
        report = self._report
        worlds = [self.world() for _ in range(2)]
        ours, bare, rows, piped = in_turns(
            lambda: self.rate(worlds[0], 1, 1),
            lambda: self.limit(same_rows=False),
            lambda: self.limit(same_rows=True),
            lambda: self.limit(same_rows=True, pipelined=True),
        )
        one = median(ours)
        report.row("PostgreSQL, 1 worker × 1", one)
        report.row(
            "  limit: pgbench, two commits a job, the same rows",
            median(rows),
            "what one_by_one_to_limit divides by",
        )
        report.row("  limit: the same, each commit's statements pipelined", median(piped))
        report.row("  limit: pgbench, two commits a job, one row each", median(bare))
        report.ratio("one_by_one_to_limit", middle_ratio(ours, rows))
        report.ratio("one_by_one_to_pipelined_limit", middle_ratio(ours, piped))
        report.ratio("one_by_one_to_bare_limit", middle_ratio(ours, bare))
        report.row("PostgreSQL, submit in batches", self.submitted.per_second, self.submitted.setup)
        report.ratio("submit_to_one_by_one", self.submitted.per_second / one)
        worker_loop_row(report, "PostgreSQL", "worker_loop_to_claims", self.world())
        self._batches(worlds[1], rows)
        self._beside_procrastinate()
        self._blocked()

    def _batches(self, url: str, limit: Sequence[float]) -> None:
        spread = self.best_processes(url, 4, 16)
        sixteen = [self.rate(self.world(), 4, 16, spread) for _ in range(ROUNDS)]
        self._report.row("PostgreSQL, 4 workers × 16", median(sixteen), f"{spread} process(es)")
        self._report.ratio("batch16_to_limit", median(sixteen) / median(limit))

    def _beside_procrastinate(self) -> None:
        report, url = self._report, self.world()
        spread = self.best_processes(url, 8, 1)
        # Both work until nothing is left: procrastinate becomes faster as its queue becomes shorter.
        eight, peer = in_turns(
            lambda: load.run_workers(self.world(), 8, 1, ALL_JOBS, spread).per_second,
            lambda: self._procrastinate(tuned=False),
        )
        tuned = self._procrastinate(tuned=True)
        report.row("PostgreSQL, 8 workers × 1, all jobs", median(eight), f"{spread} process(es)")
        report.row("  procrastinate with lock, 8 workers, all jobs", median(peer), self._peer_setup[False])
        report.row("  the same with a tuned pool", tuned, self._peer_setup[True])
        report.ratio("eight_workers_to_procrastinate", middle_ratio(eight, peer))
        report.ratio("eight_workers_to_tuned_procrastinate", median(eight) / tuned)
        ours = median(self.rate(self.world(blocked=20_000), 8, 1, spread) for _ in range(ROUNDS))
        theirs = procrastinate_locks.run(new_database(self._server), PROFILES, JOBS_EACH, 8, 20_000, 10.0)
        report.row("PostgreSQL, 8 workers × 1, 20,000 blocked", ours, f"{spread} process(es)")
        report.row("  procrastinate, 8 workers, 20,000 blocked", theirs.jobs_per_s, theirs.setup)
        report.ratio("blocked_20k_to_procrastinate", ours / theirs.jobs_per_s)

    def _procrastinate(self, *, tuned: bool) -> float:
        rate = procrastinate_locks.run(new_database(self._server), PROFILES, JOBS_EACH, 8, 0, ALL_JOBS, tuned=tuned)
        self._peer_setup[tuned] = rate.setup
        return rate.jobs_per_s

    def _blocked(self) -> None:
        free, held = self.world(jobs_each=2 * JOBS_EACH), self.world(blocked=100_000, jobs_each=2 * JOBS_EACH)
        none, many = in_turns(lambda: self.rate(free, 1, 1), lambda: self.rate(held, 1, 1))
        self._report.row("PostgreSQL, 1 × 1, none blocked", median(none))
        self._report.row("PostgreSQL, 1 × 1, 100,000 blocked behind one profile", median(many))
        self._report.ratio("blocked_100k_to_none", middle_ratio(many, none))

    def long_past(self) -> float:
        """A million finished and 100,000 queued jobs against an empty past."""
        young, old = self.world(jobs_each=50), self.world(jobs_each=50)
        load.run_workers(old, 1, 1, 0.5, 1)
        history.add_to_postgres(old, FINISHED, PROFILES)
        none, many = in_turns(lambda: self.rate(young, 1, 1), lambda: self.rate(old, 1, 1))
        self._report.row(
            f"PostgreSQL, 1 × 1, {FINISHED:,} finished behind it",
            median(many),
            f"{median(none):,.1f} without",
        )
        self._report.row("  ms to list a page of 100 jobs (worst filter)", asyncio.run(slowest_list(old)))
        return middle_ratio(many, none)


class SqliteBench:
    """The SQLite part: one file per world."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._folder = folder
        self._report = report
        self._made = 0

    def world(self, jobs_each: int = JOBS_EACH, blocked: int = 0) -> str:
        self._made += 1
        url = f"sqlite:///{self._folder / f'{self._made}.db'}"
        self.submitted = asyncio.run(load.make_world(url, PROFILES, jobs_each, blocked))
        return url

    def rate(self, url: str, workers: int, batch: int, processes: int = 1) -> float:
        return load.run_workers(url, workers, batch, SECONDS, processes).per_second

    def run(self) -> None:
        report, url = self._report, self.world()
        ours, rows, bare, batches = in_turns(
            lambda: self.rate(url, 1, 1),
            lambda: limits.sqlite_two_commits_same_rows(self._folder / "rows.db", 3_000),
            lambda: limits.sqlite_two_commits(self._folder / "bare.db", 4_000),
            lambda: self.rate(self.world(), 1, 16),
        )
        report.row("SQLite (FULL), 1 worker × 1", median(ours))
        report.row(
            "  limit: two commits a job, the same rows",
            median(rows),
            "what sqlite_one_by_one_to_limit divides by",
        )
        report.row("  limit: two commits a job, one row each", median(bare))
        report.row("SQLite (FULL), 1 worker × 16", median(batches))
        report.row("SQLite (FULL), submit in batches", self.submitted.per_second, self.submitted.setup)
        report.row("SQLite (FULL), 8 workers × 1", self.rate(self.world(), 8, 1))
        report.row("SQLite (FULL), 1 × 1, 100,000 blocked", self.rate(self.world(blocked=100_000), 1, 1))
        worker_loop_row(report, "SQLite (FULL)", "sqlite_worker_loop_to_claims", self.world())
        report.ratio("sqlite_one_by_one_to_limit", middle_ratio(ours, rows))
        report.ratio("sqlite_one_by_one_to_bare_limit", middle_ratio(ours, bare))
        report.ratio("sqlite_batch_to_one_by_one", middle_ratio(batches, ours))

    def long_past(self) -> float:
        young, old = self.world(jobs_each=50), self.world(jobs_each=50)
        load.run_workers(old, 1, 1, 0.5, 1)
        history.add_to_sqlite(Path(old.removeprefix("sqlite:///")), FINISHED, PROFILES)
        none, many = in_turns(lambda: self.rate(young, 1, 1), lambda: self.rate(old, 1, 1))
        self._report.row(
            f"SQLite, 1 × 1, {FINISHED:,} finished behind it", median(many), f"{median(none):,.1f} without"
        )
        self._report.row("  ms to list a page of 100 jobs (worst filter)", asyncio.run(slowest_list(old)))
        return middle_ratio(many, none)


def worker_loop_row(report: Report, store: str, ratio: str, url: str) -> None:
    """What ships, with a browser that does nothing, beside bare claim and settle with as many places."""
    whole, bare = in_turns(
        lambda: worker_loop.rate(url, LOOP_CONCURRENCY, SECONDS),
        lambda: load.run_workers(url, 1, LOOP_CONCURRENCY, SECONDS, 1).per_second,
    )
    report.row(f"{store}, worker_loop: a worker × {LOOP_CONCURRENCY}, driver null", median(whole))
    report.row(f"  claim and settle alone, 1 worker × {LOOP_CONCURRENCY}", median(bare), f"what {ratio} divides by")
    report.ratio(ratio, middle_ratio(whole, bare))


def idle_rows(report: Report, sqlite: str, postgres: str) -> None:
    """What a worker that waits for jobs costs, of this process alone: PostgreSQL's server is not counted."""
    ours, server = in_turns(lambda: worker_loop.idle_percent(sqlite), lambda: worker_loop.idle_percent(postgres))
    report.row("SQLite, % of a core of a worker without jobs", median(ours))
    report.row("PostgreSQL, % of a core of a worker without jobs", median(server))
    report.ratio("sqlite_idle_to_postgres_idle", middle_ratio(ours, server))


async def slowest_list(url: str) -> float:
    """Milliseconds for a page of jobs, the slowest of the usual filters, each the middle of five tries."""
    store = await leasekeeper.stores.open_store(url)
    try:
        slowest = 0.0
        await load.report(store)
        states = [{"state": state} for state in ("completed", "queued", "blocked", "running")]
        for where in ({}, *states, {"profile_id": "profile_00007"}):
            tries = []
            for _ in range(5):
                started = time.perf_counter()
                await store.find(Job, where, limit=100)
                tries.append((time.perf_counter() - started) * 1_000)
            slowest = max(slowest, median(tries))
        return slowest
    finally:
        await store.close()


def main() -> None:
    logging.getLogger("leasekeeper.store").setLevel(logging.ERROR)  # that `everysec` may lose a second is known here
    report = Report()
    print(f"jobs/s of claim + settle, {PROFILES:,} profiles × {JOBS_EACH} jobs, {ROUNDS} rounds of {SECONDS:g} s\n")
    parts = set(os.environ.get("BENCH_PARTS", "sqlite postgres redis idle past").split())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lk-bench-", dir=ON_DISK)))
        server = stack.enter_context(postgres_server(parent=ON_DISK))
        postgres, sqlite = PostgresBench(server, report), SqliteBench(folder, report)
        for name, part in (("sqlite", sqlite), ("postgres", postgres), ("redis", RedisBench(folder, report))):
            if name in parts:
                part.run()
        if "idle" in parts:
            idle_rows(report, sqlite.world(jobs_each=0), postgres.world(jobs_each=0))
        if "past" in parts:
            report.ratio("million_finished_to_empty", min(postgres.long_past(), sqlite.long_past()))
    report.save(OUT)


if __name__ == "__main__":
    main()
