"""What workers say of themselves, as every store keeps it."""

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import Worker, WorkerReport
from tests.conformance.world import NewWorld, World, profile


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
