"""A worker of this test's own process, with real browsers: what its tests say about jobs and profiles."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from leasekeeper import config as settings
from leasekeeper.app import App
from leasekeeper.config import Config
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.events import Event
from leasekeeper.core.jobs import FINAL, Job, JobState
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.ports import Store
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.conformance.world import fleet, profile
from tests.runtime.stage import PATIENCE, until

TIMES: dict[str, str | float] = {"poll_every": 0.1, "sweep_every": 0.2, "backoff_first": 600.0, "close_after": 30.0}


def real_time(real: datetime) -> datetime:
    """The clock as it is."""
    return real


@dataclass
class House:
    """An app, its store and its fleet; workers come and go."""

    app: App
    config: Config
    store: Store
    data: Path
    clock: Callable[[datetime], datetime] = real_time

    async def open_store(self) -> Store:
        """Another connection to the store, with the same clock."""
        return await open_store(self.config.store, policy=self.config.policy, clock=self.clock)

    @property
    def profiles(self) -> Path:
        return self.data / "profiles"

    async def submit(self, task: str, profile_id: str = "p1", **fields: Any) -> Job:
        (answer,) = await self.store.submit(parse_jobs([{"task": task, "profile_id": profile_id, **fields}]))
        return answer.job

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Shutdown]:
        """A worker that runs inside the block, and is asked to stop at its end."""
        stop = Shutdown(self.config.browsers.stop_grace)
        worker = Worker(
            self.app,
            self.store,
            self.config,
            WorkerOptions(**options),
            open_store=self.open_store,
            stop=stop,
        )
        running = asyncio.create_task(worker.run())
        try:
            yield stop
        finally:
            if not stop.asked.is_set():
                stop.ask()
            await running
            stop.done()

    async def settled(self, *jobs: Job) -> list[Job]:
        """The jobs once none of them is waiting or running."""
        assert jobs, "waiting for no job would never end"

        async def look() -> list[Job]:
            found = [await self.store.get(Job, job.job_id) for job in jobs]
            over = {*FINAL, JobState.REVIEW, JobState.SCHEDULED}
            return found if all(job.state in over for job in found) else []

        return await until(look)

    async def do(self, *jobs: Job, **options: Any) -> list[Job]:
        """Run these jobs with a worker of their own."""
        async with self.worker(**options):
            return await self.settled(*jobs)

    async def run_of(self, job: Job) -> RunRecord:
        """The job's last run."""
        page = await self.store.find(RunRecord, {"job_id": job.job_id}, limit=1)
        return page.items[0]

    async def lane(self, profile_id: str = "p1") -> Lane:
        return await self.store.get(Lane, profile_id)

    async def events(self, **where: str) -> Sequence[Event]:
        return list(reversed((await self.store.find(Event, where, limit=1000)).items))

    def evidence(self, run: RunRecord) -> Path:
        return self.data / "runs" / run.run_id

    def browsers_of(self, profile_id: str) -> list[int]:
        """Processes of browsers that have one profile open."""
        return processes_about(f"--user-data-dir={self.profiles / profile_id}")

    def browsers(self) -> list[int]:
        """Every process that has anything to do with this house's profiles or runs."""
        return processes_about(str(self.data))


def processes_about(text: str) -> list[int]:
    """Processes whose command line has this in it. Reads /proc itself: it must not believe the code under test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> set[int]:
    """Every process below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


@asynccontextmanager
async def house(
    app: App,
    url: str,
    folder: Path,
    *profiles: Profile | Proxy,
    clock: Callable[[datetime], datetime] = real_time,
    **more: str | float,
) -> AsyncIterator[House]:
    """A furnished house. When it closes, no process of it may be left."""
    data = folder / "data"
    config = settings.load({}, **{**TIMES, "store": url, "data_dir": str(data), **app.settings, **more})
    store = await open_store(url, policy=config.policy, clock=clock)
    try:
        await store.apply(fleet(*(profiles or (profile("p1"),))), actor="test")
        opened = House(app=app, config=config, store=store, data=data, clock=clock)
        yield opened
        left = await asyncio.to_thread(_gone, opened)
        assert left == [], f"processes were left: {left}"
        assert list((data / "open").glob("*")) == []
    finally:
        await store.close()


def _gone(opened: House) -> list[int]:
    import time

    end = time.monotonic() + PATIENCE
    while opened.browsers() and time.monotonic() < end:
        time.sleep(0.05)  # waits: a process that was killed takes a moment to leave /proc
    return opened.browsers()
