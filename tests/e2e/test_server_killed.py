"""The server is killed and started again and again while twenty remote workers work, two of them with real browsers:
no lease is lost, no job is lost or run twice, every webhook is delivered. Judged from the database, the shop's own log
and what the tasks themselves counted.
"""

import asyncio
import base64
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import App, Run
from leasekeeper import config as settings
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.policy import Policy
from leasekeeper.ports import Store
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.e2e.arena import REPOSITORY
from tests.runtime.shop import Shop
from tests.runtime.stage import until
from tests.service.restarts import ServerProcess
from tests.webhooks.receiver import Receiver, receiving

NULL_WORKERS, BROWSER_WORKERS = 18, 2
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
# Leases last long: a busy machine must lose none of them. What is lost by a restart shows all the same.
TIMES: dict[str, str | float] = {"renew_every": 1.0, "poll_every": 0.2, "sweep_every": 0.5, "store_timeout": 15.0}
PATIENCE = 400.0


class Tally:
    """What tasks say they did, by job."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.app = App()

        @self.app.task("count")
        async def count(run: Run) -> dict[str, Any]:
            self.begun[run.job.job_id] += 1
            await run.safe("begun")
            await asyncio.sleep(0.2 + int(run.job.job_id[-2:], 16) / 256)  # waits: a run takes as long as a page does
            async with run.mutating("submit"):
                pass
            await run.safe("done")
            return {}


@asynccontextmanager
async def null_workers(tally: Tally, server: ServerProcess, folder: Path) -> AsyncIterator[None]:
    """Workers without browsers, each with a connection, a heartbeat and a name of its own."""
    stops, tasks, stores = [], [], []
    for number in range(NULL_WORKERS):
        data = str(folder / f"null-{number}")
        config = settings.load({}, store=server.url, token=server.token, data_dir=data, drivers="null", **TIMES)
        opening = partial(open_store, config.store, policy=config.policy, token=config.token)
        stores.append(store := await opening())
        stops.append(stop := Shutdown(timedelta(seconds=30)))
        options = WorkerOptions(worker_id=f"null-{number}", pool="quick")
        worker = Worker(tally.app, store, config, options, open_store=opening, stop=stop)
        tasks.append(asyncio.create_task(worker.run()))
    try:
        yield
    finally:
        for stop in stops:
            stop.ask()
        await asyncio.gather(*tasks)
        for store in stores:
            await store.close()


def _browser_worker(server: ServerProcess, folder: Path, number: int) -> "subprocess.Popen[bytes]":
    given = {f"LEASEKEEPER_{name.upper()}": str(value) for name, value in TIMES.items()}
    own = {"LEASEKEEPER_TOKEN": server.token, "LEASEKEEPER_DATA_DIR": str(folder / f"browser-{number}")}
    command = [sys.executable, "-m", "leasekeeper", "--store", server.url, "worker", "tests.e2e.tasks:app"]
    named = [*command, "--name", f"browser-{number}", "--pool", f"shop-{number}"]
    with (folder / f"browser-{number}.log").open("ab") as log:
        return subprocess.Popen(named, cwd=REPOSITORY, env={**os.environ, **given, **own}, stdout=log, stderr=log)


@asynccontextmanager
async def browser_workers(server: ServerProcess, folder: Path) -> AsyncIterator[None]:
    processes = [_browser_worker(server, folder, number) for number in range(BROWSER_WORKERS)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            await asyncio.to_thread(process.wait, 120)


async def kill_again_and_again(server: ServerProcess, over: asyncio.Event, seed: int) -> None:
    dice = random.Random(seed)
    while not over.is_set():
        # A machine that takes long to start a server takes as long to answer: a server that is hardly ever there would
        # lose leases rightly.
        works = max(dice.uniform(0.3, 2.0), server.start_seconds)
        await asyncio.sleep(works)  # waits: the server works for a while
        server.kill()
        await asyncio.to_thread(server.start)


async def submit_all(store: Store, jobs: int, browser_jobs: int, shop: str, hook: str) -> set[str]:
    """Without idempotency keys: that none is there twice is for the request ids."""
    wanted = [
        JobSpec(task="count", profile_id=ProfileId(f"n{n % NULL_WORKERS}"), pool="quick", callback_url=hook)
        for n in range(jobs)
    ] + [
        JobSpec(
            task="work", profile_id=ProfileId(f"b{n % BROWSER_WORKERS}"), pool=f"shop-{n % BROWSER_WORKERS}",
            callback_url=hook, payload={"url": shop, "clicks": 10},
        )
        for n in range(browser_jobs)
    ]  # fmt: skip
    submitted = [(await store.submit([spec]))[0].job.job_id for spec in wanted]
    return set(submitted)


async def every(store: Store, kind: type[Any], **where: str) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = await store.find(kind, where, after=after, limit=1000)
        found += page.items
        after = page.after
        if after is None:
            return found


async def judge(direct: Store, submitted: set[str], tally: Tally, receiver: Receiver) -> None:
    jobs: list[Job] = await every(direct, Job)
    assert {job.job_id for job in jobs} == submitted
    assert {job.state for job in jobs} == {"completed"}
    runs: list[RunRecord] = await every(direct, RunRecord)
    # A busy machine may be too slow to start a browser in time: that ends a run before its task has begun.
    failed = Counter(run.job_id for run in runs if run.result == "failed")
    assert {run.stop_reason for run in runs if run.result == "failed"} <= {"BROWSER_LAUNCH_FAILED"}
    assert {job.job_id: (job.attempt, job.losses) for job in jobs} == {
        job.job_id: (1 + failed[job.job_id], 0) for job in jobs
    }
    assert Counter(run.job_id for run in runs if run.result == "completed") == dict.fromkeys(submitted, 1)
    assert tally.begun == Counter({job.job_id: 1 for job in jobs if job.task == "count"})
    assert await every(direct, Event, type=EventType.LEASE_EXPIRED) == []
    # While the answer to a settle is lost its worker goes on renewing: that may come too late, nothing else may.
    late = await every(direct, Event, type=EventType.STALE_WORKER_WRITE_REJECTED)
    assert {(event.data["write"], event.data["why"]) for event in late} <= {("renew", "released")}
    assert {lease.status for lease in await every(direct, Lease)} == {"released"}

    async def delivered() -> bool:
        return {message.said["data"]["job_id"] for message in receiver.messages} == submitted

    await until(delivered, PATIENCE)


async def endure(store_url: str, folder: Path, *, jobs: int, browser_jobs: int, kills: int, seed: int) -> None:
    """So many jobs, and again so many until the server was killed often enough: on a quick machine they end early."""
    tally, over = Tally(), asyncio.Event()
    declared = [profile(f"n{n}", "quick", driver="null") for n in range(NULL_WORKERS)]
    declared += [profile(f"b{n}", "shops") for n in range(BROWSER_WORKERS)]
    environ = {
        "LEASEKEEPER_WEBHOOK_SECRET": SECRET,
        "LEASEKEEPER_WEBHOOK_NETWORKS": "127.0.0.1",
        "LEASEKEEPER_DATA_DIR": str(folder / "server"),
        **{f"LEASEKEEPER_{name.upper()}": str(value) for name, value in TIMES.items()},
    }
    direct = await open_store(store_url)
    with Shop() as shop, ServerProcess(store_url, folder, **environ) as server:
        async with receiving() as receiver:
            # The submitter waits for the server as long as it takes.
            patient = Policy(store_timeout=timedelta(seconds=PATIENCE))
            remote = await open_store(server.url, token=server.token, policy=patient)
            await remote.apply(fleet(*declared), actor="test")
            async with null_workers(tally, server, folder), browser_workers(server, folder):
                killing = asyncio.create_task(kill_again_and_again(server, over, seed))
                try:
                    submitted: set[str] = set()

                    async def all_ended() -> bool:
                        assert not killing.done(), killing.result()
                        stats = await direct.stats()
                        ended = sum(stats.jobs.get(state, 0) for state in ("completed", "dead", "review"))
                        return ended == len(submitted)

                    while server.starts <= kills:
                        submitted |= await submit_all(remote, jobs, browser_jobs, shop.url, receiver.url)
                        await until(all_ended, PATIENCE)
                finally:
                    over.set()
                    await killing
            await judge(direct, submitted, tally, receiver)
            await remote.close()
    await direct.close()


async def test_no_lease_or_job_is_lost_when_the_server_is_killed_under_load(sqlite_url: str, tmp_path: Path) -> None:
    await endure(sqlite_url, tmp_path, jobs=120, browser_jobs=4, kills=3, seed=1)


@pytest.mark.release  # the daily test is shorter, and over SQLite
@pytest.mark.timeout(2400)
async def test_no_lease_or_job_is_lost_over_minutes(store_url: str, tmp_path: Path) -> None:
    await endure(store_url, tmp_path, jobs=1500, browser_jobs=20, kills=20, seed=2)
