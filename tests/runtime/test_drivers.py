"""What every driver gives a worker: tasks that need no page run the same, whatever opens the browser."""

import asyncio
import errno
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.core.browsers import DRIVERS, LAUNCHER, NULL
from leasekeeper.core.notes import Note
from leasekeeper.core.profiles import Profile, ReleasePolicy
from leasekeeper.errors import Fail, StoreUnavailable
from leasekeeper.evidence.files import Artifact, EvidenceFolder, EvidenceNotSaved
from leasekeeper.ports import Renewal, Renewed, Store
from leasekeeper.runtime.opening import BrowserOpener
from tests.conformance.world import profile
from tests.runtime.browsing import house


# A launcher has to be declared and to run: `tests/launchers` has its suite, over every vendor.
@pytest.fixture(params=sorted(set(DRIVERS) - {LAUNCHER}))
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(driver: str) -> dict[str, Any]:
    """A worker of this driver alone. For one without a browser there is none on the machine."""
    return {"drivers": driver, **({"browser": "/nowhere/chromium"} if driver == NULL else {})}


def record(driver: str, name: str = "p1", **fields: Any) -> Profile:
    return profile(name, driver=driver, **fields)


def new_app() -> App:
    app = App()

    @app.task("count")
    async def count(run: Run) -> dict[str, Any]:
        await run.safe("counted", flush=True)
        await run.note("counted it")
        async with run.mutating("export"):
            await run.attach("orders.csv", b"a,b\n")
        return {"token": run.lease.token}

    @app.task("count_plainly")
    def count_plainly(run: SyncRun) -> dict[str, Any]:
        run.safe("counted", flush=True)
        run.note("counted it")
        with run.mutating("export"):
            run.attach("orders.csv", b"a,b\n")
        return {"token": run.lease.token, "thread": threading.current_thread() is not threading.main_thread()}

    return app


async def test_a_driver_may_come_into_use_while_the_others_are_asked(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home:
        opener = BrowserOpener(home.config.browsers, home.store)
        own = await opener.prepare()
        asked = asyncio.create_task(opener.ready())
        await asyncio.sleep(0)
        opener._launches._driver(NULL)
        assert (await asked).program == own.program
        await opener.close()


@pytest.mark.parametrize("task", ["count", "count_plainly"])
async def test_a_run_leaves_its_result_its_files_and_a_profile_that_is_free(
    sqlite_url: str, tmp_path: Path, driver: str, task: str
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        job = await home.submit(task)
        (done,) = await home.do(job)
        run: Any = await home.run_of(job)
        assert (done.state, run.output["token"], run.last_safe_step) == ("completed", 1, "counted")
        assert (run.final_url, run.evidence["keeper"]["clean_close"]) == ("about:blank", True)
        assert (home.evidence(run) / "orders.csv").read_bytes() == b"a,b\n"
        assert (home.evidence(run) / "final.png").exists() is (driver != NULL)
        assert (await home.lane()).state == "available"
        (note,) = (await home.store.find(Note)).items
        assert (note.text, note.run_id, note.job_id) == ("counted it", run.run_id, job.job_id)


async def test_the_next_job_takes_over_without_a_new_start(sqlite_url: str, tmp_path: Path, driver: str) -> None:
    async with house(new_app(), sqlite_url, tmp_path, record(driver), warm_runs=3, **settings(driver)) as home:
        jobs = [await home.submit("count") for _ in range(4)]
        done = await home.do(*jobs)
        assert [job.state for job in done] == ["completed"] * 4
        runs = [await home.run_of(job) for job in jobs]
        assert [run.output for run in runs] == [{"token": token} for token in (1, 2, 3, 4)]
        assert ["close" in run.timings for run in runs] == [False, False, True, True]


async def test_a_shared_task_runs_alone_too_and_an_exclusive_one_never_beside_others(
    sqlite_url: str, tmp_path: Path, driver: str
) -> None:
    app = App()

    @app.task("count", mode="shared")
    async def count(run: Run) -> dict[str, Any]:
        return {"mode": run.lease.mode}

    @app.task("buy", mode="exclusive")
    async def buy(run: Run) -> None: ...

    records = record(driver), record(driver, "p2", max_active_runs=2)
    async with house(app, sqlite_url, tmp_path, *records, **settings(driver)) as home:
        plain, beside = await home.submit("count"), await home.submit("buy", "p2", mode="shared")
        together = [await home.submit("count", "p2", mode="shared") for _ in range(2)]
        done, refused, *shared = await home.do(plain, beside, *together, concurrency=2)
        assert (done.state, (await home.run_of(plain)).output) == ("completed", {"mode": "exclusive"})
        assert (refused.state, refused.stop_reason) == ("review", "ACTION_NOT_ALLOWED")
        assert "task buy is exclusive, the job is shared" in refused.detail
        assert [job.state for job in shared] == ["completed"] * 2


@pytest.mark.parametrize("off", ["task", "profile", "runs"])
async def test_the_next_job_does_not_take_over_where_that_is_off(
    sqlite_url: str, tmp_path: Path, driver: str, off: str
) -> None:
    app = App()

    @app.task("alone", warm=off != "task")
    async def alone(run: Run) -> None: ...

    own = record(driver, warm=off != "profile")
    async with house(app, sqlite_url, tmp_path, own, warm_runs=1 if off == "runs" else 20, **settings(driver)) as home:
        jobs = [await home.submit("alone") for _ in range(2)]
        await home.do(*jobs)
        assert ["close" in (await home.run_of(job)).timings for job in jobs] == [True, True]


async def leave_running(what: str, over: threading.Event) -> object:
    """Start something that would act after the run."""
    loop = asyncio.get_running_loop()

    def act() -> None:
        loop.call_soon_threadsafe(print)

    def act_later() -> None:
        over.wait()
        act()

    match what:
        case "timer":
            return loop.call_later(600, act)
        case "call in a thread":
            return loop.run_in_executor(None, act_later)
        case "thread":
            thread = threading.Thread(target=act_later, name="of the task")
            thread.start()
            return thread
        case "server":
            return await asyncio.start_server(lambda _reader, _writer: act(), "127.0.0.1", 0)
    return asyncio.create_task(asyncio.Event().wait())


@pytest.mark.parametrize("what", ["background", "timer", "call in a thread", "thread", "server"])
async def test_the_next_job_does_not_take_over_while_something_of_the_task_goes_on(
    sqlite_url: str, tmp_path: Path, driver: str, what: str
) -> None:
    app = new_app()
    left: list[Any] = []
    over = threading.Event()

    @app.task("leave")
    async def leave(run: Run) -> None:
        left.append(await leave_running(what, over))

    async with house(app, sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        first, second = await home.submit("leave"), await home.submit("count")
        try:
            done = await home.do(first, second)
        finally:
            over.set()
        assert [job.state for job in done] == ["completed"] * 2
        assert "close" in (await home.run_of(first)).timings
    for each in left:
        if hasattr(each, "close"):
            each.close()
        elif hasattr(each, "cancel"):
            each.cancel()


async def test_what_a_task_has_finished_keeps_no_job_from_taking_over(
    sqlite_url: str, tmp_path: Path, driver: str
) -> None:
    app = App()

    @app.task("tidy")
    async def tidy(run: Run) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(600, print).cancel()
        await asyncio.to_thread(time.monotonic)
        await asyncio.gather(asyncio.create_task(asyncio.sleep(0)), run.note("tidied"))
        thread = threading.Thread(target=time.monotonic)
        thread.start()
        thread.join()

    async with house(app, sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        jobs = [await home.submit("tidy") for _ in range(2)]
        await home.do(*jobs)
        assert "close" not in (await home.run_of(jobs[0])).timings


def stand_still() -> None:
    time.sleep(8.5)  # waits: the loop stands still for longer than a lease lasts


async def test_a_task_that_blocks_the_loop_keeps_its_lease(sqlite_url: str, tmp_path: Path, driver: str) -> None:
    app = App(lease_ttl=8.0, renew_every=0.2, holder_stops_after=6.5)

    @app.task("block")
    async def block(run: Run) -> None:
        stand_still()
        await run.safe("awake", flush=True)
        if driver != NULL:
            await run.page.title()

    async with house(app, sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        job = await home.submit("block")
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(job)).last_safe_step) == ("completed", "awake")


ENDINGS: dict[str, tuple[str, str, str]] = {
    "login": ("LOGIN_REQUIRED", "review", "review_required"),
    "prompt": ("SECURITY_PROMPT", "review", "quarantined"),
    "signal": ("LOGIN_REQUIRED", "review", "review_required"),
    "forbidden": ("ACTION_NOT_ALLOWED", "review", "available"),
    "swallowed": ("ACTION_NOT_ALLOWED", "review", "available"),
    "bug": ("TASK_ERROR", "review", "available"),
    "bug_retried": ("TASK_ERROR", "scheduled", "available"),
    "no_mapping": ("TASK_ERROR", "review", "available"),
    "in_section": ("TASK_ERROR", "review", "quarantined"),
    "own_reason": ("OUT_OF_STOCK", "scheduled", "available"),
    "misspelt": ("LOGIN_REQUIERD", "review", "review_required"),
    "misspelt_signal": ("SECURITY_PROMT", "review", "review_required"),
    "too_long": ("TIMEOUT", "scheduled", "available"),
}


def app_of_endings() -> App:  # noqa: C901 - one branch for each ending
    app = App()
    app.reason("OUT_OF_STOCK", retry=True)

    @app.task("end", actions=["look"], timeout=120, retry=(KeyError,))
    async def end(run: Run) -> Any:  # noqa: C901 - one branch for each ending
        match run.payload["how"]:
            case "login":
                raise Fail("LOGIN_REQUIRED", "the shop shows its form")
            case "prompt":
                run.signal("SECURITY_PROMPT", "a captcha")
            case "signal":
                run.signal("LOGIN_REQUIRED", "a banner said so: password=hunter2hunter2")
            case "forbidden":
                run.action("buy")
            case "swallowed":
                try:
                    run.action("buy")
                except Fail:
                    return {"went": "on"}
            case "bug":
                raise ValueError("password=hunter2hunter2")
            case "bug_retried":
                raise KeyError("may be tried again")
            case "no_mapping":
                return 7
            case "in_section":
                async with run.mutating("look"):
                    raise ValueError("nobody knows what was submitted")
            case "own_reason":
                raise Fail("OUT_OF_STOCK")
            case "misspelt":
                raise Fail("LOGIN_REQUIERD", "the shop shows its form")
            case "misspelt_signal":
                run.signal("SECURITY_PROMT")
        return {}

    @app.task("endless", timeout=1.5)
    async def endless(run: Run) -> None:
        await asyncio.Event().wait()

    return app


async def test_every_ending_does_what_the_table_says(sqlite_url: str, tmp_path: Path, driver: str) -> None:
    records = [record(driver, how) for how in ENDINGS]
    async with house(app_of_endings(), sqlite_url, tmp_path, *records, **settings(driver)) as home:
        jobs = {
            how: await home.submit("endless" if how == "too_long" else "end", how, payload={"how": how})
            for how in ENDINGS
        }
        await home.do(*jobs.values(), concurrency=4)
        seen = {}
        for how, job in jobs.items():
            run, after = await home.run_of(job), await home.store.get(type(job), job.job_id)
            seen[how] = (run.stop_reason, after.state.value, (await home.lane(how)).state.value)
            assert run.final_url is not None, how
            assert "hunter2" not in f"{run} {after}"
            assert ("did you mean" in run.message) is how.startswith("misspelt"), how
        assert seen == ENDINGS


@pytest.mark.parametrize("how_often", [1, 2])
async def test_a_stop_lets_tasks_come_to_a_safe_step_and_a_second_one_ends_them(
    sqlite_url: str, tmp_path: Path, driver: str, how_often: int
) -> None:
    app = App()
    started = asyncio.Event()

    @app.task("long")
    async def long(run: Run) -> None:
        started.set()
        while how_often == 1:
            await run.safe("step")
            await asyncio.sleep(0.05)  # waits: a task that takes its time
        await asyncio.Event().wait()

    async with house(app, sqlite_url, tmp_path, record(driver), stop_grace=600, **settings(driver)) as home:
        job = await home.submit("long")
        async with home.worker() as stop:
            await started.wait()
            for _ in range(how_often):
                stop.ask()
        after, run = await home.store.get(type(job), job.job_id), await home.run_of(job)
        assert (after.state, run.stop_reason) == ("scheduled", "WORKER_STOPPED")
        assert ("ended at safe step" in run.message) is (how_often == 1)
        assert (await home.lane()).state == "available"
        assert (home.evidence(run) / "final.png").exists() is (driver != NULL)


async def test_a_plain_task_that_hangs_is_ended_and_the_worker_goes_on(
    sqlite_url: str, tmp_path: Path, driver: str
) -> None:
    app = new_app()
    over = threading.Event()

    @app.task("hang", timeout=1.5)
    def hang(run: SyncRun) -> None:
        over.wait()

    async with house(app, sqlite_url, tmp_path, record(driver), record(driver, "p2"), **settings(driver)) as home:
        stuck, after = await home.submit("hang"), await home.submit("count_plainly", "p2")
        try:
            first, second = await home.do(stuck, after)
        finally:
            over.set()
        assert (first.stop_reason, first.state, second.state) == ("TIMEOUT", "scheduled", "completed")
        assert (await home.lane("p1")).state == "available"


@pytest.mark.parametrize("state", ["review_required", "quarantined"])
async def test_a_run_whose_evidence_cannot_be_saved_is_not_completed(
    sqlite_url: str, tmp_path: Path, driver: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: EvidenceFolder, name: str, content: bytes) -> Artifact:
        raise EvidenceNotSaved(errno.ENOSPC, f"{folder.path / name}: no space left on device")

    app = new_app()

    @app.task("attach")
    async def attach(run: Run) -> None:
        await run.attach("orders.csv", b"a,b\n")

    monkeypatch.setattr(EvidenceFolder, "write", full)
    async with house(app, sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        job = await home.submit("attach" if state == "review_required" else "count")  # `count` is inside a section
        (done,) = await home.do(job)
        run = await home.run_of(job)
        assert (run.result, run.stop_reason) == ("failed", "EVIDENCE_NOT_SAVED")
        assert done.state != "completed"
        assert "no space left" in run.message
        assert (await home.lane()).state == state


async def test_a_task_cannot_take_its_worker_along(sqlite_url: str, tmp_path: Path, driver: str) -> None:
    app = App()

    @app.task("exit")
    async def leave(run: Run) -> None:
        sys.exit(1)

    @app.task("exit_plainly")
    def leave_plainly(run: SyncRun) -> None:
        sys.exit(1)

    @app.task("stop")
    def stop_iteration(run: SyncRun) -> None:
        next(iter([]))

    @app.task("cancel")
    async def cancel(run: Run) -> None:
        raise asyncio.CancelledError

    @app.task("unkept")
    async def unkept(run: Run) -> dict[str, Any]:
        return {"when": object()}

    @app.task("child")
    async def child(run: Run) -> None:
        async def leave_too() -> None:
            sys.exit(1)

        await asyncio.gather(leave_too())

    @app.task("unprintable")
    async def unprintable(run: Run) -> None:
        raise Unprintable

    names = ["exit", "exit_plainly", "stop", "cancel", "unkept", "child", "unprintable"]
    records = [record(driver, name) for name in names]
    async with house(app, sqlite_url, tmp_path, *records, **settings(driver)) as home:
        jobs = [await home.submit(name, name) for name in names]
        done = await home.do(*jobs, concurrency=2)
        assert [(job.state, job.stop_reason) for job in done] == [("review", "TASK_ERROR")] * 7
        assert {(await home.lane(name)).state for name in names} == {"available"}


class Unprintable(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no words")


async def test_what_a_task_noticed_counts_though_its_lease_is_lost(
    sqlite_url: str, tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals are not answered: the holder stops by itself, and the store still takes its ending."""
    app = App(lease_ttl=60.0, renew_every=0.5, holder_stops_after=6.5, lock_delay=0.1)
    noticed = threading.Event()

    @app.task("notice")
    async def notice(run: Run) -> None:
        await run.safe("there")
        run.signal("SECURITY_PROMPT", "a captcha")
        noticed.set()
        await asyncio.Event().wait()

    recovering = record(driver, release_policy=ReleasePolicy.RECOVER)
    async with house(app, sqlite_url, tmp_path, recovering, **settings(driver)) as home:
        opened = home.open_store

        async def soon_without_renewals() -> Store:
            store = await opened()
            renew = store.renew

            async def until_noticed(renewals: Sequence[Renewal]) -> list[Renewed]:
                if noticed.is_set():
                    raise StoreUnavailable("cut")
                return await renew(renewals)

            monkeypatch.setattr(store, "renew", until_noticed)
            return store

        monkeypatch.setattr(home, "open_store", soon_without_renewals)
        (done,) = await home.do(await home.submit("notice"))
        assert (done.state, done.stop_reason) == ("review", "SECURITY_PROMPT")
        assert (await home.lane()).state == "quarantined"


async def test_tasks_that_leave_threads_behind_do_not_stop_the_worker(
    sqlite_url: str, tmp_path: Path, driver: str
) -> None:
    app = App()
    over = threading.Event()

    @app.task("fine")
    async def fine(run: Run) -> None:
        for _ in range(64):
            asyncio.get_running_loop().run_in_executor(None, over.wait)

    async with house(app, sqlite_url, tmp_path, record(driver), **settings(driver)) as home:
        try:
            done = await home.do(*[await home.submit("fine") for _ in range(2)])
        finally:
            over.set()
        assert [job.state for job in done] == ["completed"] * 2


@pytest.mark.parametrize("sync", [False, True])
async def test_a_task_that_asks_for_a_page_without_a_browser_reads_why_there_is_none(
    sqlite_url: str, tmp_path: Path, sync: bool
) -> None:
    app = App()

    @app.task("visit")
    async def visit(run: Run) -> None:
        await run.page.goto("https://shop.test/")

    @app.task("visit_plainly")
    def visit_plainly(run: SyncRun) -> None:
        run.context.cookies()

    async with house(app, sqlite_url, tmp_path, record(NULL), **settings(NULL)) as home:
        (failed,) = await home.do(await home.submit("visit_plainly" if sync else "visit"))
        assert (failed.state, failed.stop_reason) == ("review", "TASK_ERROR")
        assert "this profile's driver is `null`, which opens no browser" in failed.detail
        assert (await home.lane()).state == "available"


async def test_one_worker_serves_profiles_of_several_drivers(sqlite_url: str, tmp_path: Path) -> None:
    names = sorted(set(DRIVERS) - {LAUNCHER})
    records = [record(driver, driver) for driver in names]
    async with house(new_app(), sqlite_url, tmp_path, *records) as home:
        jobs = [await home.submit("count", driver) for driver in names]
        done = await home.do(*jobs, concurrency=2)
        assert [job.state for job in done] == ["completed"] * len(names)


async def test_a_job_that_wants_to_be_seen_waits_for_a_display_unless_the_settings_allow_headless(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    async with house(new_app(), sqlite_url, tmp_path, record(NULL), **settings(NULL)) as home:
        job = await home.submit("count", run_mode="visible", max_attempts=1)
        (waits,) = await home.do(job)
        assert (waits.state, waits.attempt, waits.stop_reason) == ("scheduled", 0, "VISIBLE_NEEDS_DISPLAY")
        assert "LEASEKEEPER_HEADLESS_WITHOUT_DISPLAY=1" in waits.detail
        assert (await home.lane()).state == "available"
        (seen,) = await home.do(await home.submit("count"))
        assert seen.state == "completed"
    allowed = {**settings(NULL), "headless_without_display": 1.0}
    async with house(new_app(), sqlite_url, tmp_path, record(NULL), **allowed) as home:
        job = await home.submit("count", run_mode="visible")
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(job)).actual["run_mode"]) == ("completed", "headless")
    monkeypatch.setenv("DISPLAY", ":99")
    async with house(new_app(), sqlite_url, tmp_path, record(NULL), **settings(NULL)) as home:
        job = await home.submit("count", run_mode="visible")
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(job)).actual["run_mode"]) == ("completed", "visible")
