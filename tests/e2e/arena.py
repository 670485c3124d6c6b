"""Worker processes, a shop that counts, and a sweeper: what it takes to see whether a fence holds.

Everything is looked at from outside: the shop's own log, /proc, and the store's records.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from leasekeeper import config as settings
from leasekeeper.config import Config
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.workers import Worker
from leasekeeper.ports import Store
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.conformance.world import fleet
from tests.runtime.browsing import processes_about
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]
LOG_TAIL = 4_000
# A busy machine may let any process stand still for seconds: a worker must not lose its lease by that, and a keeper
# must have the time for a picture and for the browser's close before the lease is over.
TIMES: dict[str, str | float] = {
    "lease_ttl": 14.0,
    "renew_every": 0.5,
    "holder_stops_after": 7.5,
    "lock_delay": 0.5,
    "sweep_every": 0.2,
    "poll_every": 0.2,
    "backoff_first": 0.1,
    "close_after": 10.0,
    "worker_ttl": 20.0,
}


@dataclass
class Arena:
    """One store, one shop, and worker processes that may be hurt."""

    url: str
    shop: Shop
    config: Config
    store: Store
    data: Path
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self,
        name: str,
        store: str | None = None,
        *,
        app: str = "tests.e2e.tasks:app",
        pool: str | None = None,
        dies_at: str | None = None,
        **environ: str,
    ) -> "subprocess.Popen[bytes]":
        """A worker as a fleet has it: a process of its own, in a session of its own. `dies_at`: see `mortal`."""
        given = {f"LEASEKEEPER_{key.upper()}": str(value) for key, value in TIMES.items()}
        log = (self.data.parent / f"{name}.log").open("ab")
        with log:
            worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", *(("tests.e2e.mortal", dies_at) if dies_at else ("leasekeeper",))),
                    *("worker", app, "--name", name),
                    *(("--pool", pool) if pool is not None else ()),
                ],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    **given,
                    "LEASEKEEPER_STORE": store or self.url,
                    "LEASEKEEPER_DATA_DIR": str(self.data),
                    **environ,
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    async def submit(
        self,
        profile_id: str = "p1",
        task: str = "work",
        *,
        pool: str | None = None,
        priority: int = 0,
        max_attempts: int = 3,
        **payload: Any,
    ) -> Job:
        spec: dict[str, Any] = {"task": task, "profile_id": profile_id, "payload": {"url": self.shop.url, **payload}}
        spec |= {"priority": priority, "max_attempts": max_attempts}
        spec |= {} if pool is None else {"pool": pool}
        (answer,) = await self.store.submit(parse_jobs([spec]))
        return answer.job

    async def at_work(self, job: Job, *, section: bool = False) -> RunRecord:
        """The job's run, once its browser really clicks (and, if asked for, is inside its section)."""

        async def clicking() -> RunRecord | None:
            page = await self.store.find(RunRecord, {"job_id": job.job_id}, limit=1)
            if not page.items:
                return None
            run = page.items[0]
            entered = await self.events(EventType.SECTION_ENTERED, run_id=run.run_id) if section else [1]
            return run if entered and len(self.shop.of(run.lease_id, "/act")) >= 2 else None

        found = await until(clicking)
        assert found is not None
        return found

    async def events(self, kind: EventType, **where: str) -> list[Event]:
        return list((await self.store.find(Event, {"type": kind, **where})).items)

    async def job_when(self, job: Job, holds: Callable[[Job], bool]) -> Job:
        async def look() -> Job | None:
            found = await self.store.get(Job, job.job_id)
            return found if holds(found) else None

        return await self._until(look)

    async def lane_when(self, holds: Callable[[Lane], bool], profile_id: str = "p1") -> Lane:
        async def look() -> Lane | None:
            found = await self.store.get(Lane, profile_id)
            return found if holds(found) else None

        return await self._until(look)

    async def ended(self, run: RunRecord) -> Lease:
        async def look() -> Lease | None:
            found = await self.store.get(Lease, run.lease_id)
            return found if found.ended_at is not None else None

        return await self._until(look)

    async def _until(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """What `look` finds in the end. If it finds nothing, the failure says how everything is instead."""
        try:
            found = await until(look)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.state()}") from error
        assert found is not None
        return found

    async def state(self) -> str:
        """Lanes, jobs, runs and workers as the store has them, and the end of each worker's log."""
        kinds: tuple[type[Any], ...] = (Lane, Job, RunRecord, Worker)
        records = [str(each) for kind in kinds for each in (await self.store.find(kind)).items]
        codes = [f"process {worker.pid}: exit code {worker.poll()}" for worker in self.workers]
        logs = [f"{log.name}:\n{log.read_text(errors='replace')[-LOG_TAIL:]}" for log in self.data.parent.glob("*.log")]
        return "\n".join((*records, *codes, *logs))

    def processes(self) -> list[int]:
        """Keepers, browsers and drivers of this arena."""
        return [pid for pid in processes_about(str(self.data)) if pid not in {w.pid for w in self.workers}]

    def browsers(self, profile_id: str = "p1") -> list[int]:
        """Main processes of browsers on one profile: those that no other browser process started."""
        mine = processes_about(f"--user-data-dir={self.data}/profiles/{profile_id}")
        return [pid for pid in mine if b"--type=" not in _cmdline(pid) and b"/chromium" in _cmdline(pid)]

    def driver(self, worker: "subprocess.Popen[bytes]") -> int:
        """Playwright's driver of a worker."""
        found = [pid for pid in children(worker.pid) if b"run-driver" in _cmdline(pid)]
        assert len(found) == 1
        return found[0]

    def keeper(self) -> int:
        found = [p for p in processes_about("leasekeeper.browsers.keeper") if self._is_keeper(p)]
        assert len(found) == 1, found
        return found[0]

    def _is_keeper(self, pid: int) -> bool:
        line = _cmdline(pid)
        return str(self.data).encode() in line and not line.startswith((b"/bin/sh", b"sh\0"))

    async def nothing_left(self) -> None:
        """No process of any browser, keeper or driver is left."""

        async def gone() -> bool:
            return not self.processes()

        await until(gone)

    async def no_browser_left(self) -> None:
        """No process of any browser or keeper is left; a living worker keeps its driver."""

        async def gone() -> bool:
            return not [pid for pid in self.processes() if b"run-driver" not in _cmdline(pid)]

        await until(gone)


def _cmdline(pid: int) -> bytes:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    return b""


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(c) for t in (Path("/proc") / str(pid) / "task").iterdir() for c in (t / "children").read_text().split()
        ]
    return []


def late(arena: Arena, lease: Lease) -> list[str]:
    """What was done in the lease's name after the store could have granted the profile to somebody else."""
    assert lease.ended_at is not None
    end = lease.ended_at.timestamp()
    return [f"{hit.path} {hit.at - end:.2f} s late" for hit in arena.shop.of(lease.lease_id) if hit.at > end]


@asynccontextmanager
async def arena(url: str, folder: Path, *profiles: Profile, **more: str | float) -> AsyncIterator[Arena]:
    """Opens everything, sweeps while it is open, and ends every worker at the end."""
    data = folder / "data"
    config = settings.load({}, **{**TIMES, "store": url, "data_dir": str(data), **more})
    store = await open_store(url, policy=config.policy)
    stop = asyncio.Event()
    sweeping = asyncio.create_task(Sweeper(store, config, reports=LostRunReports(data)).run(stop))
    with Shop() as shop:
        try:
            await store.apply(fleet(*profiles), actor="test")
            opened = Arena(url=url, shop=shop, config=config, store=store, data=data)
            try:
                yield opened
            finally:
                for worker in opened.workers:
                    _end(worker)
            await opened.nothing_left()
        finally:
            stop.set()
            await sweeping
            await store.close()


def _end(worker: "subprocess.Popen[bytes]") -> None:
    if worker.poll() is None:
        worker.send_signal(signal.SIGCONT)
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
