"""The Node example of the docs, run by a real Node against a real server: the one that Playwright brings along."""

import asyncio
import os
import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

from tests.conformance.world import profile
from tests.evidence.test_uploads import new_app
from tests.runtime.browsing import house
from tests.serving import ServerThread

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "node" / "submit.mjs"


async def run_node(folder: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    node = compute_driver_executable()[0]
    return await asyncio.to_thread(
        subprocess.run,
        [node, str(EXAMPLE), *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


async def test_the_node_example_submits_waits_and_fetches_evidence(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as home:
        served = await asyncio.to_thread(server.serve, sqlite_url, data_dir=str(home.data))
        try:
            token = await asyncio.to_thread(served.new_token, "submit", "read")
            environ = {"LEASEKEEPER_URL": served.url, "LEASEKEEPER_TOKEN": token, "KEY": "order-42"}
            async with home.worker():
                done = await run_node(tmp_path, "leave", "p1", **environ)
                again = await run_node(tmp_path, "leave", "p1", **environ)
            assert (done.returncode, done.stderr) == (0, "")
            assert "state completed" in done.stdout
            assert "saved order.txt, 8 bytes" in done.stdout
            assert (tmp_path / "order.txt").read_text() == "order 42"
            assert "(known already)" in again.stdout
            wrong = await run_node(tmp_path, "leave", "nobody", **environ)
            assert wrong.returncode != 0
            narrow = {**environ, "LEASEKEEPER_TOKEN": await asyncio.to_thread(served.new_token, "read")}
            refused = await run_node(tmp_path, "leave", "p1", **narrow)
            assert "SCOPE_MISSING: " in refused.stderr
        finally:
            await asyncio.to_thread(served.close)
