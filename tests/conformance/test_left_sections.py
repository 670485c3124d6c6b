"""Nothing is retried by itself that may have been done: a section is open, or was left since the last safe step."""

from typing import Any

import pytest

from leasekeeper.core.decisions import Review
from leasekeeper.core.jobs import JobState
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.ports import Grant
from tests.conformance.world import URL, NewWorld, World, profile

OPEN, LEFT = "mutating section order was open", "mutating section order was left, and no safe step followed"


async def do(world: World, grant: Grant, *steps: str) -> None:
    """`enter order`, `leave order`, `enter order again` (idempotent), or a safe step."""
    for step in steps:
        what, _, name = step.partition(" ")
        name, _, again = name.partition(" ")
        if what == "enter":
            await world.store.enter_section(grant.lease.ref, name, idempotent=bool(again))
        elif what == "leave":
            await world.store.leave_section(grant.lease.ref, name)
        else:
            await world.store.checkpoint(grant.lease.ref, step)


CASES: list[tuple[list[str], str | None]] = [
    (["cart"], None),
    (["enter order"], OPEN),
    (["enter order", "leave order"], LEFT),
    (["cart", "enter order", "leave order"], LEFT),
    (["enter order", "leave order", "ordered"], None),
    (["enter order", "ordered", "leave order"], LEFT),
    (["enter order again"], None),
    (["enter order again", "leave order"], None),
    (["enter order", "leave order", "enter sync again", "leave sync"], LEFT),
    (["enter order", "leave order", "ordered", "enter sync again"], None),
]


@pytest.mark.parametrize(("steps", "why"), CASES, ids=[", ".join(steps) for steps, _ in CASES])
@pytest.mark.parametrize("reason", ["TIMEOUT", "BROWSER_CRASHED", "WORKER_STOPPED"])
async def test_a_run_that_failed_is_retried_only_if_nothing_may_have_been_done(
    new_world: NewWorld, steps: list[str], why: str | None, reason: str
) -> None:
    async with new_world() as world:
        grant = await world.run()
        await do(world, grant, *steps)
        await world.finish(grant, reason, message="it stopped")
        job = await world.job(grant)
        if why is None:
            assert job.state is JobState.SCHEDULED
            return
        assert (job.state, job.detail) == (JobState.REVIEW, f"{reason}: it stopped; {why}: it may have been done")
        (review,) = await world.all(Review, target="job")
        assert why in review.summary


@pytest.mark.parametrize(("steps", "why"), CASES, ids=[", ".join(steps) for steps, _ in CASES])
async def test_a_lost_run_is_retried_only_if_nothing_may_have_been_done(
    new_world: NewWorld, steps: list[str], why: str | None
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant = await world.run()
        await do(world, grant, *steps)
        await world.lose(grant)
        world.advance(60)
        await world.resolve(grant, final_url=URL, browser_dead=True)
        job = await world.job(grant)
        assert (job.state is JobState.REVIEW) == (why is not None)
        assert why is None or why in job.detail


@pytest.mark.parametrize("own", [{"retry": True}, {}])
async def test_what_a_task_says_of_its_own_error_does_not_count_either(
    new_world: NewWorld, own: dict[str, Any]
) -> None:
    async with new_world() as world:
        grant = await world.run()
        await do(world, grant, "enter order", "leave order")
        await world.finish(grant, "TASK_ERROR", **own)
        assert (await world.job(grant)).state is JobState.REVIEW


async def test_a_run_that_left_a_section_is_not_given_back_as_not_started(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await do(world, grant, "enter order", "leave order")
        await world.finish(grant, not_started=True)
        job = await world.job(grant)
        said = f"TASK_ERROR: the run was given back as not started; {LEFT}: it may have been done"
        assert (job.state, job.detail, job.given_back) == (JobState.REVIEW, said, 0)


async def test_a_run_that_completes_may_have_left_any_section(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await do(world, grant, "enter order", "leave order")
        assert (await world.lease(grant)).left_section == "order"
        await world.finish(grant)
        assert (await world.job(grant)).state is JobState.COMPLETED
