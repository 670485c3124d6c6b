"""`client.browser`, its plain form and `leasekeeper exec`: a program's browser, leased and fenced like a worker's."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import leasekeeper
from leasekeeper.app import App
from leasekeeper.client import Client
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.notes import Note
from leasekeeper.errors import Conflict, Fail, LeaseLost, ProfileBusy
from leasekeeper.runtime.session_terms import OnDisconnect, SessionTerms
from leasekeeper.stores import open_store
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until


@asynccontextmanager
async def client_of(home: House) -> AsyncIterator[Client]:
    client = Client(await home.open_store(), home.config)
    try:
        yield client
    finally:
        await client.close()


async def last_run(home: House) -> RunRecord:
    return (await home.store.find(RunRecord, limit=1)).items[0]


def new_app() -> App:
    return App(renew_every=0.3)


async def test_a_program_gets_a_browser_and_gives_it_back_with_proof(store_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), store_url, tmp_path) as home, client_of(home) as client:
            async with client.browser("p1") as browser:
                await browser.page.goto(f"{shop.url}/?title=ann&by=ann")
                assert await browser.page.title() == "ann"
                assert (browser.lease.purpose, browser.lease.job_id, browser.token) == ("session", None, 1)
                await browser.checkpoint("list_open")
                await browser.note("the list is long")
                async with browser.mutating("submit_order"):
                    browser.check()
                with pytest.raises(ProfileBusy):
                    async with client.browser("p1"):
                        pass
            assert browser.end is not None
            assert browser.end.settled is not None
            assert browser.end.settled.profile_state == "available"
            run: Any = await last_run(home)
            assert (run.purpose, run.result, run.stop_reason) == ("session", "completed", None)
            assert run.final_url == f"{shop.url}/"
            assert run.evidence["keeper"]["clean_close"]
            assert (home.evidence(run) / "last.png").exists()
            assert [note.text for note in (await home.store.find(Note, {"run_id": run.run_id})).items] == [
                "the list is long"
            ]


async def test_a_browser_that_nobody_could_see_is_recorded_as_headless(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    async with house(new_app(), sqlite_url, tmp_path) as home, client_of(home) as client:
        async with client.browser("p1", headless=False):
            pass
        assert (await last_run(home)).actual["run_mode"] == "headless"


async def test_an_error_of_the_program_does_not_cost_the_profile(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, client_of(home) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.browser("p1"):
                raise ZeroDivisionError("oh")
        run = await last_run(home)
        assert (run.result, run.stop_reason) == ("failed", "TASK_ERROR")
        assert (await home.lane()).state == "available"
        with pytest.raises(Fail):
            await fail(client)
        assert (await home.lane()).state == "review_required"
        # The browser was closed cleanly. What it was asked to do last says what led to the failure.
        keeper: Any = (await last_run(home)).evidence["keeper"]
        assert keeper["clean_close"]
        assert "Page.navigate" in {command["method"] for command in keeper["commands"]}


async def test_a_program_whose_lease_is_taken_away_cannot_act(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, client_of(home) as client:
            with pytest.raises(LeaseLost):
                await lose(home, client, shop)
            assert shop.of("late") == []
            for path in (home.data / "open").glob("*"):
                path.unlink()  # nobody sweeps here: the keeper's report waits for somebody who does


async def fail(client: Client) -> None:
    async with client.browser("p1") as browser:
        await browser.page.goto("about:blank")
        raise Fail("LOGIN_REQUIRED", "the shop wants a password")


async def lose(home: House, client: Client, shop: Shop) -> None:
    """Open a browser, have its lease revoked, and try to go on."""
    async with client.browser("p1") as browser:
        await browser.page.goto(f"{shop.url}/?by=ann")
        url = await browser.cdp_url()
        await home.store.decide(revoke(browser.lease.lease_id))
        await asyncio.wait_for(browser.wait_ended(), PATIENCE)
        assert (await refused_at(url)).startswith("HTTP/1.1 410 Gone")
        with pytest.raises(Exception, match="closed"):
            await browser.page.goto(f"{shop.url}/?by=late")


def revoke(lease_id: str) -> Decision:
    return Decision(target=Target.LEASE, id=lease_id, action=Action.REVOKE, note="now", actor="bob")


async def refused_at(url: str, wrong: str = "") -> str:
    """What an upgrade at the address is answered."""
    place, _, query = url.removeprefix("ws://").partition("/?")
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    query += wrong
    lines = [f"GET /?{query} HTTP/1.1", f"Host: {place}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    answer = await asyncio.wait_for(reader.read(4096), PATIENCE)
    writer.close()
    return answer.decode(errors="replace")


async def test_the_address_of_a_session_is_for_whoever_has_its_token(sqlite_url: str, tmp_path: Path) -> None:
    from playwright.async_api import async_playwright

    async with (
        house(new_app(), sqlite_url, tmp_path) as home,
        client_of(home) as client,
        async_playwright() as playwright,
        client.browser("p1") as browser,
    ):
        url = await browser.cdp_url()
        assert (await refused_at(url, wrong="x")).startswith("HTTP/1.1 401 Unauthorized")
        place, token = url.removeprefix("ws://").split("/?token=")
        for address in (url, f"http://{place}"):
            headers = {} if address == url else {"Authorization": f"Bearer {token}"}
            other = await playwright.chromium.connect_over_cdp(address, headers=headers)
            assert await other.contexts[0].pages[0].evaluate("1 + 1") == 2
            with pytest.raises(Exception, match="works inside its profile"):
                await other.new_context()
            await other.close()
        assert await browser.page.evaluate("1") == 1, "a client that left closes nothing"


def terms(**how: Any) -> SessionTerms:
    return SessionTerms(headless=True, **how)


async def test_a_session_ends_by_itself_when_nobody_is_left(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, client_of(home) as client:
        for how, reason in (
            (terms(idle_timeout=timedelta(seconds=1)), "TIMEOUT"),
            (terms(max_duration=timedelta(seconds=1)), "TIMEOUT"),
            (terms(on_disconnect=OnDisconnect.RELEASE), None),
        ):
            leased = client.browser("p1")
            leased._terms = how
            async with leased as browser:
                session = browser._open_session()
                if how.max_duration is None:
                    async with session.client() as one:
                        await one.send(b'{"id": 1, "method": "Target.getTargets"}')
                        assert await one.receive() is not None
                end = await asyncio.wait_for(browser.wait_ended(), PATIENCE)
            assert end.reason == reason
            assert (await home.lane()).state == "available"


async def test_a_client_that_closes_the_browser_releases_the_session(sqlite_url: str, tmp_path: Path) -> None:
    async with house(new_app(), sqlite_url, tmp_path) as home, client_of(home) as client:
        async with client.browser("p1") as browser, browser._open_session().client() as one:
            await one.send(b'{"id": 1, "method": "Browser.close"}')
            end = await asyncio.wait_for(browser.wait_ended(), PATIENCE)
            assert end.reason is None
        assert (await last_run(home)).result == "completed"


async def test_a_plain_script_gets_a_browser_too(sqlite_url: str, tmp_path: Path) -> None:
    def script(home: House, url: str) -> str:
        options: dict[str, Any] = {"store": home.config.store, "data_dir": str(home.data)}
        with leasekeeper.browser("p1", **options) as browser:
            browser.page.goto(url)
            browser.checkpoint("open")
            with browser.mutating("order"):
                browser.check()
            title = browser.page.title()
        with pytest.raises(Conflict, match="inside the 'with' block only"):
            browser.checkpoint("too_late")
        with pytest.raises(Conflict, match="was used already"):
            browser.__enter__()
        return title

    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            assert await asyncio.to_thread(script, home, f"{shop.url}/?title=plain") == "plain"
            assert (await last_run(home)).result == "completed"
            assert (await home.lane()).state == "available"


PROGRAM = """
import os, signal, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp(os.environ["LEASEKEEPER_CDP_URL"])
    page = browser.contexts[0].pages[0]
    page.goto(sys.argv[1])
    signal.signal(signal.SIGINT, lambda *_: os._exit(7))
    print(page.title(), os.environ["LEASEKEEPER_PROFILE_ID"], os.environ["LEASEKEEPER_FENCING_TOKEN"], flush=True)
    while len(sys.argv) > 3:
        page.wait_for_timeout(100)
sys.exit(int(sys.argv[2]))
"""


async def start(home: House, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasekeeper", "exec", "--profile", "p1", "--", *command),
        env={**os.environ, "LEASEKEEPER_STORE": home.config.store, "LEASEKEEPER_DATA_DIR": str(home.data)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(program: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(program.communicate(), PATIENCE)
    return program.returncode, out.decode(), err.decode()


async def test_exec_keeps_the_exit_code_and_records_it(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            command = (sys.executable, "-c", PROGRAM, f"{shop.url}/?title=exec")
            assert await ended(await start(home, *command, "0")) == (0, "exec p1 1\n", "")
            assert (await last_run(home)).result == "completed"
            assert await ended(await start(home, *command, "3")) == (3, "exec p1 2\n", "")
            run = await last_run(home)
            assert (run.result, run.stop_reason) == ("failed", "TASK_ERROR")
            assert run.message is not None
            assert run.message.endswith("ended with exit code 3")
            code, _, said = await ended(await start(home, "no-such-program"))
            assert (code, said) == (2, "leasekeeper: no-such-program was not found\n")
            assert (await home.lane()).state == "available"


async def test_exec_passes_signals_on_and_ends_a_program_without_a_lease(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            command = (sys.executable, "-c", PROGRAM, f"{shop.url}/?title=exec&by=exec", "0", "stay")
            program = await start(home, *command)
            assert program.stdout is not None
            await asyncio.wait_for(program.stdout.readline(), PATIENCE)
            program.send_signal(signal.SIGINT)
            assert (await ended(program))[0] == 7
            assert (await home.lane()).state == "available"
            program = await start(home, *command)
            assert program.stdout is not None
            await asyncio.wait_for(program.stdout.readline(), PATIENCE)
            store = await open_store(home.config.store, policy=home.config.policy)
            await store.decide(revoke("p1:2"))
            await store.close()
            code, _, said = await ended(program)
            assert (code, "was lost while its browser was open" in said) == (5, True)

            async def closed() -> bool:
                return not home.browsers_of("p1")

            await until(closed)
            for path in (home.data / "open").glob("*"):
                path.unlink()
