"""The drop-ins as they are published: the examples of the pages, run by the real programs they are for."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from leasekeeper.app import App
from leasekeeper.client import Client
from leasekeeper.core.leases import RunRecord
from tests.conformance.world import profile
from tests.environments import ROOT, python_of
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.servers import wait_for_redis
from tests.serving import ServerThread
from tests.sessions.stage import stage

HERE = Path(__file__).resolve().parent
EXAMPLES = ROOT / "examples"
NODE = HERE / "node"


def environ_of(home: House, **more: str) -> dict[str, str]:
    own = {"LEASEKEEPER_STORE": home.config.store, "LEASEKEEPER_DATA_DIR": str(home.data)}
    return {**os.environ, **own, **more}


@asynccontextmanager
async def client_of(home: House) -> AsyncIterator[Client]:
    client = Client(await home.open_store(), home.config)
    try:
        yield client
    finally:
        await client.close()


async def runs(home: House) -> list[RunRecord]:
    return list((await home.store.find(RunRecord, limit=20)).items)


@contextmanager
def private_redis(folder: Path) -> Iterator[Path]:
    """A Redis for a queue: its socket."""
    place = folder / "r.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(place), "--dir", str(folder), "--save", ""]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_redis(process, place)
        yield place
    finally:
        process.terminate()
        process.wait(PATIENCE)


@asynccontextmanager
async def running(*command: str, env: dict[str, str], cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program in the background. It is asked to end, and has to."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env=env, cwd=cwd, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), PATIENCE)


async def test_a_celery_task_works_in_a_leased_browser_and_waits_its_turn(
    sqlite_url: str, tmp_path: Path, short_dir: Path
) -> None:
    with Shop() as shop, private_redis(short_dir) as place:
        async with house(App(), sqlite_url, tmp_path) as home, client_of(home) as client:
            env = environ_of(home, CELERY_BROKER_URL=f"redis+socket://{place}", BUSY_SECONDS="0.5")
            python = str(await asyncio.to_thread(python_of, "dropins"))
            celery = (python, "-m", "celery", "-A", "celery_tasks")
            worker = (*celery, "worker", "--pool", "prefork", "--concurrency", "1", "--without-mingle", "-l", "INFO")
            ask = (
                "import sys; from celery_tasks import sync_orders;"
                "print(sync_orders.delay(*sys.argv[1:]).get(timeout=150))"
            )
            async with running(*worker, env=env, cwd=EXAMPLES / "celery"):
                async with client.lease("p1"):
                    asking = await asyncio.create_subprocess_exec(
                        *(python, "-c", ask, "p1", f"{shop.url}/?title=celery"),
                        env=env,
                        cwd=EXAMPLES / "celery",
                        stdout=asyncio.subprocess.PIPE,
                    )

                    async def refused() -> bool:
                        return bool(await home.events(type="profile_lock_conflict"))

                    await until(refused)
                out, _ = await asyncio.wait_for(asking.communicate(), PATIENCE)
                assert out.decode().strip() == "celery"
            assert len(shop.of("celery", "/act")) == 1
            run = (await runs(home))[0]
            assert (run.purpose, run.result) == ("session", "completed")
            assert (await home.lane()).state == "available"


async def test_a_temporal_activity_gives_the_browser_back_however_it_ends(sqlite_url: str, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_of, "dropins")
    with Shop() as shop:
        async with house(App(), sqlite_url, tmp_path) as home, client_of(home) as client:

            async def begin(*arguments: str) -> asyncio.subprocess.Process:
                pipe = asyncio.subprocess.PIPE
                program = (str(python), str(HERE / "activity.py"), "p1", *arguments)
                env = environ_of(home, PYTHONPATH=str(EXAMPLES / "temporal"))
                return await asyncio.create_subprocess_exec(*program, env=env, stdin=pipe, stdout=pipe)

            async def ended(process: asyncio.subprocess.Process, said: bytes = b"") -> str:
                return (await asyncio.wait_for(process.communicate(said), PATIENCE))[0].decode().strip()

            assert await ended(await begin(f"{shop.url}/?title=temporal")) == "title temporal True"
            assert len(shop.of("temporal", "/act")) == 1
            async with client.lease("p1"):
                assert await ended(await begin(shop.url)) == "error ProfileBusy False"
            cancelled = await begin(f"{shop.url}/slow", "cancel")

            async def opened() -> bool:
                return bool(home.browsers_of("p1"))

            await until(opened)
            assert await ended(cancelled, b"now\n") == "cancelled"
            assert (await home.lane()).state == "available"
            assert not home.browsers_of("p1")


TESTS = """
import os

import pytest

def test_passes(leasekeeper_browser):
    leasekeeper_browser.page.goto(os.environ["SHOP"] + "/?title=pytest")
    leasekeeper_browser.checkpoint("open")
    assert leasekeeper_browser.page.title() == "pytest"

@pytest.mark.leasekeeper(pool="default", wait=5)
def test_fails(leasekeeper_browser):
    leasekeeper_browser.page.goto(os.environ["SHOP"])
    assert leasekeeper_browser.page.title() == "another"

@pytest.mark.leasekeeper("p1", colour="red")
def test_is_refused(leasekeeper_browser):
    pass
"""


async def test_the_pytest_plugin_leases_a_profile_for_each_test(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "test_shop.py").write_text(TESTS)
    (tmp_path / "suite" / "pytest.ini").write_text("[pytest]\nleasekeeper_profile = p1\n")
    with Shop() as shop:
        async with house(App(), sqlite_url, tmp_path) as home:
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"),
                env=environ_of(home, SHOP=shop.url),
                cwd=tmp_path / "suite",
                stdout=asyncio.subprocess.PIPE,
            )
            out = (await asyncio.wait_for(program.communicate(), PATIENCE))[0].decode()
            assert "1 failed, 1 passed" in out, out
            assert "the marker leasekeeper takes a profile" in out
            failed, passed = await runs(home)
            assert (passed.result, passed.last_safe_step) == ("completed", "open")
            assert (failed.result, failed.stop_reason) == ("failed", "TASK_ERROR")
            assert "test_shop.py::test_fails: AssertionError" in failed.message
            assert (home.evidence(failed) / "last.png").exists()
            assert (await home.lane()).state == "available"


async def test_cron_runs_a_program_with_a_browser_and_nothing_else_in_its_environment(
    sqlite_url: str, tmp_path: Path
) -> None:
    program = "import os; print(os.environ['LEASEKEEPER_PROFILE_ID'], os.environ['LEASEKEEPER_CDP_URL'][:5])"
    async with house(App(), sqlite_url, tmp_path) as home:
        line = f'{sys.executable} -m leasekeeper exec --profile p1 --wait 120 -- {sys.executable} -c "{program}"'
        env = {"HOME": str(tmp_path), "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "LOGNAME": "shop"}
        for name in ("LEASEKEEPER_STORE", "LEASEKEEPER_DATA_DIR"):
            env[name] = environ_of(home)[name]
        ran = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", line),
            env=env,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out = (await asyncio.wait_for(ran.communicate(), PATIENCE))[0].decode()
        assert (ran.returncode, out) == (0, "p1 ws://\n")
        assert (await runs(home))[0].result == "completed"


def node_modules() -> Path:
    """The locked packages. Not `npm ci`: the lock leaves out what other systems would install."""
    if not (NODE / "node_modules" / ".package-lock.json").exists():
        environ = {**os.environ, "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"}
        command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=NODE, env=environ, check=True, capture_output=True, timeout=280)
    return NODE / "node_modules"


ADD = """
import { Queue, QueueEvents } from "bullmq";
const connection = { url: process.env.REDIS_URL };
const [queue, events] = [new Queue("orders", { connection }), new QueueEvents("orders", { connection })];
await events.waitUntilReady();
const job = await queue.add("sync", JSON.parse(process.argv[2]));
console.log(await job.waitUntilFinished(events, 150000));
process.exit(0);
"""


async def test_a_bullmq_worker_works_in_sessions_and_waits_its_turn(
    server: ServerThread, sqlite_url: str, tmp_path: Path, short_dir: Path
) -> None:
    modules = await asyncio.to_thread(node_modules)
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(EXAMPLES / "bullmq" / "worker.mjs", tmp_path)
    (tmp_path / "add.mjs").write_text(ADD)
    with Shop() as shop, private_redis(short_dir) as place:
        async with stage(server, sqlite_url, tmp_path, profile("p1")) as at:
            token = await asyncio.to_thread(at.served.new_token, "work")
            own = {"LEASEKEEPER_URL": at.served.url, "LEASEKEEPER_TOKEN": token, "BUSY_MS": "500"}
            env = {**os.environ, **own, "REDIS_URL": str(place)}
            first = await at.open()
            async with running("node", "worker.mjs", env=env, cwd=tmp_path) as worker:
                assert worker.stdout is not None
                assert (await asyncio.wait_for(worker.stdout.readline(), PATIENCE)) == b"ready\n"
                data = f'{{"profile_id": "p1", "url": "{shop.url}/?title=bull"}}'
                adding = await asyncio.create_subprocess_exec(
                    *("node", "add.mjs", data), env=env, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
                )

                async def refused() -> bool:
                    return bool(await at.home.events(type="profile_lock_conflict"))

                await until(refused)
                await at.release(first)
                out, _ = await asyncio.wait_for(adding.communicate(), PATIENCE)
                assert out.decode().strip() == "bull"
            assert len(shop.of("bull", "/act")) == 1
            run: Any = await at.last_run()
            assert (run.result, run.output, run.last_safe_step) == ("completed", {"title": "bull"}, "shop_open")
            assert (await at.home.lane()).state == "available"
