"""A program launches the profile's browser itself: with all that the profile declares, its proxy above all."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from leasekeeper import Fail, Lane, RunRecord, connect
from leasekeeper.browsers.finding import find_browser
from leasekeeper.client import Client, HeldLease
from leasekeeper.errors import InputError
from tests.browsers.sites import gone, open_page, serving
from tests.conformance.world import fleet, profile, proxy
from tests.runtime.stage import CALM

LOGIN = "user:hunter-2-secret"


class Exit:
    """A proxy that wants a login and answers every request itself."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        known = base64.b64encode(LOGIN.encode()).decode() in head
        asks = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=exit\r\n"
        start = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" if known else asks
        writer.write(f"{start}Connection: close\r\nContent-Length: 4\r\n\r\nexit".encode())
        await writer.drain()


@asynccontextmanager
async def launched(lease: HeldLease, **options: Any) -> AsyncIterator[Any]:
    """The browser as the documentation launches it."""
    asked = await lease.launch_options(**options)
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(**asked)
        try:
            yield context
        finally:
            await context.close()
            await gone(Path(asked["user_data_dir"]))


@asynccontextmanager
async def shop(url: str, data: Path, server: str = "http://127.0.0.1:9", **settings: Any) -> AsyncIterator[Client]:
    exit_us = proxy("exit_us", server=server, credentials="env:EXIT_LOGIN")
    async with connect(url, data_dir=str(data), **CALM) as client:
        await client.store.apply(fleet(exit_us, profile("p1", proxy_id="exit_us", **settings)), actor="test")
        yield client


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXIT_LOGIN", LOGIN)


async def run_of(client: Client, lease: HeldLease) -> RunRecord:
    return await client.get(RunRecord, lease.lease.run_id)


async def test_pages_of_a_direct_launch_go_through_the_declared_proxy(store_url: str, tmp_path: Path) -> None:
    way_out = Exit()
    async with (
        serving(way_out) as port,
        shop(store_url, tmp_path, f"http://127.0.0.1:{port}", language="de-AT", timezone="Asia/Tokyo") as client,
        client.lease("p1") as lease,
    ):
        async with launched(lease) as context:
            page = await open_page(context, "http://shop.test/orders")
            assert await page.inner_text("body") == "exit"
            zone = await page.evaluate("[navigator.language, Intl.DateTimeFormat().resolvedOptions().timeZone]")
        lease.closed(final_url="http://shop.test/orders")
        settled = await lease.release()
        run = await run_of(client, lease)
    assert zone == ["de-AT", "Asia/Tokyo"]
    assert [head for head in way_out.heads if head.startswith("GET http://shop.test/orders ")]
    assert settled.profile_state == "available"
    assert (run.proxy_id, run.actual["run_mode"]) == ("exit_us", "headless")


async def test_a_run_that_did_not_ask_for_the_proxy_does_not_record_it(store_url: str, tmp_path: Path) -> None:
    async with shop(store_url, tmp_path) as client:
        async with client.lease("p1") as nothing:
            pass
        async with client.lease("p1") as directory:
            await directory.user_data_dir()
            directory.closed(final_url="http://shop.test/")
        async with client.lease("p1") as options:
            await options.launch_options()
            options.closed(final_url="http://shop.test/")
        recorded = [(await run_of(client, lease)).proxy_id for lease in (nothing, directory, options)]
    assert recorded == [None, None, "exit_us"]


async def test_the_options_are_all_that_the_profile_declares(sqlite_url: str, tmp_path: Path) -> None:
    settings = {"language": "en-GB", "timezone": "Europe/London", "window": "1280x800"}
    async with shop(sqlite_url, tmp_path, "http://exit.test:8080", **settings) as client, client.lease("p1") as lease:
        options = await lease.launch_options(args=["--mute-audio"])
        directory = await lease.user_data_dir()
    assert options["user_data_dir"] == str(directory)
    assert options["proxy"] == {"server": "http://exit.test:8080", "username": "user", "password": "hunter-2-secret"}
    assert (options["locale"], options["timezone_id"]) == ("en-GB", "Europe/London")
    assert options["viewport"] == {"width": 1280, "height": 800}
    assert "--mute-audio" in options["args"]
    assert options["executable_path"] == str(find_browser().path)
    assert "EXIT_LOGIN" not in options["env"]
    assert not [name for name in options if name.startswith("handle_")]


async def test_each_launch_starts_with_an_empty_page(sqlite_url: str, tmp_path: Path) -> None:
    async with connect(sqlite_url, data_dir=str(tmp_path), **CALM) as client:
        await client.store.apply(fleet(profile("p1")), actor="test")
        seen = []
        for _ in range(2):
            async with client.lease("p1") as lease:
                async with launched(lease) as context:
                    seen.append([page.url for page in context.pages])
                    await open_page(context, "data:text/html,hello")
                lease.closed(final_url="data:text/html,hello")
    assert seen == [["about:blank"], ["about:blank"]]


async def test_a_login_that_is_missing_stops_the_launch_before_the_directory(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXIT_LOGIN")
    async with shop(sqlite_url, tmp_path) as client:
        with pytest.raises(Fail, match="no environment variable EXIT_LOGIN"):
            async with client.lease("p1") as lease:
                await lease.launch_options()
        assert (await client.get(Lane, "p1")).state == "available"
    assert not (tmp_path / "profiles" / "p1").exists()


async def test_an_argument_that_goes_around_the_proxy_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    async with shop(sqlite_url, tmp_path) as client, client.lease("p1") as lease:
        with pytest.raises(InputError, match="--no-proxy-server"):
            await lease.launch_options(args=["--no-proxy-server"])


async def test_a_profile_of_another_driver_has_no_launch_options(sqlite_url: str, tmp_path: Path) -> None:
    async with shop(sqlite_url, tmp_path, driver="null") as client:
        with pytest.raises(Fail, match="opened by driver null"):
            async with client.lease("p1") as lease:
                await lease.launch_options()
