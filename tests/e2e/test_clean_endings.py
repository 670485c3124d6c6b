"""After every clean ending on one machine, the next run on another finds what that run left in the session."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from leasekeeper import config as settings
from leasekeeper.client import Client
from leasekeeper.config import Config
from leasekeeper.core.profiles import ProfileState
from leasekeeper.encryption import new_key
from leasekeeper.ports import Grant
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.manual_run import run_manually
from leasekeeper.runtime.profile_transfer import Transfer
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.snapshots.sources import find_source
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.e2e.arena import TIMES, arena
from tests.e2e.test_two_machines import TwoMachines
from tests.runtime.stage import until

NEW = "left-by-a"


def on_a(two: TwoMachines) -> Config:
    """The settings of a program on machine a."""
    return settings.load(
        {}, **{**TIMES, "store": two.at.url, "data_dir": str(two.at.data / "a"), "secret_key": two.key}
    )


async def failure(two: TwoMachines) -> None:
    two.start("a")
    job = await two.at.submit(task="carry_and_fail", pool="a", value=NEW, max_attempts=1)
    await two.at.job_when(job, lambda j: j.state in ("review", "dead"))


async def chain(two: TwoMachines) -> None:
    """The browser is handed over to a second job, and closed after it."""
    jobs = [await two.at.submit(task="carry_on", pool="a", value=value) for value in ("first", NEW)]
    two.start("a")
    for job in jobs:
        await two.at.job_when(job, lambda j: j.state == "completed")


async def drain(two: TwoMachines) -> None:
    two.start("a", LEASEKEEPER_STOP_GRACE="0.5")
    await two.at.at_work(await two.at.submit(task="linger", pool="a", value=NEW))
    two.at.workers[-1].terminate()
    assert await asyncio.to_thread(two.at.workers[-1].wait, 60) == 0


async def session(two: TwoMachines) -> None:
    async with client_on_a(two) as client, client.browser("p1") as browser:
        await browser.page.goto(two.at.shop.url)
        await browser.page.evaluate("value => window.remember('who', value)", NEW)


async def lease(two: TwoMachines) -> None:
    """A program that leases the profile, and launches its browser itself."""
    async with client_on_a(two) as client, async_playwright() as playwright, client.lease("p1") as held:
        context = await playwright.chromium.launch_persistent_context(**await held.launch_options())
        page = await context.new_page()
        await page.goto(two.at.shop.url)
        await page.evaluate("value => window.remember('who', value)", NEW)
        await context.close()
        held.closed(final_url=two.at.shop.url)


async def person(two: TwoMachines) -> None:
    config = on_a(two)
    stop = Shutdown(config.browsers.stop_grace)
    heard: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
    beating = Heartbeat(lambda: open_store(config.store, policy=config.policy), config.policy.timing)
    visit = asyncio.create_task(
        run_manually(
            *(two.at.store, config, "p1"),
            who="ann",
            heartbeat=beating,
            stop=stop,
            url=f"{two.at.shop.url}/remembering?title=ann&value={NEW}",
            opened_as=lambda grant, _mode: heard.set_result(grant),
        )
    )
    try:
        await heard
        await until(lambda: heard_of(two, "ann"))
        stop.ask()
        await visit
    finally:
        stop.done()
        await asyncio.to_thread(beating.close)


async def heard_of(two: TwoMachines, who: str) -> bool:
    return bool(two.at.shop.of(who, "/act"))


async def imported(two: TwoMachines) -> None:
    config, path = on_a(two), two.at.data / "state.json"
    cookie = {"name": "who", "value": NEW, "domain": "127.0.0.1", "path": "/", "expires": 4_000_000_000}
    stored = {"origin": two.at.shop.url, "localStorage": [{"name": "who", "value": NEW}]}
    await asyncio.to_thread(path.write_text, json.dumps({"cookies": [cookie], "origins": [stored]}))
    beating = Heartbeat(lambda: open_store(config.store, policy=config.policy), config.policy.timing)
    try:
        transfer = Transfer(store=two.at.store, config=config, heartbeat=beating, who="ann", actor="ann")
        source = await asyncio.to_thread(find_source, path)
        await transfer.import_source("p1", source, replace=True, counting=lambda _total: lambda _size: None)
    finally:
        await asyncio.to_thread(beating.close)


@asynccontextmanager
async def client_on_a(two: TwoMachines) -> AsyncIterator[Client]:
    config = on_a(two)
    client = Client(await open_store(config.store, policy=config.policy), config)
    try:
        yield client
    finally:
        await client.close()


ENDINGS: dict[str, Callable[[TwoMachines], Awaitable[None]]] = {
    each.__name__: each for each in (failure, chain, drain, session, lease, person, imported)
}


# Daily the one that is stopped in the middle. A success is in test_two_machines.py.
@pytest.mark.release_if(when=lambda chosen: chosen["ending"] != "drain")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_what_any_clean_ending_left_is_there_on_the_other_machine(
    sqlite_url: str, tmp_path: Path, ending: str
) -> None:
    place = f"file://{tmp_path}/shared"
    async with arena(sqlite_url, tmp_path, profile("p1"), home_wait=0.0) as at:
        await at.store.apply(replace(fleet(profile("p1")), profile_store=place), actor="test")
        two = TwoMachines(at, new_key(), dict)
        two.start("b")
        await two.carry("b", "old")
        before = (await two.lane()).snapshot
        await ENDINGS[ending](two)
        lane = await at.lane_when(lambda lane: lane.state is ProfileState.AVAILABLE and lane.snapshot != before)
        assert (lane.saved, lane.unsaved_reason) == (True, "")
        there = await two.carry("b", None, priority=1)
        assert (there["cookie"], there["local"]) == (NEW, NEW)
