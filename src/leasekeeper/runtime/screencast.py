"""The picture of a browser: which page is shown, and its newest frame. Reads only: no page notices that it is shown.

Frames are acknowledged as they arrive and never queued: a slow viewer gets the newest one later. A page is never
resized or brought to the front.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from leasekeeper.driver_port import DevToolsClient
from leasekeeper.runtime.devtools import DevTools, DevToolsError

QUALITY: Final = 70
MAX_WIDTH: Final = 1_280
MAX_HEIGHT: Final = 1_280
PRIME_SECONDS: Final = 5.0
MAX_TABS: Final = 100
MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture. `width` and `height` are the page's, in CSS pixels; the picture itself may be smaller."""

    width: int
    height: int
    jpeg: bytes


@dataclass(frozen=True, slots=True)
class Tab:
    """One page of the browser."""

    target: str
    title: str
    url: str


EventSink = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class Screencast:
    """Shows one page at a time: the one that was chosen, or the one in which something happened last.

    `on_frame` and `on_tabs` are called as things change; `on_event` with other events of the page that is shown, and
    `on_shown` when another page is.
    """

    def __init__(
        self,
        client: DevToolsClient,
        *,
        on_frame: Callable[[Frame], None],
        on_tabs: Callable[[list[Tab], str | None], None] = lambda _tabs, _shown: None,
        on_event: EventSink | None = None,
        on_shown: Callable[[], Awaitable[None]] | None = None,
        every_nth: int = 1,
    ) -> None:
        self.devtools = DevTools(client, self._heard)
        self.session = ""
        self._on_frame = on_frame
        self._on_tabs = on_tabs
        self._on_event = on_event
        self._on_shown = on_shown
        self._every_nth = every_nth
        self._tabs: dict[str, Tab] = {}
        self._active: str | None = None
        self._chosen: str | None = None
        self._shown: str | None = None
        self._changed = asyncio.Event()
        self._primed = False

    async def run(self) -> None:
        """Show the browser until the client is cut."""
        reading = asyncio.ensure_future(self.devtools.read())
        following = asyncio.ensure_future(self._follow())
        try:
            with suppress(DevToolsError):
                await self.devtools.ask("Target.setDiscoverTargets", {"discover": True})
            await asyncio.wait({reading, following}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, following):
                task.cancel()
            await asyncio.gather(reading, following, return_exceptions=True)

    def choose(self, target: str | None) -> None:
        """Show this page; None: follow the one in which something happens."""
        self._chosen = target
        self._changed.set()

    async def _heard(self, method: str, params: Mapping[str, Any], session: str) -> None:
        if method == "Page.screencastFrame" and session == self.session:
            await self.devtools.send("Page.screencastFrameAck", {"sessionId": params["sessionId"]}, session)
            seen = params["metadata"]
            self._show_frame(params["data"], seen.get("deviceWidth"), seen.get("deviceHeight"))
            self._primed = True
        elif method in ("Target.targetCreated", "Target.targetInfoChanged"):
            self._on_target(params["targetInfo"])
        elif method == "Target.targetDestroyed":
            self._forget(params["targetId"])
        elif session == self.session and self._on_event is not None:
            await self._on_event(method, params)

    def _on_target(self, info: Mapping[str, Any]) -> None:
        if info.get("type") != "page" or (info["targetId"] not in self._tabs and len(self._tabs) >= MAX_TABS):
            return
        target = info["targetId"]
        tab = Tab(target, str(info.get("title", ""))[:MAX_TEXT], str(info.get("url", ""))[:MAX_TEXT])
        before = self._tabs.get(target)
        self._tabs[target] = tab
        if before is None or before.url != tab.url:
            self._active = target
        self._changed.set()

    def _forget(self, target: str) -> None:
        if self._tabs.pop(target, None) is None:
            return
        if self._active == target:
            self._active = next(reversed(self._tabs), None)
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._chosen if self._chosen in self._tabs else self._active
            if wanted is not None and wanted != self._shown:
                with suppress(DevToolsError):  # the page was closed meanwhile: its end is an event too
                    await self._show(wanted)
            elif wanted is None:
                self._shown, self.session = None, ""
            self._on_tabs(list(self._tabs.values()), self._shown)

    async def _show(self, target: str) -> None:
        devtools, before = self.devtools, self.session
        self._shown, self._primed = target, False
        if before:
            await devtools.send("Target.detachFromTarget", {"sessionId": before})
        try:
            found = await devtools.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        except DevToolsError:
            self._shown, self.session = None, ""
            raise
        self.session = str(found["sessionId"])
        await devtools.send("Page.enable", {}, self.session)
        cast = {"format": "jpeg", "quality": QUALITY, "maxWidth": MAX_WIDTH, "maxHeight": MAX_HEIGHT}
        await devtools.send("Page.startScreencast", {**cast, "everyNthFrame": self._every_nth}, self.session)
        if self._on_shown is not None:
            await self._on_shown()
        await self._prime(self.session)

    async def _prime(self, session: str) -> None:
        """A page that does not change sends no frame: the first picture is a screenshot."""
        with suppress(DevToolsError):
            size = await self.devtools.ask("Page.getLayoutMetrics", {}, session, seconds=PRIME_SECONDS)
            shot = {"format": "jpeg", "quality": QUALITY}
            found = await self.devtools.ask("Page.captureScreenshot", shot, session, seconds=PRIME_SECONDS)
            view = size.get("cssLayoutViewport") or {}
            if not self._primed and session == self.session:
                self._show_frame(found["data"], view.get("clientWidth"), view.get("clientHeight"))

    def _show_frame(self, data: str, width: object, height: object) -> None:
        if not isinstance(width, int | float) or not isinstance(height, int | float) or not width or not height:
            return
        with suppress(binascii.Error):
            self._on_frame(Frame(int(width), int(height), base64.b64decode(data)))
