"""Ten thousand profiles of one launcher and fifty workers: nobody calls it for an idle profile, and its limit is kept.

The launcher here costs nothing and starts no browser: it counts calls. What calls it is the real thing.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import config as settings
from leasekeeper.app import App
from leasekeeper.browsers.keeper.launcher_end import LauncherEnd
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.workers import Worker as WorkerRecord
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime.launchers import Launchers, pace_key
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.stores import open_store
from tests.conformance.world import limit
from tests.launchers.stage import RECIPE, launched, launched_fleet
from tests.runtime.browsing import House
from tests.runtime.stage import until

PROFILES, WORKERS = 10_000, 50
PER_MINUTE = 6_000


class _Counting(BaseHTTPRequestHandler):
    server: "Counter"

    def do_GET(self) -> None:
        self._answer({"running": False})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"cdp_url": "ws://127.0.0.1:1/none"})

    def _answer(self, answer: dict[str, Any]) -> None:
        self.server.calls.append((time.monotonic(), self.path.partition("?")[0]))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002 - the base class's
        return


class Counter(ThreadingHTTPServer):
    request_queue_size = 200
    calls: list[tuple[float, str]]

    @property
    def record(self) -> Launcher:
        return Launcher(
            launcher_id=LauncherId("mlx"), driver="http", url=f"http://127.0.0.1:{self.server_address[1]}",
            calls=RECIPE, calls_per_minute=PER_MINUTE, max_running=WORKERS,
        )  # fmt: skip


@pytest.fixture
def counter() -> Iterator[Counter]:
    server = Counter(("127.0.0.1", 0), _Counting)
    server.calls = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


async def test_an_idle_profile_costs_no_call(sqlite_url: str, tmp_path: Path, counter: Counter) -> None:
    config = settings.load({}, store=sqlite_url, data_dir=str(tmp_path / "data"), drivers="launcher", sweep_every=0.1)
    store = await open_store(sqlite_url, policy=config.policy)
    profiles = [launched(f"p{number}") for number in range(PROFILES)]
    await store.apply(launched_fleet(counter.record, *profiles, limit("default", WORKERS)), actor="test")
    app = App()

    @app.task("visit")
    async def visit(_run: object) -> None: ...

    home = House(app=app, config=config, store=store, data=tmp_path / "data")
    async with home.worker():

        async def reported() -> bool:
            return bool((await store.find(WorkerRecord)).items)

        await until(reported)
        sweeper = Sweeper(store, config, reports=LostRunReports(home.data))
        for _ in range(3):
            await sweeper.tick()
    assert counter.calls == []
    await store.close()


async def test_fifty_workers_keep_the_limit_of_one_launcher(sqlite_url: str, counter: Counter) -> None:
    """Each run makes four calls. Its turn is for all four; those of its end are not delayed, whatever the limit."""
    stores = [await open_store(sqlite_url) for _ in range(5)]
    await stores[0].apply(launched_fleet(counter.record, launched(), limit("default", WORKERS)), actor="test")
    workers = [Launchers(store, Redactor()) for store, _ in zip(stores * (WORKERS // 5), count(), strict=False)]

    async def run(worker: Launchers) -> None:
        launcher, token = await worker.of(launched())
        assert launcher is not None
        await worker.turn(launcher)
        described = describe(replace(launcher), "id-p1", headless=True, token=token)
        await asyncio.to_thread(_open_and_close, described)

    began = time.monotonic()
    await asyncio.gather(*(run(worker) for worker in workers))
    assert len(workers) == WORKERS
    assert len(counter.calls) == 4 * WORKERS
    spacing = 60 / PER_MINUTE
    # Each turn is for four calls: at no time have more been made than the turns until then allow.
    calls = sorted(at for at, _ in counter.calls)
    assert all(at >= began + 4 * spacing * (number // 4) for number, at in enumerate(calls))
    for store in stores:
        await store.close()


async def test_a_launcher_that_is_away_is_left_alone_longer_each_time(sqlite_url: str, counter: Counter) -> None:
    """By every worker of the store, also where no limit is declared."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    store, other = [await open_store(sqlite_url, clock=lambda _real: now) for _ in range(2)]
    launcher = replace(counter.record, calls_per_minute=None)
    launchers = Launchers(store, Redactor())
    waits = []
    for _ in range(7):
        await launchers.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE)
        waits.append((await other.reserve_call(pace_key(launcher), timedelta())).total_seconds())
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    await launchers.back_off(launcher)
    now += timedelta(minutes=2)
    await launchers.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE)
    assert await other.reserve_call(pace_key(launcher), timedelta()) == timedelta(seconds=2)
    assert counter.calls == []
    await store.close()
    await other.close()


def _open_and_close(described: dict[str, Any]) -> None:
    launcher = LauncherEnd(described)
    launcher.start()
    assert launcher.stop(5)
    assert launcher.wait_idle(time.monotonic() + 5)
