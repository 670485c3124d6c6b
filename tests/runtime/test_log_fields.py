"""Log lines of a run have its ids, whoever writes them; lines outside of a run have none."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.cli.log_format import JsonLines
from leasekeeper.core.browsers import NULL
from leasekeeper.runtime.log_fields import RunFields
from tests.conformance.world import profile
from tests.runtime.browsing import house

SHOP = logging.getLogger("shop")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a program that runs for long writes to its log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(RunFields())
    SHOP.addHandler(handler)
    SHOP.setLevel(logging.INFO)
    yield stream
    SHOP.removeHandler(handler)


def an_app() -> App:
    app = App()

    @app.task("look")
    async def look(run: Run) -> None:
        SHOP.info("in the task")
        await asyncio.gather(asyncio.create_task(_note("in a task of its own")), asyncio.to_thread(SHOP.info, "aside"))

    @app.task("look_plainly")
    def look_plainly(run: SyncRun) -> None:
        SHOP.info("in a plain task")

    return app


async def _note(message: str) -> None:
    SHOP.info(message)


async def test_whatever_a_run_logs_has_its_ids(sqlite_url: str, tmp_path: Path, lines: io.StringIO) -> None:
    settings: dict[str, Any] = {"drivers": NULL, "browser": "/nowhere/chromium"}
    async with house(an_app(), sqlite_url, tmp_path, profile("p1", driver=NULL), warm_runs=3, **settings) as home:
        jobs = [await home.submit("look"), await home.submit("look_plainly")]
        await home.do(*jobs)
        runs: list[Any] = [await home.run_of(job) for job in jobs]
    SHOP.info("outside")
    *inside, outside = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert {line["message"] for line in inside} == {"in the task", "in a task of its own", "aside", "in a plain task"}
    for line in inside:
        job, run = (jobs[1], runs[1]) if line["message"] == "in a plain task" else (jobs[0], runs[0])
        assert (line["run_id"], line["job_id"], line["profile_id"]) == (run.run_id, job.job_id, "p1")
        assert (line["lease_id"], line["token"], line["task"]) == (run.lease_id, run.token, run.task)
    assert not {"run_id", "job_id", "token"} & set(outside)
