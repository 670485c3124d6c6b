"""Launchers of one worker: none waits for another's turn."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper.app import App
from leasekeeper.core.browsers import LAUNCHER
from leasekeeper.core.ids import LauncherId
from leasekeeper.runtime.launchers import pace_key
from tests.conformance.world import fleet, profile
from tests.launchers.saying import Saying
from tests.launchers.stage import launched
from tests.runtime.browsing import house


async def test_a_launcher_that_is_paused_delays_no_other(
    sqlite_url: str, tmp_path: Path, saying: Saying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker launches one browser at a time, and two runs wait for the paused launcher's turn."""
    app, go_on = App(), asyncio.Event()

    @app.task("visit")
    async def visit(_run: object) -> None: ...

    async def until_allowed(seconds: float) -> None:
        if seconds > 30:
            await go_on.wait()

    monkeypatch.setattr("leasekeeper.runtime.launchers.sleep", until_allowed)
    saying.answer = (400, {}, {"message": "no such profile"})
    paused = saying.record("http")
    other = replace(paused, launcher_id=LauncherId("other"))
    names = {"a": paused, "b": paused, "c": other}
    profiles = [launched(name, launcher_id=each.launcher_id) for name, each in names.items()]
    async with house(app, sqlite_url, tmp_path, profile("local"), drivers=LAUNCHER, launch_together=1) as home:
        declared = replace(fleet(*profiles), launchers={"mlx": paused, "other": other})
        await home.store.apply(declared, actor="test")
        await home.store.reserve_call(pace_key(paused), timedelta(), pause=timedelta(minutes=10))
        for name in ("a", "b"):
            await home.submit("visit", profile_id=name, max_attempts=1, priority=1)
        job = await home.submit("visit", profile_id="c", max_attempts=1)
        async with home.worker(concurrency=3):
            (done,) = await home.settled(job)
            assert (done.state, (await home.run_of(job)).stop_reason) == ("dead", "BROWSER_LAUNCH_FAILED")
            go_on.set()
