"""Fake launchers as processes of a test, and profiles that live in them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leasekeeper.app import App
from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.accounts import Limit, Proxy
from leasekeeper.core.browsers import LAUNCHER
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Profile
from tests.conformance.world import fleet, profile
from tests.runtime.browsing import House, house, processes_about
from tests.runtime.stage import until

TOKEN = "fake-launcher-token"  # noqa: S105 - of a fake
# The recipe's launcher, as a fleet file describes it.
RECIPE: dict[str, Any] = {
    "start": {
        "method": "POST",
        "path": "/profile/start",
        "body": {"profile_id": "{profile}", "headless": "{headless}"},
        "endpoint": "{cdp_url}",
        "busy": {"http.status": 409},
    },
    "stop": {"method": "POST", "path": "/profile/stop", "body": {"profile_id": "{profile}"}},
    "status": {
        "path": "/profile/status",
        "query": {"profile_id": "{profile}"},
        "running": {"running": True},
        "idle": {"running": False},
    },
}
VENDORS = ("multilogin", "adspower", "gologin", "dolphin", "kameleo", "http")


@dataclass
class Fake:
    """A launcher that runs, in a process of its own."""

    vendor: str
    folder: Path
    process: "subprocess.Popen[bytes]"
    port: int
    start_seconds: int = 20

    @property
    def record(self) -> Launcher:
        return Launcher(
            launcher_id=LauncherId("mlx"),
            driver=self.vendor,
            url=f"http://127.0.0.1:{self.port}",
            api_token="env:FAKE_LAUNCHER_TOKEN",  # noqa: S106 - this reference
            folder="folder-1",
            start_timeout_seconds=self.start_seconds,
            calls=RECIPE if self.vendor == "http" else {},
        )

    def ask(self, path: str, body: Any = None, token: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own fake
            return json.loads(answer.read())

    def fault(self, step: str, fault: str) -> None:
        self.ask("/_fault", {"step": step, "fault": fault})

    @property
    def peak(self) -> int:
        """How many of its browsers ran at once."""
        return int(self.ask("/_peak"))

    def calls(self, step: str) -> int:
        return sum(1 for _, name in self.ask("/_log") if name == step)

    def browsers(self) -> list[int]:
        return processes_about(f"--user-data-dir={self.folder}")

    def kill(self) -> None:
        """The launcher's process alone: its browsers live on."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process, self.port = _start(self.vendor, self.folder, self.port)

    def end(self) -> None:
        self.kill()
        for pid in self.browsers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _start(vendor: str, folder: Path, port: int = 0) -> tuple["subprocess.Popen[bytes]", int]:
    program = str(Path(__file__).with_name("fake.py"))
    arguments = [sys.executable, program, vendor, str(folder), str(find_browser(None).path), str(port), TOKEN]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        return process, int(said.readline())


def start_fake(vendor: str, folder: Path) -> Fake:
    process, port = _start(vendor, folder)
    return Fake(vendor, folder, process, port)


def launched(profile_id: str = "p1", **more: Any) -> Profile:
    fields: dict[str, Any] = {
        "driver": LAUNCHER, "launcher_id": LauncherId("mlx"), "launcher_profile": f"id-{profile_id}", **more,
    }  # fmt: skip
    return profile(profile_id, **fields)


def launched_fleet(launcher: Launcher, *profiles: Profile | Proxy | Limit) -> Fleet:
    return replace(fleet(*profiles), launchers={launcher.launcher_id: launcher})


@asynccontextmanager
async def launched_house(
    app: App, url: str, folder: Path, fake: Fake, *profiles: Profile | Proxy | Limit, **more: Any
) -> AsyncIterator[House]:
    """A house whose profiles are the launcher's. When it closes, no browser of the launcher may be left."""
    async with house(app, url, folder, profile("local"), drivers=LAUNCHER, **more) as home:
        await home.store.apply(launched_fleet(fake.record, *(profiles or (launched(),))), actor="test")
        yield home

        async def nobody() -> bool:
            return not await asyncio.to_thread(fake.browsers)

        await until(nobody)
