"""A small DevTools client for tests: it numbers its commands, waits for their answers, and keeps what else came."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.driver_port import DevToolsClient
from tests.browsers.keeper_stage import PATIENCE


class Cut(Exception):
    """The client was cut before the answer came."""


class DevTools:
    """One client at a keeper."""

    def __init__(self, client: DevToolsClient) -> None:
        self.client = client
        self.events: list[dict[str, Any]] = []
        self.cut = asyncio.Event()
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (message := await self.client.receive()) is not None:
            found = json.loads(message)
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
            else:
                self.events.append(found)
        self.cut.set()
        for waiting in self._answers.values():
            waiting.set_exception(Cut(self.client.why))

    async def answer(self, method: str, params: dict[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        """The whole answer, error or not. Raises Cut if there will be none."""
        if self.cut.is_set():
            raise Cut(self.client.why)
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        waiting = self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        await self.client.send(json.dumps(message).encode())
        return await asyncio.wait_for(waiting, PATIENCE)

    async def ask(self, method: str, params: dict[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        """The result; an error fails the test."""
        answer = await self.answer(method, params, session)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def page(self) -> str:
        """A session on the first page."""
        targets = (await self.ask("Target.getTargets"))["targetInfos"]
        target = next(found["targetId"] for found in targets if found["type"] == "page")
        attached = await self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        session: str = attached["sessionId"]
        return session

    async def value(self, expression: str, session: str) -> Any:
        found = await self.ask("Runtime.evaluate", {"expression": expression, "returnByValue": True}, session)
        return found["result"].get("value")

    async def close(self) -> None:
        await self.client.close()
        await self._reading


@asynccontextmanager
async def devtools(link: KeeperLink) -> AsyncIterator[DevTools]:
    tools = DevTools(await link.add_client())
    try:
        yield tools
    finally:
        await tools.close()
