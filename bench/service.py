"""What the service costs: remote workers beside workers at the database, many beside few, idle ones, readers of events,
and what a server needs to start. One table and a file, as ratios.

The server is a real `leasekeeper server` over PostgreSQL on loopback, the clients are processes of their own. On a
machine with two cores server, clients and database share them: a ratio is of the whole, not of the server alone.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import load, service_clients
from bench.report import Report, in_turns, middle_ratio
from tests.servers import PostgresServer, new_database, postgres_server

PROFILES = 2_000
JOBS_EACH = 20
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
EIGHT, MANY = 8, 200
IDLE, READERS = 1_000, 200
IDLE_SECONDS = float(os.environ.get("BENCH_IDLE_SECONDS", "30"))
LARGE_FLEET = 10_000
STARTS = 5
# The peers of these figures choose their best spread; here both sides are spread alike.
PROCESSES = 2
OUT = Path("bench/out/service.json")
# Not /tmp: where that is memory, fsync costs nothing.
ON_DISK = Path("/var/tmp")  # noqa: S108 - folders inside it are made private


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, the admin's token, its process, and how long it took to start."""

    url: str
    token: str
    pid: int
    start_seconds: float

    def cpu_seconds(self) -> float:
        """The time that it has used a core for."""
        return cpu_seconds(self.pid)

    def memory_mb(self) -> float:
        """What it holds in memory now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1_000


def cpu_seconds(pid: int) -> float:
    """The time that a process has used a core for, with that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The children of a process that are alive."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def served(store: str, folder: Path) -> Iterator[Server]:
    """`leasekeeper server` over this store, on a free port of loopback."""
    command = [sys.executable, "-m", "leasekeeper", "--store", store, "server", "--port", "0"]
    environ = {**os.environ, "LEASEKEEPER_DATA_DIR": str(folder / "data")}
    began = time.perf_counter()
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
    try:
        token = ""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("lk_"):
                token = line.strip()
            if line.startswith("serving "):
                url = line.split()[1].rstrip(";")
                yield Server(url, token, process.pid, time.perf_counter() - began)
                break
        else:
            raise RuntimeError(f"the server did not start: {(folder / 'server.log').read_text()}")
    finally:
        process.terminate()
        process.communicate(timeout=60)


class ServiceBench:
    """The figures. Worlds are databases, each filled once."""

    def __init__(self, postgres: PostgresServer, folder: Path, report: Report) -> None:
        self._postgres = postgres
        self._folder = folder
        self._report = report

    def _world(self, jobs_each: int = JOBS_EACH) -> str:
        url = new_database(self._postgres)
        asyncio.run(load.make_world(url, PROFILES, jobs_each, 0))
        return url

    def run(self) -> None:
        self._start_and_memory()
        direct = self._world()
        with served(self._world(2 * JOBS_EACH), self._folder) as server:
            self._beside_direct(direct, server)
            self._with_readers(server)
        with served(self._world(0), self._folder) as server:
            self._idle(server)

    def _start_and_memory(self) -> None:
        url = new_database(self._postgres)
        asyncio.run(load.make_world(url, LARGE_FLEET, 1, 0))
        starts, used, memory = [], [], 0.0
        for number in range(STARTS):
            with served(url, self._folder) as server:
                starts.append(server.start_seconds)
                used.append(server.cpu_seconds())
                if number == 0:
                    service_clients.list_records(server.url, server.token)
                    load.run_workers(server.url, EIGHT, 1, SECONDS, PROCESSES, server.token)
                    memory = server.memory_mb()
        self._report.row(f"ms to start, {LARGE_FLEET:,} profiles", 1_000 * median(starts), "at most 1,000")
        self._report.row("MB of the server after lists, metrics and jobs", memory, "at most 120")
        self._report.row("  ms of a core for that", 1_000 * median(used))
        self._report.ratio("start_seconds", median(starts))
        self._report.ratio("memory_to_limit", memory / 120)

    def _cpu(self, server: Server) -> dict[str, float]:
        """The seconds that server and database have used a core for."""
        postmaster = int((self._postgres.data / "postmaster.pid").read_text().split()[0])
        return {
            "server": server.cpu_seconds(),
            "database": sum(cpu_seconds(pid) for pid in (postmaster, *children(postmaster))),
        }

    def _rate(self, url: str, workers: int, token: str = "") -> float:
        return load.run_workers(url, workers, 1, SECONDS, PROCESSES, token).per_second

    def _beside_direct(self, direct: str, server: Server) -> None:
        used: dict[str, list[float]] = {}

        def measured(name: str, url: str, workers: int, token: str = "") -> float:
            before = self._cpu(server)
            rate = load.run_workers(url, workers, 1, SECONDS, PROCESSES, token)
            spent = {part: seconds - before[part] for part, seconds in self._cpu(server).items()}
            for part, seconds in {"workers": rate.cpu_seconds, **spent}.items():
                used.setdefault(f"{name}, {part}", []).append(1_000 * seconds / rate.jobs)
            return rate.per_second

        near, eight, many = in_turns(
            lambda: measured("direct", direct, EIGHT),
            lambda: measured("remote", server.url, EIGHT, server.token),
            lambda: measured("many", server.url, MANY, server.token),
        )
        self._report.row(f"{EIGHT} workers at the database", median(near), f"jobs/s; {PROCESSES} processes")
        self._report.row(f"{EIGHT} remote workers", median(eight), "jobs/s")
        self._report.row(f"{MANY} remote workers", median(many), "jobs/s")
        # What a job costs does not depend on who else uses the machine, as rates do.
        cost = {name: median(taken) for name, taken in used.items()}
        for name, ms in cost.items():
            self._report.row(f"  ms of a core for a job: {name}", ms)
        whole = {kind: sum(ms for name, ms in cost.items() if name.startswith(kind)) for kind in ("direct", "remote")}
        self._report.ratio("http_to_direct_by_cpu", whole["direct"] / whole["remote"])
        self._report.ratio("http_to_direct", middle_ratio(eight, near))
        self._report.ratio("many_workers_to_eight", middle_ratio(many, eight))

    def _with_readers(self, server: Server) -> None:
        got: list[Counter[str]] = []

        def read() -> float:
            with service_clients.readers(server.url, server.token, READERS) as counts:
                rate = self._rate(server.url, EIGHT, server.token)
                got.append(counts())
            return rate

        without, beside = in_turns(lambda: self._rate(server.url, EIGHT, server.token), read)
        self._report.row(f"{EIGHT} remote workers, no reader", median(without), "jobs/s")
        self._report.row(f"the same beside {READERS} readers of all events", median(beside), "jobs/s")
        self._report.row("thousands of events that they got in a turn", median(n["events"] for n in got) / 1_000)
        self._report.row("readers that were cut off", median(n["cut_off"] for n in got))
        self._report.ratio("settle_with_readers_to_without", middle_ratio(beside, without))

    def _idle(self, server: Server) -> None:
        def share(seconds: float) -> float:
            before, began = server.cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            return (server.cpu_seconds() - before) / (time.perf_counter() - began)

        alone = share(5.0)
        with service_clients.idle_workers(server.url, server.token, IDLE) as counts:
            before = counts()
            core = share(IDLE_SECONDS)
            made = counts() - before
        self._report.row("% of a core that the server uses with no worker", 100 * alone)
        often = ", ".join(f"{name} {number / IDLE_SECONDS:,.0f}" for name, number in made.most_common())
        self._report.row(f"% of a core with {IDLE:,} idle workers", 100 * core, "at most 5")
        self._report.row("calls per second of these", made.total() / IDLE_SECONDS, often)
        self._report.ratio("idle_pollers_core_share", core)


def main() -> None:
    report = Report()
    print(f"the service, PostgreSQL, {PROFILES:,} profiles; load {os.getloadavg()[0]:.1f} before it began\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lk-bench-", dir=ON_DISK)))
        postgres = stack.enter_context(postgres_server(parent=ON_DISK))
        ServiceBench(postgres, folder, report).run()
    report.save(OUT)


if __name__ == "__main__":
    main()
