"""Clicks through a session's address, beside a bare DevTools connection to the same browser without Leasekeeper.

The server is a process of its own, as people run it; both browsers are open at once and are measured in turns.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.launching import QUIET
from tests.service.restarts import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from playwright.async_api import Page, Playwright

CLICKS = 50
START_SECONDS = 60.0


@asynccontextmanager
async def clickers(
    playwright: Playwright, store: str, folder: Path, profile_id: str, url: str
) -> AsyncIterator[tuple[Callable[[], Awaitable[float]], Callable[[], Awaitable[float]]]]:
    """Two measures, seconds for the same clicks: through a session of this profile, and bare."""
    serving = ServerProcess(store, folder, "--sessions", "1", LEASEKEEPER_DATA_DIR=str(folder / "server"))
    with serving as server, _bare(folder / "bare-devtools") as endpoint:
        async with _session(server, profile_id) as cdp_url:
            through, bare = [await _page(playwright, address, url) for address in (cdp_url, endpoint)]
            yield lambda: _clicks(through), lambda: _clicks(bare)


async def _clicks(page: Page) -> float:
    started = time.perf_counter()
    for _ in range(CLICKS):
        await page.click("#go")
    return time.perf_counter() - started


async def _page(playwright: Playwright, address: str, url: str) -> Page:
    page = (await playwright.chromium.connect_over_cdp(address)).contexts[0].pages[0]
    await page.goto(url)
    return page


@asynccontextmanager
async def _session(server: ServerProcess, profile_id: str) -> AsyncIterator[str]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=START_SECONDS) as api:
        answer = await api.post("/v1/sessions", json={"profile_id": profile_id})
        opened: dict[str, Any] = answer.raise_for_status().json()
        yield str(opened["cdp_url"])
        await api.post(f"/v1/sessions/{opened['session_id']}/release", json={})


@contextmanager
def _bare(directory: Path) -> Iterator[str]:
    """The same browser with a debugging port, as people start it by hand."""
    directory.mkdir(mode=0o700)
    switches = [*QUIET, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={directory}"]
    switches += ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [str(find_browser().path), *switches, "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stderr is not None
            yield next(line.split()[-1] for line in browser.stderr if line.startswith("DevTools listening on "))
        finally:
            browser.terminate()
