"""JavaScript dialogs in a session: its clients answer them, or a person in the live view; what nobody answers is
dismissed. Published clients: `drive.mjs` and `drive.py` accept one before they click."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.async_api import Dialog, async_playwright
from websockets.asyncio.client import ClientConnection, connect

from tests.runtime.stage import PATIENCE
from tests.serving import ServerThread
from tests.sessions.stage import stage

_CLICKED = "if (confirm('sure?')) alert('then it is done')"
PAGE = f'data:text/html,<button onclick="{_CLICKED}" style="width:200px;height:60px">go</button>'


async def heard(socket: ClientConnection, wanted: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """The first message that is wanted; pictures are not."""
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await socket.recv()
            if isinstance(message, str) and wanted(found := json.loads(message)):
                return dict(found)


async def leave_open(cdp_url: str) -> None:
    """A client that asks the page for a dialog, sees it, and leaves."""
    async with connect(cdp_url) as socket:

        async def ask(number: int, method: str, **more: Any) -> Any:
            await socket.send(json.dumps({"id": number, "method": method, **more}))
            return (await heard(socket, lambda found: found.get("id") == number))["result"]

        targets = (await ask(1, "Target.getTargets"))["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        found = await ask(2, "Target.attachToTarget", params={"targetId": page, "flatten": True})
        session = found["sessionId"]
        await ask(3, "Page.enable", sessionId=session)
        later = {"expression": "void setTimeout(() => { document.title = confirm('left?') })"}
        await socket.send(json.dumps({"id": 4, "method": "Runtime.evaluate", "params": later, "sessionId": session}))
        await heard(socket, lambda found: found.get("method") == "Page.javascriptDialogOpening")


async def test_clients_and_people_answer_dialogs(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
        session = await at.open()
        await leave_open(session["cdp_url"])

        async def accept(dialog: Dialog) -> None:
            await dialog.accept("Ann")

        client = await playwright.chromium.connect_over_cdp(session["cdp_url"])
        page = client.contexts[0].pages[0]
        assert await page.evaluate("document.title") == "false", "the dialog that was left open was dismissed"
        page.on("dialog", accept)
        assert await page.evaluate("[confirm('sure?'), prompt('name?')]") == [True, "Ann"]
        await page.goto(PAGE)
        await client.close()

        url = session["live_view_url"].replace("http", "ws", 1) + "/socket"
        async with connect(url, additional_headers={"Cookie": f"leasekeeper_token={at.served.token}"}) as socket:
            while not isinstance(await socket.recv(), bytes):
                pass  # until there is a picture, nobody knows where to click
            for kind in ("down", "up"):
                await socket.send(json.dumps({"k": "mouse", "t": kind, "x": 50, "y": 30, "b": 0}))
            assert (await heard(socket, lambda found: found.get("dialog")))["dialog"]["message"] == "sure?"
            await socket.send(json.dumps({"k": "dialog", "accept": True}))
            await heard(socket, lambda found: (found.get("dialog") or {}).get("message") == "then it is done")
        assert (await at.release(session))["profile_state"] == "available", "an open dialog is in nobody's way"
