"""What a person does in the live view, as commands to a page that is busy. `tests/sessions` does it in a browser."""

import asyncio
import base64
import json
from typing import Any

import pytest

from leasekeeper.runtime import viewer_input
from leasekeeper.runtime.screencast import Screencast
from leasekeeper.runtime.viewer_input import ViewerInput


class BusyPage:
    """The browser's side of one client. It answers questions about nodes, and runs no function: a dialog is open."""

    why = ""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: bytes) -> None:
        command = json.loads(message)
        self.commands.append(command)
        if command["method"] == "DOM.resolveNode":
            found = {"object": {"objectId": f"node {command['params']['backendNodeId']}"}}
            self._answers.put_nowait(json.dumps({"id": command["id"], "result": found}).encode())

    async def receive(self) -> bytes | None:
        return await self._answers.get()

    async def close(self) -> None:
        pass


async def test_a_dialog_that_the_files_bring_up_can_be_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer_input, "ASK_SECONDS", 10_000.0)
    page = BusyPage()
    screen = Screencast(page, on_frame=lambda _frame: None)
    screen.session = "session"
    said: list[tuple[str, object]] = []
    given = ViewerInput(screen, lambda kind, value: said.append((kind, value)))
    reading = asyncio.ensure_future(screen.devtools.read())
    await given.heard("Page.fileChooserOpened", {"backendNodeId": 7, "mode": "selectSingle"})
    assert said == [("files", {"multiple": False})]
    file = {"name": "note.txt", "type": "text/plain", "data": base64.b64encode(b"hello").decode()}
    async with asyncio.timeout(60):
        await given.act({"k": "files", "files": [file]})
    await given.act({"k": "dialog", "accept": True})
    reading.cancel()
    methods = [command["method"] for command in page.commands]
    assert methods == ["DOM.resolveNode", "Runtime.callFunctionOn", "Page.handleJavaScriptDialog"]
    assert page.commands[1]["params"]["objectId"] == "node 7"
    assert page.commands[1]["params"]["arguments"] == [{"value": [file]}]
    await given.act({"k": "files", "files": [file]})
    assert len(page.commands) == 3, "nobody asks for files any more"
