"""What Leasekeeper adds to a browser job: the same script bare and as a task, in turns, as ratios and a file.

The bare script is what people write first: launch a persistent context, do the work, close it. Both use the same
browser, the same directory, one running driver, and a local site; machines are noisy, so the middle ratio counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Playwright, async_playwright

from bench import live_view
from bench.sessions import CLICKS as SESSION_CLICKS
from bench.sessions import clickers
from leasekeeper import config as settings
from leasekeeper.app import App, Run
from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.keeper.directory import forget_tabs
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.launching import launch_options
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import Job, RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.launchers.stage import TOKEN, Fake, launched, launched_fleet, start_fake
from tests.runtime.shop import Shop

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "10"))
SHORT_JOBS = 20
CLICKS = 10
WATCHED_CLICKS = 50
PAUSE_SECONDS = 0.5
IN_SESSION = "in_session"
OUT = Path("bench/out/browser.json")
app = App()
live_view.add_tasks(app)


async def work(page: Any, url: str, clicks: int) -> None:
    """The job: open a page and click."""
    await page.goto(url)
    for _ in range(clicks):
        await page.click("#go")


@app.task("clicks", warm=False)
async def clicks_task(run: Run) -> None:
    await work(run.page, run.payload["url"], run.payload.get("clicks", CLICKS))


@app.task("short")
async def short_task(run: Run) -> None:
    await work(run.page, run.payload["url"], 1)


class Bench:
    """One worker in this process, beside bare launches of the same browser."""

    def __init__(
        self, store: Store, store_url: str, playwright: Playwright, data: Path, url: str, launcher: Fake
    ) -> None:
        self._store = store
        self._store_url = store_url
        self._launcher = launcher
        self._playwright = playwright
        self._data = data
        self._url = url
        self._browser = find_browser()

    def _launch(self, directory: Path, executable: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
        return launch_options(
            Profile(profile_id=ProfileId("bare"), account_id=AccountId("bench")),
            directory=directory,
            executable=executable,
            run_mode=RunMode.HEADLESS,
            environ=os.environ,
            root=os.geteuid() == 0,
            extra_env=env or {},
        )

    def _bare_launch(self, directory: Path) -> dict[str, Any]:
        """What people write: Leasekeeper's quiet flags, and none of what it needs for itself."""
        launch = self._launch(directory, self._browser.path)
        return {**launch, "args": [arg for arg in launch["args"] if arg != "--restore-last-session"]}

    async def bare(self, clicks: int) -> float:
        """Seconds of the bare script."""
        directory = self._data / "bare"
        directory.mkdir(mode=0o700, exist_ok=True)
        started = time.perf_counter()
        context = await self._playwright.chromium.launch_persistent_context(**self._bare_launch(directory))
        page = context.pages[0] if context.pages else await context.new_page()
        await work(page, self._url, clicks)
        await context.close()
        return time.perf_counter() - started

    async def bare_launched(self, clicks: int) -> float:
        """Seconds of the recipe that people write for a launcher: start, attach to its URL, work, stop."""
        started = time.perf_counter()
        name = {"profile_id": "bare", "headless": True}
        answer = await asyncio.to_thread(self._launcher.ask, "/profile/start", name, TOKEN)
        browser = await self._playwright.chromium.connect_over_cdp(answer["cdp_url"])
        context = browser.contexts[0]
        await work(context.pages[0] if context.pages else await context.new_page(), self._url, clicks)
        await browser.close()
        await asyncio.to_thread(self._launcher.ask, "/profile/stop", name, TOKEN)
        return time.perf_counter() - started

    async def session_clicks(self) -> list[list[float]]:
        """Seconds of the same clicks through a session, and over a bare DevTools connection, in turns."""
        place = (self._store_url, self._data.parent, IN_SESSION, self._url)
        async with clickers(self._playwright, *place) as measures:
            return await in_turns(*measures)

    async def watched(self) -> float:
        """Seconds of a job whose browser a person watches."""
        async with live_view.looking(live_view.open_browser("p1")) as person:
            took = await self.jobs("clicks", 1, clicks=WATCHED_CLICKS)
        assert person.seen, "nobody has seen anything"
        return took

    async def taken(self) -> tuple[float, float]:
        """Pictures per second of a moving page, and seconds until a person has control of its browser."""
        working = asyncio.create_task(self.jobs("moving", 1))
        live = await live_view.open_browser("p1", asks=True)
        frames = await live_view.frames_per_second(live)
        took = await live_view.take(live)
        await working
        return frames, took

    async def jobs(self, task: str, count: int, profile_id: str = "p1", **payload: int) -> float:
        """Seconds from the submission of so many jobs of one profile to the settlement of the last."""
        started = time.perf_counter()
        spec = {"task": task, "profile_id": profile_id, "payload": {"url": self._url, **payload}}
        last = (await self._store.submit(parse_jobs([spec] * count)))[-1].job
        while (job := await self._store.get(Job, last.job_id)).finished_at is None:
            # In review while a person has its browser.
            assert job.state in ("queued", "blocked", "running") or (job.state, task) == ("review", "moving"), job
            await self._store.wait("default", settings.load({}).poll_every)
        assert job.state == "completed"
        return time.perf_counter() - started

    async def launch_only(self, *, kept: bool) -> tuple[float, float]:
        """Seconds until a browser is launched, and the keeper's resident memory in MB (0 without one)."""
        directory = self._data / ("kept" if kept else "bare")
        directory.mkdir(mode=0o700, exist_ok=True)
        link, executable, memory = None, self._browser.path, 0.0
        started = time.perf_counter()
        if kept:
            executable = write_wrapper(self._data)
            until = boot_time() + 60
            folder = self._data / "runs" / f"bench_{time.monotonic_ns()}"
            link = KeeperLink(
                Orders(
                    browser=str(self._browser.path),
                    user_data_dir=str(directory),
                    profile_id="kept",
                    lease_id=f"kept:{time.monotonic_ns()}",
                    token=time.monotonic_ns(),
                    run_id=folder.name,
                    folder=str(folder),
                    deadline=until,
                    kill_at=until + 10,
                )
            )
        launch = self._launch(directory, executable, link.env) if link else self._bare_launch(directory)
        forget_tabs(str(directory))
        context = await self._playwright.chromium.launch_persistent_context(**launch)
        took = time.perf_counter() - started
        if link is not None:
            memory = _resident_mb(link.keeper_pid or 0)
        if link is not None:
            link.request_close()
            await link.ended(30)
            link.close()
        with contextlib.suppress(PlaywrightError):  # its browser may be gone already
            await context.close()
        return took, memory


def _resident_mb(pid: int) -> float:
    for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def in_turns(*measures: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Each measure once per round, in turns, after one round that does not count.

    Between them is a pause: a bare script returns while its browser's processes are still ending, and the next
    measurement would be slower for it.
    """
    figures: list[list[float]] = [[] for _ in measures]
    for number in range(ROUNDS + 1):
        for measure, taken in zip(measures, figures, strict=True):
            await asyncio.sleep(PAUSE_SECONDS)
            seconds = await measure()
            if number:
                taken.append(seconds)
    return figures


async def measure(bench: Bench) -> dict[str, float]:
    """All figures."""
    ours, bare = await in_turns(lambda: bench.jobs("clicks", 1), lambda: bench.bare(CLICKS))
    print_figure("one job: a page and ten clicks, through Leasekeeper", median(ours), "s")
    print_figure("  the same script, bare", median(bare), "s")

    behind, recipe = await in_turns(lambda: bench.jobs("clicks", 1, "launched"), lambda: bench.bare_launched(CLICKS))
    print_figure("the same job in a launcher's browser, through Leasekeeper", median(behind), "s")
    print_figure("  the bare recipe: start, attach, work, stop", median(recipe), "s")

    async def relaunching() -> float:
        return sum([await bench.bare(1) for _ in range(SHORT_JOBS)])

    warm, cold = [], []
    for _ in range(max(1, ROUNDS // 3)):
        warm.append(await bench.jobs("short", SHORT_JOBS))
        cold.append(await relaunching())
    print_figure(f"{SHORT_JOBS} short jobs on one profile, warm", median(warm), "s")
    print_figure("  the bare script, which launches for each", median(cold), "s")

    memory: list[float] = []

    async def kept() -> float:
        took, megabytes = await bench.launch_only(kept=True)
        memory.append(megabytes)
        return took

    async def plain() -> float:
        return (await bench.launch_only(kept=False))[0]

    launches, plain_launches = await in_turns(kept, plain)
    print_figure("launch through the keeper", median(launches), "s")
    print_figure("  bare launch", median(plain_launches), "s")

    through, direct = await bench.session_clicks()
    print_figure(f"{SESSION_CLICKS} clicks through a session's address", median(through), "s")
    print_figure("  the same over a bare DevTools connection", median(direct), "s")

    seen, unseen = await in_turns(bench.watched, lambda: bench.jobs("clicks", 1, clicks=WATCHED_CLICKS))
    print_figure(f"one job of {WATCHED_CLICKS} clicks that a person watches", median(seen), "s")
    print_figure("  the same unseen", median(unseen), "s")
    frames, takes = zip(*[await bench.taken() for _ in range(max(1, ROUNDS // 3))], strict=True)
    print_figure("pictures of a moving page", median(frames), "per s")
    print_figure("until a person has control", median(takes), "s")
    return {
        "job_to_bare_script": median(a / b for a, b in zip(ours, bare, strict=True)),
        "launcher_job_to_bare": median(a / b for a, b in zip(behind, recipe, strict=True)),
        "session_click_to_bare": median(a / b for a, b in zip(through, direct, strict=True)),
        "viewer_cost": median(a / b for a, b in zip(seen, unseen, strict=True)),
        "frames_per_second": median(frames),
        "takeover_ms": 1000 * median(takes),
        "warm_to_relaunch": median(b / a for a, b in zip(warm, cold, strict=True)),
        "keeper_mb": median(memory),
        "keeper_launch_ms": 1000 * median(a - b for a, b in zip(launches, plain_launches, strict=True)),
    }


def print_figure(name: str, value: float, unit: str) -> None:
    print(f"  {name:<56} {value:>9.3f} {unit}", flush=True)


async def run() -> dict[str, float]:
    """The worker, the site and the measurements."""
    print(f"what Leasekeeper adds to a browser job; {ROUNDS} rounds in turns\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="lk-bench-", dir="/var/tmp") as folder, Shop() as shop:
        url, data = f"sqlite:///{folder}/leasekeeper.db", Path(folder) / "data"
        config = settings.load({}, store=url, data_dir=str(data), poll_every=5.0)
        store = await open_store(url, policy=config.policy)
        profile = Profile(profile_id=ProfileId("p1"), account_id=AccountId("bench"))
        os.environ["FAKE_LAUNCHER_TOKEN"] = TOKEN
        launcher = start_fake("http", Path(folder) / "launcher")
        behind = replace(launched("launched"), account_id=profile.account_id)
        hosted = replace(profile, profile_id=ProfileId(IN_SESSION))
        await store.apply(launched_fleet(launcher.record, profile, behind, hosted), actor="bench")
        stop = Shutdown(config.browsers.stop_grace)
        worker = Worker(
            app,
            store,
            config,
            WorkerOptions(),
            open_store=lambda: open_store(url, policy=config.policy),
            stop=stop,
        )
        running = asyncio.create_task(worker.run())
        try:
            async with async_playwright() as playwright:
                ratios = await measure(Bench(store, url, playwright, data, shop.url, launcher))
        finally:
            stop.ask()
            await running
            stop.done()
            await store.close()
            launcher.end()
    return ratios


def main() -> None:
    ratios = asyncio.run(run())
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"ratios": {name: round(value, 3) for name, value in ratios.items()}}, indent=2) + "\n")
    print("\nratios")
    for name, value in ratios.items():
        print(f"  {name:<24} {value:>9.3f}")
    print(f"\nwritten to {OUT}")


if __name__ == "__main__":
    main()
