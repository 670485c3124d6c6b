"""Captures of real pages in every condition a run may end in, and what the recorder keeps of their noise."""

import asyncio
import base64
import os
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Dialog, Error, Page, async_playwright
from playwright.sync_api import sync_playwright

from leasekeeper.core.detectors import PageFacts
from leasekeeper.evidence.capture import (
    Captured,
    capture,
    capture_sync,
    inspect_page,
    inspect_page_sync,
    read_environment,
    read_environment_sync,
)
from leasekeeper.evidence.recorder import KEPT_EACH_END, MAX_EVENT_CHARACTERS, MAX_EVENTS, MAX_KEPT, Recorder
from leasekeeper.evidence.redact import MAX_URL, Redactor
from tests.browsers.sites import answer, browser, main_process, open_page, options, serving, telling
from tests.runtime.shop import Shop
from tests.servers import closed_port

PNG = b"\x89PNG"
LIMIT = 60.0  # a capture takes ten seconds at most; one that hangs takes for ever, a busy machine a while

SHOP = "<title>shop</title><h1>Orders</h1><p id=hidden hidden>secret text</p><input id=user>"


def recording(context: BrowserContext) -> Recorder:
    recorder = Recorder(Redactor(["hunter22"]))
    recorder.attach(context)
    return recorder


async def captured(context: Any, recorder: Recorder | None, page: Page | None = None) -> Captured:
    """A capture, and that it kept its time."""
    began = time.monotonic()
    found = await capture(context, recorder=recorder, redactor=Redactor(["hunter22"]), page=page)
    assert time.monotonic() - began < LIMIT
    return found


async def test_a_page_is_captured_with_its_address_and_its_looks(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        await open_page(context, f"http://127.0.0.1:{port}/orders?token=abc&page=2#part")
        found = await captured(context, recorder)
    assert found.final_url == f"http://127.0.0.1:{port}/orders?token=[redacted]&page=2"
    assert found.screenshot is not None
    assert found.screenshot.startswith(PNG)
    assert (found.problem, found.open_pages) == ("", 2)


async def test_the_tasks_own_page_counts_if_it_is_open(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        own = await open_page(context, f"http://127.0.0.1:{port}/own")
        await open_page(context, f"http://127.0.0.1:{port}/popup")
        assert (await captured(context, recorder, own)).final_url == f"http://127.0.0.1:{port}/own"
        await own.close()
        assert (await captured(context, recorder, own)).final_url == f"http://127.0.0.1:{port}/popup"


async def test_a_closed_page_still_has_its_address(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        await open_page(context, f"http://127.0.0.1:{port}/last")
        for page in list(context.pages):
            await page.close()
        found = await captured(context, recorder)
    assert (found.final_url, found.screenshot) == (f"http://127.0.0.1:{port}/last", None)
    assert found.problem == "the page was closed"


async def test_a_browser_that_died_still_has_its_address(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/last")
        os.kill(main_process(tmp_path / "p"), signal.SIGKILL)
        with suppress(Error):
            await page.wait_for_selector("#never")
        found = await captured(context, recorder, page)
        assert (found.final_url, found.screenshot) == (f"http://127.0.0.1:{port}/last", None)
        assert found.problem
        assert (await inspect_page(page, ["#user"])).visible == frozenset()
        assert await read_environment(page, redactor=Redactor()) == {}


async def test_a_page_that_was_never_opened_is_no_page() -> None:
    found = await captured(None, None)
    assert (found.final_url, found.screenshot, found.problem) == (None, None, "no page was open")
    assert (await inspect_page(None, ["#user"])).url == ""


async def test_a_hung_page_costs_no_more_than_its_time(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/hung")
        hung = asyncio.create_task(page.evaluate("() => { console.error('hangs'); while (true) {} }"))
        await context.wait_for_event("console")
        found = await captured(context, recorder, page)
        began = time.monotonic()
        facts = await inspect_page(page, ["#user"])
        assert time.monotonic() - began < LIMIT
        os.kill(main_process(tmp_path / "p"), signal.SIGKILL)
        with suppress(Error):
            await hung
    assert found.final_url == f"http://127.0.0.1:{port}/hung"
    assert (facts.url, facts.visible) == (f"http://127.0.0.1:{port}/hung", frozenset())


async def test_a_page_whose_navigation_is_pending_is_captured(tmp_path: Path) -> None:
    with Shop() as shop:
        async with browser(tmp_path / "p") as context:
            recorder = recording(context)
            page = await open_page(context, shop.url)
            pending = asyncio.create_task(page.goto(f"{shop.url}/slow?seconds=30&by=pending"))
            while not shop.of("pending"):  # noqa: ASYNC110 - the site runs in another thread
                await asyncio.sleep(0.05)  # waits: until the site has the request
            found = await captured(context, recorder, page)
            pending.cancel()
    assert found.problem == ""
    assert found.screenshot is not None


class Busy:
    """A page of a browser that has nothing to show yet: so busy, a real one cannot be made to order."""

    def __init__(self, refusals: list[str]) -> None:
        self.refusals = refusals
        self.context = self
        self.url = "http://shop.example/"

    def is_closed(self) -> bool:
        return False

    async def new_cdp_session(self, _page: "Busy") -> "Busy":
        return self

    async def send(self, method: str, _params: dict[str, Any]) -> dict[str, str]:
        if self.refusals:
            raise Error(f"CDPSession.send: Protocol error ({method}): {self.refusals.pop(0)}")
        return {"data": base64.b64encode(PNG).decode()}


async def test_a_picture_that_is_not_ready_yet_is_asked_for_again() -> None:
    page: Any = Busy(["Unable to capture screenshot", "Not attached to an active page"])
    found = await capture(None, recorder=None, redactor=Redactor(), page=page)
    assert (found.screenshot, found.problem) == (PNG, "")
    page = Busy(["Internal error", "not asked for again"])
    found = await capture(None, recorder=None, redactor=Redactor(), page=page)
    assert found.screenshot is None
    assert "Internal error" in found.problem
    assert page.refusals == ["not asked for again"]


async def test_an_open_dialog_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/asks")
        shown: asyncio.Future[Dialog] = asyncio.get_running_loop().create_future()
        page.once("dialog", lambda dialog: shown.set_result(dialog))  # noqa: PLW0108 - it must be a Python function
        asking = asyncio.create_task(page.evaluate("() => alert('sure?')"))
        await shown
        found = await captured(context, recorder, page)
        await (await shown).dismiss()
        await asking
    assert found.final_url == f"http://127.0.0.1:{port}/asks"


async def test_a_crashed_page_still_has_its_address(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/crashed")
        with suppress(Error):
            await page.goto("chrome://crash")
        found = await captured(context, recorder, page)
    assert found.final_url is not None
    assert (found.screenshot, bool(found.problem)) == (None, True)
    assert recorder.page_crashed
    assert recorder.summary()["pages_crashed"] == 1


async def test_detectors_get_what_is_visible(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        facts = await inspect_page(page, ["#user", "#hidden", "#none"])
        without = await inspect_page(page, [], with_text=False)
    assert facts.visible == {"#user"}
    assert "Orders" in facts.text
    assert "secret text" not in facts.text
    assert without.text == ""


async def test_a_selector_that_is_wrong_does_not_spoil_the_others(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        facts = await inspect_page(page, ["#user", ">>> nonsense ((", "h1"])
    assert facts.visible == {"#user", "h1"}
    assert "Orders" in facts.text


async def test_the_environment_is_read_as_pages_see_it(tmp_path: Path) -> None:
    async with browser(tmp_path / "p", language="fr-FR", timezone="Asia/Tokyo", window="900x700") as context:
        page = context.pages[0]
        seen = await read_environment(page, "Asia/Tokyo", redactor=Redactor())
        other = await read_environment(page, "Europe/Paris", redactor=Redactor())
        unasked = await read_environment(page, redactor=Redactor())
    assert (seen["language"], seen["timezone"], seen["window"]) == ("fr-FR", "Asia/Tokyo", "900x700")
    assert (other["timezone"], unasked["timezone"]) == ("Asia/Tokyo", "UTC+09:00")


LYING = """() => {
    const long = 'z'.repeat(4e7);
    const say = (owner, name) => Object.defineProperty(owner, name, {get: () => long});
    for (const name of ['language', 'userAgent']) say(navigator, name);
    for (const name of ['innerWidth', 'innerHeight']) say(window, name);
    say(HTMLElement.prototype, 'innerText');
    Intl.DateTimeFormat = () => ({resolvedOptions: () => ({timeZone: long})});
    String.prototype.slice = () => long;
    history.replaceState(null, '', '/' + 'u'.repeat(1e6));
}"""


def check_truth(seen: dict[str, str], look: PageFacts) -> None:
    """What was read is what the browser has, whatever the page says."""
    assert (seen["language"], seen["timezone"]) == ("fr-FR", "America/Chicago")
    assert re.fullmatch(r"\d+x\d+", seen["window"])
    assert seen["user_agent"].startswith("Mozilla/5.0 (")
    assert look.text.startswith("Orders")
    assert look.visible == {"#user"}


async def test_a_page_cannot_change_what_is_read_of_it_nor_how_much(tmp_path: Path) -> None:
    async with (
        serving(answer(SHOP)) as port,
        browser(tmp_path / "p", language="fr-FR", timezone="America/Chicago") as context,
    ):
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        await page.evaluate(LYING)
        seen = await read_environment(page, "America/Chicago", redactor=Redactor())
        look = await inspect_page(page, ["#user", "#none"])
        found = await captured(context, None, page)
    check_truth(seen, look)
    assert len(found.final_url or "") == MAX_URL


async def test_what_is_read_of_the_environment_is_kept_short_and_without_secrets(tmp_path: Path) -> None:
    arguments = ["--user-agent=" + "x" * 195 + "hunter22" + "y" * 5000]
    async with async_playwright() as playwright:
        launch = options(tmp_path / "p")
        launch["args"] = [*launch.get("args", ()), *arguments]
        context = await playwright.chromium.launch_persistent_context(**launch)
        seen = await read_environment(context.pages[0], redactor=Redactor(["hunter22"]))
        await context.close()
    assert seen["user_agent"] == "x" * 195 + "[red…"


async def test_a_method_that_a_page_made_up_is_kept_short(tmp_path: Path) -> None:
    async with serving(answer(SHOP)) as port, browser(tmp_path / "p") as context:
        recorder = recording(context)
        page = await open_page(context, f"http://127.0.0.1:{port}/")
        script = "url => fetch(url, {method: 'M'.repeat(1e5)}).catch(() => {})"
        with closed_port() as nobody:
            async with context.expect_event("requestfailed"):
                await page.evaluate(script, f"http://127.0.0.1:{nobody}/")
    network: Any = recorder.summary()["network"]
    assert max(len(entry["method"]) for entry in network["entries"]) == MAX_KEPT


async def test_a_secret_across_the_end_of_a_long_problem_is_not_kept() -> None:
    class Broken:
        """A page as Playwright leaves it when all it has is an error."""

        url = "about:blank"

        def is_closed(self) -> bool:
            return False

        @property
        def context(self) -> Any:
            raise Error("x" * 295 + "hunter22")

    found = await capture(None, recorder=None, redactor=Redactor(["hunter22"]), page=Broken())
    assert found.problem == "x" * 295 + "[red…"


NOISY = """<title>shop</title><script>
for (let n = 0; n < 50; n++) console.error('bad thing ' + n + ' password=hunter22');
console.warn('careful');
console.log('hunter22 is nothing to keep');
setTimeout(() => { throw new Error('uncaught hunter22') });
fetch('/missing?token=abc').catch(() => {});
fetch('http://127.0.0.1:PORT/nobody').catch(() => {}).then(() => document.title = 'done');
</script>"""


async def test_the_recorder_counts_and_keeps_the_first_and_last_without_secrets(tmp_path: Path) -> None:
    def page(head: str) -> str:
        return NOISY.replace("PORT", str(nobody)) if "GET / " in head else "missing"

    with closed_port() as nobody:
        async with (
            serving(telling(page)) as port,
            serving(answer(status="500 Broken")) as broken,
            browser(tmp_path / "p") as context,
        ):
            recorder = recording(context)
            opened = await open_page(context, f"http://127.0.0.1:{port}/")
            await opened.wait_for_function("document.title == 'done'")
            await open_page(context, f"http://user:hunter22@127.0.0.1:{broken}/orders?session_id=1")
            summary: Any = recorder.summary()
            recorder.detach()
            await opened.evaluate("console.error('of the next run')")
            assert recorder.summary() == summary
    console, network = summary["console"], summary["network"]
    assert console["errors"] >= 51
    assert console["warnings"] == 1
    assert len(console["entries"]) == 2 * KEPT_EACH_END
    assert console["entries"][0]["text"] == "bad thing 0 password=[redacted]"
    assert (network["failed"], network["error_answers"]) == (1, 1)
    urls = {entry["url"]: entry["problem"] for entry in network["entries"]}
    assert urls[f"http://127.0.0.1:{nobody}/nobody"] == "net::ERR_CONNECTION_REFUSED"
    assert urls[f"http://127.0.0.1:{broken}/orders?session_id=[redacted]"] == "status 500"
    assert "hunter22" not in str(summary)


FLOOD = """<title>flood</title><script>
const long = 'x'.repeat(4096);
for (let n = 0; n < 2500; n++) console.error('flood ' + n + ' password=hunter22 ' + long);
for (let n = 0; n < 2500; n++) setTimeout(() => { throw new Error('uncaught ' + long) });
const refused = () => fetch('http://127.0.0.1:PORT/' + long).catch(() => {});
(async () => { for (let n = 0; n < 700; n++) await refused(); document.title = 'done'; })();
</script>"""


class Counting(Redactor):
    calls = 0

    def text(self, text: str) -> str:
        self.calls += 1
        return super().text(text)


async def test_a_page_that_floods_is_not_listened_to_any_more(tmp_path: Path) -> None:
    """What is heard of it costs memory of a process that all runs share, so there is a limit to it."""
    redactor = Counting(["hunter22"])
    recorder = Recorder(redactor)
    with closed_port() as nobody:
        async with serving(answer(FLOOD.replace("PORT", str(nobody)))) as port, browser(tmp_path / "p") as context:
            recorder.attach(context)
            page = await open_page(context, f"http://127.0.0.1:{port}/")
            await page.wait_for_function("document.title == 'done'", timeout=LIMIT * 1000)
            assert redactor.calls == 0
            summary: Any = recorder.summary()
            recorder.detach()
    console, network = summary["console"], summary["network"]
    assert 0 < console["errors"] <= 2 * MAX_EVENT_CHARACTERS // 4096 + 2
    assert 0 < network["failed"] <= MAX_EVENT_CHARACTERS // 4096 + 1
    assert (console["limit_reached"], network["limit_reached"]) == (True, True)
    assert console["entries"][0]["text"].startswith("flood 0 password=[redacted] xx")
    assert redactor.calls <= 8 * KEPT_EACH_END


def test_the_sync_api_is_captured_the_same_way(tmp_path: Path) -> None:
    """In a thread of its own, as a plain `def` task has one."""
    found: dict[str, Any] = {}

    def task() -> None:
        with sync_playwright() as playwright:
            launch = options(tmp_path / "p", language="fr-FR", timezone="America/Chicago")
            context = playwright.chromium.launch_persistent_context(**launch)
            recorder = Recorder(Redactor())
            recorder.attach(context)
            page = context.new_page()
            page.goto("data:text/html,Orders<input id=user>")
            page.evaluate("for (let n = 0; n < 2500; n++) console.error('bad')")
            page.evaluate(LYING.replace("history.", "0 && history."))
            found["open"] = capture_sync(context, recorder=recorder, redactor=Redactor(), page=page)
            found["look"] = inspect_page_sync(page, ["#user", "#none"])
            found["environment"] = read_environment_sync(page, "America/Chicago", redactor=Redactor())
            page.close()
            found["closed"] = capture_sync(context, recorder=recorder, redactor=Redactor(), page=page)
            context.close()
            found["ended"] = capture_sync(context, recorder=recorder, redactor=Redactor(), page=page)
            found["gone"] = inspect_page_sync(page, ["#user"])
            found["summary"] = recorder.summary()

    thread = threading.Thread(target=task)
    thread.start()
    thread.join()
    assert found["open"].screenshot.startswith(PNG)
    assert found["open"].final_url == "data:[redacted]"
    check_truth(found["environment"], found["look"])
    assert found["closed"].final_url == "about:blank"
    assert (found["ended"].screenshot, found["ended"].problem) == (None, "the page was closed")
    assert found["gone"].visible == frozenset()
    assert found["summary"]["console"]["errors"] == MAX_EVENTS
