"""The browser as pages, servers and the process list see it, when it was started with our options."""

import asyncio
import base64
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.directory import forget_tabs
from leasekeeper.core.browsers import Credentials
from tests.browsers.sites import browser, environment_of, main_process, open_page, processes_on, serving, telling

SEEN_IN_PAGE = """async () => {
    const script = new Blob([`postMessage([navigator.language, Intl.DateTimeFormat().resolvedOptions().timeZone])`]);
    const worker = new Worker(URL.createObjectURL(script));
    const inWorker = await new Promise(resolve => worker.onmessage = event => resolve(event.data));
    return {
        language: navigator.language,
        timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        window: [innerWidth, innerHeight],
        inWorker,
        agent: navigator.userAgent,
    };
}"""


async def test_a_page_sees_the_language_timezone_and_window_of_the_profile(tmp_path: Path) -> None:
    heads: list[str] = []

    def page(head: str) -> str:
        heads.append(head)
        return "<title>shop</title>"

    async with (
        serving(telling(page)) as port,
        browser(tmp_path / "p", language="de-AT", timezone="Asia/Tokyo", window="1111x777") as context,
    ):
        opened = await open_page(context, f"http://127.0.0.1:{port}/")
        seen = await opened.evaluate(SEEN_IN_PAGE)
    assert (seen["language"], seen["timezone"], seen["window"]) == ("de-AT", "Asia/Tokyo", [1111, 777])
    assert seen["inWorker"] == ["de-AT", "Asia/Tokyo"]
    assert "accept-language: de-at" in heads[0].lower()


async def test_headless_is_the_whole_browser_with_a_lock_of_its_own(tmp_path: Path) -> None:
    async with browser(tmp_path / "p"):
        pid = main_process(tmp_path / "p")
        lock = (tmp_path / "p" / "SingletonLock").readlink()
    assert str(lock).endswith(f"-{pid}")


async def test_there_is_no_debugging_port(tmp_path: Path) -> None:
    async with browser(tmp_path / "p"):
        (line,) = [line for pid, line in processes_on(tmp_path / "p") if pid == main_process(tmp_path / "p")]
        assert "--remote-debugging-pipe" in line
        assert not any(part.startswith("--remote-debugging-port") for part in line)
        assert not (tmp_path / "p" / "DevToolsActivePort").exists()


async def test_a_proxy_is_used_and_logged_in_to_and_its_password_is_in_no_command_line(tmp_path: Path) -> None:
    heads: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        known = "proxy-authorization" in head.lower()
        asks = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=exit\r\n"
        start = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" if known else asks
        writer.write(f"{start}Connection: close\r\nContent-Length: 4\r\n\r\nexit".encode())
        await writer.drain()

    login = Credentials(username="user", password="hunter-2-secret")  # noqa: S106 - nobody's password
    async with (
        serving(proxy) as port,
        browser(tmp_path / "p", proxy=f"http://127.0.0.1:{port}", login=login) as context,
    ):
        page = await open_page(context, "http://shop.test/orders")
        text = await page.inner_text("body")
        lines = [" ".join(line) for _, line in processes_on(tmp_path / "p")]
        environments = [environment_of(pid) for pid, _ in processes_on(tmp_path / "p")]
    assert text == "exit"
    assert base64.b64encode(b"user:hunter-2-secret").decode() in heads[-1]
    assert lines
    assert not any("hunter-2-secret" in line for line in lines + environments)


async def test_session_cookies_survive_a_close_but_tabs_do_not_act_by_themselves(tmp_path: Path) -> None:
    visits: list[str] = []

    def page(head: str) -> str:
        visits.append(head.split()[1])
        return "<title>shop</title><script>fetch('/acted?' + Math.random())</script>"

    directory = tmp_path / "p"
    cookies: list[list[str]] = []
    async with serving(telling(page, headers="Cache-Control: no-store\r\n")) as port:
        for visit in range(3):
            forget_tabs(str(directory))
            async with browser(directory) as context:
                cookies.append(sorted(str(cookie.get("name")) for cookie in await context.cookies()))
                assert [each.url for each in context.pages] == ["about:blank"]
                if visit == 0:
                    opened = await open_page(context, f"http://127.0.0.1:{port}/")
                    await opened.evaluate("document.cookie = 'session=1'")
                else:
                    # A restored tab would have loaded by the time that another page has.
                    await open_page(context, "data:text/html,done")
            if visit == 0:
                visits.clear()
    assert cookies == [[], ["session"], ["session"]]
    assert visits == []


async def test_the_browser_inherits_no_secret_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_STORE", "postgresql://user:store-password@db.test/leasekeeper")
    monkeypatch.setenv("HTTP_PROXY", "http://elsewhere.test:8080")
    async with browser(tmp_path / "p"):
        environment = environment_of(main_process(tmp_path / "p"))
    assert "PATH=" in environment
    assert "store-password" not in environment
    assert "elsewhere.test" not in environment
