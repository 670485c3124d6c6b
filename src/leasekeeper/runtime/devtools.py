"""DevTools commands and their answers on one client of a browser. Knows the protocol's messages, but no pages."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from leasekeeper.driver_port import DevToolsClient

ANSWER_SECONDS: Final = 10.0

EventHandler = Callable[[str, Mapping[str, Any], str], Awaitable[None]]


class DevToolsError(Exception):
    """The browser refused a command, did not answer it in time, or has ended."""


class DevTools:
    """Sends commands over one client. Answers arrive only while `read` runs; it returns once the client is closed."""

    def __init__(self, client: DevToolsClient, on_event: EventHandler) -> None:
        self._client = client
        self._on_event = on_event
        self._number = 0
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}

    async def read(self) -> None:
        """Deliver answers and events until the client is closed."""
        try:
            while (message := await self._client.receive()) is not None:
                found = json.loads(message)
                if "id" not in found:
                    await self._on_event(found.get("method", ""), found.get("params") or {}, found.get("sessionId", ""))
                elif (waiting := self._asked.pop(found["id"], None)) is not None and not waiting.done():
                    waiting.set_result(found)
        finally:
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(DevToolsError(self._client.why or "the browser is gone"))
                    waiting.exception()  # asyncio logs an error that nobody reads, and the caller may be gone

    async def send(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> None:
        """Send a command without waiting for its answer."""
        await self._send(method, params, session)

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        session: str = "",
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> Mapping[str, Any]:
        """Send a command and return its result. Raises DevToolsError. Must not be called by an event handler: `read`
        waits for the handler, so no answer would arrive."""
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        number = await self._send(method, params, session, answer)
        try:
            async with asyncio.timeout(seconds):
                found = await answer
        except TimeoutError:
            raise DevToolsError(f"{method}: no answer within {seconds:g} s") from None
        finally:
            self._asked.pop(number, None)
        if "error" in found:
            raise DevToolsError(f"{method}: {found['error'].get('message', 'refused')}")
        result: Mapping[str, Any] = found.get("result") or {}
        return result

    async def _send(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        session: str,
        answer: "asyncio.Future[Mapping[str, Any]] | None" = None,
    ) -> int:
        self._number += 1
        number = self._number
        if answer is not None:
            self._asked[number] = answer
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        await self._client.send(json.dumps(message).encode())
        return number
