"""Clients of a server that is measured: readers of its events, idle workers, and somebody who lists records.

Readers and workers run in processes of their own, so that what they cost is not counted as the server's. A line on
a process's stdin makes it report what it has counted; it ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from bench.load import TASK
from leasekeeper import config as settings
from leasekeeper.app import App, Run
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import open_store

PAGES = ("jobs", "profiles", "runs", "events", "accounts", "leases")
IDLE_PROCESSES = 4
OPENED_TOGETHER = 10
CHUNK = 1 << 20
Counts = Callable[[], "Counter[str]"]


def list_records(url: str, token: str) -> None:
    """Read a page of everything, the metrics and the whole fleet, as people and Prometheus do."""
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for path in (*(f"/v1/{noun}?limit=1000" for noun in PAGES), "/metrics", "/v1/stats", "/v1/fleet"):
            client.get(path).raise_for_status()


@contextmanager
def readers(url: str, token: str, count: int) -> Iterator[Counts]:
    """So many readers of the stream of all events; what they got is counted as `bytes`, `events`, `ended`."""
    with _clients("readers", url, token, count, processes=1) as counts:
        yield counts


@contextmanager
def idle_workers(url: str, token: str, count: int) -> Iterator[Counts]:
    """So many workers without work, as they ship but without browsers; their calls are counted by operation."""
    with _clients("workers", url, token, count, processes=IDLE_PROCESSES) as counts:
        yield counts


@contextmanager
def _clients(kind: str, url: str, token: str, count: int, *, processes: int) -> Iterator[Counts]:
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.service_clients", kind, url, str(count // processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEASEKEEPER_TOKEN": token},
        )
        for _ in range(processes)
    ]
    try:
        for child in children:
            _ask(child, None)
        yield lambda: sum((Counter(json.loads(_ask(child, "counts\n"))) for child in children), Counter())
    finally:
        for child in children:
            child.communicate(timeout=120)


def _ask(child: subprocess.Popen[str], question: str | None) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    if question is not None:
        child.stdin.write(question)
        child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a client died (exit {child.wait()})")
    return line


@dataclass(slots=True)
class _Reader:
    """One reader: it reads as fast as it can and keeps nothing."""

    counted: Counter[str]
    # A connection whose writer nobody has is closed.
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def open(self, url: str, token: str) -> asyncio.StreamReader:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=CHUNK)
        self.writers.append(writer)
        request = f"GET /v1/events/stream HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(head.decode())
        return reader

    async def read(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(CHUNK):
            self.counted["bytes"] += len(chunk)
            self.counted["events"] += chunk.count(b"\nevent: ")
            self.counted["cut_off"] += chunk.count(b"event: cut_off")
        self.counted["ended"] += 1


async def _read(url: str, token: str, count: int, counted: Counter[str]) -> list[asyncio.Task[None]]:
    one = _Reader(counted)
    return [asyncio.create_task(one.read(await one.open(url, token))) for _ in range(count)]


@dataclass(slots=True)
class _Idle:
    """Workers that find no work."""

    url: str
    token: str
    folder: Path
    counted: Counter[str]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, count: int) -> list[asyncio.Task[None]]:
        app = App()

        @app.task(TASK)
        async def nothing(_run: Run) -> None:
            raise AssertionError("there is no work")

        for first in range(0, count, OPENED_TOGETHER):
            numbers = range(first, min(count, first + OPENED_TOGETHER))
            self.tasks += await asyncio.gather(*(self._one(app, number) for number in numbers))
        return self.tasks

    async def _one(self, app: App, number: int) -> asyncio.Task[None]:
        name = f"idle-{os.getpid()}-{number}"
        config = settings.load({}, store=self.url, token=self.token, data_dir=str(self.folder / name), drivers="null")
        opening = partial(open_store, self.url, policy=config.policy, token=self.token)
        options = WorkerOptions(worker_id=name)
        stop = Shutdown(timedelta(seconds=1))
        worker = Worker(app, await opening(), config, options, open_store=opening, stop=stop)
        return asyncio.create_task(worker.run())


def _count_calls(counted: Counter[str]) -> None:
    """Count the calls of every HTTP store in this process, by operation."""
    send = httpx2.AsyncClient.post

    async def counting(client: httpx2.AsyncClient, url: httpx2.URL, **more: Any) -> httpx2.Response:
        counted[url.path.rpartition("/")[2]] += 1
        return await send(client, url, **more)

    setattr(httpx2.AsyncClient, "post", counting)  # noqa: B010 - nothing else sees every call


async def _main(kind: str, url: str, count: int) -> None:
    token, counted = os.environ["LEASEKEEPER_TOKEN"], Counter[str]()
    with tempfile.TemporaryDirectory(prefix="lk-bench-") as folder:
        if kind == "readers":
            tasks = await _read(url, token, count, counted)
        else:
            _count_calls(counted)
            tasks = await _Idle(url, token, Path(folder), counted).start(count)
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(counted), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
