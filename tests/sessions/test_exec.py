"""`leasekeeper exec`: a program in a session that a server has opened, and Playwright MCP as an agent's program starts
it."""

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path

from leasekeeper.app import App
from leasekeeper.core.leases import RunRecord
from tests.conformance.world import profile
from tests.runtime.browsing import house
from tests.runtime.stage import PATIENCE
from tests.serving import ServerThread
from tests.sessions.clients import PlaywrightMcp, playwright_mcp
from tests.sessions.stage import stage

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "use-it-from-an-agent.md"

TELL = "import os; print(*(os.environ[f'LEASEKEEPER_{name}'] for name in ('PROFILE_ID', 'FENCING_TOKEN', 'CDP_URL')))"
STAY = "import signal; print('ready', flush=True); signal.pause()"


async def start(url: str, program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasekeeper", "exec", "--session", url, "--", sys.executable, "-c", program),
        env={**os.environ, "LEASEKEEPER_STORE": "sqlite:////nowhere/no.db"},  # it needs none
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(program: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(program.communicate(), PATIENCE)
    return program.returncode, out.decode(), err.decode()


async def test_a_program_runs_in_an_open_session_and_releases_it(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path) as at:
        opened = await at.open()
        code, said, _ = await ended(await start(opened["cdp_url"], f"{TELL}; raise SystemExit(3)"))
        assert (code, said) == (3, f"p1 1 {opened['cdp_url']}\n")
        run = await at.last_run()
        assert (run.result, run.stop_reason) == ("failed", "TASK_ERROR")
        assert (run.message or "").endswith("ended with exit code 3")
        code, _, why = await ended(await start(opened["cdp_url"], TELL))
        assert (code, f"session {opened['session_id']} is over" in why) == (5, True), why
        second = await at.open()
        program = await start(second["cdp_url"], STAY)
        assert program.stdout is not None
        assert await asyncio.wait_for(program.stdout.readline(), PATIENCE) == b"ready\n"
        answer = await at.post(second, "release", reason="LOGIN_REQUIRED", message="the shop wants a password")
        assert answer.status_code == 200, answer.text
        code, _, why = await ended(program)
        assert (code, "LOGIN_REQUIRED" in why) == (5, True), why
        code, _, why = await ended(await start("ws://127.0.0.1:1/v1/sessions/x", TELL))
        assert (code, "must be the whole cdp_url" in why) == (2, True), why


async def test_the_guides_configuration_gives_an_agent_a_leased_browser(sqlite_url: str, tmp_path: Path) -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)]
    (servers,) = [block["mcpServers"] for block in blocks if "playwright" in block["mcpServers"]]
    found, program = servers["playwright"], await asyncio.to_thread(playwright_mcp)
    *arguments, line = found["args"]
    line, replaced = re.subn(r"npx @playwright/mcp@[\d.]+", f"node {shlex.quote(str(program))}", line)
    assert (found["command"], replaced) == ("leasekeeper", 1)
    async with house(App(), sqlite_url, tmp_path, profile("store_us_018")) as home:
        command = (sys.executable, "-m", "leasekeeper", *arguments, line)
        environ = {"LEASEKEEPER_STORE": sqlite_url, "LEASEKEEPER_DATA_DIR": str(home.data)}
        agent = await PlaywrightMcp.run(*command, folder=tmp_path, **environ)
        shown = await agent.tool("browser_navigate", url="data:text/html,<title>orders</title>")
        assert "Page Title: orders" in json.dumps(shown)
        asked = await agent.tool("browser_evaluate", function="() => { document.title = confirm('sure?') }")
        assert "sure?" in json.dumps(asked)
        answered = await agent.tool("browser_handle_dialog", accept=True)
        assert not answered.get("isError"), answered
        assert "Page Title: true" in json.dumps(await agent.tool("browser_snapshot"))
        await agent.close()
        (run,) = (await home.store.find(RunRecord)).items
        assert (run.purpose, run.result) == ("session", "completed")
        assert (await home.lane("store_us_018")).state == "available"
