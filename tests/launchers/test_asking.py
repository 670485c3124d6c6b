"""Lost runs and the launchers that are asked about them: by one asker alone, never about somebody else's browser."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leasekeeper.app import App
from leasekeeper.core.browsers import LAUNCHER
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.launchers import Launcher, LauncherSaid, in_doubt
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane, ReleasePolicy
from leasekeeper.core.settle import LostFacts
from leasekeeper.ports import Grant, LeaseRequest, Resolution, Store
from leasekeeper.runtime.launcher_checks import LauncherAsker, Question
from leasekeeper.runtime.launchers import pace_key
from leasekeeper.stores import open_store
from tests.conformance.world import profile
from tests.launchers.saying import Saying
from tests.launchers.stage import launched, launched_fleet
from tests.runtime.browsing import house
from tests.runtime.stage import until

STATUS, STOP = "/profile/status", "/profile/stop"
W = WorkerId("w")
KNOWN = LostFacts(final_url="https://shop.example/cart", reported_by="keeper")


@dataclass
class Lost:
    """A profile whose last run was lost, and its store."""

    store: Store
    launcher: Launcher
    lease: Lease
    now: datetime

    def asker(self) -> LauncherAsker:
        async def known(_lease: Lease) -> LostFacts:
            return LostFacts()

        return LauncherAsker(self.store, lambda: None, known)

    @property
    def question(self) -> Question:
        return Question(self.lease, launched(), self.launcher, None, KNOWN)

    async def take(self) -> Grant:
        return await self.store.acquire(LeaseRequest(profile_id=launched().profile_id, worker_id=W, incarnation="b"))

    async def others_settle(self) -> None:
        """Somebody else learned that it has ended, and the profile is free again."""
        facts = replace(KNOWN, browser_dead=True, launcher=LauncherSaid.IDLE)
        (settled,) = await self.store.resolve([Resolution(lease_id=self.lease.lease_id, facts=facts)])
        assert settled.profile_state == "available"


@asynccontextmanager
async def lost(url: str, saying: Saying, *, step: bool = True) -> AsyncIterator[Lost]:
    stage: Lost
    now = datetime(2026, 1, 1, tzinfo=UTC)
    store = await open_store(url, clock=lambda _real: stage.now if started else now)
    started = False
    launcher, profile = saying.record("http"), launched(release_policy=ReleasePolicy.RECOVER)
    await store.apply(launched_fleet(launcher, profile), actor="test")
    grant = await store.acquire(LeaseRequest(profile_id=profile.profile_id, worker_id=W, incarnation="a"))
    if step:
        await store.checkpoint(grant.lease.ref, "cart_full")
    stage = Lost(store, launcher, grant.lease, grant.lease.expires_at)
    started = True
    (stage.lease,) = await store.expire()
    stage.now += timedelta(milliseconds=stage.lease.lock_delay_ms)
    yield stage
    await store.close()


async def test_of_many_who_ask_one_calls_the_launcher(sqlite_url: str, saying: Saying) -> None:
    saying.answer = (200, {}, {"running": False})
    async with lost(sqlite_url, saying) as stage:
        answers = await asyncio.gather(*(stage.asker().ask([stage.question]) for _ in range(5)))
        assert [each.profile_state for found in answers for each in found] == ["available"]
        assert saying.asked == [STATUS]


async def test_nobody_asks_about_a_lease_that_is_settled_while_somebody_else_has_the_profile(
    sqlite_url: str, saying: Saying
) -> None:
    saying.answer = (200, {}, {"running": True})
    async with lost(sqlite_url, saying) as stage:
        asked = stage.question
        await stage.others_settle()
        await stage.take()
        assert await stage.asker().ask([asked]) == []
        assert saying.asked == []


async def test_a_profile_that_was_granted_while_its_launcher_was_asked_is_not_stopped(
    sqlite_url: str, saying: Saying
) -> None:
    saying.answer = (200, {}, {"running": True})
    saying.hold[STATUS] = answer = threading.Event()
    async with lost(sqlite_url, saying) as stage:
        asking = asyncio.ensure_future(stage.asker().ask([stage.question]))

        async def asked() -> bool:
            return STATUS in saying.asked

        await until(asked)
        await stage.others_settle()
        await stage.take()
        answer.set()
        assert await asking == []
        assert saying.asked == [STATUS]


async def test_what_still_runs_is_stopped_and_asked_about_again(sqlite_url: str, saying: Saying) -> None:
    saying.answer = (200, {}, {"running": False})
    saying.then = [(200, {}, {"running": True})]
    async with lost(sqlite_url, saying) as stage:
        (settled,) = await stage.asker().ask([stage.question])
        assert (settled.profile_state, saying.asked) == ("available", [STATUS, STOP, STATUS])


async def test_a_profile_whose_start_may_be_under_way_is_not_idle(sqlite_url: str, saying: Saying) -> None:
    """Worker and keeper died in the middle of a slow start: the launcher says idle, and opens the browser later."""
    saying.answer = (200, {}, {"running": False})
    async with lost(sqlite_url, saying, step=False) as stage:
        question = stage.question._replace(known=LostFacts())
        assert await stage.asker().ask([question]) == []
        lane = await stage.store.get(Lane, launched().profile_id)
        assert (lane.state, "its start may still be under way" in lane.state_reason) == ("stale", True)
        stage.now = (stage.lease.ended_at or stage.now) + timedelta(seconds=stage.launcher.start_timeout_seconds)
        (settled,) = await stage.asker().ask([question])
        assert settled.profile_state == "review_required"  # nobody saw where it was


async def test_a_question_that_is_one_call_too_many_pauses_the_starts(sqlite_url: str, saying: Saying) -> None:
    saying.answer = (429, {"Retry-After": "30"}, {})
    async with lost(sqlite_url, saying) as stage:
        assert await stage.asker().ask([stage.question]) == []
        assert await stage.store.reserve_call(pace_key(stage.launcher), timedelta()) == timedelta(seconds=30)


async def test_a_start_that_nobody_knows_of_leaves_the_profile_stale_until_the_launcher_answers(
    sqlite_url: str, tmp_path: Path, saying: Saying
) -> None:
    """A gateway gave up on it, and the launcher fell silent: the profile is not handed to the next run."""
    app = App()

    @app.task("visit")
    async def visit(_run: object) -> None: ...

    saying.then = [(200, {}, {"running": False})]
    saying.answer = (504, {}, {"message": "gateway timeout"})
    async with house(app, sqlite_url, tmp_path, profile("local"), drivers=LAUNCHER) as home:
        record = replace(saying.record("http", idle_seconds=1), start_timeout_seconds=1)
        await home.store.apply(launched_fleet(record, launched()), actor="test")
        job = await home.submit("visit", max_attempts=1)
        async with home.worker():

            async def silent() -> bool:
                lane = await home.lane()
                return lane.state == "stale" and "launcher mlx does not say" in lane.state_reason

            await until(silent)
            run: Any = await home.run_of(job)
            assert (run.stop_reason, in_doubt(run.evidence)) == ("BROWSER_LAUNCH_FAILED", True)
            saying.answer = (200, {}, {"running": False})

            async def decided() -> bool:
                return (await home.lane()).state == "quarantined"

            await until(decided)
