"""Errors of a real browser, one of each sort, and the reason that each is classified as.

The texts in tests/unit/test_core_classify.py were captured here; a browser or a Playwright that changes its words
fails this file first.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Error, Page, async_playwright, expect

from leasekeeper.core.classify import Facts, classify, kind_of
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor
from tests.browsers.sites import (
    answer,
    browser,
    close_empty,
    hang,
    main_process,
    open_page,
    options,
    own_certificate,
    reset,
    serving,
)
from tests.servers import closed_port

BUTTONS = "<button>one</button><button>two</button><input id=hidden hidden>"


async def reason_of(asked: Awaitable[object], facts: Facts | None = None) -> str:
    """What the error of this call is classified as."""
    try:
        await asked
    except Exception as error:  # noqa: BLE001 - every sort of error is what these tests are about
        return classify(kind_of(error), str(error), facts)
    raise AssertionError("there was no error")


async def test_errors_of_the_network_are_temporary(tmp_path: Path) -> None:
    async with browser(tmp_path / "p") as context:
        page = context.pages[0]
        for handler in (reset, close_empty):
            async with serving(handler) as port:
                assert await reason_of(page.goto(f"http://127.0.0.1:{port}/")) == "TEMPORARY_NAVIGATION_ERROR"
                get = context.request.get(f"http://127.0.0.1:{port}/")
                assert await reason_of(get) == "TEMPORARY_NAVIGATION_ERROR"
        with closed_port() as port:
            nobody = f"http://127.0.0.1:{port}/"
            assert await reason_of(page.goto(nobody)) == "TEMPORARY_NAVIGATION_ERROR"
            assert await reason_of(context.request.get(nobody)) == "TEMPORARY_NAVIGATION_ERROR"
        assert await reason_of(page.goto("http://nobody.invalid/")) == "TEMPORARY_NAVIGATION_ERROR"
        assert await reason_of(context.request.get("http://nobody.invalid/")) == "TEMPORARY_NAVIGATION_ERROR"


async def test_what_would_fail_again_is_the_tasks_error(tmp_path: Path) -> None:
    download = answer("abc", headers="Content-Type: application/x-own\r\nContent-Disposition: attachment\r\n")
    async with browser(tmp_path / "p") as context:
        page = context.pages[0]
        async with serving(answer(), own_certificate(tmp_path)) as port:
            assert await reason_of(page.goto(f"https://127.0.0.1:{port}/")) == "TASK_ERROR"
        async with serving(download) as port:
            assert await reason_of(page.goto(f"http://127.0.0.1:{port}/")) == "TASK_ERROR"
        async with serving(answer(status="302 Found", headers="Location: /again\r\n")) as port:
            assert await reason_of(page.goto(f"http://127.0.0.1:{port}/")) == "TASK_ERROR"
        for address in ("not an address", "own-scheme://shop.test/", "file:///nowhere"):
            assert await reason_of(page.goto(address)) == "TASK_ERROR"
        await page.route("**/blocked", lambda route: route.abort("blockedbyclient"))
        assert await reason_of(page.goto("http://shop.test/blocked")) == "TASK_ERROR"


async def test_waiting_too_long_is_a_timeout(tmp_path: Path) -> None:
    async with browser(tmp_path / "p") as context, serving(hang) as silent, serving(answer(BUTTONS)) as port:
        page = context.pages[0]
        assert await reason_of(page.goto(f"http://127.0.0.1:{silent}/", timeout=300)) == "TIMEOUT"
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        waits: list[Callable[[], Awaitable[object]]] = [
            lambda: page.locator("#none").click(timeout=300),
            lambda: page.locator("#hidden").fill("secret", timeout=300),
            lambda: page.locator("#none").wait_for(timeout=300),
            lambda: page.wait_for_url("**/elsewhere", timeout=300),
            lambda: page.wait_for_event("popup", timeout=300),
            lambda: context.request.get(f"http://127.0.0.1:{silent}/", timeout=300),
        ]
        assert [await reason_of(wait()) for wait in waits] == ["TIMEOUT"] * len(waits)


async def test_mistakes_of_the_task_are_its_own(tmp_path: Path) -> None:
    async with browser(tmp_path / "p") as context, serving(answer(BUTTONS)) as port:
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        assert await reason_of(page.locator("button").click()) == "TASK_ERROR"
        assert await reason_of(page.evaluate("() => { throw new Error('net::ERR_CONNECTION_RESET') }")) == "TASK_ERROR"
        assert await reason_of(page.evaluate("fetch('http://nobody.invalid/')")) == "TASK_ERROR"
        assert await reason_of(expect(page.locator("#none")).to_be_visible(timeout=300)) == "TASK_ERROR"
        waiting = asyncio.create_task(page.wait_for_selector("#none"))
        await page.close()
        assert await reason_of(waiting) == "TASK_ERROR"
        assert await reason_of(page.click("button")) == "TASK_ERROR"
    assert await reason_of(context.new_page()) == "TASK_ERROR"


async def crash(page: Page) -> None:
    with suppress(Error):
        await page.goto("chrome://crash", timeout=5_000)


async def test_a_page_that_crashes_is_a_crash(tmp_path: Path) -> None:
    async with browser(tmp_path / "p") as context, serving(answer(BUTTONS)) as port:
        recorder = Recorder(Redactor())
        recorder.attach(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        assert not recorder.page_crashed
        assert await reason_of(page.goto("chrome://crash"), Facts(page_crashed=True)) == "BROWSER_CRASHED"
        assert await reason_of(page.click("button", timeout=1_000)) == "BROWSER_CRASHED"
        assert recorder.page_crashed
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        waiting = asyncio.create_task(page.wait_for_selector("#none"))
        await asyncio.gather(asyncio.sleep(0), crash(page))
        assert await reason_of(waiting) == "BROWSER_CRASHED"


async def test_a_browser_that_dies_is_a_crash(tmp_path: Path) -> None:
    gone = Facts(browser_alive=False)
    async with serving(answer(BUTTONS)) as port, browser(tmp_path / "p") as context:
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        waiting = asyncio.create_task(page.wait_for_selector("#none"))
        expecting = asyncio.create_task(expect(page.locator("#none")).to_be_visible())
        await page.title()
        os.kill(main_process(tmp_path / "p"), signal.SIGKILL)
        assert await reason_of(waiting, gone) == "BROWSER_CRASHED"
        assert await reason_of(expecting, gone) == "BROWSER_CRASHED"
        assert await reason_of(page.goto(f"http://127.0.0.1:{port}/"), gone) == "BROWSER_CRASHED"
        assert await reason_of(context.new_page(), gone) == "BROWSER_CRASHED"


REFUSAL = "Proxy-Authenticate: Basic realm=exit\r\n"


async def both(context: BrowserContext, facts: Facts | None = None) -> list[str]:
    """The reasons for an address of each scheme."""
    page = context.pages[0]
    return [await reason_of(page.goto(f"{scheme}://shop.test/", timeout=60_000), facts) for scheme in ("http", "https")]


async def test_a_proxy_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    for number, scheme in enumerate(("http", "socks5")):
        with closed_port() as port:
            async with browser(tmp_path / str(number), proxy=f"{scheme}://127.0.0.1:{port}") as context:
                assert await both(context) == ["PROXY_UNREACHABLE"] * 2
    async with (
        serving(close_empty) as port,
        browser(tmp_path / "socks", proxy=f"socks5://127.0.0.1:{port}") as context,
    ):
        assert await both(context) == ["PROXY_UNREACHABLE"] * 2


async def test_a_proxy_that_refuses_us_is_unreachable(tmp_path: Path) -> None:
    async with (
        serving(answer("", status="407 Login", headers=REFUSAL)) as port,
        browser(tmp_path / "407", proxy=f"http://127.0.0.1:{port}") as context,
    ):
        assert await both(context, Facts(proxied=True)) == ["PROXY_UNREACHABLE"] * 2
    async with (
        serving(answer("", status="502 Bad Gateway")) as port,
        browser(tmp_path / "502", proxy=f"http://127.0.0.1:{port}") as context,
    ):
        assert (await both(context))[1] == "PROXY_UNREACHABLE"


async def test_a_profile_that_is_open_already_is_in_use_elsewhere(tmp_path: Path) -> None:
    async with browser(tmp_path / "p"), async_playwright() as playwright:
        again = playwright.chromium.launch_persistent_context(**options(tmp_path / "p"))
        assert await reason_of(again) == "PROFILE_IN_USE_ELSEWHERE"


@pytest.mark.parametrize("program", ["/nowhere/chromium", "/bin/false"])
async def test_a_browser_that_does_not_start_is_a_failed_launch(tmp_path: Path, program: str) -> None:
    async with async_playwright() as playwright:
        launch = playwright.chromium.launch_persistent_context(
            **{**options(tmp_path / "p"), "executable_path": program}
        )
        assert await reason_of(launch) == "BROWSER_LAUNCH_FAILED"
