"""The driver suite over every launcher: the same tasks, fenced like a local browser, in each vendor's shape."""

from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.core.launchers import VENDORS as ALL_VENDORS
from tests.launchers.stage import TOKEN, VENDORS, Fake, launched, launched_house
from tests.runtime.stage import until


def new_app() -> App:
    app = App()

    @app.task("visit")
    async def visit(run: Run) -> dict[str, Any]:
        await run.page.goto("data:text/html,<title>orders</title>")
        await run.safe("orders_open")
        return {"title": await run.page.title(), "pages": len(run.context.pages)}

    @app.task("visit_plainly")
    def visit_plainly(run: SyncRun) -> dict[str, Any]:
        run.page.goto("data:text/html,<title>orders</title>")
        run.safe("orders_open")
        return {"title": run.page.title()}

    return app


def test_every_launcher_of_the_table_is_in_this_suite() -> None:
    assert {*VENDORS, "cdp"} == set(ALL_VENDORS)


# Daily `test_driver_suite` runs jobs in a browser of each vendor, and `test_keeper_end` starts and stops one of each.
@pytest.mark.release_if(when=lambda chosen: chosen["fake"] != "http")
async def test_a_job_runs_in_the_launchers_browser_and_leaves_the_profile_free_and_the_token_nowhere(
    sqlite_url: str, tmp_path: Path, fake: Fake
) -> None:
    async with launched_house(new_app(), sqlite_url, tmp_path, fake) as home:
        jobs = [await home.submit("visit"), await home.submit("visit_plainly")]
        done = await home.do(*jobs)
        assert [job.state for job in done] == ["completed"] * 2
        runs: list[Any] = [await home.run_of(job) for job in jobs]
        assert [run.output["title"] for run in runs] == ["orders"] * 2
        assert all(run.evidence["keeper"]["clean_close"] for run in runs)
        assert (home.evidence(runs[0]) / "final.png").exists()
        assert (await home.lane()).state == "available"
        assert (fake.calls("start"), fake.calls("stop")) == (2, 2)
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
        assert TOKEN not in str(await home.events())


# Daily `test_keeper_end` does the same with each vendor's answers, without a worker.
@pytest.mark.release_if(when=lambda chosen: chosen["fake"] != "http")
async def test_a_profile_that_runs_already_is_never_adopted(sqlite_url: str, tmp_path: Path, fake: Fake) -> None:
    async with launched_house(new_app(), sqlite_url, tmp_path, fake) as home:
        fake.fault("start", "busy")
        job = await home.submit("visit")
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(job)).stop_reason) == ("review", "PROFILE_IN_USE_ELSEWHERE")
        assert (await home.lane()).state == "review_required"
        assert fake.calls("stop") == 0


# Daily `test_refusals` has errors 5xx, without a worker.
@pytest.mark.release_if(when=lambda chosen: chosen["fault"] == "refuse")
@pytest.mark.parametrize("fault", ["refuse", "429"])
async def test_a_launcher_that_is_away_costs_no_attempt(
    sqlite_url: str, tmp_path: Path, recipe: Fake, fault: str
) -> None:
    async with launched_house(new_app(), sqlite_url, tmp_path, recipe) as home:
        recipe.fault("start", fault)
        job = await home.submit("visit")
        async with home.worker():

            async def given_back() -> bool:
                return any("LAUNCHER_UNAVAILABLE" in str(event.data) for event in await home.events(job_id=job.job_id))

            await until(given_back)
            recipe.fault("start", "")
            (done,) = await home.settled(job)
        assert (done.state, done.attempt) == ("completed", 1)
        assert (await home.lane()).state == "available"


# Daily `test_keeper_end` has the others but `crashed`, without a worker.
@pytest.mark.release_if(when=lambda chosen: chosen["fault"] != "wrong_json")
@pytest.mark.parametrize("fault", ["wrong_json", "half_open", "dead_endpoint", "no_endpoint", "crashed"])
async def test_a_start_that_led_to_nothing_is_stopped_and_fails_the_run(
    sqlite_url: str, tmp_path: Path, recipe: Fake, fault: str
) -> None:
    recipe.start_seconds = 10 if fault == "half_open" else 20
    async with launched_house(new_app(), sqlite_url, tmp_path, recipe) as home:
        recipe.fault("start", fault)
        job = await home.submit("visit", max_attempts=1)
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(job)).stop_reason) == ("dead", "BROWSER_LAUNCH_FAILED")
        assert recipe.calls("stop") >= 1
        assert (await home.lane()).state == "available"


@pytest.mark.release_if(when=lambda chosen: chosen["step"] == "stop")
@pytest.mark.parametrize("step", ["start", "stop"])
async def test_a_slow_launcher_is_waited_for(sqlite_url: str, tmp_path: Path, recipe: Fake, step: str) -> None:
    async with launched_house(new_app(), sqlite_url, tmp_path, recipe) as home:
        recipe.fault(step, "slow")
        (done,) = await home.do(await home.submit("visit"))
        assert (done.state, done.attempt) == ("completed", 1)
        assert (await home.lane()).state == "available"


async def test_a_stop_that_does_nothing_is_not_called_clean(sqlite_url: str, tmp_path: Path, recipe: Fake) -> None:
    """The browser closed over DevTools, and so it is idle all the same: what the launcher says is what counts."""
    async with launched_house(new_app(), sqlite_url, tmp_path, recipe) as home:
        recipe.fault("stop", "nothing")
        job = await home.submit("visit")
        (done,) = await home.do(job)
        assert done.state == "completed"
        assert (await home.lane()).state == "available"


@pytest.mark.release  # daily the driver suite runs a job over `cdp`, and `test_keeper_end` meets an address with nobody
async def test_a_browser_that_runs_already_is_attached_to_by_its_url(
    sqlite_url: str, tmp_path: Path, recipe: Fake
) -> None:
    """Driver `cdp`: nobody to start or stop it. Closed over DevTools, its address gone: that is the proof."""
    url = recipe.ask("/profile/start", {"profile_id": "lab", "headless": True}, token=TOKEN)["cdp_url"]
    recipe.vendor = "cdp"
    async with launched_house(
        new_app(), sqlite_url, tmp_path, recipe, launched(launcher_profile=url, warm=False)
    ) as home:
        first, second = await home.submit("visit"), await home.submit("visit", max_attempts=1)
        done = await home.do(first, second)
        run: Any = await home.run_of(first)
        assert (done[0].state, run.evidence["keeper"]["clean_close"]) == ("completed", True)
        assert (done[1].state, (await home.run_of(second)).stop_reason) == ("dead", "BROWSER_LAUNCH_FAILED")
