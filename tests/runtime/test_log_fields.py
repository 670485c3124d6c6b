"""Log lines of a run have its ids, whoever writes them; lines outside of a run have none."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.cli.evidence import evidence_lines
from leasekeeper.cli.log_format import JsonLines
from leasekeeper.cli.table import Screen
from leasekeeper.core.browsers import NULL
from leasekeeper.runtime.endings import MAX_TRACEBACK
from leasekeeper.runtime.log_fields import RunFields
from tests.conformance.world import profile
from tests.runtime.browsing import house

SHOP = logging.getLogger("shop")
PLAIN = Screen(width=None, colours=False)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a program that runs for long writes to its log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(RunFields())
    loggers = (SHOP, logging.getLogger("leasekeeper.task.look"))
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    yield stream
    for each in loggers:
        each.removeHandler(handler)
        each.setLevel(logging.NOTSET)


def an_app() -> App:
    app = App()

    @app.task("look")
    async def look(run: Run) -> None:
        SHOP.info("in the task")
        run.log.info("by the run's own logger")
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
    said = {"in the task", "by the run's own logger", "in a task of its own", "aside", "in a plain task"}
    assert {line["message"] for line in inside} == said
    for line in inside:
        job, run = (jobs[1], runs[1]) if line["message"] == "in a plain task" else (jobs[0], runs[0])
        assert (line["run_id"], line["job_id"], line["profile_id"]) == (run.run_id, job.job_id, "p1")
        assert (line["lease_id"], line["token"], line["task"]) == (run.lease_id, run.token, run.task)
    assert not {"run_id", "job_id", "token"} & set(outside)


def failing_app() -> App:
    app = App()

    @app.task("dig")
    async def dig(run: Run) -> None:
        def deeper(left: int) -> None:
            if left:
                raise ValueError(f"password=hunter2hunter2 {'x' * 20_000}")
            deeper(left + 1)

        await run.safe("started")
        async with run.mutating("digging", idempotent=True):
            pass
        deeper(0)

    return app


async def test_the_traceback_of_a_failed_task_is_in_its_evidence_without_secrets(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "leasekeeper")
    settings: dict[str, Any] = {"drivers": NULL, "browser": "/nowhere/chromium"}
    async with house(failing_app(), sqlite_url, tmp_path, profile("p1", driver=NULL), **settings) as home:
        job = await home.submit("dig")
        await home.do(job)
        run = await home.run_of(job)
    text = str(run.evidence["traceback"])
    assert text.startswith("Traceback (most recent call last)")
    assert "in deeper" in text
    assert "hunter2" not in text
    assert len(text) <= MAX_TRACEBACK + 10
    assert any(line.endswith("in deeper") for line in map(str.strip, evidence_lines(run.evidence, tmp_path, PLAIN)))
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "section" in line or line.startswith("safe step")] == [
        "safe step started",
        "enters mutating section digging",
        "left mutating section digging",
    ]
    (ended,) = [record for record in caplog.records if record.getMessage().startswith(f"run {run.run_id} ended")]
    assert vars(ended)["reason"] == "TASK_ERROR"
    about = f"task dig, job {job.job_id}"
    held = f"worker {run.worker_id}, lease {run.lease_id}"
    assert f"run {run.run_id} started: {about}, attempt 1 of 3, profile p1, {held}" in said
    told = re.escape(f"{about} is review, profile p1 is available, {held}")
    assert re.fullmatch(rf"run {run.run_id} ended: TASK_ERROR after \d+\.\d s; {told}", ended.getMessage())
    assert "hunter2" not in caplog.text
