"""A job on a worker's machine, in processes of their own: a person sees its browser at the server, takes it, works in
it and hands it back; and what becomes of it if a process dies, stands still or is cut off meanwhile.

The person's way every day, the faults before a release.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import async_playwright, expect

from leasekeeper.app import App
from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.jobs import Job
from tests.chaos.wire import Wire
from tests.e2e.arena import REPOSITORY
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, TIMES, until
from tests.runtime.stage import stop as stop_safely
from tests.service.restarts import ServerProcess
from tests.sessions.test_live_view import WAIT_MS

ENVIRON = {f"LEASEKEEPER_{name.upper()}": str(value) for name, value in TIMES.items()}


@dataclass
class Fleet:
    """A server, and a worker that reaches it over a wire."""

    home: House
    server: ServerProcess
    wire: Wire
    worker: "subprocess.Popen[bytes]"
    api: httpx2.AsyncClient

    async def control(self, run: str = "p1") -> dict[str, Any]:
        """Who has control, as the server says; empty while it does not know, or is away."""
        try:
            answer = await self.api.get(f"/v1/runs/{run}/control")
        except httpx2.TransportError:
            return {}
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    async def until_control(self, **fields: Any) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            found = await self.control()
            return found if found and all(found[name] == value for name, value in fields.items()) else None

        found = await until(look)
        assert found is not None
        return found

    async def post(self, action: str, **body: Any) -> dict[str, Any]:
        """Do it, as soon as the worker is connected."""

        async def done() -> dict[str, Any] | None:
            answer = await self.api.post(f"/v1/runs/p1/{action}", json=body)
            away = answer.status_code == 409 and answer.json()["data"]["cause"] == "worker_away"
            assert away or answer.status_code == 200, answer.text
            return None if away else dict(answer.json())

        found = await until(done)
        assert found is not None
        return found


@contextmanager
def worker_process(url: str, token: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker as people start it; it is asked to stop at the end, if it is still there."""
    environ = {**os.environ, **ENVIRON, "LEASEKEEPER_TOKEN": token, "LEASEKEEPER_DATA_DIR": str(folder / "data")}
    command = [sys.executable, "-m", "leasekeeper", "--store", url, "worker", "tests.sessions.live_tasks:app"]
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.wait(PATIENCE)


@asynccontextmanager
async def staged(url: str, folder: Path) -> AsyncIterator[Fleet]:
    data = str(folder / "server")
    async with house(App(), url, folder, **dict[str, Any](TIMES)) as home:
        with (
            ServerProcess(url, folder, **ENVIRON, LEASEKEEPER_DATA_DIR=data) as server,
            Wire(("127.0.0.1", server.port), seed=1) as wire,
            worker_process(f"http://127.0.0.1:{wire.port}", server.token, folder) as worker,
        ):
            headers = {"Authorization": f"Bearer {server.token}"}
            async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as api:
                yield Fleet(home, server, wire, worker, api)


async def completed(at: Fleet, job: Job) -> dict[str, Any]:
    (done,) = await at.home.settled(job)
    assert done.state == "completed", done
    output: Any = (await at.home.run_of(job)).output
    return dict(output)


async def test_a_person_sees_takes_and_hands_back_a_job_on_a_workers_machine(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with staged(sqlite_url, tmp_path) as at, async_playwright() as playwright:
            job = await at.home.submit("ask", payload={"url": shop.url})
            seen = await at.until_control(asks="solve the prompt", may_take=True)
            browser = await playwright.chromium.launch(executable_path=find_browser().path, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1600, "height": 1200})
            page.set_default_timeout(WAIT_MS)
            await page.goto(f"{at.server.url}/ui/sign-in")
            await page.fill("input[name=token]", at.server.token)
            await page.click("form button")
            await page.goto(f"{at.server.url}/ui/runs/{seen['run_id']}")
            await page.get_by_role("link", name="Live view").click()
            await page.locator("#lv[data-frames]").wait_for()
            await expect(page.locator("#control")).to_contain_text("asks for a person")
            await page.get_by_role("button", name="Take control").click()
            await expect(page.locator("#lv-control")).to_contain_text("You can act")
            await page.locator("#lv[data-frames]").wait_for()
            await page.locator("#lv-canvas").click(position={"x": 600, "y": 500})
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")

            async def heard() -> bool:
                return bool(shop.of("task", "/act"))

            await until(heard)
            await page.fill("#control input[name=outcome]", "solved")
            await page.get_by_role("button", name="Hand back").click()
            await expect(page.locator("#flash")).to_contain_text("the task has control again")
            done = await completed(at, job)
            assert (done["said"][1], done["title"], done["tokens"]) == ("solved", "task", [1, 3])
            await browser.close()


async def strike(fault: str, at: Fleet) -> None:
    match fault:
        case "worker killed":
            at.worker.kill()
        case "worker stopped":
            await asyncio.to_thread(stop_safely, at.home.config.store, at.worker.pid)
        case "wire cut":
            at.wire.cut()
        case "server killed":
            at.server.kill()
            await asyncio.to_thread(at.server.start)


@pytest.mark.release
@pytest.mark.parametrize("fault", ["wire cut", "server killed"])
async def test_a_person_keeps_control_while_the_server_is_away(fault: str, sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with staged(sqlite_url, tmp_path) as at:
            job = await at.home.submit("ask", payload={"url": shop.url})
            await at.until_control(asks="solve the prompt", may_take=True)
            taken = await at.post("take")
            await strike(fault, at)
            assert (await at.until_control(human=True))["run_id"] == taken["run_id"]
            await at.post("hand-back", outcome="solved")
            assert (await completed(at, job))["tokens"] == [1, 3]


@pytest.mark.release
@pytest.mark.parametrize("fault", ["worker killed", "worker stopped"])
async def test_a_browser_ends_with_the_worker_that_a_person_has_it_of(
    fault: str, sqlite_url: str, tmp_path: Path
) -> None:
    with Shop() as shop:
        async with staged(sqlite_url, tmp_path) as at:
            job = await at.home.submit("ask", payload={"url": shop.url})
            await at.until_control(asks="solve the prompt", may_take=True)
            await at.post("take")
            await strike(fault, at)

            async def over() -> bool:
                lane = await at.home.lane()
                return lane.state == "quarantined" and not at.home.browsers_of("p1")

            await until(over)

            async def unknown() -> bool:
                return not await at.control()

            await until(unknown)
            (done,) = await at.home.settled(job)
            assert (done.state, done.stop_reason) == ("review", "TAKEN_OVER")
            for path in (at.home.data / "open").glob("*"):
                path.unlink()
