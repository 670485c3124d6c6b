"""Several DevTools clients on one browser: each hears its own, none can leave the profile or hurt another."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.browsers.keeper.client import MAX_UNREAD_BYTES
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.core.browsers import LeaseTerms
from leasekeeper.driver_port import ClientRefused
from tests.browsers.devtools import Cut, DevTools, devtools
from tests.browsers.keeper_stage import PATIENCE, Stage, boot_time, eventually_async, memory_of, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as opened:
        yield opened


async def ask_much(tools: DevTools, name: str, times: int) -> None:
    """Ask for different things at once; every answer must be the one to its question."""
    session = await tools.page()

    async def one(number: int) -> None:
        assert await tools.value(f"'{name}' + {number}", session) == f"{name}{number}"

    for start in range(0, times, 50):
        await asyncio.gather(*(one(number) for number in range(start, min(times, start + 50))))


@pytest.mark.parametrize(
    "times",
    [300, pytest.param(10_000, marks=pytest.mark.release)],  # the daily test covers the same with fewer commands
)
async def test_every_answer_reaches_the_one_who_asked(stage: Stage, times: int) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann, devtools(link) as bob:
        await context.pages[0].goto(stage.site.url)

        async def playwright() -> None:
            for number in range(times):
                assert await context.pages[0].evaluate("number => number + 1", number) == number + 1

        async with devtools(link) as viewer:
            session = await viewer.page()
            await viewer.ask("Page.startScreencast", {"format": "jpeg"}, session)
            await asyncio.gather(playwright(), ask_much(ann, "ann", times), ask_much(bob, "bob", times))
        assert await asyncio.to_thread(memory_of, link.keeper_pid) < 20_000_000
    link.close()


async def test_a_client_has_its_own_view_of_pages_and_leaves_the_others_alone(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann:
        await ann.ask("Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True})
        async with devtools(link) as bob:
            created = await bob.ask("Target.createTarget", {"url": stage.site.url + "/bob"})

            def attached() -> list[dict[str, Any]]:
                found = [event["params"] for event in ann.events if event["method"] == "Target.attachedToTarget"]
                return [params for params in found if params["targetInfo"]["targetId"] == created["targetId"]]

            (params,) = await eventually_async(attached, "the page in the other client's view")
            assert not any("sessionId" in event for event in ann.events if event["method"].startswith("Target."))
            session = params["sessionId"]
            foreign = await bob.answer("Runtime.evaluate", {"expression": "1"}, session)
            assert foreign["error"]["message"] == "Session with given id not found."
            await eventually_async(lambda: len(context.pages) == 2, "the page in Playwright's view")
        # Bob has left. His page and what others do in it stay.
        assert await ann.value("1 + 1", session) == 2
        await context.pages[1].wait_for_load_state()
        assert await context.pages[1].evaluate("location.pathname") == "/bob"
    link.close()


async def test_closing_the_browser_is_left_to_the_worker_and_leaving_the_profile_is_refused(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann:
        for method in (
            "Target.createBrowserContext",
            "Target.exposeDevToolsProtocol",
            "Target.sendMessageToTarget",
            "Target.openDevTools",
            "Extensions.loadUnpacked",
            "Tethering.bind",
            "Browser.crash",
        ):
            answer = await ann.answer(method, {"targetId": "x", "path": "/", "message": "{}"})
            assert answer["error"]["message"].startswith(f"{method}: "), answer
        asked = asyncio.create_task(link.close_asked())
        assert await ann.ask("Browser.close") == {}
        await asyncio.wait_for(asked, PATIENCE)
        assert await context.pages[0].evaluate("1") == 1, "the browser is still there"
    link.close()


async def test_a_client_reaches_no_page_of_the_browsers_own(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    state = Path(link.orders.user_data_dir) / "Local State"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text('{"devtools":{"remote_debugging":{"user-enabled":true}}}')
    async with stage.browser(link) as context, devtools(link) as ann:
        assert "user-enabled" not in state.read_text()
        session = await ann.page()
        for url in ("chrome://extensions", " CHROME:inspect", "view-source:chrome://version", "devtools://devtools/x"):
            for method, at in (("Page.navigate", session), ("Target.createTarget", "")):
                answer = await ann.answer(method, {"url": url}, at)
                assert "browser's own pages" in answer["error"]["message"], (url, answer)
        opened = await context.new_page()  # as a person may, where there is a display
        await opened.goto("chrome://version")
        targets = (await ann.ask("Target.getTargets"))["targetInfos"]
        own = [each for each in targets if each["type"] == "browser_ui" or each["url"] == "chrome://version/"]
        assert "page" in {each["type"] for each in own}
        for each in own:
            attached = await ann.ask("Target.attachToTarget", {"targetId": each["targetId"], "flatten": True})
            assert await ann.ask("Page.enable", session=attached["sessionId"]) == {}
            answer = await ann.answer("Runtime.evaluate", {"expression": "1"}, attached["sessionId"])
            assert "browser's own pages" in answer["error"]["message"], each
        await ann.ask("Page.navigate", {"url": f"{stage.site.url}#chrome://extensions"}, session)
        # What a page's own script cannot do, a client cannot do through it.
        assert await ann.value("String(window.open('chrome://extensions'))", session) == "null"
    link.close()


BAD = {
    "no JSON": b"hello",
    "half of it": b'{"id": 1, "method": "Target.getTar',
    "a list": b"[1]",
    "no id": b'{"method": "Target.getTargets"}',
    "an id that is text": b'{"id": "1", "method": "Target.getTargets"}',
    "an id that is too large": b'{"id": 99999999999999999999, "method": "Target.getTargets"}',
    "no method": b'{"id": 1}',
    "params that are a list": b'{"id": 1, "method": "Target.getTargets", "params": []}',
    "deep": b'{"id": 1, "method": "x", "params": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "nested more than the browser reads": b'{"id": 1, "method": "x", "params": ' + b'{"a":' * 280 + b"1" + b"}" * 281,
    "bytes": bytes(range(1, 256)),
    "a NUL inside": b'{"id": 1, "method": "Browser\0.close"}',
    "NaN": b'{"id": 1, "method": "x", "params": {"a": NaN}}',
    "a session that is a number": b'{"id": 1, "method": "x", "sessionId": 5}',
    "huge": b'{"id": 1, "method": "' + b"x" * 34_000_000 + b'"}',
}


async def test_a_client_that_sends_no_command_is_cut_and_nobody_else(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann:
        session = await ann.page()
        for name, message in BAD.items():
            async with devtools(link) as fuzzer:
                await fuzzer.client.send(message)
                async with asyncio.timeout(PATIENCE):
                    await fuzzer.cut.wait()
                await eventually_async(partial(getattr, fuzzer.client, "why"), f"why after {name}")
            assert await ann.value("1 + 1", session) == 2, name
        assert "error" in await ann.answer("No.such")
        assert "error" in await ann.answer("Target.getTargets", session="wrong")
        assert await context.pages[0].evaluate("1") == 1
    link.close()


async def test_a_client_that_stops_reading_is_cut_and_delays_nobody(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link), devtools(link) as ann:
        session = await ann.page()
        lazy = await link.add_client()
        attach = {"id": 1, "method": "Target.attachToTarget", "params": {"targetId": "", "flatten": True}}
        targets = (await ann.ask("Target.getTargets"))["targetInfos"]
        attach["params"] = {"targetId": next(t["targetId"] for t in targets if t["type"] == "page"), "flatten": True}
        await lazy.send(json.dumps(attach).encode())
        theirs: str | None = None
        while theirs is None:
            found = json.loads(await lazy.receive() or b"{}")
            theirs = found.get("result", {}).get("sessionId")
        expression = {"expression": f"'x'.repeat({MAX_UNREAD_BYTES // 4})", "returnByValue": True}
        for number in range(2, 20):
            command = {"id": number, "method": "Runtime.evaluate", "params": expression, "sessionId": theirs}
            await lazy.send(json.dumps(command).encode())
        await eventually_async(lambda: lazy.why, "the lazy client is cut")
        assert "does not read" in lazy.why
        assert await ann.value("1 + 1", session) == 2
        await lazy.close()
    link.close()


async def test_an_answer_that_is_too_large_cuts_the_one_who_asked(stage: Stage) -> None:
    link = KeeperLink(stage.orders(max_message_bytes=2_000_000))
    async with stage.browser(link) as context, devtools(link) as ann, devtools(link) as bob:
        session = await ann.page()
        with pytest.raises(Cut):
            await bob.value("'x'.repeat(5_000_000)", await bob.page())
        await eventually_async(lambda: bob.client.why, "why bob was cut")
        assert "larger than a message may be" in bob.client.why
        assert await ann.value("1 + 1", session) == 2
        assert await context.pages[0].evaluate("1") == 1
    link.close()


async def act(tools: DevTools, session: str) -> None:
    with suppress(Cut):
        while True:
            await tools.answer("Runtime.evaluate", {"expression": "fetch('/act')"}, session)


@pytest.mark.parametrize("how", ["deadline", "revoked"])
async def test_nothing_of_any_client_reaches_the_browser_after_the_lease(stage: Stage, how: str) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann, devtools(link) as bob:
        await context.pages[0].goto(stage.site.url)
        sessions = [await ann.page(), await bob.page()]
        acting = [asyncio.create_task(act(*each)) for each in zip((ann, bob), sessions, strict=True)]
        await eventually_async(lambda: len(stage.site.acts()) > 3, "both at work")
        if how == "deadline":
            link.extend(boot_time() - 1.0, boot_time() + 60.0)
        else:
            link.revoke("taken away")
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*acting)
        report = await link.ended(PATIENCE)
        assert report is not None
        assert report.cause == how
        assert ann.client.why == {"deadline": "deadline", "revoked": "taken away"}[how]
        seen = len(stage.site.acts())
        with pytest.raises(ClientRefused):
            await link.add_client()
        assert report.final_url == stage.site.url + "/"
        assert len(stage.site.acts()) == seen
    link.close()


async def test_a_hand_over_cuts_the_clients_of_the_run_before(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as ann:
        until = boot_time() + 300
        after = LeaseTerms(
            lease_id="lease_2",
            token=2,
            run_id="run_2",
            folder=str(stage.folder("run_2")),
            deadline=until,
            kill_at=until,
        )
        await link.hand_over(after)
        async with asyncio.timeout(PATIENCE):
            await ann.cut.wait()
        async with devtools(link) as bob:
            assert await bob.value("1 + 1", await bob.page()) == 2
        assert await context.pages[0].evaluate("1") == 1
    link.close()


async def test_what_the_worker_sends_while_a_person_has_control_waits(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context, devtools(link) as agent:
        page = context.pages[0]
        await page.goto(stage.site.url)
        await link.pause("ann has control")
        async with asyncio.timeout(PATIENCE):
            await agent.cut.wait()
        assert agent.client.why == "ann has control"
        acting = asyncio.ensure_future(page.evaluate("window.acted = (window.acted || 0) + 1"))
        async with devtools(link) as ann:
            # Pages that open meanwhile are prepared by Playwright, and work.
            session = await ann.page()
            created = await ann.ask("Target.createTarget", {"url": stage.site.url + "/popup"})
            await eventually_async(lambda: len(context.pages) == 2, "the page in Playwright's view")
            assert await ann.value("window.acted", session) is None
            attached = await ann.ask("Target.attachToTarget", {"targetId": created["targetId"], "flatten": True})
            assert await ann.value("location.pathname", attached["sessionId"]) == "/popup"
        assert not acting.done()
        link.resume()
        async with asyncio.timeout(PATIENCE):
            assert await acting == 1
        assert await page.evaluate("window.acted") == 1
    link.close()


async def test_the_page_that_a_client_used_last_is_the_evidence(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        async with devtools(link) as ann:
            created = await ann.ask("Target.createTarget", {"url": "about:blank"})
            attached = await ann.ask("Target.attachToTarget", {"targetId": created["targetId"], "flatten": True})
            # Playwright pauses a new page until it is prepared; Chromium may crash one that is sent elsewhere before.
            await eventually_async(lambda: len(context.pages) == 2, "the page in Playwright's view")
            await ann.ask("Page.navigate", {"url": stage.site.url + "/last"}, attached["sessionId"])
            await context.pages[1].wait_for_url("**/last", timeout=PATIENCE * 1000)
        link.request_close(with_evidence=True)
        report = await link.ended(PATIENCE)
        assert report is not None
        assert report.final_url == stage.site.url + "/last"
        assert any(command.method == "Page.navigate" for command in report.commands)
        with suppress(Exception):
            await context.close()
    link.close()
