"""The MCP server with the library's own client, over Streamable HTTP and stdio: tools, scopes, refusals that say what
to do; and Playwright MCP on a session that an agent opened."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from leasekeeper.app import App
from leasekeeper.service.agent_tools import TOOLS
from tests.conformance.world import profile
from tests.environments import python_of
from tests.runtime.browsing import house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE
from tests.serving import ServerThread
from tests.sessions.clients import PlaywrightMcp
from tests.sessions.test_faults import Server, running

NAMES = [
    *("find_profiles", "why", "open_session", "session_status", "checkpoint", "begin_mutation", "end_mutation"),
    *("request_human", "release", "submit_job", "job_status"),
]


class Agent:
    """A running agent. Calling it calls a tool."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), PATIENCE))

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([tool, arguments]).encode() + b"\n")
        found: dict[str, Any] = await self.line()
        return found

    async def well(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a call that has to go well."""
        result = await self(tool, **arguments)
        assert not result["error"], result
        found: dict[str, Any] = result["answer"]
        return found


@asynccontextmanager
async def agent(python: Path, *arguments: str, **environ: str) -> AsyncIterator[Agent]:
    pipe = asyncio.subprocess.PIPE
    program = str(Path(__file__).with_name("agent.py"))
    process = await asyncio.create_subprocess_exec(
        str(python), program, *arguments, env={**os.environ, **environ}, stdin=pipe, stdout=pipe, limit=2**22
    )
    try:
        found = Agent(process)
        assert await found.line() == NAMES
        yield found
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), PATIENCE)


def test_the_table_has_the_tools_that_are_promised() -> None:
    assert [tool.name for tool in TOOLS] == NAMES
    for tool in TOOLS:
        assert set(tool.required) <= tool.arguments.keys()


async def test_without_its_library_the_server_says_what_to_install(server: ServerThread, sqlite_url: str) -> None:
    served = await asyncio.to_thread(server.serve, sqlite_url)
    try:
        async with httpx2.AsyncClient(base_url=served.url) as api:
            assert (await api.post("/mcp", json={})).status_code == 401
            answer = await api.post("/mcp", json={}, headers=served.headers)
            assert (answer.status_code, "leasekeeper[mcp" in answer.json()["detail"]) == (400, True)
    finally:
        await asyncio.to_thread(served.close)


async def leave_waiting(server: Server, token: str, **arguments: Any) -> None:
    """An agent that asks for a session over HTTP, and goes away before there is one."""
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=1.0) as client:
        with pytest.raises(httpx2.TimeoutException):
            await client.post("/mcp", json={**asked, "params": {"name": "open_session", "arguments": arguments}})


async def test_an_agent_works_with_a_session_and_is_refused_what_it_may_not(sqlite_url: str, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_of, "mcp")
    people = profile("p1", driver="null"), profile("p2", account_id="a2", driver="null")
    async with (
        house(App(), sqlite_url, tmp_path, *people, drivers="null") as home,
        running(home, python=str(python), LEASEKEEPER_DRIVERS="null") as server,
        server.client() as api,
    ):
        texts = {}
        for name, scopes in (("all", ["read", "work", "submit"]), ("reader", ["read"])):
            made = await api.post("/v1/tokens", json={"name": name, "scopes": scopes})
            texts[name] = made.json()["text"]
        async with agent(python, server.url, texts["all"]) as call:
            found = await call.well("find_profiles", state="available")
            assert {each["profile_id"] for each in found["items"]} == {"p1", "p2"}
            opened = await call.well("open_session", profile_id="p1", idle_timeout_s=300)
            assert opened["cdp_url"].startswith(server.url.replace("http:", "ws:"))
            session = {"session_id": opened["session_id"]}
            busy = await call("open_session", profile_id="p1")
            assert (busy["error"], busy["answer"]["code"]) == (True, "PROFILE_NOT_AVAILABLE")
            assert busy["answer"]["data"]["holder"]
            assert (await call.well("session_status", **session))["state"] == "open"
            await call.well("checkpoint", **session, step="list_open")
            await call.well("begin_mutation", **session, name="order")
            await call.well("end_mutation", **session, name="order")
            nobody = await call.well("request_human", **session, message="solve the prompt", timeout_s=1)
            assert (nobody["state"], nobody["asked"]) == ("nobody_came", "solve the prompt")
            await api.post(f"/v1/sessions/{opened['session_id']}/request-human", json={"message": "solve the prompt"})
            done, _ = await asyncio.gather(
                call.well("request_human", **session),
                api.post(f"/v1/runs/{opened['session_id']}/hand-back", json={"outcome": "solved"}),
            )
            assert (done["state"], done["outcome"], done["session_id"]) == ("answered", "solved", session["session_id"])
            assert done["next"].startswith("go on in the same session")
            given = await call.well("release", **session, reason="HUMAN_REVIEW_REQUIRED", message="look at it")
            assert given["profile_state"] == "review_required"
            late = await call("checkpoint", **session, step="late")
            assert late["error"]
            assert late["text"].startswith("SESSION_ENDED: session ")
            assert "open another session" in late["text"]
            assert (await call.well("why", profile_id="p1"))["profile"]["state"] == "review_required"
            job = (await call.well("submit_job", task="visit", profile_id="p2"))["items"][0]["job"]
            assert (await call.well("job_status", job_id=job["job_id"]))["task"] == "visit"
            wrong = await call("checkpoint", session_id="s", color="red")
            assert wrong["answer"]["problems"] == [
                {"where": "color", "message": "no such argument"},
                {"where": "step", "message": "is required"},
            ]
            held = await call.well("open_session", profile_id="p2")
            await leave_waiting(server, texts["all"], profile_id="p2", wait_s=500)
            await call.well("release", session_id=held["session_id"])
            again = await call.well("open_session", profile_id="p2", wait_s=60)
            assert again["fencing_token"] == held["fencing_token"] + 1, "the one who left was given no lease in between"
            await call.well("release", session_id=again["session_id"])
        async with agent(python, server.url, texts["reader"]) as call:
            denied = await call("open_session", profile_id="p2")
            assert denied["text"].startswith("SCOPE_MISSING: ")
        async with agent(python, "stdio", LEASEKEEPER_STORE=server.url, LEASEKEEPER_TOKEN=texts["all"]) as call:
            opened = await call.well("open_session", account_id="a2")
            assert (await call.well("release", session_id=opened["session_id"]))["state"] == "ended"


async def test_an_agent_on_stdio_opens_a_browser_that_playwright_mcp_drives(sqlite_url: str, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_of, "mcp")
    with Shop() as shop:
        async with house(App(), sqlite_url, tmp_path) as home:
            environ = {"LEASEKEEPER_STORE": sqlite_url, "LEASEKEEPER_DATA_DIR": str(home.data)}
            async with agent(python, "stdio", **environ) as call:
                opened = await call.well("open_session", profile_id="p1")
                hands = await PlaywrightMcp.start(opened["cdp_url"], tmp_path)
                shown = await hands.tool("browser_navigate", url=f"{shop.url}/?title=agent")
                assert "Page Title: agent" in json.dumps(shown)
                done = await call.well("release", session_id=opened["session_id"])
                assert done["profile_state"] == "available"
                await hands.close()
