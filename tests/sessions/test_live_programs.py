"""Programs that opened a browser themselves (`client.browser`, `leasekeeper exec`): people see and take it at the
server that they are connected to, and answer them wherever they are.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import leasekeeper
from leasekeeper import config as settings
from leasekeeper.app import HumanAnswer
from leasekeeper.client import Client
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import RunRecord
from leasekeeper.errors import Fail, LeaseLost
from leasekeeper.stores import open_store
from tests.runtime.stage import PATIENCE, until
from tests.serving import ServerThread
from tests.sessions.test_fleet import Fleet, fleet
from tests.sessions.test_live_jobs import asking, staged
from tests.sessions.test_taking_sessions import control


@asynccontextmanager
async def client_of(at: Fleet, *, served: bool = True) -> AsyncIterator[Client]:
    """A program's client: at the server, or at its database."""
    given: dict[str, Any] = {"store": at.home.config.store, "data_dir": str(at.home.data)}
    if served:
        token = await asyncio.to_thread(at.served.new_token, "read", "work", name="program")
        given = {"store": at.served.url, "token": token, "data_dir": str(at.folder / "program")}
    loaded = settings.load({}, **given, drivers="null", renew_every=0.3)
    client = Client(await open_store(loaded.store, policy=loaded.policy, token=loaded.token), loaded)
    try:
        yield client
    finally:
        await client.close()


async def shown(at: Fleet, **fields: Any) -> dict[str, Any]:
    """What the server says of the browser of `p1`, once it is so."""

    async def look() -> dict[str, Any] | None:
        answer = await at.api.get("/v1/runs/p1/control")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found if found and all(found[name] == value for name, value in fields.items()) else None

    found = await until(look)
    assert found is not None
    return found


async def test_a_program_whose_browser_is_taken_waits_for_its_release_and_fails(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, client_of(at) as client:
        taken = asyncio.Event()

        async def program() -> None:
            async with client.browser("p1"):
                await taken.wait()

        running = asyncio.create_task(program())
        await shown(at, human=False, may_hand_back=False)
        status, human = await control(at, "p1", "take", note="mine")
        assert (status, human["human"], human["may_hand_back"]) == (200, True, False)
        taken.set()
        _, pending = await asyncio.wait({running}, timeout=0.2)
        assert pending, "whoever has taken the browser needs the process"
        status, back = await control(at, "p1", "hand-back")
        assert (status, back["data"]["cause"]) == (409, "not_resumable")
        status, released = await control(at, human["run_id"], "release", note="done")
        assert (status, released["profile_state"]) == (200, "available")
        with pytest.raises(LeaseLost, match="taken over by tests: mine"):
            await running
        runs = (await at.home.store.find(RunRecord, limit=2)).items
        assert [(run.worker_id, run.stop_reason) for run in runs] == [
            ("human:tests", None), (runs[1].worker_id, "TAKEN_OVER"),
        ]  # fmt: skip


async def test_a_program_asks_for_a_person_and_goes_on_under_its_new_token(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, client_of(at) as client:
        async with client.browser("p1") as browser:
            answering = asyncio.create_task(browser.request_human("solve the prompt"))
            await asking(at)
            await control(at, "p1", "hand-back", outcome="solved")
            assert (await answering, browser.token) == (HumanAnswer(by="tests", outcome="solved", note=""), 1)
            answering = asyncio.create_task(browser.request_human("solve the prompt"))
            await asking(at)
            status, human = await control(at, "p1", "take")
            assert (status, human["may_hand_back"]) == (200, True)
            await control(at, "p1", "hand-back", outcome="by hand")
            assert ((await answering).outcome, browser.token) == ("by hand", 3)
            await browser.checkpoint("solved")
            with pytest.raises(Fail, match="nobody came within"):
                await browser.request_human("once more", timeout=0.01)
        run = (await at.home.store.find(RunRecord, limit=1)).items[0]
        assert (run.token, run.result, run.last_safe_step) == (3, "completed", "solved")
        assert (await at.home.lane()).state == "available"
        assert not (await at.home.store.find(Review, {"open": "1"})).items


async def test_a_program_at_the_database_is_answered_through_the_store(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        staged(server, sqlite_url, tmp_path) as at,
        client_of(at, served=False) as client,
        client.browser("p1") as browser,
    ):
        answering = asyncio.create_task(browser.request_human("solve the prompt"))
        await asking(at, may_take=False)
        status, _ = await control(at, "p1", "hand-back", outcome="solved", note="a picture")
        said = await answering
        assert (status, said) == (200, HumanAnswer(by="tests", outcome="solved", note="a picture"))


async def test_a_plain_program_goes_on_with_its_page_after_a_person(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with fleet(server, sqlite_url, tmp_path) as at:
        token = await asyncio.to_thread(at.served.new_token, "read", "work", name="program")

        def program() -> tuple[str, str, int]:
            data = str(tmp_path / "program")
            with leasekeeper.browser("p1", store=at.served.url, token=token, data_dir=data) as browser:
                browser.page.goto("data:text/html,<title>mine</title>")
                answer = browser.request_human("solve the prompt")
                browser.checkpoint("solved")
                return answer.outcome, browser.page.title(), browser.token

        running = asyncio.create_task(asyncio.to_thread(program))
        await asking(at)
        status, human = await control(at, "p1", "take")
        assert (status, human["human"]) == (200, True)
        status, _ = await control(at, "p1", "hand-back", outcome="solved")
        assert (status, await running) == (200, ("solved", "mine", 3))


async def test_a_command_whose_browser_is_taken_is_ended(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with staged(server, sqlite_url, tmp_path) as at:
        token = await asyncio.to_thread(at.served.new_token, "read", "work", name="program")
        options = ["--store", at.served.url, "--token", token, "exec", "--profile", "p1", "--"]
        own = {"LEASEKEEPER_DATA_DIR": str(tmp_path / "exec"), "LEASEKEEPER_DRIVERS": "null"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leasekeeper", *options, "sleep", "600"),
            env={"PATH": "/usr/bin:/bin", **own},
            stderr=asyncio.subprocess.PIPE,
        )
        await shown(at, human=False)
        status, human = await control(at, "p1", "take")
        assert (status, human["human"]) == (200, True)
        assert process.stderr is not None
        said = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
        assert "tests has control of p1: waiting until they release it" in said
        status, released = await control(at, "p1", "release")
        assert (status, released["profile_state"]) == (200, "available")
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 5
