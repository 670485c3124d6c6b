"""A worker with real browsers: what a task can do, and what becomes of its job, its profile and its evidence."""

import asyncio
import errno
import hashlib
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.core.browsers import LeaseTerms
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ManualUse
from leasekeeper.evidence.files import Artifact, EvidenceFolder, EvidenceNotSaved
from tests.conformance.world import profile
from tests.runtime.browsing import descendants, house, processes_about
from tests.runtime.shop import Shop, press
from tests.runtime.stage import until
from tests.servers import closed_port


def new_app() -> App:
    """Tasks that tests share. What each does is in its payload."""
    app = App()

    @app.task("remember")
    async def remember(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"])
        await run.page.evaluate("([k, v]) => window.remember(k, v)", ["who", run.payload["value"]])
        return {"remembered": run.payload["value"]}

    @app.task("recall")
    async def recall(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"])
        return dict(await run.page.evaluate("window.recall('who')"))

    @app.task("recall_plainly", warm=False)
    def recall_plainly(run: SyncRun) -> dict[str, Any]:
        run.page.goto(run.payload["url"])
        run.safe("there", flush=True)
        with run.mutating("look"):
            found = run.page.evaluate("window.recall('who')")
        run.attach("found.txt", "seen")
        return dict(found)

    @app.task("visit")
    async def visit(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"])
        return {"pages": len(run.context.pages), "token": run.lease.token}

    return app


async def test_a_run_leaves_its_result_its_evidence_and_a_profile_that_is_free(store_url: str, tmp_path: Path) -> None:
    app = new_app()

    @app.task("export", actions=["export"])
    async def export(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"] + "/?title=export")
        await run.page.evaluate("console.error('token=s3cretvalue12345')")
        await run.safe("open", flush=True)
        async with run.mutating("export"):
            await press(run.page)
        await run.page.goto(run.payload["url"] + "/missing?password=hunter2hunter2")
        await run.attach("orders.csv", b"a,b\n")
        return {"orders": 3}

    settings = {"language": "de-DE", "timezone": "Europe/Berlin", "window": "900x700"}
    with Shop() as shop:
        async with house(app, store_url, tmp_path, profile("p1", **settings)) as home:
            job = await home.submit("export", payload={"url": shop.url}, expected_language="de-DE")
            (done,) = await home.do(job)
            run = await home.run_of(job)
            assert (done.state, run.result, run.stop_reason) == ("completed", "completed", None)
            assert run.output == {"orders": 3}
            assert (run.last_safe_step, run.actual["language"], run.actual["timezone"]) == (
                "open",
                "de-DE",
                "Europe/Berlin",
            )
            assert run.actual["window"] == "900x700"
            assert run.final_url is not None
            assert run.final_url.startswith(f"{shop.url}/missing")
            assert "hunter2" not in str(run)
            assert "s3cretvalue" not in str(run)
            assert set(run.timings) == {"open", "task", "evidence", "close"}
            evidence: Any = run.evidence
            assert evidence["console"]["errors"] >= 1
            assert evidence["network"]["error_answers"] == 1
            assert evidence["keeper"] == {"cause": "closed", "stopped_by": "Browser.close", "clean_close": True}
            kept = {artifact["name"]: artifact["sha256"] for artifact in evidence["artifacts"]}
            assert set(kept) == {"orders.csv", "final.png"}
            for name, digest in kept.items():
                assert hashlib.sha256((home.evidence(run) / name).read_bytes()).hexdigest() == digest
            assert (await home.lane()).state == "available"
            assert len(shop.of("export", "/act")) == 1


async def test_a_page_that_gives_the_worker_no_picture_gives_the_keeper_one(sqlite_url: str, tmp_path: Path) -> None:
    """A plain task ends while its page is on its way elsewhere: the sync API waits there, and gets nothing."""
    app = new_app()

    @app.task("leave", warm=False)
    def leave(run: SyncRun) -> None:
        run.page.goto(run.payload["url"])
        run.page.evaluate("where => { setTimeout(() => { location.href = where }, 0) }", run.payload["slow"])
        while not shop.of("leaving"):
            time.sleep(0.05)  # waits: until the site has the request

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home:
            payload = {"url": shop.url, "slow": f"{shop.url}/slow?seconds=60&by=leaving"}
            job = await home.submit("leave", payload=payload)
            (done,) = await home.do(job)
            run = await home.run_of(job)
            evidence: Any = run.evidence
            kept = [artifact["name"] for artifact in evidence["artifacts"]]
            assert (done.state, kept) in (("completed", ["last.png"]), ("completed", ["final.png"]))
            assert (home.evidence(run) / kept[0]).read_bytes().startswith(b"\x89PNG")
            assert (await home.lane()).state == "available"


async def test_a_run_whose_screenshot_cannot_be_saved_is_not_completed(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: EvidenceFolder, name: str, content: bytes) -> Artifact:
        raise EvidenceNotSaved(errno.ENOSPC, f"{folder.path / name}: no space left on device")

    monkeypatch.setattr(EvidenceFolder, "write", full)
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            job = await home.submit("visit", payload={"url": shop.url})
            (done,) = await home.do(job)
            run, lane = await home.run_of(job), await home.lane()
            assert (run.result, run.stop_reason, lane.state) == ("failed", "EVIDENCE_NOT_SAVED", "review_required")
            assert done.state != "completed"
            assert "no space left" in run.message
            assert "no space left" in str(run.evidence["unsaved"])


async def test_what_a_task_remembers_is_there_for_the_next_run(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            await home.do(await home.submit("remember", payload={"url": shop.url, "value": "ann"}))
            job = await home.submit("recall", payload={"url": shop.url})
            await home.do(job)
            there = {"cookie": "ann", "local": "ann", "indexed": "ann"}
            assert (await home.run_of(job)).output == there
            plain = await home.submit("recall_plainly", payload={"url": shop.url})
            (done,) = await home.do(plain)
            run = await home.run_of(plain)
            assert (done.state, run.output, run.last_safe_step) == ("completed", there, "there")
            assert (home.evidence(run) / "found.txt").read_text() == "seen"


async def test_the_next_job_inherits_the_open_browser(store_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), store_url, tmp_path, warm_runs=3) as home:
            jobs = [await home.submit("visit", payload={"url": shop.url}) for _ in range(4)]
            done = await home.do(*jobs)
            assert [job.state for job in done] == ["completed"] * 4
            runs = [await home.run_of(job) for job in jobs]
            assert [run.output for run in runs] == [{"pages": 1, "token": n} for n in (1, 2, 3, 4)]
            # The third closed the browser, since that had served three runs; the fourth opened its own.
            assert ["close" in run.timings for run in runs] == [False, False, True, True]
            settled = await home.events(type=EventType.RUN_SETTLED)
            handed = ["handed its browser over" in str(event.data["profile_reason"]) for event in settled]
            assert handed == [True, True, False, False]
            assert all((home.evidence(run) / "final.png").exists() for run in runs)


async def test_whoever_gets_a_browser_is_noted_before_it_does(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = KeeperLink.hand_over
    noted: list[bool] = []
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:

            async def looking(link: KeeperLink, terms: LeaseTerms) -> None:
                noted.append((home.data / "open" / terms.run_id).exists())
                await hand_over(link, terms)

            monkeypatch.setattr(KeeperLink, "hand_over", looking)
            await home.do(*[await home.submit("visit", payload={"url": shop.url}) for _ in range(2)])
    assert noted == [True]


ENDINGS: dict[str, tuple[str, str, str]] = {
    "prompt": ("SECURITY_PROMPT", "review", "quarantined"),
    "slow_click": ("TIMEOUT", "scheduled", "available"),
    "too_long": ("TIMEOUT", "scheduled", "available"),
    "refused": ("TEMPORARY_NAVIGATION_ERROR", "scheduled", "available"),
}


def app_of_endings() -> App:
    app = App()
    app.detector("SECURITY_PROMPT", selector="#prompt", text="confirm that it is you")

    @app.task("end", timeout=120)
    async def end(run: Run) -> None:
        page, url = run.page, run.payload["url"]
        await page.goto(url)
        match run.payload["how"]:
            case "prompt":
                await page.goto(f"{url}/security")
            case "slow_click":
                await page.click("#missing", timeout=200)
            case "refused":
                with closed_port() as port:
                    await page.goto(f"http://127.0.0.1:{port}/")

    @app.task("endless", timeout=1.5)
    async def endless(run: Run) -> None:
        await run.page.goto(run.payload["url"])
        await asyncio.Event().wait()

    return app


async def test_what_a_page_does_ends_a_run_as_the_table_says(sqlite_url: str, tmp_path: Path) -> None:
    """Endings that need no page: see `test_drivers`."""
    with Shop() as shop:
        records = [profile(how) for how in ENDINGS]
        async with house(app_of_endings(), sqlite_url, tmp_path, *records) as home:
            jobs = {
                how: await home.submit(
                    "endless" if how == "too_long" else "end", how, payload={"url": shop.url, "how": how}
                )
                for how in ENDINGS
            }
            await home.do(*jobs.values(), concurrency=4)
            seen = {}
            for how, job in jobs.items():
                run, after = await home.run_of(job), await home.store.get(type(job), job.job_id)
                seen[how] = (run.stop_reason, after.state.value, (await home.lane(how)).state.value)
                assert run.final_url is not None, how
                assert (home.evidence(run) / "final.png").exists(), (how, run.evidence.get("no_screenshot"))
            assert seen == ENDINGS


async def test_a_plain_task_that_hangs_is_ended_and_the_worker_goes_on(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()
    over = threading.Event()

    @app.task("hang", timeout=1.5)
    def hang(run: SyncRun) -> None:
        run.page.goto(run.payload["url"])
        over.wait()

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path, profile("p1"), profile("p2")) as home:
            stuck = await home.submit("hang", payload={"url": shop.url})
            after = await home.submit("recall_plainly", "p2", payload={"url": shop.url})
            try:
                first, second = await home.do(stuck, after)
            finally:
                over.set()
            assert (first.stop_reason, first.state, second.state) == ("TIMEOUT", "scheduled", "completed")
            assert (await home.lane("p1")).state == "available"


async def test_runs_that_share_a_profile_have_copies_and_leave_it_as_it_was(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()
    both = asyncio.Event()
    inside: list[str] = []

    @app.task("read", mode="shared")
    async def read(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"])
        found = await run.page.evaluate("window.recall('who')")
        await run.page.evaluate("window.remember('who', 'changed')")
        inside.append(run.lease.run_id)
        if len(inside) == 2:
            both.set()
        await both.wait()
        return dict(found)

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path, profile("p1", max_active_runs=2)) as home:
            await home.do(await home.submit("remember", payload={"url": shop.url, "value": "ann"}))
            jobs = [await home.submit("read", payload={"url": shop.url}, mode="shared") for _ in range(2)]
            done = await home.do(*jobs, concurrency=2)
            assert [job.state for job in done] == ["completed"] * 2
            for job in jobs:
                run = await home.run_of(job)
                assert run.output == {"cookie": "ann", "local": "ann", "indexed": "ann"}
                assert not (home.evidence(run) / "profile").exists()
            again = await home.submit("recall", payload={"url": shop.url})
            await home.do(again)
            assert (await home.run_of(again)).output == {"cookie": "ann", "local": "ann", "indexed": "ann"}


async def test_an_isolated_job_works_in_a_copy_and_leaves_the_profile_as_it_was(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasekeeper")
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path, profile("p1")) as home:
            await home.do(await home.submit("remember", payload={"url": shop.url, "value": "ann"}))
            alone = await home.submit("remember", payload={"url": shop.url, "value": "eve"}, session_mode="isolated")
            again = await home.submit("recall", payload={"url": shop.url})
            done = await home.do(alone, again)
            assert [job.state for job in done] == ["completed"] * 2
            assert (await home.lane()).state == "available"
            assert (await home.run_of(again)).output == {"cookie": "ann", "local": "ann", "indexed": "ann"}
            run = await home.run_of(alone)
            assert not (home.evidence(run) / "profile").exists()
    said = [record.getMessage() for record in caplog.records if run.run_id in record.getMessage()]
    for line, begins in (
        (said[0], f"run {run.run_id} started: "),
        (said[-1], f"run {run.run_id} ended: completed after "),
    ):
        assert line.startswith(begins)
        for part in ("task remember", f"job {alone.job_id}", "profile p1", f"lease {run.lease_id}", run.worker_id):
            assert part in line, (part, line)


@pytest.mark.parametrize("policy", [ManualUse.REVIEW, ManualUse.ACCEPT])
async def test_a_profile_that_was_used_by_hand_is_noticed(sqlite_url: str, tmp_path: Path, policy: ManualUse) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path, profile("p1", manual_use=policy)) as home:
            await home.do(await home.submit("visit", payload={"url": shop.url}))
            cookies = next((home.profiles / "p1").rglob("Cookies"))
            cookies.touch()
            job = await home.submit("visit", payload={"url": shop.url})

            async def noticed() -> bool:
                return (await home.lane()).state == "review_required"

            if policy is ManualUse.ACCEPT:
                (done,) = await home.do(job)
                assert done.state == "completed"
                assert (await home.lane()).state == "available"
            else:
                async with home.worker():
                    await until(noticed)
                waiting = await home.store.get(type(job), job.job_id)
                assert (waiting.blocked_reason, waiting.attempt) == ("blocked_by_review_required", 0)
                assert "Cookies" in (await home.lane()).state_reason
            (event,) = await home.events(type=EventType.MANUAL_USE_DETECTED)
            assert event.data["policy"] == policy


async def open_context(run: Run) -> None:
    assert run.context.browser is not None
    other = await run.context.browser.new_context()
    await (await other.new_page()).goto(run.payload["url"])


async def open_context_unseen(run: Run) -> None:
    assert run.context.browser is not None
    await (await type(run.context.browser).new_context(run.context.browser)).new_page()


def open_context_plainly(run: SyncRun) -> None:
    assert run.context.browser is not None
    run.context.browser.new_context().new_page().goto(run.payload["url"])


def open_context_unseen_plainly(run: SyncRun) -> None:
    assert run.context.browser is not None
    type(run.context.browser).new_context(run.context.browser).new_page()


LEFTOVERS: dict[str, Callable[[Run], Awaitable[object]]] = {
    "headers": lambda run: run.context.set_extra_http_headers({"X-Left": "behind"}),
    "script": lambda run: run.context.add_init_script("window.left = 'behind'"),
    "route": lambda run: run.context.route("**/never", lambda route: route.abort()),
    "clock": lambda run: run.context.clock.set_fixed_time(0),
    "clock of the page": lambda run: run.page.clock.install(),
    "tracing": lambda run: run.context.tracing.start(),
    "another context": open_context,
    "another context, unseen": open_context_unseen,
}
PLAIN_LEFTOVERS: dict[str, Callable[[SyncRun], object]] = {
    "another context": open_context_plainly,
    "another context, unseen": open_context_unseen_plainly,
}


async def test_a_run_without_a_screenshot_does_not_hand_its_browser_over(sqlite_url: str, tmp_path: Path) -> None:
    """A run that is closed is asked once more for a picture, by its keeper; one that is handed over could not be."""
    app = new_app()

    @app.task("unseen")
    async def unseen(run: Run) -> None:
        await run.page.goto(run.payload["url"])
        await run.page.close()

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home:
            first = await home.submit("unseen", payload={"url": shop.url})
            second = await home.submit("visit", payload={"url": shop.url})
            await home.do(first, second)
            run = await home.run_of(first)
            assert "no_screenshot" in run.evidence
            assert "close" in run.timings


@pytest.mark.parametrize("what", LEFTOVERS)
async def test_nothing_of_a_run_reaches_into_the_next(sqlite_url: str, tmp_path: Path, what: str) -> None:
    app = new_app()

    @app.task("leave")
    async def leave(run: Run) -> None:
        await run.page.goto(run.payload["url"])
        await LEFTOVERS[what](run)

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home:
            first = await home.submit("leave", payload={"url": shop.url})
            second = await home.submit("visit", payload={"url": shop.url})
            done = await home.do(first, second)
            assert [job.state for job in done] == ["completed"] * 2
            assert "close" in (await home.run_of(first)).timings


@pytest.mark.parametrize("what", PLAIN_LEFTOVERS)
async def test_nothing_of_a_plain_run_reaches_into_the_next(sqlite_url: str, tmp_path: Path, what: str) -> None:
    app = App()

    @app.task("leave")
    def leave(run: SyncRun) -> None:
        PLAIN_LEFTOVERS[what](run)

    @app.task("follow")
    def follow(run: SyncRun) -> None:
        run.page.goto(run.payload["url"])

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home:
            payload = {"url": shop.url}
            first, second = [await home.submit(task, payload=payload) for task in ("leave", "follow")]
            done = await home.do(first, second)
            assert [job.state for job in done] == ["completed"] * 2
            assert "close" in (await home.run_of(first)).timings


async def test_a_clock_that_a_plain_task_set_does_not_reach_the_next(sqlite_url: str, tmp_path: Path) -> None:
    app = App()

    @app.task("stop_the_clock")
    def stop_the_clock(run: SyncRun) -> None:
        run.context.clock.set_fixed_time(0)

    @app.task("what_time")
    def what_time(run: SyncRun) -> dict[str, Any]:
        return {"now": run.page.evaluate("Date.now()")}

    async with house(app, sqlite_url, tmp_path) as home:
        jobs = [await home.submit("stop_the_clock"), await home.submit("what_time")]
        await home.do(*jobs)
        output: Any = (await home.run_of(jobs[1])).output
        assert output["now"] > 0


async def test_what_a_site_says_of_its_page_counts_for_no_run(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()
    urls: list[str | None] = []

    @app.task("lie")
    async def lie(run: Run) -> None:
        await run.page.goto(run.payload["url"])
        await run.page.evaluate("Object.defineProperty(navigator, 'language', {get: () => 'tlh'.repeat(1e5)})")
        await run.page.evaluate("history.replaceState(null, '', '/' + 'u'.repeat(1e5))")
        await run.safe("there")
        urls.append((await home.store.get(Lease, run.lease.lease_id)).last_url)

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path, profile("p1", language="de-DE")) as home:
            first = await home.submit("lie", payload={"url": shop.url})
            second = await home.submit("visit", payload={"url": shop.url}, expected_language="de-DE")
            done = await home.do(first, second)
            assert [job.state for job in done] == ["completed"] * 2
            lied, honest = await home.run_of(first), await home.run_of(second)
            assert "close" not in lied.timings  # the browser was handed over
            assert (lied.actual["language"], honest.actual["language"]) == ("de-DE", "de-DE")
            assert [len(url or "") for url in (lied.final_url, *urls)] == [2000, 2000]


async def test_a_task_may_close_its_browser_and_go_on(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()

    @app.task("close")
    async def close(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"])
        await run.context.close()
        await asyncio.sleep(2)  # waits: work after the browser is closed
        return {"went": "on"}

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home:
            (done,) = await home.do(job := await home.submit("close", payload={"url": shop.url}))
            assert (done.state, (await home.run_of(job)).output) == ("completed", {"went": "on"})


async def test_a_time_zone_has_several_names_and_what_is_said_is_redacted(sqlite_url: str, tmp_path: Path) -> None:
    app = new_app()

    @app.task("say")
    async def say(run: Run) -> None:
        await run.page.goto(run.payload["url"])
        run.signal("LOGIN_REQUIRED", "password=hunter2hunter2")

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path, profile("p1", timezone="Asia/Kolkata")) as home:
            fields: dict[str, Any] = {"payload": {"url": shop.url}, "expected_timezone": "Asia/Kolkata"}
            (done,) = await home.do(await home.submit("visit", **fields))
            assert done.state == "completed"
            (said,) = await home.do(job := await home.submit("say", **fields))
            assert said.stop_reason == "LOGIN_REQUIRED"
            assert "hunter2" not in f"{said.detail} {await home.run_of(job)}"


async def test_a_driver_that_died_between_plain_tasks_is_replaced(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            payload = {"url": shop.url}
            await home.settled(await home.submit("recall_plainly", payload=payload))
            for pid in processes_about("run-driver"):
                if pid in descendants(os.getpid()):
                    os.kill(pid, signal.SIGKILL)
            (failed,) = await home.settled(await home.submit("recall_plainly", payload=payload))
            assert failed.state in ("completed", "scheduled")
            (done,) = await home.settled(await home.submit("recall_plainly", payload=payload))
            assert done.state == "completed"
