"""Calls of the store in the metrics of `up`: those of the worker beside the server too, renewals included."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from leasekeeper.app import App, Run
from leasekeeper.config import Config
from leasekeeper.ports import Store
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.up import AroundStore, work
from leasekeeper.runtime.worker import WorkerOptions
from leasekeeper.service.running import served_beside
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.conformance.world import fleet, profile
from tests.runtime.stage import until


async def counted(url: str) -> dict[str, float]:
    """How often which operation of the store was called."""
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{url}/metrics", timeout=60)
    assert answer.status_code == 200, answer.text
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    samples = families["leasekeeper_store_call_seconds"].samples
    return {s.labels["operation"]: s.value for s in samples if s.name.endswith("_count") and s.value}


async def test_calls_of_the_worker_inside_up_are_in_its_metrics(sqlite_url: str, tmp_path: Path) -> None:
    app = App(drivers="null", renew_every=0.1, metrics_open=1, data_dir=str(tmp_path))
    at: list[str] = []
    seen = asyncio.Event()

    @app.task("visit")
    async def visit(_run: Run) -> None:
        await seen.wait()

    store = await open_store(sqlite_url)
    await store.apply(fleet(profile("p1", driver="null")), actor="ann")

    async def submit() -> None:
        await until(serves)
        await counted(at[0])  # they are counted from the first scrape on
        await store.submit(parse_jobs([{"task": "visit", "profile_id": "p1"}]))
        await until(renewed)
        seen.set()
        await until(settled)
        stop.ask()

    async def serves() -> bool:
        return bool(at)

    async def renewed() -> bool:
        return {"claim", "renew"} <= (await counted(at[0])).keys()

    async def settled() -> bool:
        return bool({"settle", "hand_over"} & (await counted(at[0])).keys())

    def beside(opened: Store, config: Config) -> AbstractAsyncContextManager[AroundStore]:
        return served_beside(opened, config, 0, lambda url, _link: at.append(url))

    stop = Shutdown(timedelta(seconds=5))
    await asyncio.gather(work(app, WorkerOptions(), store=sqlite_url, sweep=True, stop=stop, beside=beside), submit())
    await store.close()
