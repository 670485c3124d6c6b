"""Claiming: which job comes next, for whom, and what the grant carries."""

from datetime import timedelta

import pytest

from leasekeeper.core.ids import WorkerId
from leasekeeper.core.leases import LeaseStatus, Mode, Purpose, Timing
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import InputError, NotFound, ProfileBusy
from leasekeeper.ports import ClaimRequest, Grant
from tests.conformance.world import POLICY, NewWorld, World, account, profile, proxy, seconds, spec


def ids(grants: list[Grant]) -> list[str]:
    return [str(grant.lease.job_id) for grant in grants]


async def test_a_grant_carries_all_that_is_needed(new_world: NewWorld) -> None:
    records = (account("shop", labels={"vip": "yes"}), proxy(), profile(proxy_id="exit_us", user_data_dir="/p/1"))
    async with new_world(*records) as world:
        job = await world.add(
            payload={"sku": [1, {"x": "ü"}]},
            labels={"team": "eu"},
            allowed_actions=("open", "read"),
            priority=4,
            notes="two\nlines",
        )
        grant = await world.take()
        lease = grant.lease
        assert (grant.profile, grant.account, grant.proxy) == (records[2], records[0], records[1])
        assert grant.job is not None
        assert grant.job.payload == {"sku": [1, {"x": "ü"}]}
        assert (grant.job.labels, grant.job.allowed_actions) == ({"team": "eu"}, ("open", "read"))
        assert (grant.job.state, grant.job.attempt, grant.job.run_id) == ("running", 1, lease.run_id)
        assert grant.job == await world.job(job)
        assert lease == await world.lease(grant)
        assert (lease.job_id, lease.profile_id, lease.account_id) == (job.job_id, "p1", "shop")
        assert (lease.worker_id, lease.incarnation, lease.proxy_id) == ("w1", "w1-1", "exit_us")
        assert (lease.mode, lease.purpose, lease.status) == (Mode.EXCLUSIVE, Purpose.JOB, LeaseStatus.RUNNING)
        assert (lease.acquired_at, lease.heartbeat_at) == (world.now, world.now)
        assert (lease.expires_at, lease.priority) == (world.now + seconds(60), 4)
        assert (lease.pool, lease.routing_key, lease.token) == ("default", "profile:p1", 1)
        assert lease.release_policy is ReleasePolicy.QUARANTINE


async def test_jobs_of_one_profile_run_in_the_order_they_came(new_world: NewWorld) -> None:
    async with new_world() as world:
        jobs = await world.submit(*(spec() for _ in range(5)))
        jobs += [await world.add() for _ in range(2)]
        seen = []
        for _ in jobs:
            grant = await world.take()
            seen.append(grant.lease.job_id)
            await world.finish(grant)
        assert seen == [job.job_id for job in jobs]


async def test_priority_goes_first_inside_a_profile_and_between_profiles(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        low, high = await world.add("p1", priority=-1), await world.add("p1", priority=7)
        middle = await world.add("p2", priority=3)
        order = []
        for _ in range(2):
            order += ids(await world.claim(1))
        assert order == [high.job_id, middle.job_id]
        assert (await world.lane("p1")).head_job_id == low.job_id


async def test_profiles_take_turns_however_long_their_queues_are(new_world: NewWorld) -> None:
    names = ["busy", "p1", "p2"]
    async with new_world(*(profile(name) for name in names)) as world:
        await world.submit(*(spec("busy") for _ in range(200)))
        for name in ("p1", "p2"):
            world.advance(1)
            await world.submit(*(spec(name) for _ in range(3)))
        served = []
        for _ in range(9):
            world.advance(1)
            grant = await world.take()
            served.append(grant.lease.profile_id)
            await world.finish(grant)
        assert served == ["busy", "p1", "p2"] * 3


async def test_a_profile_that_waited_longest_comes_first(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        for name in ("p2", "p0", "p3", "p1"):
            world.advance(1)
            await world.add(name)
        assert [grant.lease.profile_id for grant in await world.claim(9)] == ["p2", "p0", "p3", "p1"]


async def test_a_claim_gives_at_most_what_was_asked_for_and_one_per_exclusive_profile(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(5))) as world:
        await world.submit(*(spec(f"p{n % 5}") for n in range(15)))
        assert len(await world.claim(3)) == 3
        assert len(await world.claim(100)) == 2
        assert await world.claim(100) == []


async def test_a_worker_of_several_tasks_gets_the_best_of_all(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        await world.offer("visit", "report", "pay")
        tasks = ("visit", "report", "pay")
        old = await world.add("p0", "visit")
        world.advance(1)
        urgent = await world.add("p1", "report", priority=5)
        world.advance(1)
        last = await world.add("p2", "pay")
        assert ids(await world.claim(2, tasks=tasks)) == [urgent.job_id, old.job_id]
        assert ids(await world.claim(2, tasks=tasks)) == [last.job_id]


async def test_a_worker_never_gets_a_task_that_it_does_not_know(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.offer("visit", "report")
        await world.add("p1", "report", priority=9)
        mine = await world.add("p2", "visit")
        assert ids(await world.claim(5)) == [mine.job_id]
        assert await world.claim(5, tasks=("pay", "nothing")) == []


async def test_a_head_that_a_worker_does_not_know_blocks_its_own_profile_only(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.offer("visit", "report")
        report = await world.add("p1", "report")
        behind, other = await world.add("p1"), await world.add("p2")
        assert ids(await world.claim(5)) == [other.job_id]
        grant = await world.take(tasks=("report",))
        assert grant.lease.job_id == report.job_id
        await world.finish(grant)
        assert ids(await world.claim(5)) == [behind.job_id]


async def test_a_job_for_a_task_that_nobody_offers_blocks_nobody(new_world: NewWorld) -> None:
    async with new_world() as world:
        unknown = await world.add(task="nobody_knows", priority=9)
        mine = await world.add()
        assert ids(await world.claim(5, tasks=("visit", "other"))) == [mine.job_id]
        assert (await world.job(unknown)).blocked_reason == "blocked_by_no_worker"


async def test_a_worker_gets_jobs_of_its_pool_only(new_world: NewWorld) -> None:
    async with new_world(profile("p1", pool="eu"), profile("p2", pool="us"), profile("p3", pool="us")) as world:
        for pool in ("eu", "us"):
            await world.offer("visit", pool=pool, incarnation=pool)
        eu, us = await world.add("p1"), await world.add("p2")
        elsewhere = await world.add("p3", pool="eu")
        assert (eu.pool, us.pool, elsewhere.pool) == ("eu", "us", "eu")
        assert ids(await world.claim(5, pool="us")) == [us.job_id]
        assert sorted(ids(await world.claim(5, pool="eu"))) == sorted([eu.job_id, elsewhere.job_id])
        assert await world.claim(5) == []


async def test_a_browser_older_than_the_profile_does_not_get_it(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.finish(await world.acquire("p1"), engine=131)
        newer, fresh = await world.add("p1", priority=9), await world.add("p2")
        assert ids(await world.claim(5, engine=130)) == [fresh.job_id]
        with pytest.raises(ProfileBusy, match="PROFILE_NEWER_THAN_BROWSER") as refused:
            await world.acquire("p1", engine=130)
        assert refused.value.reason == "blocked_by_environment_mismatch"
        assert ids(await world.claim(5, engine=131)) == [newer.job_id]


async def test_an_older_browser_of_several_tasks_does_not_get_it_either(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.offer("visit", "report")
        await world.finish(await world.acquire("p1"), engine=131)
        newer, fresh = await world.add("p1", priority=9), await world.add("p2")
        tasks = ("visit", "report")
        assert ids(await world.claim(5, tasks=tasks, engine=130)) == [fresh.job_id]
        assert ids(await world.claim(5, tasks=tasks, engine=132)) == [newer.job_id]


async def test_a_retried_job_keeps_its_place_before_later_ones(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        first = await world.add("p1")
        await world.finish(await world.take(), "TIMEOUT")
        second = await world.add("p1")
        world.advance(10)
        assert await world.store.promote() == 1
        world.advance(1)
        other = await world.add("p2")
        world.advance(1)
        assert ids(await world.claim(1)) == [first.job_id]
        assert ids(await world.claim(1)) == [other.job_id]
        assert (await world.lane("p1")).head_job_id == second.job_id


@pytest.mark.parametrize(("limit", "tasks"), [(0, ("visit",)), (-1, ("visit",)), (1001, ("visit",)), (1, ())])
async def test_a_claim_that_asks_for_nonsense_is_refused(
    new_world: NewWorld, limit: int, tasks: tuple[str, ...]
) -> None:
    async with new_world() as world:
        await world.add()
        with pytest.raises(InputError) as refused:
            await world.claim(limit, tasks=tasks)
        assert refused.value.code == "INVALID_INPUT"
        assert (await world.lane()).token == 0


async def test_a_job_may_set_the_ttl_of_its_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(lock_timeout_seconds=900)
        assert grant.lease.expires_at == world.now + seconds(900)
        assert (grant.lease.ttl_ms, grant.lease.lock_delay_ms, grant.lease.renew_ms) == (900_000, 60_000, 60_000)
        assert (await world.lease(grant)).renew_ms == 60_000


async def test_the_fleet_may_set_the_ttl_of_all_leases(new_world: NewWorld) -> None:
    timing = Timing(ttl=seconds(8), renew_every=seconds(2), holder_stops_after=seconds(5), lock_delay=seconds(3))
    async with new_world(policy=Policy(timing=timing, worker_ttl=POLICY.worker_ttl)) as world:
        grant = await world.acquire()
        assert grant.lease.expires_at == world.now + seconds(8)
        await world.finish(grant)
        scaled = await world.acquire(ttl=seconds(80))
        assert (scaled.lease.ttl_ms, scaled.lease.lock_delay_ms) == (80_000, 30_000)


@pytest.mark.parametrize(
    "ttl", [timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=999), timedelta(days=400_000)]
)
async def test_a_lease_of_no_or_endless_length_is_refused(new_world: NewWorld, ttl: timedelta) -> None:
    async with new_world() as world:
        with pytest.raises(InputError):
            await world.acquire(ttl=ttl)
        assert (await world.lane()).state == "available"


@pytest.mark.parametrize("purpose", [Purpose.API, Purpose.MANUAL, Purpose.INSPECT])
async def test_a_profile_can_be_leased_without_a_job(new_world: NewWorld, purpose: Purpose) -> None:
    async with new_world(proxy(), profile(proxy_id="exit_us")) as world:
        await world.add()
        grant = await world.acquire(
            purpose=purpose, ttl=seconds(30), worker_id=WorkerId("ann"), release_policy=ReleasePolicy.QUARANTINE
        )
        lease = grant.lease
        assert (lease.job_id, lease.purpose, lease.worker_id) == (None, purpose, "ann")
        assert (lease.expires_at, lease.priority) == (world.now + seconds(30), None)
        assert (grant.job, grant.proxy) == (None, proxy())
        assert await world.claim() == []
        await world.finish(grant)
        assert len(await world.claim()) == 1


async def test_a_profile_that_is_not_there_cannot_be_leased(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(NotFound) as refused:
            await world.acquire("nobody")
        assert refused.value.code == "NOT_FOUND"


async def test_a_busy_profile_names_its_holder(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire()
        assert refused.value.reason == "blocked_by_profile_lease"
        assert "w1" in refused.value.message
        assert grant.lease.run_id in refused.value.message


async def test_a_claim_of_a_worker_that_never_reported_is_served(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add()
        request = ClaimRequest(worker_id=WorkerId("unseen"), incarnation="x", tasks=("visit", "visit"), limit=3)
        assert ids(await world.store.claim(request)) == [job.job_id]


async def work_off(world: World, limit: int) -> list[str]:
    done = []
    while grants := await world.claim(limit):
        for grant in grants:
            await world.finish(grant, facts=EndFacts(browser=Browser.NONE))
            done.append(str(grant.lease.job_id))
    return done


@pytest.mark.parametrize("limit", [1, 7])
async def test_every_job_is_claimed_exactly_once(new_world: NewWorld, limit: int) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(7))) as world:
        jobs = await world.submit(*(spec(f"p{n % 7}", priority=n % 3) for n in range(63)))
        done = await work_off(world, limit)
        assert sorted(done) == sorted(job.job_id for job in jobs)
        assert (await world.store.stats()).jobs == {"completed": 63}
