"""A person opens a profile: leased while it is open, given back with proof, and lost when it is taken away."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from leasekeeper.app import App, Run
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.ports import Grant
from leasekeeper.runtime import memory
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.manual_run import ManualRun, run_manually
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.stores import open_store
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until


def new_app() -> App:
    app = App(renew_every=0.3)

    @app.task("visit")
    async def look(run: Run) -> None:
        await run.page.goto(run.payload["url"])

    return app


# Allocates 400 MB at once: with the browser that is above 400 MB, and below 800 MB.
LIMIT_MB = 400
ALLOCATE = "data:text/html,<script>kept = Array.from({length: 50}, () => new Uint8Array(8e6).fill(1))</script>"


class Guest:
    """Somebody who has a profile open."""

    def __init__(self, home: House, url: str) -> None:
        self.stop = Shutdown(home.config.browsers.stop_grace)
        self.opened: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._heartbeat = Heartbeat(
            lambda: open_store(home.config.store, policy=home.config.policy), home.config.policy.timing
        )
        self.run_manually = asyncio.create_task(
            run_manually(
                home.store,
                home.config,
                "p1",
                who="ann",
                heartbeat=self._heartbeat,
                stop=self.stop,
                url=url,
                opened_as=lambda grant, _mode: self.opened.set_result(grant),
            )
        )

    async def leave(self) -> ManualRun:
        self.stop.ask()
        try:
            return await self.run_manually
        finally:
            self.stop.done()
            await asyncio.to_thread(self._heartbeat.close)


async def test_a_visit_holds_the_profile_and_gives_it_back_with_proof(store_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), store_url, tmp_path) as home:
            guest = Guest(home, f"{shop.url}/?title=ann&by=ann")
            grant = await guest.opened
            assert (grant.lease.purpose, grant.lease.job_id) == ("manual", None)
            job = await home.submit("visit", payload={"url": shop.url})
            waiting = await home.store.get(type(job), job.job_id)
            assert waiting.blocked_reason in ("blocked_by_profile_lease", "blocked_by_no_worker")

            async def seen() -> bool:
                return bool(shop.of("ann"))

            await until(seen)
            ended = await guest.leave()
            assert ended.settled.profile_state == "available"
            assert ended.report is not None
            assert ended.report.proof.holds
            (done,) = await home.do(job)
            assert done.state == "completed"
            # The profile was used under a lease: nobody takes that for manual use.
            assert await home.events(type=EventType.MANUAL_USE_DETECTED) == []


async def test_a_visit_ends_when_its_lease_is_taken_away(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            guest = Guest(home, f"{shop.url}/ticking?title=ann")
            grant = await guest.opened
            await home.store.decide(
                Decision(target=Target.LEASE, id=grant.lease.lease_id, action=Action.REVOKE, note="now", actor="bob")
            )
            failed = (await asyncio.gather(guest.run_manually, return_exceptions=True))[0]
            assert "lost" in str(failed)
            guest.stop.ask()
            guest.stop.done()

            async def closed() -> bool:
                return not home.browsers_of("p1")

            await until(closed)
            lease = await home.store.get(Lease, grant.lease.lease_id)
            assert lease.status == "revoked"
            (home.data / "open" / grant.lease.run_id).unlink()


async def test_a_visit_above_its_memory_is_warned_of_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "CHECK_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "leasekeeper")
    async with house(new_app(), sqlite_url, tmp_path, run_memory_mb=LIMIT_MB) as home:
        guest = Guest(home, ALLOCATE)

        async def warned() -> bool:
            return "the limit for a run is 400 MB" in caplog.text or guest.run_manually.done()

        await until(warned)
        ended = await guest.leave()
        assert caplog.text.count("the limit for a run is 400 MB") == 1
        assert ended.settled.profile_state == "available"
        assert (await home.store.get(RunRecord, ended.grant.lease.run_id)).result == "completed"


async def test_a_visit_above_twice_its_memory_ends(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CHECK_SECONDS", 0.1)
    async with house(new_app(), sqlite_url, tmp_path, run_memory_mb=20) as home:
        guest = Guest(home, "data:text/html,quiet")
        ended = await guest.run_manually
        await guest.leave()
        run = await home.store.get(RunRecord, ended.grant.lease.run_id)
        assert (run.result, run.stop_reason) == ("failed", "MEMORY_EXCEEDED")
        assert "the limit for a run is 20 MB" in run.message


async def opened_by_command(home: House, shop: Shop) -> str:
    """What `leasekeeper open` says until it is given back by Ctrl-C."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasekeeper", "open", "p1", "--url", f"{shop.url}/?by=cli"),
        env={
            **{k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")},
            "LEASEKEEPER_STORE": home.config.store,
            "LEASEKEEPER_DATA_DIR": str(home.data),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )

    async def seen() -> bool:
        return bool(shop.of("cli")) or program.returncode is not None

    await until(seen)
    program.send_signal(signal.SIGINT)
    answer, _ = await asyncio.wait_for(program.communicate(), PATIENCE)
    said = answer.decode()
    assert program.returncode == 0, said
    return said


async def test_the_command_looks_inside_a_profile_that_waits_for_a_person(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            await home.store.decide(
                Decision(target=Target.PROFILE, id="p1", action=Action.QUARANTINE, note="odd orders", actor="bob")
            )
            said = await opened_by_command(home, shop)
            assert said.startswith("profile p1 is quarantined: quarantine by bob: odd orders\n")
            assert "given back: profile p1 is quarantined" in said
            assert "\n  leasekeeper login p1  # by hand" in said
            assert "\n  leasekeeper profiles clear p1 --note" in said
            (run,) = (await home.store.find(RunRecord)).items
            assert (run.purpose, run.result) == ("inspect", "completed")
            assert run.final_url is not None
            assert run.evidence["keeper"] == {"cause": "closed", "stopped_by": "Browser.close", "clean_close": True}


async def test_the_command_opens_and_gives_back_on_ctrl_c(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home:
            said = await opened_by_command(home, shop)
            assert "profile p1 is yours: lease p1:1" in said
            assert "runs headless" in said
            assert "given back: profile p1 is available" in said
