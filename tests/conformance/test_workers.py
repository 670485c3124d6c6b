"""What workers say of themselves, as every store keeps it."""

import pytest

from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.settle import Ending
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot
from leasekeeper.core.workers import Worker, WorkerReport
from tests.conformance.world import CLEAN, NewWorld, World, profile


async def say(world: World, unwell: str | None) -> Worker:
    report = WorkerReport(
        worker_id=WorkerId("sick"), incarnation="sick-1", pool="default", tasks=("visit",), unwell_reason=unwell
    )
    await world.store.report(report)
    return await world.store.get(Worker, "sick-1")


async def test_an_unwell_worker_is_shown_with_its_reason_and_since_when(new_world: NewWorld) -> None:
    async with new_world() as world:
        assert (await say(world, None)).unwell_since is None
        world.advance(5)
        first = await say(world, "disk full at data")
        assert (first.unwell_reason, first.unwell_since) == ("disk full at data", world.now)
        since = world.now
        world.advance(5)
        again = await say(world, "disk full at data: still")
        assert (again.unwell_reason, again.unwell_since) == ("disk full at data: still", since)
        well = await say(world, None)
        assert (well.unwell_reason, well.unwell_since) == (None, None)
        types = [event.type.value for event in await world.events() if event.worker_id == "sick"]
        assert types == ["worker_started", "worker_unwell", "worker_well"]


async def test_why_names_the_unwell_workers_that_offer_the_task(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.declare(profile("p1"))
        await say(world, "no browser at chromium")
        job = await world.add("p1")
        facts = await world.store.why(job_id=job.job_id)
        assert [worker.worker_id for worker in facts.unwell] == ["sick"]
        await say(world, None)
        assert (await world.store.why(job_id=job.job_id)).unwell == ()


async def stop_serving(world: World, how: str, worker_id: str, machine: str | None = None) -> None:
    """A worker that is there takes no jobs any more."""
    if how == "paused":
        await world.pause(f"worker:{worker_id}")
    unwell = "disk full at data" if how == "unwell" else None
    await world.offer("visit", worker_id=worker_id, incarnation=worker_id, machine=machine, unwell_reason=unwell)


@pytest.mark.parametrize("how", ["paused", "unwell"])
async def test_a_job_whose_only_workers_take_none_is_blocked(new_world: NewWorld, how: str) -> None:
    async with new_world() as world:
        await world.offer("visit", stopping=True)
        await world.offer("visit", worker_id="w2", incarnation="w2")
        job = await world.add()
        assert job.state == "queued"
        await stop_serving(world, how, "w2")
        shown = await world.store.get(Job, job.job_id)
        assert (shown.state, shown.blocked_reason) == ("blocked", Blocked.NO_WORKER)
        assert (await world.store.stats()).blocked == {Blocked.NO_WORKER: 1}
        await world.offer("visit", worker_id="w3", incarnation="w3")
        assert (await world.store.get(Job, job.job_id)).state == "queued"


@pytest.mark.parametrize("how", ["paused", "unwell"])
async def test_a_saved_profile_is_kept_for_workers_of_its_home_only_while_they_take_jobs(
    new_world: NewWorld, how: str
) -> None:
    async with new_world(profile()) as world:
        await world.store.apply(Fleet(profile_store="s3://acme-profiles/leasekeeper"), actor="ann", prune=False)
        for machine in ("rack1", "rack2"):
            await world.offer("visit", worker_id=machine, incarnation=machine, machine=machine)
        await world.add()
        grant = await world.take(worker_id="rack1", machine="rack1")
        saved = NewSnapshot(place="p1/1", sha256="5a", packed_bytes=40, contents_hash="c1")
        report = DirectoryReport(size_bytes=100)
        await world.store.settle(
            [Ending(ref=grant.lease.ref, facts=CLEAN, engine=150, snapshot=saved, directory=report)]
        )
        await world.add()
        assert await world.store.heal() == 0
        await stop_serving(world, how, "rack1", "rack1")
        assert await world.store.heal() == 1
        assert (await world.take(worker_id="rack2", machine="rack2")).lease.profile_id == "p1"


@pytest.mark.parametrize("how", ["paused", "unwell"])
async def test_a_job_is_blocked_by_home_while_the_workers_there_take_none(new_world: NewWorld, how: str) -> None:
    async with new_world(profile()) as world:
        for machine in ("rack1", "rack2"):
            await world.offer("visit", worker_id=machine, incarnation=machine, machine=machine)
        await world.add()
        await world.finish(await world.take(worker_id="rack1", machine="rack1"), engine=150)
        job = await world.add()
        assert (await world.store.get(Job, job.job_id)).state == "queued"
        await stop_serving(world, how, "rack1", "rack1")
        assert (await world.store.get(Job, job.job_id)).blocked_reason == Blocked.HOME
