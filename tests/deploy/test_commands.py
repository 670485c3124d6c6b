"""What `deploy/` runs, run without a container: the same commands, the same variables, a real PostgreSQL."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leasekeeper.core.jobs import Job
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.deploy.test_files import DEPLOY, ROOT, compose
from tests.runtime.stage import until

FLEET = "accounts: {shop: {}}\nprofiles: {shop_main: {account: shop, driver: 'null'}}\n"
TASKS = """\
from leasekeeper import App, Run
app = App()

@app.task("note")
async def note(run: Run) -> None:
    await run.attach("note.txt", "done")
"""


def environment(url: str, folder: Path) -> dict[str, str]:
    """The variables of the compose file, with places of this machine for those in the container."""
    given = {name: str(value) for name, value in compose()["services"]["worker"]["environment"].items()}
    here = {"LEASEKEEPER_STORE": url, "LEASEKEEPER_DRIVERS": "null"}
    places = {name: f"{folder}{value}" for name, value in given.items() if value.startswith("/")}
    assert set(given) <= {*here, *places}
    return {**os.environ, **given, **places, **here}


def command(service: str) -> list[str]:
    """What a service of the compose file runs. Its port is a free one here, and its address loopback."""
    found: list[str] = compose()["services"][service]["command"]
    here = {"7070": "0", "0.0.0.0": "127.0.0.1"}  # noqa: S104 - in the container
    return [sys.executable, "-m", "leasekeeper", *(here.get(each, each) for each in found)]


@contextmanager
def started(service: str, folder: Path, environ: dict[str, str]) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    log = folder / f"{service}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command(service), cwd=folder, env=environ, stdout=file, stderr=file)
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def stop(process: "subprocess.Popen[bytes]") -> int:
    """As a service manager stops it."""
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 120)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own server
        return json.load(answer)


async def test_what_the_compose_file_runs_works_together(postgres_url: str, tmp_path: Path) -> None:
    environ = environment(postgres_url, tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    migrate = await asyncio.to_thread(subprocess.run, command("migrate"), cwd=tmp_path, env=environ, check=False)
    assert migrate.returncode == 0
    apply = [sys.executable, "-m", "leasekeeper", "apply", "fleet.yaml", "--yes"]
    assert (await asyncio.to_thread(subprocess.run, apply, cwd=tmp_path, env=environ, check=False)).returncode == 0
    store = await open_store(postgres_url)
    try:
        with started("server", tmp_path, environ) as (server, log), started("worker", tmp_path, environ) as (worker, _):

            async def address() -> str:
                found = re.search(r"serving (http://\S+?);", await asyncio.to_thread(log.read_text))
                assert server.poll() is None, log.read_text()
                return found[1] if found else ""

            url = await until(address)
            assert (await asyncio.to_thread(get, f"{url}/readyz"))["status"] == "ok"
            assert "admin token, shown this once" in log.read_text()
            (submitted,) = await store.submit(parse_jobs([{"task": "note", "profile_id": "shop_main"}]))

            async def done() -> bool:
                return (await store.get(Job, submitted.job.job_id)).state == "completed"

            await until(done)
            run_id = (await store.get(Job, submitted.job.job_id)).run_id
            assert (tmp_path / "evidence" / str(run_id) / "note.txt").read_text() == "done"
            assert (await stop(worker), await stop(server)) == (0, 0)
    finally:
        await store.close()


def test_what_the_image_installs_is_what_a_wheel_holds(tmp_path: Path) -> None:
    """The image is built from a wheel of these files alone."""
    copied = ["pyproject.toml", "README.md", "LICENSE", "src", "tools/vendored.py"]
    assert [name for name in copied if f" {name}" not in (DEPLOY / "Dockerfile").read_text()] == []
    for name in copied:
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert len(list((tmp_path / "wheels").glob("leasekeeper-*.whl"))) == 1
