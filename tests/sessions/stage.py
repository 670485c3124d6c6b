"""A house with a server that runs sessions: what the tests of sessions over HTTP begin with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from leasekeeper.app import App
from leasekeeper.core.leases import RunRecord
from tests.runtime.browsing import House, house
from tests.runtime.stage import PATIENCE
from tests.serving import Served, ServerThread


@dataclass
class Stage:
    """A fleet with `p1`, and its server."""

    home: House
    served: Served
    api: httpx2.AsyncClient

    async def open(self, **body: Any) -> dict[str, Any]:
        """A new session, as `POST /v1/sessions` answers."""
        answer = await self.api.post("/v1/sessions", json={"profile_id": "p1", **body})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def post(self, session: dict[str, Any], what: str, **body: Any) -> httpx2.Response:
        """Use a session with its own token."""
        headers = {"Authorization": f"Bearer {session['session_token']}"}
        return await self.api.post(f"/v1/sessions/{session['session_id']}/{what}", json=body, headers=headers)

    async def release(self, session: dict[str, Any]) -> dict[str, Any]:
        answer = await self.post(session, "release")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def last_run(self) -> RunRecord:
        return (await self.home.store.find(RunRecord, limit=1)).items[0]


@asynccontextmanager
async def stage(
    server: ServerThread, url: str, folder: Path, *profiles: Any, sessions: int = 2, **more: Any
) -> AsyncIterator[Stage]:
    """A house, and a server over its store that runs browsers."""
    async with house(App(renew_every=0.3), url, folder, *profiles, **more) as home:
        settings = {"data_dir": str(home.data), "renew_every": 0.3, "close_after": 30.0, **more}
        served = await asyncio.to_thread(lambda: server.serve(url, sessions=sessions, **settings))
        try:
            async with httpx2.AsyncClient(base_url=served.url, headers=served.headers, timeout=PATIENCE) as api:
                yield Stage(home=home, served=served, api=api)
        finally:
            await asyncio.to_thread(served.close)
