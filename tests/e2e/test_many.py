"""Many jobs through one worker of eight: everything is done, and nothing is left over."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run
from leasekeeper.core.jobs import Job
from tests.conformance.world import profile
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop, press
from tests.runtime.stage import until

CONNECTIONS = 6
"""That the worker's two stores open to the file, three each: less than one a job."""

app = App()


@app.task("visit")
async def visit(run: Run) -> dict[str, Any]:
    await run.page.goto(run.payload["url"])
    async with run.mutating("click"):
        await press(run.page)
    return {"token": run.lease.token}


def open_files() -> list[str]:
    """What this process has open. Names of pipes and sockets differ from one to the next: only their kind counts."""
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the numbers are all that is wanted
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])  # noqa: PTH115 - not all are paths
    return found


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


async def finished(home: House, count: int) -> bool:
    stats = await home.store.stats()
    return stats.jobs.get("completed", 0) == count + 1


# What leaks with every job shows after twenty as well.
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(("profiles", "count"), [(7, 21), pytest.param(40, 200, marks=pytest.mark.release)])
async def test_many_jobs_leave_nothing_behind(
    sqlite_url: str, tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch, profiles: int, count: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_dir))
    names = [f"p{number:02d}" for number in range(profiles)]
    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path, *(profile(name) for name in names)) as home:
            # The first job of all makes the store open what it keeps open.
            await home.do(await home.submit("visit", names[0], payload={"url": shop.url}))
            jobs: list[Job] = []
            for number in range(count):
                title = f"{shop.url}/?title=job_{number}"
                jobs.append(await home.submit("visit", names[number % profiles], payload={"url": title}))
            files = open_files()
            async with home.worker(concurrency=8):

                async def done() -> bool:
                    return await finished(home, count)

                await until(done, patience=1200)

            async def only_the_database() -> bool:
                left = Counter(open_files()) - Counter(files)
                # SQLite keeps the file of a closed connection, for the next one, while the process has others.
                database = sum(count for name, count in left.items() if ".db" in name)
                return database <= CONNECTIONS and database == left.total()

            try:
                await until(only_the_database)
            except AssertionError:
                raise AssertionError(f"left open: {Counter(open_files()) - Counter(files)}") from None

            async def no_temporary_files() -> bool:
                return names_in(short_dir) == []

            await until(no_temporary_files)
            for number in range(count):
                assert len(shop.of(f"job_{number}", "/act")) == 1
            for name in names:
                assert (await home.lane(name)).state == "available"
