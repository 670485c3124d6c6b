"""The store's clock leaps: a sweeper that sees it ends no lease, and holders go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from leasekeeper import Event, config
from leasekeeper.client import Client
from leasekeeper.config import Config
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import LeaseLost, StoreUnavailable
from leasekeeper.ports import LeaseRequest, Store, StoreInfo
from leasekeeper.runtime import sweeper as sweeping
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease, checkpoint_with_retries, settle_with_retries
from leasekeeper.runtime.sweeper import Sweeper, sweep_here
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.runtime.stage import furnish, state_of, until

HOUR = timedelta(hours=1)
TIMES: dict[str, float] = {"renew_every": 0.5, "keep_jobs": 1.0}


@dataclass
class Place:
    """A store whose clock somebody sets, with one lease on `p1`, and a sweeper that has looked at the clock once."""

    url: str
    config: Config
    shift: timedelta = timedelta(0)
    store: Store = field(init=False)
    client: Client = field(init=False)
    sweeper: Sweeper = field(init=False)
    lease: Lease = field(init=False)

    def clock(self, real: datetime) -> datetime:
        return real + self.shift

    async def open_store(self) -> Store:
        return await open_store(self.url, policy=self.config.policy, clock=self.clock)

    async def events(self, kind: EventType) -> list[Event]:
        return list((await self.store.find(Event, {"type": kind})).items)

    async def refused(self, what: str) -> int:
        found = await self.events(EventType.STALE_WORKER_WRITE_REJECTED)
        return len([event for event in found if event.data["write"] == what])


@asynccontextmanager
async def leased(url: str) -> AsyncIterator[Place]:
    place = Place(url, config.load({}, store=url, **TIMES))
    place.store = await place.open_store()
    place.client = Client(place.store, place.config)
    try:
        await furnish(place.client)
        request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1")
        place.lease = (await place.store.acquire(request)).lease
        place.sweeper = Sweeper(place.store, place.config)
        assert not (await place.sweeper.tick()).paused
        yield place
    finally:
        await place.client.close()


@pytest.mark.parametrize("leap", [HOUR, -HOUR])
async def test_a_leap_pauses_expiry_and_is_logged(store_url: str, leap: timedelta) -> None:
    async with leased(store_url) as place:
        place.shift = leap
        swept = await place.sweeper.tick()
        assert (swept.paused, swept.expired) == (True, 0)
        assert await state_of(place.client) is ProfileState.LEASED
        (event,) = await place.events(EventType.CLOCK_JUMPED)
        assert abs(float(str(event.data["jump_seconds"])) - leap.total_seconds()) < 60


async def test_a_leap_between_the_read_of_the_clock_and_the_sweep_ends_no_lease(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leased(store_url) as place:
        look = place.store.check

        async def set_after_a_look() -> StoreInfo:
            found = await look()
            place.shift = HOUR
            return found

        monkeypatch.setattr(place.store, "check", set_after_a_look)
        assert (await place.sweeper.tick()).expired == 0
        assert (await place.sweeper.tick()).paused
        assert await state_of(place.client) is ProfileState.LEASED


async def test_a_leap_that_could_not_be_reported_is_seen_again(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leased(store_url) as place:
        place.shift = HOUR

        async def away(*_: object) -> None:
            raise StoreUnavailable("cut")

        with monkeypatch.context() as patch:
            patch.setattr(place.store, "pause_expiry", away)
            with pytest.raises(StoreUnavailable):
                await place.sweeper.tick()
        swept = await place.sweeper.tick()
        assert (swept.paused, swept.expired) == (True, 0)


async def test_a_read_that_takes_long_is_no_leap(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that blocks the loop, or a stopped process: the answer was there long before it is taken."""
    async with leased(store_url) as place:
        late = timedelta(0)
        look = place.store.check

        async def answered_late() -> StoreInfo:
            nonlocal late
            found = await look()
            late += timedelta(minutes=1)
            place.shift += timedelta(minutes=1)
            return found

        monkeypatch.setattr(sweeping, "boot_time", lambda: boot_time() + late.total_seconds())
        with monkeypatch.context() as patch:
            patch.setattr(place.store, "check", answered_late)
            assert not (await place.sweeper.tick()).paused
        assert not (await place.sweeper.tick()).paused
        assert await place.events(EventType.CLOCK_JUMPED) == []


async def test_who_has_nothing_to_compare_with_leaves_the_leases_to_others(store_url: str) -> None:
    async with leased(store_url) as place:
        place.shift = HOUR
        new = Sweeper(place.store, place.config)
        assert (await new.tick()).expired == 0
        assert (await place.sweeper.tick()).paused
        assert (await new.tick()).expired == 0
        assert await state_of(place.client) is ProfileState.LEASED


async def test_a_single_sweep_believes_the_clock(store_url: str) -> None:
    async with leased(store_url) as place:
        place.shift = HOUR
        assert (await sweep_here(place.store, place.config)).expired == 1


async def test_after_a_leap_nothing_is_deleted(store_url: str) -> None:
    async with leased(store_url) as place:
        (answer,) = await place.store.submit(parse_jobs([{"task": "visit", "profile_id": "p1"}]))
        await place.store.decide(
            Decision(target=Target.JOB, id=answer.job.job_id, action=Action.CANCEL, note="not needed", actor="ann")
        )
        place.shift = timedelta(days=365)
        assert (await Sweeper(place.store, place.config).tick()).pruned == 0
        for _ in range(3):
            assert (await place.sweeper.tick()).pruned == 0
        assert (await place.store.get(Job, answer.job.job_id)).state == "cancelled"


async def test_a_holder_goes_on_after_a_leap(store_url: str) -> None:
    """Until a sweeper has seen it, the store refuses: the holder's own time is not up, so it tries again."""
    reported: list[str] = []
    async with leased(store_url) as place:
        heartbeat = Heartbeat(place.open_store, place.config.policy.timing)
        kept = heartbeat.keep(place.lease, boot_time(), reported.append)
        try:
            place.shift = HOUR
            writing = asyncio.create_task(checkpoint_with_retries(place.store, kept, "there", None))
            await _refused(place, "checkpoint")
            await _refused(place, "renew")
            assert (await place.sweeper.tick()).paused
            await writing
            place.shift = 2 * HOUR
            ending = Ending(ref=place.lease.ref, facts=EndFacts(browser=Browser.NONE))
            settling = asyncio.create_task(settle_with_retries(place.store, ending, kept))
            await _refused(place, "settle")
            assert (await place.sweeper.tick()).paused
            assert (await settling).refused is None
            assert reported == []
        finally:
            heartbeat.drop(kept)
            await asyncio.to_thread(heartbeat.close)


async def _refused(place: Place, what: str) -> None:
    async def seen() -> bool:
        return await place.refused(what) > 0

    await until(seen)


async def test_a_holder_past_its_own_deadline_does_not_retry(store_url: str) -> None:
    async with leased(store_url) as place:
        place.shift = HOUR
        timing = place.config.policy.timing
        gone = boot_time() - 1.0
        kept = KeptLease(lease=place.lease, timing=timing, deadline=gone, next_at=gone, on_lost=lambda _why: None)
        ending = Ending(ref=place.lease.ref, facts=EndFacts(browser=Browser.NONE))
        with pytest.raises(LeaseLost, match="no renewal was acknowledged"):
            await checkpoint_with_retries(place.store, kept, "there", None)
        with pytest.raises(LeaseLost, match="no renewal was acknowledged"):
            await settle_with_retries(place.store, ending, kept)
