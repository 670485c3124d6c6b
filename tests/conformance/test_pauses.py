"""Pauses: nothing new begins, in the whole fleet, a pool, an account or on a worker; what runs goes on."""

from datetime import timedelta

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Purpose
from leasekeeper.core.pauses import Pause
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Next
from leasekeeper.core.workers import Worker
from leasekeeper.errors import IllegalTransition, InputError, NotFound, ProfileBusy
from leasekeeper.ports import ClaimRequest
from leasekeeper.wording.why import why_text
from tests.conformance.world import URL, NewWorld, profile

HOUR = timedelta(hours=1)


async def test_while_everything_is_paused_nothing_begins_and_what_runs_goes_on(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        running = await world.run("p1")
        assert (await world.pause()).state == "paused"
        job = await world.add("p2")
        assert (job.state, job.blocked_reason) == ("blocked", Blocked.PAUSE)
        assert await world.claim(limit=5) == []
        assert (await world.finish(running)).job_state is JobState.COMPLETED
        assert (await world.resume()).state == "active"
        assert (await world.take()).job is not None
        kinds = [event.type for event in await world.events()]
        assert EventType.PAUSED in kinds
        assert EventType.RESUMED in kinds


async def test_a_pool_is_paused_alone(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2", pool="eu")) as world:
        await world.offer("visit", worker_id="w2", incarnation="i2", pool="eu")
        await world.pause("pool:eu")
        first, second = await world.add("p1"), await world.add("p2")
        assert (first.state, second.blocked_reason) == ("queued", Blocked.PAUSE)
        assert await world.claim(pool="eu") == []
        assert (await world.take()).lease.profile_id == "p1"
        (found,) = await world.all(Job, blocked_reason="blocked_by_pause")
        assert found.job_id == second.job_id
        assert [job.job_id for job in await world.all(Job, state="blocked")] == [second.job_id]
        assert (await world.store.stats()).blocked == {Blocked.PAUSE: 1}


async def test_a_worker_is_drained_by_its_name(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.offer("visit", worker_id="w2", incarnation="i2")
        await world.pause("worker:w1")
        await world.add()
        assert await world.claim(worker_id="w1") == []
        assert len(await world.claim(worker_id="w2")) == 1


async def test_if_every_worker_is_drained_jobs_wait_for_a_worker(new_world: NewWorld) -> None:
    async with new_world() as world:
        for worker in {worker.worker_id for worker in await world.all(Worker)}:
            await world.pause(f"worker:{worker}")
        job = await world.add()
        assert (job.state, job.blocked_reason) == ("blocked", Blocked.NO_WORKER)


@pytest.mark.parametrize("pause_id", ["all", "pool:default"])
async def test_a_pause_ends_by_itself_by_the_clock_of_the_store(new_world: NewWorld, pause_id: str) -> None:
    async with new_world() as world:
        await world.pause(pause_id, until=world.now + HOUR)
        await world.add()
        assert await world.claim() == []
        world.advance(HOUR)
        assert (await world.all(Job))[0].state is JobState.QUEUED
        assert (await world.take()).job is not None, "before anybody has swept"
        assert await world.store.heal() == 1
        assert await world.all(Pause) == []
        assert (await world.events())[-1].type is EventType.RESUMED
        assert await world.store.heal() == 0


async def test_an_account_that_is_paused_until_a_time_is_resumed_then(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.pause("account:shop", until=world.now + HOUR)
        job = await world.add()
        assert job.blocked_reason == Blocked.ACCOUNT_PAUSE
        with pytest.raises(ProfileBusy):
            await world.acquire()
        assert await world.store.heal() == 0
        world.advance(HOUR)
        assert await world.store.heal() == 1
        assert (await world.take()).job is not None


async def test_somebody_who_leases_directly_needs_no_sweep_after_the_pause_of_an_account(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.pause("account:shop", until=world.now + HOUR)
        world.advance(HOUR)
        assert (await world.acquire()).lease.profile_id == "p1"


async def test_a_decision_about_the_account_itself_forgets_the_end(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.pause("account:shop", until=world.now + HOUR)
        await world.decide_account(Action.PAUSE)
        world.advance(HOUR)
        assert await world.store.heal() == 0
        assert (await world.add()).blocked_reason == Blocked.ACCOUNT_PAUSE


async def test_a_direct_lease_obeys_and_a_person_may_open(new_world: NewWorld) -> None:
    async with new_world() as world:
        until = world.now + HOUR
        await world.pause(until=until)
        with pytest.raises(ProfileBusy, match=r"everything is paused until .* by ann") as refused:
            await world.acquire()
        assert (refused.value.reason, refused.value.until_at) == (Blocked.PAUSE, until)
        assert (await world.acquire(purpose=Purpose.MANUAL)).lease.purpose is Purpose.MANUAL


async def test_a_browser_is_not_handed_over_while_paused(new_world: NewWorld) -> None:
    async with new_world() as world:
        running = await world.run()
        await world.add()
        await world.pause("pool:default")
        ending = Ending(ref=running.lease.ref, facts=EndFacts(browser=Browser.HANDED_OVER, final_url=URL))
        request = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=("visit",))
        assert await world.store.hand_over(ending, request) is None
        await world.resume("pool:default")
        assert await world.store.hand_over(ending, request) is not None


async def test_why_names_the_pause_and_its_end(new_world: NewWorld) -> None:
    async with new_world() as world:
        until = world.now + HOUR
        await world.pause(until=until)
        job = await world.add()
        why = explain(await world.store.why(job_id=job.job_id))
        assert why.reason is Blocked.PAUSE
        assert [(step.code, step.at) for step in why.next] == [(Next.UNBLOCKED, until)]
        assert [pause.pause_id for pause in why.pauses] == ["all"]
        facts = dict(why_text(why).facts)
        assert facts["paused"].startswith("everything is paused until ")
        about_profile = explain(await world.store.why(profile_id="p1"))
        assert [pause.pause_id for pause in about_profile.pauses] == ["all"]


async def test_what_cannot_be_paused_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        for pause_id in ("pool:nowhere", "worker:nobody", "account:nobody"):
            with pytest.raises(NotFound):
                await world.pause(pause_id)
        for pause_id in ("everything", "pool:", "task:visit"):
            with pytest.raises(InputError):
                await world.pause(pause_id)
        with pytest.raises(InputError, match="future"):
            await world.pause(until=world.now)
        with pytest.raises(IllegalTransition, match="not paused"):
            await world.resume()
        assert await world.all(Pause) == []
