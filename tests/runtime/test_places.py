"""Where a profile's session lives: directories of other stores, other folders, and of programs with a lease."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from playwright.async_api import async_playwright

from leasekeeper import connect
from leasekeeper.app import App, Run
from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import ManualUse, ProfileState
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.workers import Worker
from leasekeeper.errors import Fail
from leasekeeper.runtime import machine
from tests.browsers.sites import gone
from tests.conformance.world import profile
from tests.runtime.browsing import House, house
from tests.runtime.stage import until

# A data directory of the profile's own machine that does not hold it: moved, or mounted elsewhere.
MACHINE = "m1"


def new_app() -> App:
    app = App()

    @app.task("visit", warm=False)
    async def visit(run: Run) -> dict[str, Any]:
        await run.page.goto("data:text/html,hello")
        return {"cookie": [each["name"] for each in await run.context.cookies()]}

    return app


async def clear(home: House, profile_id: str = "p1") -> None:
    await home.store.decide(
        Decision(target=Target.PROFILE, id=profile_id, action=Action.CLEAR, note="nobody else uses it", actor="ann")
    )


async def sent_to_review(home: House, job: Job) -> str:
    """Let a worker find the profile's directory, and return what it says about it. The job keeps its place."""

    async def look() -> bool:
        return (await home.lane()).state is ProfileState.REVIEW_REQUIRED

    async with home.worker():
        await until(look)
    kept = await home.store.get(Job, job.job_id)
    assert (kept.blocked_reason, kept.attempt) == ("blocked_by_review_required", 0)
    return (await home.lane()).state_reason


async def test_a_directory_of_another_store_needs_a_person_once(sqlite_url: str, tmp_path: Path) -> None:
    """The move from one store to another: the new one begins with token 1, and the directory has seen more."""
    async with house(new_app(), sqlite_url, tmp_path) as old:
        for _ in range(3):
            await old.do(await old.submit("visit"))
    async with house(new_app(), sqlite_url.replace("leasekeeper.db", "new.db"), tmp_path) as home:
        job = await home.submit("visit")
        said = await sent_to_review(home, job)
        assert "was already opened under token 3, and this lease has 1: by another store" in said
        (settled,) = await home.events(type=EventType.RUN_SETTLED)
        assert settled.data["directory_token"] == 3
        await clear(home)
        (done,) = await home.do(job)
        assert (done.state, (await home.run_of(done)).token) == ("completed", 4)


async def test_a_session_that_is_somewhere_else_is_not_begun_anew_in_silence(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path, machine=MACHINE) as first:
        await first.do(await first.submit("visit"))
    async with house(new_app(), sqlite_url, tmp_path / "elsewhere", machine=MACHINE) as home:
        job = await home.submit("visit")
        said = await sent_to_review(home, job)
        assert "is empty: its session is somewhere else" in said
        assert not (home.profiles / "p1").exists()
        await clear(home)  # a person wants an empty one
        (done,) = await home.do(job)
        assert done.state == "completed"


async def test_a_launch_that_failed_before_there_was_a_session_begins_one_later(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, browser_args="--remote-allow-origins=*") as home:
        (tmp_path / "data" / "profiles").mkdir(parents=True)
        (tmp_path / "data" / "profiles" / "p1").write_text("in the way")
        (failed,) = await home.do(await home.submit("visit", max_attempts=1))
        assert (failed.state, failed.stop_reason) == ("dead", "BROWSER_LAUNCH_FAILED")
        (tmp_path / "data" / "profiles" / "p1").unlink()
        (done,) = await home.do(await home.submit("visit"))
        assert done.state == "completed"


async def test_shared_runs_of_an_empty_profile_do_not_keep_it_from_its_first_own_run(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, profile("p1", max_active_runs=2)) as home:
        for mode in ("shared", "exclusive"):
            (done,) = await home.do(await home.submit("visit", mode=mode))
            assert (done.state, mode) == ("completed", mode)


@asynccontextmanager
async def browser_in(directory: Path) -> AsyncIterator[Any]:
    """A browser as a program opens it that uses Leasekeeper for the lease alone."""
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            directory,
            executable_path=find_browser().path,
            headless=True,
            chromium_sandbox=False,
        )
        try:
            yield context
        finally:
            await context.close()
            await gone(directory)


async def test_what_a_program_does_under_its_lease_is_no_manual_use(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home:
        await home.do(await home.submit("visit"))
        async with connect(sqlite_url, data_dir=str(home.data)) as client, client.lease("p1") as lease:
            directory = await lease.user_data_dir()
            assert directory == await lease.user_data_dir() == home.profiles / "p1"
            async with browser_in(directory) as context:
                cookie = {"name": "session", "value": "1", "url": "http://site.test", "expires": 4e9}
                await context.add_cookies([cookie])
            lease.closed(final_url="http://site.test/")
        (done,) = await home.do(await home.submit("visit"))
        assert (await home.run_of(done)).output == {"cookie": ["session"]}
        assert await home.events(type=EventType.MANUAL_USE_DETECTED) == []
        assert json.loads((home.profiles / "p1" / ".leasekeeper" / "fence").read_text())["token"] == 3
        assert (await home.lane()).engine == find_browser().engine


async def test_a_program_that_did_not_close_its_browser_is_not_believed(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, connect(sqlite_url, data_dir=str(home.data)) as client:
        async with client.lease("p1") as lease, browser_in(await lease.user_data_dir()):
            lease.closed(final_url="http://site.test/")
            settled = await lease.release()
        assert settled.profile_state == "stale"
        assert "is open in a browser" in (await home.lane()).state_reason


async def test_a_program_that_says_nothing_of_its_browser_leaves_a_doubt(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, connect(sqlite_url, data_dir=str(home.data)) as client:
        async with client.lease("p1") as lease:
            await lease.user_data_dir()
        assert (await home.lane()).state == "available"  # nothing happened in it
        async with client.lease("p1") as lease:
            async with browser_in(await lease.user_data_dir()):
                pass
            settled = await lease.release()
        assert settled.profile_state == "quarantined"
        assert "closed() was not called" in (await home.lane()).state_reason


async def test_a_directory_is_for_one_program_at_a_time(sqlite_url: str, tmp_path: Path) -> None:
    """Two stores that know nothing of each other give out leases of the same name."""
    other_url = sqlite_url.replace("leasekeeper.db", "other.db")
    async with (
        house(new_app(), sqlite_url, tmp_path) as home,
        house(new_app(), other_url, tmp_path) as away,
        connect(sqlite_url, data_dir=str(home.data)) as client,
        connect(other_url, data_dir=str(home.data)) as other,
    ):
        async with client.lease("p1") as lease:
            await lease.user_data_dir()
            with pytest.raises(Fail, match="already opened under token 1, and this lease has 1"):
                async with other.lease("p1") as second:
                    await second.user_data_dir()
            assert (await away.lane()).state == "review_required"
            await clear(away)
            with pytest.raises(Fail, match="is locked: a browser of another lease still lives in it"):
                async with other.lease("p1") as second:
                    await second.user_data_dir()
            await clear(away)
        async with other.lease("p1") as second:
            await second.user_data_dir()
        with pytest.raises(Fail, match="already opened under token 3, and this lease has 2"):
            async with client.lease("p1") as lease:
                await lease.user_data_dir()
        await clear(home)
        async with client.lease("p1") as lease:
            assert lease.token == 4
            await lease.user_data_dir()


async def test_a_shared_lease_has_no_directory_of_its_own(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, connect(sqlite_url, data_dir=str(home.data)) as client:
        with pytest.raises(Fail, match="use an exclusive lease"):
            async with client.lease("p1", mode="shared") as shared:
                await shared.user_data_dir()
        assert (await home.lane()).state == "available"


async def test_a_program_that_released_its_lease_leaves_the_directory_to_others(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, connect(sqlite_url, data_dir=str(home.data)) as client:
        async with client.lease("p1") as lease:
            await lease.user_data_dir()
            await lease.release()
            async with client.lease("p1") as second:
                await second.user_data_dir()
        (done,) = await home.do(await home.submit("visit"))
        assert done.state == "completed"


async def test_a_program_that_was_refused_or_cancelled_keeps_no_lock(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, connect(sqlite_url, data_dir=str(home.data)) as client:
        async with client.lease("p1") as lease:
            await lease.user_data_dir()
        fence = home.profiles / "p1" / ".leasekeeper" / "fence"
        whole = fence.read_bytes()
        fence.write_bytes(b"{")
        with pytest.raises(Fail, match="check it, then remove the file"):
            async with client.lease("p1") as lease:
                await lease.user_data_dir()
        fence.write_bytes(whole)
        await clear(home)
        async with client.lease("p1") as lease:
            for patience in (0, 0.001):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(lease.user_data_dir(), patience)
            await lease.user_data_dir()


async def test_a_program_that_ignores_a_foreign_directory_leaves_it_to_a_person(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as old:
        for _ in range(2):
            await old.do(await old.submit("visit"))
    url = sqlite_url.replace("leasekeeper.db", "new.db")
    async with house(new_app(), url, tmp_path) as home, connect(url, data_dir=str(home.data)) as client:
        async with client.lease("p1") as lease:
            with pytest.raises(Fail, match="by another store"):
                await lease.user_data_dir()
            settled = await lease.release("TIMEOUT")
        assert settled.profile_state == "review_required"
        lane = await home.lane()
        assert lane.token == 2
        assert "PROFILE_IN_USE_ELSEWHERE" in lane.state_reason
        await clear(home)
        async with client.lease("p1") as lease:
            assert lease.token == 3
            await lease.user_data_dir()


@pytest.mark.parametrize(("policy", "state"), [(ManualUse.REVIEW, "review_required"), (ManualUse.ACCEPT, "available")])
async def test_manual_use_is_noticed_by_a_program_too(
    sqlite_url: str, tmp_path: Path, policy: ManualUse, state: str
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, profile("p1", manual_use=policy)) as home:
        await home.do(await home.submit("visit"))
        with (home.profiles / "p1" / "Default" / "History").open("ab") as history:
            history.write(b"by hand")
        async with connect(sqlite_url, data_dir=str(home.data)) as client, client.lease("p1") as lease:
            if policy is ManualUse.REVIEW:
                for _ in range(2):
                    with pytest.raises(Fail, match="changed since the last run closed: Default/History"):
                        await lease.user_data_dir()
            else:
                await lease.user_data_dir()
        assert (await home.lane()).state == state
        (event,) = await home.events(type=EventType.MANUAL_USE_DETECTED)
        assert (event.data["policy"], event.run_id) == (policy.value, lease.lease.run_id)


async def test_a_program_that_opened_nothing_leaves_the_seal_as_it_was(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path, profile("p1", manual_use=ManualUse.ACCEPT)) as home:
        await home.do(await home.submit("visit"))
        async with connect(sqlite_url, data_dir=str(home.data)) as client, client.lease("p1") as lease:
            await lease.user_data_dir()
        assert inspect(home.profiles / "p1", engine=10**6).condition is Condition.SEALED


async def test_a_shared_run_begins_no_empty_session_either(sqlite_url: str, tmp_path: Path) -> None:
    shared = profile("p1", max_active_runs=2)
    async with house(new_app(), sqlite_url, tmp_path, shared, machine=MACHINE) as first:
        await first.do(await first.submit("visit"))
    async with house(new_app(), sqlite_url, tmp_path / "elsewhere", shared, machine=MACHINE) as home:
        job = await home.submit("visit", mode="shared")
        assert "is empty: its session is somewhere else" in await sent_to_review(home, job)


async def test_a_person_who_clears_for_another_reason_says_nothing_of_the_directory(
    sqlite_url: str, tmp_path: Path
) -> None:
    app = new_app()

    @app.task("log_out", warm=False)
    async def log_out(run: Run) -> None:
        await run.page.goto("data:text/html,who are you")
        raise Fail("LOGIN_REQUIRED", "the shop shows its login form")

    async with house(app, sqlite_url, tmp_path, machine=MACHINE) as first:
        await first.do(await first.submit("visit"), await first.submit("log_out"))
        await clear(first)
    async with house(app, sqlite_url, tmp_path / "elsewhere", machine=MACHINE) as home:
        assert "is empty: its session is somewhere else" in await sent_to_review(home, await home.submit("visit"))


async def test_with_only_the_store_set_a_program_finds_the_session_from_any_working_directory(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "leasekeeper-data")
    async with house(new_app(), sqlite_url, tmp_path, data_dir=data) as home:
        await home.do(await home.submit("visit"))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        async with connect(sqlite_url) as client, client.lease("p1") as lease:
            assert await lease.user_data_dir() == tmp_path / "leasekeeper-data" / "profiles" / "p1"
        assert list(elsewhere.iterdir()) == []
        assert (await home.lane()).state is ProfileState.AVAILABLE


@pytest.mark.parametrize("by_person", [False, True])
async def test_a_worker_that_finds_two_profiles_in_a_row_empty_takes_no_more_until_one_is_there_or_cleared(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, by_person: bool
) -> None:
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    three = tuple(profile(name) for name in ("p1", "p2", "p3"))
    async with house(new_app(), sqlite_url, tmp_path, *three, machine=MACHINE) as first:
        await first.do(*[await first.submit("visit", each.profile_id) for each in three])
    async with house(new_app(), sqlite_url, tmp_path / "elsewhere", *three, machine=MACHINE) as home:
        jobs = [await home.submit("visit", each.profile_id) for each in three]

        async def waiting() -> list[str]:
            lanes = [await home.lane(each.profile_id) for each in three]
            return [lane.profile_id for lane in lanes if lane.state is ProfileState.REVIEW_REQUIRED]

        async def stopped() -> bool:
            return "in a row" in caplog.text and len(await waiting()) >= 2

        async with home.worker():
            await until(stopped)
            assert await waiting() == ["p1", "p2"]
            assert "2 profiles in a row (p1, p2) had a session and have an empty directory here" in caplog.text
            assert f"expected in {home.profiles}" in caplog.text
            said = await until(partial(unwell_reason, home))
            assert said.startswith("profiles are not here: 2 profiles in a row (p1, p2)")
            left = await home.store.get(Job, jobs[2].job_id)
            assert (left.attempt, left.blocked_reason) == (0, Blocked.NO_WORKER)
            if by_person:
                for name in ("p1", "p2"):
                    await clear(home, name)
                done = await home.settled(*jobs[:2])
                assert [job.state for job in done] == ["completed"] * 2
            else:
                copytree(first.profiles, home.profiles, dirs_exist_ok=True)
                (third,) = await home.settled(jobs[2])
                assert third.state == "completed"
                assert await waiting() == ["p1", "p2"]
            await until(partial(is_well, home))


async def unwell_reason(home: House) -> str:
    return "".join(worker.unwell_reason or "" for worker in (await home.store.find(Worker)).items)


async def is_well(home: House) -> bool:
    return not await unwell_reason(home)
