"""The programs that drive sessions in tests: published clients, as they are, in processes of their own."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.runtime.stage import PATIENCE

HERE = Path(__file__).resolve().parent
NODE = HERE / "node"
NODE_CLIENTS = ("playwright", "puppeteer")
CLIENTS = (*NODE_CLIENTS, "python")
ENDLESS = 1_000_000


def node_modules() -> Path:
    """The locked packages, installed if they are missing; by one test process, while the others wait."""
    found = NODE / "node_modules"
    stamp = found / ".package-lock.json"
    with (NODE / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            npm = shutil.which("npm")
            assert npm is not None, "these tests need Node and npm"
            environ = {**os.environ, "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"}
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(command, cwd=NODE, env=environ, check=True, capture_output=True, timeout=280)
    return found


def playwright_mcp() -> Path:
    """The program that `npx @playwright/mcp` runs."""
    return node_modules() / "@playwright" / "mcp" / "cli.js"


class Driver:
    """A running client. `lines` are what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, kind: str, cdp_url: str, site: str, name: str, times: int = ENDLESS) -> Self:
        if kind in NODE_CLIENTS:
            await asyncio.to_thread(node_modules)
            command = ["node", str(NODE / "drive.mjs"), kind, site, name, str(times)]
        else:
            command = [sys.executable, str(HERE / "drive.py"), site, name, str(times)]
        environ = {**os.environ, "LEASEKEEPER_CDP_URL": cdp_url}
        pipe = asyncio.subprocess.PIPE
        found = cls(await asyncio.create_subprocess_exec(*command, env=environ, stdout=pipe, stderr=pipe))
        assert await found.line() == "ready", await found.rest()
        return found

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)).decode().strip()

    async def rest(self) -> list[str]:
        """What else it says, once it has ended."""
        out, err = await asyncio.wait_for(self.process.communicate(), PATIENCE)
        return [*out.decode().splitlines(), *err.decode().splitlines()]


class PlaywrightMcp:
    """Playwright MCP on a session's address, spoken to over stdio as an agent does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._next = 0

    @classmethod
    async def start(cls, cdp_url: str, folder: Path) -> Self:
        program = await asyncio.to_thread(playwright_mcp)
        return await cls.run("node", str(program), "--cdp-endpoint", cdp_url, folder=folder)

    @classmethod
    async def run(cls, *command: str, folder: Path, **environ: str) -> Self:
        """Start it by this command."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env={**os.environ, **environ}, stdin=pipe, stdout=pipe, limit=2**24
        )
        found = cls(process)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await found.ask("initialize", about)
        found._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One call and its answer."""
        assert self._process.stdout is not None
        self._next += 1
        self._send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        while True:
            line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)
            assert line, "Playwright MCP has ended"
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == self._next:
                return message

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.ask("tools/call", {"name": name, "arguments": arguments})
        result: dict[str, Any] = answer["result"]
        return result

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), PATIENCE)
