"""One person's view of a running browser: pictures and news to the person, and their input to the browser if they have
control.

A viewer is one more DevTools client of the browser's keeper, so it is cut off as every client is when the lease is
lost. Only the newest picture and the newest news of each kind wait for the person, however slowly they read.
"""

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

from leasekeeper.driver_port import DevToolsClient
from leasekeeper.runtime.screencast import Frame, Screencast, Tab
from leasekeeper.runtime.viewer_input import ViewerInput

_SIZE: Final = struct.Struct(">HH")
MAX_SIDE: Final = 0xFFFF
DIALOG_TEXT: Final = 10_000


class Screen:
    """The picture and the news that were not yet sent to the person."""

    def __init__(self) -> None:
        self._news: dict[str, object] = {}
        self._frame: Frame | None = None
        self._ready = asyncio.Event()
        self.frames = 0

    def say(self, kind: str, value: object) -> None:
        """Add news of one kind. It replaces news of that kind that was not sent yet."""
        self._news[kind] = value
        self._ready.set()

    def show(self, frame: Frame) -> None:
        """Replace the picture with a newer one."""
        self._frame = frame
        self.frames += 1
        self._ready.set()

    async def take(self) -> list[str | bytes]:
        """Wait for something to send, and return it: news as JSON, a picture as its size and a JPEG."""
        await self._ready.wait()
        self._ready.clear()
        news, frame = self._news, self._frame
        self._news, self._frame = {}, None
        messages: list[str | bytes] = [json.dumps({kind: value}) for kind, value in news.items()]
        if frame is not None:
            messages.append(_SIZE.pack(min(frame.width, MAX_SIDE), min(frame.height, MAX_SIDE)) + frame.jpeg)
        return messages


class Viewer:
    """The view through one client. `acts`: the person has control."""

    def __init__(self, client: DevToolsClient, screen: Screen, *, acts: bool) -> None:
        self._screen = screen
        self._acts = acts
        self._screencast = Screencast(
            client,
            on_frame=screen.show,
            on_tabs=self._tabs,
            on_event=self._heard,
            on_shown=self._attached,
        )
        self._input = ViewerInput(self._screencast, screen.say)

    async def run(self) -> None:
        """Run until the client is cut."""
        await self._screencast.run()

    async def receive(self, message: Mapping[str, Any]) -> None:
        """Handle what the person did. Every viewer may choose a tab; the rest is for the person who has control."""
        if message.get("k") == "tab":
            target = message.get("target")
            self._screencast.choose(target if isinstance(target, str) else None)
        elif self._acts:
            await self._input.act(message)

    def _tabs(self, tabs: list[Tab], shown: str | None) -> None:
        listed = [{"target": tab.target, "title": tab.title, "url": tab.url} for tab in tabs]
        self._screen.say("tabs", {"tabs": listed, "shown": shown})

    async def _attached(self) -> None:
        self._screen.say("dialog", None)
        if self._acts:
            await self._input.attached()

    async def _heard(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Page.javascriptDialogOpening":
            dialog = {"type": params.get("type"), "message": str(params.get("message", ""))[:DIALOG_TEXT]}
            self._screen.say("dialog", {**dialog, "default": str(params.get("defaultPrompt") or "")[:DIALOG_TEXT]})
        elif method == "Page.javascriptDialogClosed":
            self._screen.say("dialog", None)
        elif self._acts:
            await self._input.heard(method, params)
