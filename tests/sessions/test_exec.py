"""`leasekeeper exec --session`: a program in a session that a server has opened."""

import asyncio
import os
import sys
from pathlib import Path

from tests.runtime.stage import PATIENCE
from tests.serving import ServerThread
from tests.sessions.stage import stage

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
