"""A job that is given back again and again waits longer and longer, and says why."""

from datetime import timedelta

from leasekeeper.core.decisions import Action
from leasekeeper.core.jobs import Backoff, Job, JobState, Retry
from leasekeeper.core.settle import FREE_GIVE_BACKS, Ending
from tests.conformance.world import NewWorld, World


async def give_back(world: World, times: int, reason: str | None = None, message: str = "") -> Job:
    """Claim the job and give it back, so many times."""
    grants = []
    for _ in range(times):
        grants.append(await world.take())
        ending = Ending(ref=grants[-1].lease.ref, not_started=True, reason=reason, message=message)
        await world.store.settle([ending])
    return await world.job(grants[-1])


async def test_a_job_is_given_back_a_few_times_without_a_delay(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        job = await give_back(world, FREE_GIVE_BACKS)
        assert (job.state, job.attempt, job.given_back) == (JobState.QUEUED, 0, FREE_GIVE_BACKS)


async def test_then_it_waits_with_a_reason_and_without_using_an_attempt(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        job = await give_back(world, FREE_GIVE_BACKS + 1, reason="BROWSER_LAUNCH_FAILED", message="no display")
        assert (job.state, job.attempt, job.given_back) == (JobState.SCHEDULED, 0, FREE_GIVE_BACKS + 1)
        assert job.run_at is not None
        assert job.run_at > world.now
        assert job.detail == (
            f"given back {FREE_GIVE_BACKS + 1} times in a row before its task began; "
            "the last time: BROWSER_LAUNCH_FAILED: no display"
        )
        assert await world.claim() == []
        world.clock.now = job.run_at
        assert await world.store.promote() == 1
        assert (await world.take()).lease.job_id == job.job_id


async def test_each_further_time_it_waits_longer(new_world: NewWorld) -> None:
    async with new_world() as world:
        doubled = Retry(backoff=Backoff(first=timedelta(seconds=10), factor=4.0))
        await world.add(retry=doubled)
        await give_back(world, FREE_GIVE_BACKS)
        waits = []
        for _ in range(3):
            job = await give_back(world, 1)
            assert job.run_at is not None
            waits.append(job.run_at - world.now)
            world.clock.now = job.run_at
            await world.store.promote()
        assert waits == sorted(waits)
        assert waits[2] > 4 * waits[0]


async def test_a_run_that_began_ends_the_row(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        await give_back(world, FREE_GIVE_BACKS)
        grant = await world.take()
        await world.finish(grant, "TIMEOUT")
        job = await world.job(grant)
        assert (job.state, job.attempt, job.given_back) == (JobState.SCHEDULED, 1, 0)


async def test_a_person_ends_the_row_too(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        await give_back(world, FREE_GIVE_BACKS)
        grant = await world.take()
        await world.finish(grant, "LOGIN_REQUIRED")
        await world.decide_job(await world.job(grant), Action.REQUEUE)
        assert (await world.job(grant)).given_back == 0
