"""Memory budgets, with real browsers: a run above its own ends alone, a Playwright process above its is replaced."""

import asyncio
import logging
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.browsers.null import NullBrowser
from leasekeeper.client import Client
from leasekeeper.core.browsers import LeaseTerms, NoPage
from leasekeeper.core.leases import RunRecord
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime import memory
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.memory import MemoryWatch, memory_of_sessions
from leasekeeper.runtime.no_browser import NoBrowserSession
from leasekeeper.runtime.sessions import Sessions
from tests.conformance.world import profile
from tests.runtime.browsing import house
from tests.runtime.stage import until

LIMIT_MB = 500
# Ends below twice the limit: there the browser is killed, and there would be no screenshot.
ALLOCATE = """() => {
    window.kept = [];
    setInterval(() => { if (kept.length < 60) kept.push(new Uint8Array(8e6).fill(1)); }, 20);
}"""

# Whoever listens gets a handle of each argument, which Playwright keeps.
FLOOD = """() => {
    const text = 'x'.repeat(500000);
    setInterval(() => console.log(text + Math.random()), 20);
}"""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHECK_SECONDS", 0.2)


def app_with(ended: asyncio.Event) -> App:
    """`fill` allocates until it is ended; `beside` lives as long, and then completes."""
    app = App()

    @app.task("fill")
    async def fill(run: Run) -> None:
        try:
            await run.page.goto("data:text/html,filling")
            await run.page.evaluate(ALLOCATE)
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.task("fill_plainly")
    def fill_plainly(run: SyncRun) -> None:
        run.page.goto("data:text/html,filling")
        run.page.evaluate(ALLOCATE)
        run.page.wait_for_timeout(3_600_000)

    @app.task("beside")
    async def beside(run: Run) -> dict[str, str]:
        await ended.wait()
        return {"title": await run.page.title()}

    return app


async def test_a_run_above_its_memory_ends_alone_with_its_evidence(sqlite_url: str, tmp_path: Path) -> None:
    app = app_with(asyncio.Event())
    async with house(app, sqlite_url, tmp_path, profile("p1"), profile("p2"), run_memory_mb=LIMIT_MB) as home:
        filling, beside = await home.submit("fill"), await home.submit("beside", "p2")
        failed, done = await home.do(filling, beside, concurrency=2)
        assert (failed.state, failed.stop_reason, failed.attempt) == ("scheduled", "MEMORY_EXCEEDED", 1)
        assert done.state == "completed"
        run: Any = await home.run_of(filling)
        assert "the limit for a run is 500 MB (LEASEKEEPER_RUN_MEMORY_MB)" in run.message
        assert run.final_url == "data:[redacted]"
        assert (home.evidence(run) / "final.png").exists()
        assert (await home.lane()).state == "available"


async def test_a_browser_above_twice_its_memory_is_killed(sqlite_url: str, tmp_path: Path) -> None:
    """Its budget is exceeded at once: what is said of the run is the memory, not the browser's end."""
    async with house(app_with(asyncio.Event()), sqlite_url, tmp_path, run_memory_mb=20) as home:
        (failed,) = await home.do(filling := await home.submit("fill"))
        assert (failed.state, failed.stop_reason) == ("scheduled", "MEMORY_EXCEEDED")
        run: Any = await home.run_of(filling)
        assert run.evidence["keeper"]["cause"] == "revoked"


async def test_a_plain_task_above_its_memory_ends_too(sqlite_url: str, tmp_path: Path) -> None:
    async with house(app_with(asyncio.Event()), sqlite_url, tmp_path, run_memory_mb=LIMIT_MB) as home:
        (failed,) = await home.do(await home.submit("fill_plainly"))
        assert (failed.state, failed.stop_reason) == ("scheduled", "MEMORY_EXCEEDED")


async def test_the_playwright_process_of_a_plain_task_counts_for_its_run(sqlite_url: str, tmp_path: Path) -> None:
    """The page keeps nothing; what listens to it does."""
    app = App()

    @app.task("listen", warm=False)
    def listen(run: SyncRun) -> None:
        run.page.on("console", lambda _message: None)
        run.page.goto("data:text/html,quiet")
        run.page.evaluate(FLOOD)
        run.page.wait_for_timeout(3_600_000)

    async with house(app, sqlite_url, tmp_path, run_memory_mb=LIMIT_MB) as home:
        (failed,) = await home.do(await home.submit("listen"))
        assert (failed.state, failed.stop_reason) == ("scheduled", "MEMORY_EXCEEDED")


async def test_a_run_that_fills_the_shared_playwright_process_ends_alone(sqlite_url: str, tmp_path: Path) -> None:
    app, ended = App(), asyncio.Event()

    @app.task("listen", warm=False)
    async def listen(run: Run) -> None:
        try:
            run.page.on("console", lambda _message: None)
            await run.page.goto("data:text/html,loud")
            await run.page.evaluate(FLOOD)
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.task("beside", warm=False)
    async def beside(run: Run) -> dict[str, str]:
        await run.page.goto("data:text/html,<title>quiet</title>")
        await ended.wait()
        return {"title": await run.page.title()}

    two = (profile("p1"), profile("p2"))
    async with house(app, sqlite_url, tmp_path, *two, playwright_memory_mb=150) as home:
        loud, quiet = await home.submit("listen"), await home.submit("beside", "p2")
        failed, done = await home.do(loud, quiet, concurrency=2)
        assert (failed.state, failed.stop_reason) == ("scheduled", "MEMORY_EXCEEDED")
        assert "this run's browser sent the most" in (await home.run_of(loud)).message
        assert (done.state, (await home.run_of(quiet)).output) == ("completed", {"title": "quiet"})


class CountedBrowser(NullBrowser):
    """A browser whose keeper has relayed as many bytes as a test says."""

    relayed = 0

    @property
    def relayed_bytes(self) -> int:
        return self.relayed


class SharedByAll(Sessions):
    """All sessions share one process: the leader of this test's own process session."""

    def shared_process(self, _session: object) -> int:
        return os.getsid(0)

    async def retire_playwright(self, _pid: int) -> bool:
        return False


async def test_what_a_warm_browser_sent_in_earlier_runs_does_not_count(tmp_path: Path) -> None:
    later = boot_time() + 3600
    terms = LeaseTerms(lease_id="", token=1, run_id="", folder="", deadline=later, kill_at=later)
    warm, fresh = CountedBrowser("p1", terms), CountedBrowser("p2", terms)
    session = NoBrowserSession(NoPage(message=""), None, Redactor())
    watch = MemoryWatch(SharedByAll(tmp_path, Redactor()), run_bytes=None, playwright_bytes=1)
    warm.relayed = 19 * 60_000_000
    with watch.watch(warm, session) as quiet, watch.watch(fresh, session) as loud:
        await watch.check()
        assert [each.exceeded.is_set() for each in (quiet, loud)] == [False, False], "no run has sent anything yet"
        warm.relayed += 60_000_000
        fresh.relayed = 500_000_000
        await watch.check()
        assert loud.exceeded.is_set()
        assert loud.message.endswith("this run's browser sent the most: about 500 MB")
        assert not quiet.exceeded.is_set()
        assert (warm.over, fresh.over) == (False, True)


async def test_a_session_above_its_memory_ends_with_its_evidence(sqlite_url: str, tmp_path: Path) -> None:
    async with house(App(), sqlite_url, tmp_path, run_memory_mb=LIMIT_MB) as home:
        client = Client(await home.open_store(), home.config)
        async with client.browser("p1") as browser:
            await browser.page.goto("data:text/html,filling")
            await browser.page.evaluate(ALLOCATE)
            end = await browser.wait_ended()
        await client.close()
        assert (end.reason, end.settled and end.settled.profile_state) == ("MEMORY_EXCEEDED", "available")
        assert "the limit for a run is 500 MB" in end.message
        (run,) = (await home.store.find(RunRecord)).items
        assert (home.evidence(run) / "last.png").exists()


async def test_a_playwright_process_above_its_memory_serves_no_new_run_and_ends_with_its_last(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is above a limit of 1 MB as soon as it runs: each run gets a process of its own, and completes."""
    app, seen = App(), list[int]()

    @app.task("visit", warm=False)
    async def visit(run: Run) -> dict[str, str]:
        known = set(seen)

        async def retired() -> set[int]:
            return {int(pid) for pid in re.findall(r"Playwright process (\d+) uses", caplog.text)} - known

        seen.extend(await until(retired))
        return {"title": await run.page.title()}

    caplog.set_level(logging.WARNING, "leasekeeper")
    two = (profile("p1"), profile("p2"))
    async with house(app, sqlite_url, tmp_path, *two, playwright_memory_mb=1) as home, home.worker():
        for name in ("p1", "p2"):
            (done,) = await home.settled(await home.submit("visit", name))
            assert done.state == "completed"
        assert len(seen) == 2
        for pid in seen:
            await until(partial(asyncio.to_thread, gone, pid))


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_memory_of_a_session_is_at_least_what_its_process_filled() -> None:
    kept = bytearray(b"x" * 50_000_000)
    session = os.getsid(0)
    rough, exact = memory_of_sessions({(session,): 2**62})[session], memory_of_sessions({(session,): 0})[session]
    assert len(kept) < exact <= rough * 2
    assert memory_of_sessions({(2**22 + 1,): 0}) == {2**22 + 1: 0}
