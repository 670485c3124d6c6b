"""Proxies that are dead or elsewhere, with real sockets: nothing is used up, and they free their jobs themselves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run
from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.browsers import NULL
from leasekeeper.core.decisions import Review
from leasekeeper.core.events import EventType
from leasekeeper.core.jobs import Job
from leasekeeper.errors import Fail
from leasekeeper.runtime.proxy_check import report_on
from leasekeeper.runtime.proxy_checks import MAX_ASKED, ProxyAsker
from tests.browsers.sites import serving, telling
from tests.conformance.world import profile, proxy
from tests.runtime.browsing import House, house
from tests.runtime.stage import until
from tests.servers import closed_port

PROBE = {"probe_url": "http://where.test/ip", "backoff_first": 0.01, "backoff_max": 0.05}


class Exit:
    """A proxy that says where it exits."""

    def __init__(self, country: str) -> None:
        self.country = country

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        async with serving(telling(lambda _: self.country)) as port:
            yield f"http://127.0.0.1:{port}"


def new_app() -> App:
    app = App()

    @app.task("visit")
    async def visit(run: Run) -> None: ...

    return app


def homes(app: App, url: str, folder: Path, server: str, **settings: Any) -> Any:
    records = proxy("exit_de", server=server, region="DE"), profile(driver=NULL, proxy_id="exit_de")
    return house(app, url, folder, *records, drivers=NULL, browser="/nowhere/chromium", **settings)


async def blocked_by(home: House, job: Job, reason: str) -> Job:
    async def look() -> list[Job]:
        found = await home.store.get(Job, job.job_id)
        return [found] if found.blocked_reason == reason else []

    return (await until(look))[0]


async def test_an_exit_elsewhere_blocks_the_lane_and_heals_by_itself(sqlite_url: str, tmp_path: Path) -> None:
    place = Exit("FR")
    async with place.open() as server, homes(new_app(), sqlite_url, tmp_path, server, **PROBE) as home:
        jobs = [await home.submit("visit", max_attempts=1) for _ in range(3)]
        async with home.worker():
            for job in jobs:
                held = await blocked_by(home, job, "blocked_by_proxy_mismatch")
                assert held.attempt == 0
            (review,) = (await home.store.find(Review, {"open": "1"})).items
            assert "expected DE, seen FR" in review.summary
            place.country = "de"
            done = await home.settled(*jobs)
        assert [(job.state, job.attempt) for job in done] == [("completed", 1)] * 3
        assert (await home.run_of(jobs[0])).actual["proxy_region"] == "de"
        told = [event.type for event in await home.events() if event.type.value.startswith("proxy_")]
        assert told == [EventType.PROXY_MISMATCH, EventType.PROXY_RECOVERED]
        assert (await home.store.find(Review, {"open": "1"})).items == []
        assert (await home.lane()).state == "available"


async def test_an_exit_that_changes_during_a_run_quarantines_its_profile(store_url: str, tmp_path: Path) -> None:
    place, app = Exit("DE"), App()

    @app.task("visit")
    async def visit(run: Run) -> None:
        place.country = "FR"

    async with place.open() as server, homes(app, store_url, tmp_path, server, **PROBE) as home:
        (job,) = await home.do(await home.submit("visit"))
        assert (job.state, job.stop_reason) == ("review", "PROXY_CHANGED")
        assert (await home.lane()).state == "quarantined"
        assert "FR" in (await home.run_of(job)).evidence["proxy_changed"]


async def test_a_dead_proxy_that_a_task_finds_is_asked_and_the_job_keeps_its_attempts(
    sqlite_url: str, tmp_path: Path
) -> None:
    app, tries = App(), []

    @app.task("visit")
    async def visit(run: Run) -> None:
        tries.append(run.lease.token)
        raise Fail("PROXY_UNREACHABLE", "net::ERR_PROXY_CONNECTION_FAILED")

    with closed_port() as nobody:
        async with homes(app, sqlite_url, tmp_path, f"http://127.0.0.1:{nobody}") as home:
            job = await home.submit("visit", max_attempts=1)
            async with home.worker():
                held = await blocked_by(home, job, "blocked_by_proxy_unreachable")
            assert (held.attempt, held.stop_reason, tries) == (0, "PROXY_UNREACHABLE", [1])
            found = await home.store.get(Proxy, "exit_de")
            assert "Connection refused" in found.trouble_detail
    async with serving(telling(lambda _: "")) as port:
        async with homes(app, sqlite_url, tmp_path, f"http://127.0.0.1:{port}") as home:
            (done,) = await home.do(job)
        assert (done.state, done.attempt, tries) == ("dead", 1, [1, 2])


async def test_whoever_sweeps_asks_what_it_can_tell(sqlite_url: str, tmp_path: Path) -> None:
    place = Exit("DE")
    async with place.open() as server, homes(new_app(), sqlite_url, tmp_path, server, backoff_first=0.0) as home:
        declared = await home.store.get(Proxy, "exit_de")
        asker = ProxyAsker(home.store, home.config.browsers)
        assert await asker.ask_due() == 0
        await home.store.report_proxy(report_on(declared, ProxyTrouble.MISMATCH, "seen FR"))
        assert await asker.ask_due() == 0, "without a probe nobody can tell where it exits"
        await home.store.report_proxy(report_on(declared, ProxyTrouble.UNREACHABLE, "dead"))
        assert await asker.ask_due() == 1
        assert (await home.store.get(Proxy, "exit_de")).trouble is None


@pytest.mark.parametrize("probing", [True, False])
async def test_mismatches_that_a_machine_cannot_judge_keep_no_dead_proxy_waiting(
    sqlite_url: str, tmp_path: Path, probing: bool
) -> None:
    """They come first by their ids, there are as many as are asked at once, and their login is not known here."""
    settings: dict[str, Any] = {"probe_url": PROBE["probe_url"]} if probing else {}
    elsewhere = [proxy(f"exit_{n:02}", credentials="env:NOT_HERE") for n in range(MAX_ASKED)]
    async with Exit("DE").open() as server:
        dead = proxy("z_dead", server=server, region="DE")
        home_of = house(new_app(), sqlite_url, tmp_path, *elsewhere, dead, drivers=NULL, backoff_first=0.0, **settings)
        async with home_of as home:
            for each in elsewhere:
                await home.store.report_proxy(report_on(each, ProxyTrouble.MISMATCH, "seen FR"))
            await home.store.report_proxy(report_on(dead, ProxyTrouble.UNREACHABLE, "dead"))
            asker = ProxyAsker(home.store, home.config.browsers)
            assert sum([await asker.ask_due() for _ in range(2)]) == 1
            assert (await home.store.get(Proxy, "z_dead")).trouble is None
