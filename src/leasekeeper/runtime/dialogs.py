"""Decides who answers the JavaScript dialogs of a browser that other programs drive.

Playwright, which launched the browser, sees every dialog and dismisses it unless a listener is registered. While a
client or a person may answer dialogs, a listener here prevents that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from leasekeeper.errors import safe_str

_LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 15.0
DISMISS_SECONDS: Final = 2.0


class Dialogs:
    """The dialogs of one context of Playwright's async API. `answers` returns once the Playwright process has handled
    every command that was sent before."""

    def __init__(self, context: Any, answers: Callable[[], Awaitable[object]]) -> None:
        self._context = context
        self._answers = answers
        self._left = False
        self._open: list[Any] = []
        self._dismissing: set[asyncio.Future[None]] = set()

    async def leave(self, *, to_others: bool) -> None:
        """With `to_others`, dismiss no dialog from now on. Without, dismiss those that are open, and let Playwright
        dismiss later ones that have no listener."""
        if to_others is self._left:
            return
        self._left = to_others
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._change(to_others=to_others)
        except Exception as error:  # noqa: BLE001 - without Playwright nobody dismisses any
            _LOG.warning("it could not be changed who answers dialogs: %s", safe_str(error))

    async def _change(self, *, to_others: bool) -> None:
        if to_others:
            # The class's method: the context that a task was given counts calls of its own.
            add = type(self._context).on
            add(self._context, "dialog", self._opened)
            add(self._context, "dialogclosed", self._closed)
            await self._answers()
            return
        self._context.remove_listener("dialog", self._opened)
        self._context.remove_listener("dialogclosed", self._closed)
        await self._dismiss_open()

    def _opened(self, dialog: Any) -> None:
        self._open.append(dialog)

    def _closed(self, dialog: Any) -> None:
        if dialog in self._open:
            self._open.remove(dialog)

    async def _dismiss_open(self) -> None:
        """Dismiss open dialogs as Playwright does. A paused browser answers only when resumed: do not wait for that."""
        dismissing = [asyncio.ensure_future(_dismiss(dialog)) for dialog in self._open]
        self._open.clear()
        for each in dismissing:
            self._dismissing.add(each)
            each.add_done_callback(self._dismissing.discard)
        if dismissing:
            await asyncio.wait(dismissing, timeout=DISMISS_SECONDS)


async def _dismiss(dialog: Any) -> None:
    with suppress(Exception):  # it was answered, or its page is closed
        await (dialog.accept() if dialog.type == "beforeunload" else dialog.dismiss())
