"""What a task keeps of its browser after its end does not reach the browser of the next run."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.errors import LeaseLost
from tests.runtime.browsing import house

KEPT: dict[str, Any] = {}
"""A global, as a module of a user has it."""

KEEP: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _run: None,
    "run": lambda run: run,
    "page": lambda run: run.page,
    "context": lambda run: run.context,
    "method": lambda run: run.context.new_page,
    "closure": lambda run: lambda page=run.page: page.context,
    "locator": lambda run: run.page.locator("a"),
    "keyboard": lambda run: run.page.keyboard,
    "request": lambda run: run.context.request,
    "frame": lambda run: [run.page.main_frame],
}
HARMLESS = ("nothing", "run")


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    KEPT.clear()


def new_app(what: str) -> App:
    app = App()

    @app.task("keep")
    async def keep(run: Run) -> None:
        await run.page.goto("data:text/html,<a>kept</a>")
        KEPT["it"] = KEEP[what](run)

    @app.task("next")
    async def follow(run: Run) -> dict[str, Any]:
        return {"pages": len(run.context.pages)}

    @app.task("keep_plainly")
    def keep_plainly(run: SyncRun) -> None:
        run.page.goto("data:text/html,<a>kept</a>")
        KEPT["it"] = KEEP[what](run)

    @app.task("next_plainly")
    def follow_plainly(run: SyncRun) -> dict[str, Any]:
        return {"pages": len(run.context.pages)}

    return app


DAILY = ("nothing", "run", "page", "closure")
"""What each day tries; everything else that can be kept is counted in the same way, and waits for a release."""


@pytest.mark.release_if(when=lambda chosen: chosen["what"] not in DAILY)
@pytest.mark.parametrize("what", KEEP)
async def test_a_browser_is_handed_over_only_if_nothing_of_it_was_kept(
    sqlite_url: str, tmp_path: Path, what: str
) -> None:
    async with house(new_app(what), sqlite_url, tmp_path) as home:
        jobs = [await home.submit("keep"), await home.submit("next")]
        done = await home.do(*jobs)
        assert [job.state for job in done] == ["completed"] * 2
        handed_over = "close" not in (await home.run_of(jobs[0])).timings
        assert handed_over is (what in HARMLESS)


@pytest.mark.release_if(when=lambda chosen: chosen["what"] not in ("nothing", "page"))  # counted in the same way
@pytest.mark.parametrize("what", ["nothing", "run", "page", "locator", "method"])
async def test_the_same_for_plain_tasks(sqlite_url: str, tmp_path: Path, what: str) -> None:
    async with house(new_app(what), sqlite_url, tmp_path) as home:
        jobs = [await home.submit("keep_plainly"), await home.submit("next_plainly")]
        done = await home.do(*jobs)
        assert [job.state for job in done] == ["completed"] * 2
        handed_over = "close" not in (await home.run_of(jobs[0])).timings
        assert handed_over is (what in HARMLESS)


@pytest.mark.parametrize("task", ["listen", "listen_plainly"])
async def test_handlers_on_the_pages_of_a_run_end_before_it_is_settled(
    sqlite_url: str, tmp_path: Path, task: str
) -> None:
    app = new_app("nothing")
    called: list[datetime] = []
    noisy = "data:text/html,<script>setInterval(() => console.log('x'), 5)</script>"

    @app.task("listen")
    async def listen(run: Run) -> None:
        run.page.on("console", lambda _message: called.append(datetime.now(UTC)))
        async with run.page.expect_event("console"):
            await run.page.goto(noisy)

    @app.task("listen_plainly")
    def listen_plainly(run: SyncRun) -> None:
        run.page.on("console", lambda _message: called.append(datetime.now(UTC)))
        with run.page.expect_event("console"):
            run.page.goto(noisy)

    async with house(app, sqlite_url, tmp_path) as home:
        jobs = [await home.submit(task), await home.submit("next" if task == "listen" else "next_plainly")]
        await home.do(*jobs)
        first, second = [await home.run_of(job) for job in jobs]
        assert "close" not in first.timings, "the browser is handed over"
        assert called
        assert [at for at in called if at > second.acquired_at] == []


async def test_a_run_that_was_kept_says_that_it_is_over(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app("run")

    @app.task("use")
    async def use(_run: Run) -> dict[str, str]:
        with pytest.raises(LeaseLost) as page:
            await KEPT["it"].page.goto("data:text/html,not mine")
        with pytest.raises(LeaseLost):
            await asyncio.to_thread(getattr, KEPT["it"].context, "new_page")
        return {"said": page.value.message}

    async with house(app, sqlite_url, tmp_path) as home:
        jobs = [await home.submit("keep"), await home.submit("use")]
        await home.do(*jobs)
        first, second = [await home.run_of(job) for job in jobs]
        said: Any = second.output
        assert "close" not in first.timings
        assert said["said"] == f"run {first.run_id} is over: its page and its context cannot be used any more"


async def test_a_browser_of_a_plain_task_is_not_handed_over_while_its_thread_goes_on(
    sqlite_url: str, tmp_path: Path
) -> None:
    app, over = new_app("nothing"), threading.Event()

    @app.task("start")
    def start(_run: SyncRun) -> None:
        threading.Thread(target=over.wait, name="of the task").start()

    async with house(app, sqlite_url, tmp_path) as home:
        jobs = [await home.submit("start"), await home.submit("next_plainly")]
        try:
            done = await home.do(*jobs)
        finally:
            over.set()
        assert [job.state for job in done] == ["completed"] * 2
        assert "close" in (await home.run_of(jobs[0])).timings
