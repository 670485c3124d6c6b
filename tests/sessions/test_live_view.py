"""The live view in a real Chromium: what a person sees and does in the browser of a session, and who may."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright, expect
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from leasekeeper.browsers.finding import find_browser
from tests.conformance.world import profile
from tests.serving import ServerThread
from tests.sessions.stage import Stage, stage

WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)
FORM = """<title>form</title><body style="margin:0">
<button style="position:absolute;left:10px;top:10px;width:100px;height:40px" onclick="said.push('click')">go</button>
<input id=name style="position:absolute;left:10px;top:60px;width:200px;height:30px">
<select id=size style="position:absolute;left:10px;top:110px;width:200px;height:30px"
 onchange="said.push('size ' + this.value)"><option>small<option>large</select>
<button style="position:absolute;left:10px;top:160px;width:100px;height:40px"
 onclick="said.push('named ' + prompt('who?', 'nobody'))">ask</button>
<input type=file id=file style="position:absolute;left:10px;top:210px;width:300px;height:40px"
 onchange="this.files[0].text().then(text => said.push('file ' + this.files[0].name + ' ' + text))">
<script>said = []; addEventListener('wheel', () => said.push('wheel'), {once: true})</script>"""


@asynccontextmanager
async def watching(at: Stage, session: dict[str, Any], token: str) -> AsyncIterator[Page]:
    """A person's own browser on the live view of a session."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser().path, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1600, "height": 1200})
        page.set_default_timeout(WAIT_MS)
        await page.goto(f"{at.served.url}/ui/sign-in")
        await page.fill("input[name=token]", token)
        await page.click("form button")
        await page.goto(session["live_view_url"])
        await page.locator("#lv[data-frames]").wait_for()
        yield page
        await browser.close()


async def test_a_person_sees_and_uses_the_browser_of_a_session(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("hello")
    recorded = profile("p1", record=True)
    async with stage(server, sqlite_url, tmp_path, recorded) as at, async_playwright() as playwright:
        session = await at.open()
        agent = await playwright.chromium.connect_over_cdp(session["cdp_url"])
        shown = agent.contexts[0].pages[0]
        shown.set_default_timeout(WAIT_MS)
        shown.on("dialog", lambda _: None)  # it listens, and leaves the answer to the person
        await shown.goto(f"data:text/html,{FORM}")
        async with watching(at, session, at.served.token) as page:
            await expect(page.locator("#lv-control")).to_contain_text("You can act")
            await expect(page.locator("#lv-tabs button[aria-pressed=true]")).to_contain_text("form")

            async def click(x: float, y: float) -> None:
                size = await shown.evaluate("[innerWidth, innerHeight]")
                box = await page.locator("#lv-canvas").bounding_box()
                assert box is not None
                await page.mouse.click(box["x"] + x * box["width"] / size[0], box["y"] + y * box["height"] / size[1])

            async def says(*words: str) -> None:
                await shown.wait_for_function("words => words.every(each => said.includes(each))", arg=list(words))

            await click(50, 30)
            await says("click")
            await click(100, 75)
            await page.keyboard.type("Ann ")
            await page.keyboard.insert_text("日本")  # as an input method writes
            await shown.wait_for_function("document.querySelector('#name').value === 'Ann 日本'")
            await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            await page.evaluate("navigator.clipboard.writeText(' Lee\\n')")
            await page.keyboard.press("Control+V")
            await shown.wait_for_function("document.querySelector('#name').value === 'Ann 日本 Lee'")
            await click(50, 180)
            await expect(page.locator("#lv-dialog")).to_contain_text("who?")
            await page.locator("#lv-dialog-input").fill("Ben")
            await page.locator("#lv-dialog button[value=ok]").click()
            await says("named Ben")
            await click(100, 125)
            await page.locator("#lv-list button", has_text="large").click()
            await says("size large")
            await page.mouse.wheel(0, 200)
            await says("wheel")
            await click(50, 230)
            # It opens with no file chosen: one that was set before is taken out again.
            await expect(page.locator("#lv-files")).to_be_visible()
            await page.locator("#lv-files-input").set_input_files(tmp_path / "note.txt")
            await page.locator("#lv-files button[value=ok]").click()
            await says("file note.txt hello")
            popup = await agent.contexts[0].new_page()
            await popup.goto("data:text/html,<title>second</title>")
            await expect(page.locator("#lv-tabs button[aria-pressed=true]")).to_contain_text("second")
            await page.locator("#lv-tabs button", has_text="form").click()
            await expect(page.locator("#lv-tabs button[aria-pressed=true]")).to_contain_text("form")
            await agent.close()
            assert (await at.api.get(f"/v1/sessions/{session['session_id']}")).json()["state"] == "open"
            await page.get_by_role("button", name="End session").click()
            await expect(page.locator("#flash")).to_contain_text("the session ended")
        run: Any = await at.last_run()
        assert run.result == "completed"
        assert {each["name"] for each in run.evidence["artifacts"]} == {"last.png", "recording.lkr"}


async def test_who_may_only_read_watches_and_cannot_act(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
        session = await at.open()
        agent = await playwright.chromium.connect_over_cdp(session["cdp_url"])
        shown = agent.contexts[0].pages[0]
        shown.set_default_timeout(WAIT_MS)
        await shown.goto(f"data:text/html,{FORM}")
        reader = await asyncio.to_thread(at.served.new_token, "read")
        async with watching(at, session, reader) as page:
            await expect(page.locator("#lv-control")).to_contain_text("has control; you are watching")
            await expect(page.locator("#lv-keys")).to_be_disabled()
        url = session["live_view_url"].replace("http", "ws", 1) + "/socket"
        async with connect(url, additional_headers={"Cookie": f"leasekeeper_token={reader}"}) as socket:
            seen = [await socket.recv() for _ in range(2)]
            assert seen
            for kind in ("down", "up"):  # sent by hand: no page of ours is in between
                await socket.send(f'{{"k":"mouse","t":"{kind}","x":50,"y":30,"b":0}}')
            await socket.send('{"k":"tab","target":null}')
            await socket.send("no json")
            # The browser answers this one after whatever would have reached it before.
            assert await shown.evaluate("said") == []
        for cookie in ({}, {"Cookie": "leasekeeper_token=wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=cookie)
            assert refused.value.response.status_code == 401
        await at.release(session)
        with pytest.raises(InvalidStatus) as over:
            await connect(url, additional_headers={"Cookie": f"leasekeeper_token={reader}"})
        assert over.value.response.status_code == 410


async def test_a_profile_is_opened_from_its_page(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser().path, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        await page.goto(f"{at.served.url}/ui/sign-in")
        await page.fill("input[name=token]", at.served.token)
        await page.click("form button")
        await page.goto(f"{at.served.url}/ui/profiles/p1")
        await page.locator("summary", has_text="Open").click()
        await page.get_by_label("Note").first.fill("looks logged out")
        await page.get_by_role("button", name="Open the browser").click()
        await page.locator("#lv[data-frames]").wait_for()
        await page.get_by_role("button", name="End session").click()
        await expect(page.locator("#flash")).to_contain_text("the session ended")
        await page.goto(f"{at.served.url}/ui/profiles/p1")
        await expect(page.locator(".notes")).to_contain_text("opened: looks logged out")
        await browser.close()
        assert at.served.service.sessions.sessions[0].run.over
