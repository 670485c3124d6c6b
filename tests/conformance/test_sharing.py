"""Shared and exclusive leases: how many run at once in one profile, and who has to wait (I1, nobody starves)."""

from collections import Counter
from typing import Any

import pytest

from leasekeeper.core.leases import Lease, Mode
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Conflict, ProfileBusy
from leasekeeper.ports import Grant
from tests.conformance.world import NewWorld, World, profile


async def live(world: World, **where: Any) -> int:
    return len(await world.all(Lease, live="true", **where))


async def test_a_profile_takes_one_run_at_a_time_by_default(new_world: NewWorld) -> None:
    async with new_world() as world:
        for shared in (True, False, True):
            await world.add(shared=shared)
        grant = await world.take()
        assert await world.claim(5) == []
        with pytest.raises(ProfileBusy):
            await world.acquire(mode=Mode.SHARED)
        await world.finish(grant)
        assert len(await world.claim(5)) == 1


async def test_read_only_jobs_share_up_to_the_limit_of_their_profile(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        for _ in range(5):
            await world.add(shared=True)
        grants = [await world.take() for _ in range(3)]
        assert await world.claim(5) == []
        assert await live(world) == 3
        assert sorted(grant.lease.token for grant in grants) == [1, 2, 3]
        await world.finish(grants[1])
        assert len(await world.claim(5)) == 1
        assert await live(world) == 3


async def test_exclusive_jobs_never_share_whatever_the_limit(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        for _ in range(3):
            await world.add()
        await world.take()
        assert await world.claim(5) == []


async def test_an_exclusive_job_waits_for_the_sharers(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        await world.add(shared=True)
        await world.add(shared=True)
        sharers = [await world.take(), await world.take()]
        mutating = await world.add()
        for sharer in sharers:
            assert await world.claim(5) == []
            assert (await world.finish(sharer)).refused is None
        assert (await world.take()).lease.job_id == mutating.job_id


async def test_later_sharers_do_not_overtake_an_exclusive_job(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        await world.add(shared=True)
        sharer = await world.take()
        mutating = await world.add()
        later = [await world.add(shared=True) for _ in range(3)]
        assert await world.claim(5) == []
        await world.finish(sharer)
        exclusive = await world.take()
        assert exclusive.lease.job_id == mutating.job_id
        assert await world.claim(5) == []
        await world.finish(exclusive)
        taken = [(await world.take()).lease.job_id for _ in range(3)]
        assert taken == [job.job_id for job in later]


async def test_direct_sharers_do_not_overtake_an_exclusive_job_for_ever(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        first = await world.acquire(mode=Mode.SHARED)
        mutating = await world.add()
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire(mode=Mode.SHARED)
        assert refused.value.reason == "blocked_by_profile_lease"
        await world.finish(first)
        assert (await world.take()).lease.job_id == mutating.job_id


async def test_direct_leases_share_under_the_same_limit(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        await world.add(shared=True)
        job = await world.take()
        direct = await world.acquire(mode=Mode.SHARED)
        with pytest.raises(ProfileBusy, match="held by w1"):
            await world.acquire(mode=Mode.SHARED)
        await world.finish(job)
        with pytest.raises(ProfileBusy):
            await world.acquire(mode=Mode.EXCLUSIVE)
        await world.finish(direct)
        alone = await world.acquire(mode=Mode.EXCLUSIVE)
        await world.add(shared=True)
        assert await world.claim() == []
        await world.finish(alone)
        assert len(await world.claim()) == 1


async def test_jobs_that_mutate_share_a_disposable_profile(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2, disposable=True)) as world:
        for _ in range(3):
            await world.add()
        first, _ = [await world.take() for _ in range(2)]
        assert await world.claim() == []
        await world.finish(first)
        assert len(await world.claim()) == 1
        assert await live(world) == 2


async def test_a_lower_limit_counts_from_the_next_grant_on(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        for _ in range(4):
            await world.add(shared=True)
        grants = [await world.take() for _ in range(3)]
        await world.declare(profile(max_active_runs=1))
        for grant in grants:
            assert await world.claim() == []
            await world.finish(grant)
        assert len(await world.claim(5)) == 1


async def test_a_higher_limit_lets_waiting_sharers_in(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=1)) as world:
        for _ in range(3):
            await world.add(shared=True)
        await world.take()
        assert await world.claim() == []
        await world.declare(profile(max_active_runs=3))
        assert [len(await world.claim()) for _ in range(3)] == [1, 1, 0]


async def test_a_shared_head_of_higher_priority_goes_first(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        await world.add(shared=True)
        sharer = await world.take()
        mutating = await world.add()
        urgent = await world.add(shared=True, priority=5)
        assert (await world.take()).lease.job_id == urgent.job_id
        await world.finish(sharer)
        assert await world.claim() == []
        assert (await world.job(mutating)).blocked_reason == "blocked_by_profile_lease"


async def test_sharers_and_exclusive_jobs_all_get_their_turn(new_world: NewWorld) -> None:
    """A long mixed queue is worked off in order, never two at once beside an exclusive one."""
    async with new_world(profile(max_active_runs=2)) as world:
        jobs = [await world.add(shared=n % 3 != 0) for n in range(12)]
        started: list[str] = []
        running: list[Grant] = []
        while len(started) < len(jobs) or running:
            grants = await world.claim(3)
            running += grants
            started += [str(grant.lease.job_id) for grant in grants]
            modes = Counter(grant.lease.mode for grant in running)
            assert modes[Mode.EXCLUSIVE] in (0, len(running))
            assert 1 <= len(running) <= 2
            if not grants:
                await world.finish(running.pop(0))
        assert started == [job.job_id for job in jobs]


@pytest.mark.parametrize("disposable", [True, False])
async def test_how_runs_share_a_profile_changes_only_while_nobody_holds_it(
    new_world: NewWorld, disposable: bool
) -> None:
    async with new_world(profile("p1", max_active_runs=2, disposable=not disposable)) as world:
        grant = await world.run()
        with pytest.raises(Conflict, match="these profiles are leased"):
            await world.declare(profile("p1", max_active_runs=2, disposable=disposable))
        await world.declare(profile("p1", max_active_runs=3, disposable=not disposable))
        await world.finish(grant)
        await world.declare(profile("p1", max_active_runs=2, disposable=disposable))
        assert (await world.store.get(Profile, "p1")).disposable is disposable
