"""Faults under a session with a real client: whatever dies or stands still, once the lease is over the shop hears
nothing more under its token, no process is left, and the profile is where it belongs.

Every fault once with one client every day; the whole matrix before a release.
"""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from leasekeeper.app import App
from leasekeeper.core.browsers import LAUNCHER
from leasekeeper.core.leases import Lease
from tests.chaos.wire import Wire
from tests.launchers.stage import TOKEN, launched_house, start_fake
from tests.runtime.browsing import House, house, processes_about
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.runtime.stage import TIMES as LEASE_TIMES
from tests.runtime.stage import stop as stop_safely
from tests.sessions.clients import CLIENTS, Driver

CLIENT_FAULTS = ("client killed", "client stopped", "client cut off", "keeper killed")
FAULTS = (*CLIENT_FAULTS, "server killed", "server stopped")
WORKER_FAULTS = (*CLIENT_FAULTS, "worker killed", "worker stopped", "worker cut off", "server away")
TIMES: dict[str, Any] = dict(LEASE_TIMES)
PLACES = ("local", "launcher")
DAILY = {
    ("server killed", "playwright", "local"),
    ("server stopped", "puppeteer", "local"),
    ("keeper killed", "python", "local"),
    ("worker killed", "python", "worker"),
}
EVERY = [
    pytest.param(*each, marks=[] if each in DAILY else [pytest.mark.release])  # the others, before one
    for each in (
        *itertools.product(FAULTS, CLIENTS, PLACES),
        *itertools.product(WORKER_FAULTS, CLIENTS, ("worker",)),
    )
]
TASKS = "from leasekeeper import App\n\napp = App()\n\n\n@app.task\nasync def look(run):\n    pass\n"


@dataclass
class Server:
    """`leasekeeper server` with sessions, as people start it, or with a worker that offers them (`worker`)."""

    process: asyncio.subprocess.Process
    url: str
    token: str
    worker: asyncio.subprocess.Process | None = None
    network: Wire | None = None
    """Between the worker and the server."""

    @property
    def runs_browser(self) -> asyncio.subprocess.Process:
        """The process that holds the lease."""
        return self.worker or self.process

    async def open(self, **body: Any) -> dict[str, Any]:
        async with self.client() as api:
            answer = await api.post("/v1/sessions", json={"profile_id": "p1", **body})
            assert answer.status_code == 201, answer.text
            found: dict[str, Any] = answer.json()
            return found

    def client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)


@asynccontextmanager
async def running(
    home: House, token: str = "", *, sessions: int = 2, python: str = sys.executable, **more: str
) -> AsyncIterator[Server]:
    """A server process. It is asked to stop at the end, if it is still there."""
    settings = {f"LEASEKEEPER_{name.upper()}": str(value) for name, value in LEASE_TIMES.items()}
    environ = {**os.environ, **settings, "LEASEKEEPER_DATA_DIR": str(home.data), **more}
    program = ("-m", "leasekeeper", "--store", home.config.store, "server", "--port", "0", "--sessions", f"{sessions}")
    process = await asyncio.create_subprocess_exec(
        python, *program, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    url = ""
    while not url:
        line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
        assert line, "the server did not start"
        token = line.strip() if line.startswith("lk_") else token
        url = line.split()[1].rstrip(";") if line.startswith("serving ") else ""
    try:
        yield Server(process, url, token)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


@asynccontextmanager
async def serving(place: str, home: House) -> AsyncIterator[Server]:
    """A server; for a session on the machine of a worker with a worker process, over a wire that breaks."""
    if place != "worker":
        async with running(home) as server:
            yield server
        return
    async with running(home, sessions=0) as server, wire_to(server) as server.network:
        (home.data.parent / "tasks.py").write_text(TASKS)
        settings = {f"LEASEKEEPER_{name.upper()}": str(value) for name, value in LEASE_TIMES.items()}
        environ = {**os.environ, **settings, "LEASEKEEPER_DATA_DIR": str(home.data), "LEASEKEEPER_TOKEN": server.token}
        command = ("-m", "leasekeeper", "--store", server.network.lead(f"{server.url}/"), "worker", "tasks:app")
        quiet = asyncio.subprocess.DEVNULL
        server.worker = await asyncio.create_subprocess_exec(
            sys.executable, *command, "--sessions", "2", cwd=home.data.parent, env=environ, stdout=quiet, stderr=quiet
        )
        try:
            async with server.client() as api:

                async def offered() -> bool:
                    answer = await api.post("/v1/sessions", json={"profile_id": "nobody"})
                    return answer.status_code != 409 or answer.json()["data"]["cause"] != "sessions_not_offered"

                await until(offered)
            yield server
        finally:
            if server.worker.returncode is None:
                server.worker.send_signal(signal.SIGCONT)
                server.worker.terminate()
            await asyncio.wait_for(server.worker.wait(), PATIENCE)


def keeper_of(home: House) -> int:
    """The one keeper of this house."""
    found = [pid for pid in processes_about("leasekeeper.browsers.keeper") if _is_keeper(pid, str(home.data))]
    assert len(found) == 1, found
    return found[0]


def _is_keeper(pid: int, data: str) -> bool:
    line = Path(f"/proc/{pid}/cmdline").read_bytes()
    return data.encode() in line and not line.startswith((b"/bin/sh", b"sh\0"))


async def over(home: House, lease_id: str) -> Lease:
    """The lease once it is over and resolved."""

    async def look() -> Lease | None:
        lease = await home.store.get(Lease, lease_id)
        return lease if lease.ended_at is not None and not lease.unresolved else None

    found = await until(look)
    assert found is not None
    return found


@asynccontextmanager
async def furnished(place: str, url: str, folder: Path) -> AsyncIterator[House]:
    """A house whose profile is a directory, or a launcher's. At its end no browser may be left."""
    if place != "launcher":
        async with house(App(), url, folder, **TIMES) as home:
            yield home
        return
    launcher = start_fake("http", folder / "launcher")
    try:
        async with launched_house(App(), url, folder, launcher, **TIMES) as home:
            yield home
    finally:
        launcher.end()


@pytest.mark.parametrize(("fault", "kind", "place"), EVERY)
async def test_nothing_is_heard_after_the_lease_is_over(
    fault: str, kind: str, place: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "launcher":
        monkeypatch.setenv("FAKE_LAUNCHER_TOKEN", TOKEN)
        monkeypatch.setenv("LEASEKEEPER_DRIVERS", LAUNCHER)
    with Shop() as shop:
        async with (
            furnished(place, sqlite_url, tmp_path) as home,
            serving(place, home) as server,
            wire_to(server) as wire,
        ):
            leaves = fault in ("client killed", "client cut off")
            opened = await server.open(on_disconnect="release" if leaves else "keep")
            driver = await Driver.start(kind, wire.lead(opened["cdp_url"]), shop.url, "token_1")

            async def clicking() -> bool:
                return len(shop.of("token_1", "/act")) > 3

            await until(clicking)
            await strike(fault, home, server, driver, wire, opened)
            lease = await over(home, opened["session"]["lease_id"])
            assert lease.ended_at is not None
            late = [hit for hit in shop.of("token_1") if hit.at > lease.ended_at.timestamp()]
            assert late == []

            async def gone() -> bool:
                return not home.browsers_of("p1")

            await until(gone)
            said = await driver.rest()
            if fault not in ("client killed", "client cut off", "server killed", "server away"):
                assert any(line.startswith("cut:") for line in said), said
                again = [line for line in said if line.startswith("again:")]
                # The worker of its browser may come back, for as long as its lease lasts.
                assert ("409" if fault in ("worker killed", "worker cut off") else "410") in again[0], said
            if fault == "worker killed":
                assert await why_over(server, opened) == "WORKER_LOST"
            # A client may leave as it likes; whoever loses its lease leaves the profile to its release policy.
            assert (await home.lane()).state == ("available" if "client" in fault else "quarantined")
            for path in (home.data / "open").glob("*"):
                path.unlink()


class ServerWire(Wire):
    """The network between clients and the server."""

    def lead(self, url: str) -> str:
        """The same address, over this wire."""
        return url.replace(f":{urlsplit(url).port}/", f":{self.port}/", 1)


async def why_over(server: Server, opened: dict[str, Any]) -> Any:
    """What whoever has the session's token is told."""
    headers = {"Authorization": f"Bearer {opened['session_token']}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as api:
        answer = await api.post(f"/v1/sessions/{opened['session_id']}/checkpoint", json={"step": "late"})
    assert answer.status_code == 410, answer.text
    return answer.json()["data"]["reason"]


@asynccontextmanager
async def wire_to(server: Server) -> AsyncIterator[ServerWire]:
    parts = urlsplit(server.url)
    with ServerWire((parts.hostname or "", parts.port or 0), seed=1) as wire:
        yield wire


async def strike(fault: str, home: House, server: Server, driver: Driver, wire: Wire, opened: dict[str, Any]) -> None:
    """The fault, and what people do about it."""
    match fault:
        case "client killed":
            driver.process.kill()
        case "client stopped":
            driver.process.send_signal(signal.SIGSTOP)
            async with server.client() as api:
                answer = await api.post(f"/v1/sessions/{opened['session_id']}/release", json={"outcome": "failed"})
                assert answer.status_code == 200, answer.text
            driver.process.send_signal(signal.SIGCONT)
        case "client cut off":
            with wire.silence():
                wire.cut()
                await over(home, opened["session"]["lease_id"])
        case "worker killed":
            server.runs_browser.kill()
            await over(home, opened["session"]["lease_id"])
        case "worker cut off":
            assert server.network is not None
            with server.network.silence():
                server.network.cut()
                await over(home, opened["session"]["lease_id"])
        case "server killed" | "server away":
            server.process.kill()
            if fault == "server away":

                async def fenced() -> bool:
                    return not home.browsers_of("p1")

                await until(fenced)
            async with running(home, server.token, sessions=0 if server.worker else 2):
                await over(home, opened["session"]["lease_id"])
        case "server stopped" | "worker stopped":
            await asyncio.to_thread(stop_safely, home.config.store, server.runs_browser.pid)

            async def fenced_and_over() -> bool:
                """Before the lease is over, a server that wakes up may settle what its keeper closed cleanly."""
                lease = await home.store.get(Lease, opened["session"]["lease_id"])
                return not home.browsers_of("p1") and (await home.store.check()).now >= lease.expires_at

            await until(fenced_and_over)
            server.runs_browser.send_signal(signal.SIGCONT)
        case "keeper killed":
            os.kill(keeper_of(home), signal.SIGKILL)
