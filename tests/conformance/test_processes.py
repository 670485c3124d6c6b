"""Several processes on one store (here: several handles): what one does, the others see, at once and whole."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Lease, Refusal
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.settle import Ending
from leasekeeper.core.workers import Worker
from leasekeeper.errors import Conflict, LeasekeeperError, ProfileBusy
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Resolution
from leasekeeper.stores import inspect
from tests.conformance.world import NewWorld, Record, World, account, end, fleet, limit, profile, proxy, spec


def asks(name: str, limit: int = 1, **request: Any) -> ClaimRequest:
    settings: dict[str, Any] = {"tasks": ("visit",), **request}
    return ClaimRequest(worker_id=WorkerId(name), incarnation=name, limit=limit, **settings)


async def test_a_store_says_what_it_is(new_world: NewWorld) -> None:
    async with new_world() as world:
        info = await world.store.check()
        assert info.kind in world.url
        assert info.schema == info.newest_schema >= 1
        assert info.now == world.now
        assert info.detail
        seen = await inspect(world.url, token=world.place.token)
        assert (seen.kind, seen.location, seen.schema) == (info.kind, info.location, info.schema)


async def test_what_was_written_is_there_after_the_store_was_opened_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        before, logged = await world.everything(), await world.events()
        await world.reopen()
        assert await world.everything() == before
        assert await world.events() == logged
        assert (await world.finish(grant)).refused is None


async def test_leases_stay_live_when_their_process_closes_the_store(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = await world.another()
        await world.add()
        (grant,) = await other.claim(asks("w2"))
        await other.close()
        assert (await world.lease(grant)).ended_at is None
        assert (await world.finish(grant)).refused is None


async def test_a_closed_store_does_nothing_more(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = await world.another()
        await other.close()
        with pytest.raises(LeasekeeperError, match="closed"):
            await other.submit([spec()])
        with pytest.raises(LeasekeeperError, match="closed"):
            await other.stats()
        await other.close()


async def test_a_change_of_the_fleet_by_another_process_is_seen_at_once(new_world: NewWorld) -> None:
    """Configuration may be remembered, but never beyond the moment it changes."""
    records: tuple[Record, ...] = (
        account(),
        proxy(),
        *(profile(f"p{n}", proxy_id="exit_us", language="en") for n in range(3)),
    )
    async with new_world(*records) as world:
        other = await world.another()
        await world.submit(*(spec(f"p{n}", expected_language="en", shared=True) for n in range(3) for _ in range(4)))
        for grant in await world.claim(3):
            await world.finish(grant)

        async def elsewhere(*changed: Any) -> None:
            assert await other.apply(fleet(*changed), actor="bob")

        await elsewhere(account(routing=Routing.ACCOUNT))
        one = await world.claim(3)
        assert len(one) == 1
        await world.finish(one[0])
        await elsewhere(account(routing=Routing.PROFILE))
        three = await world.claim(3)
        assert len(three) == 3
        await elsewhere(profile("p0", proxy_id="exit_us", language="en", max_active_runs=2))
        assert [grant.lease.profile_id for grant in await world.claim(3)] == ["p0"]
        for grant in three:
            await world.finish(grant)
        await elsewhere(profile("p1", proxy_id="exit_us", language="fr"))
        assert sorted(grant.lease.profile_id for grant in await world.claim(3)) == ["p2"]
        await elsewhere(proxy("exit_us", region="EU"), limit("default", 1))
        assert await world.claim(3) == []


async def test_a_section_that_another_process_opened_counts_at_the_end(new_world: NewWorld) -> None:
    """The leases that a process granted may be remembered, but never what was written under them since."""
    async with new_world() as world:
        other = await world.another()
        grant = await world.run()
        await other.checkpoint(grant.lease.ref, "cart_open", url="https://shop.example/cart")
        await other.enter_section(grant.lease.ref, "submit_order")
        world.advance(10)
        settled = await world.finish(grant)
        assert settled.profile_state is ProfileState.QUARANTINED
        assert "submit_order, 10 s after the last safe step cart_open" in (await world.lane()).state_reason


async def test_a_lease_that_another_process_took_away_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = await world.another()
        grant = await world.run()
        elsewhere = World(world.url, other, world.clock, world.policy, world.place)
        await elsewhere.revoke(grant, over=False)
        assert (await world.finish(grant)).refused is Refusal.REVOKED


async def test_sharers_of_several_processes_end_one_by_one(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        other = await world.another()
        await world.submit(*(spec(shared=True) for _ in range(3)))
        grants = [*await world.claim(), *await other.claim(asks("w2")), *await world.claim()]
        assert len(grants) == 3
        states = [(await world.finish(grant)).profile_state for grant in grants]
        assert states == [ProfileState.LEASED, ProfileState.LEASED, ProfileState.AVAILABLE]
        assert [(await world.job(grant.job)).state for grant in grants if grant.job] == [JobState.COMPLETED] * 3


async def test_a_pause_by_another_process_is_seen_at_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = await world.another()
        await world.finish(await world.run())
        await world.add()
        elsewhere = World(world.url, other, world.clock, world.policy, world.place)
        await elsewhere.decide_account(Action.PAUSE)
        assert await world.claim() == []
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire()
        assert refused.value.reason == "blocked_by_account_pause"
        await elsewhere.decide_account(Action.RESUME)
        assert len(await world.claim()) == 1


async def test_a_change_that_failed_is_forgotten_also_in_memory(new_world: NewWorld) -> None:
    """The first apply fails late (its actor is no text); the second one gets the place that it would have had."""
    async with new_world(profile(language="en")) as world:
        other = await world.another()
        job = await world.add(expected_language="en")
        nobody: Any = object()
        with pytest.raises(Exception):  # noqa: B017, PT011 - which one does not matter, only that it fails
            await world.store.apply(fleet(profile(language="fr")), actor=nobody)
        await other.apply(fleet(profile("p2")), actor="bob")
        assert [grant.lease.job_id for grant in await world.claim()] == [job.job_id]


async def test_workers_that_claim_at_once_never_get_the_same_job_or_profile(new_world: NewWorld) -> None:
    names = [f"p{n}" for n in range(8)]
    async with new_world(*(profile(name, name) for name in names)) as world:
        jobs = await world.submit(*(spec(name) for name in names for _ in range(6)))
        stores = [world.store, await world.another(), await world.another()]
        done: list[str] = []

        async def work(number: int) -> None:
            store = stores[number % 3]
            while grants := await store.claim(asks(f"w{number}", 1 + number % 3)):
                assert len({grant.lease.profile_id for grant in grants}) == len(grants)
                done.extend(str(grant.lease.job_id) for grant in grants)
                for answer in await store.settle([end(grant.lease.ref) for grant in grants]):
                    assert answer.refused is None

        await asyncio.gather(*(work(number) for number in range(9)))
        while rest := await world.claim(9):
            done.extend(str(grant.lease.job_id) for grant in rest)
            await world.store.settle([end(grant.lease.ref) for grant in rest])
        assert Counter(done) == {job.job_id: 1 for job in jobs}


async def test_one_account_is_never_used_twice_at_once_by_many_workers(new_world: NewWorld) -> None:
    records: tuple[Record, ...] = (account(routing=Routing.ACCOUNT), *(profile(f"p{n}") for n in range(6)))
    async with new_world(*records) as world:
        await world.submit(*(spec(f"p{n}") for n in range(6) for _ in range(3)))
        stores = [world.store, await world.another(), await world.another()]
        done: list[str] = []

        async def work(number: int) -> None:
            store = stores[number % 3]
            for _ in range(200):
                grants = await store.claim(asks(f"w{number}"))
                for grant in grants:
                    done.append(str(grant.lease.job_id))
                    await store.settle([end(grant.lease.ref)])
                if len(done) == 18:
                    return
                if not grants:
                    await store.heal()

        await asyncio.gather(*(work(number) for number in range(6)))
        assert len(set(done)) == len(done) == 18


async def test_direct_leases_that_are_asked_for_at_once_are_granted_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = World(world.url, await world.another(), world.clock, world.policy, world.place)
        answers = await asyncio.gather(*((world, other)[n % 2].acquire() for n in range(20)), return_exceptions=True)
        assert sum(isinstance(answer, Grant) for answer in answers) == 1
        assert all(isinstance(answer, Grant | ProfileBusy) for answer in answers)


async def test_a_run_that_ends_while_it_is_swept_ends_once(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}", f"a{n}") for n in range(8))) as world:
        other = await world.another()
        await world.submit(*(spec(f"p{n}") for n in range(8)))
        grants = await world.claim(8)
        world.clock.now = grants[0].lease.expires_at - timedelta(microseconds=1)

        async def sweep() -> int:
            world.clock.now = grants[0].lease.expires_at
            return len(await other.expire())

        settled, swept = await asyncio.gather(
            asyncio.gather(*(world.store.settle([end(grant.lease.ref)]) for grant in grants)), sweep()
        )
        ended = sum(answer[0].refused is None for answer in settled)
        swept += len(await other.expire())
        assert ended + swept == 8
        states = Counter(job.state for job in await world.all(Job))
        assert states == Counter({JobState.COMPLETED: ended, JobState.RUNNING: swept})


async def test_sweepers_at_once_resolve_each_run_once(new_world: NewWorld) -> None:
    names = [f"p{n}" for n in range(6)]
    async with new_world(*(profile(name, name) for name in names)) as world:
        stores = [world.store, await world.another(), await world.another()]
        await world.submit(*(spec(name) for name in names))
        grants = await world.claim(6)
        world.clock.now = grants[0].lease.expires_at
        swept = await asyncio.gather(*(store.expire() for store in stores))
        assert sum(len(leases) for leases in swept) <= 6
        await world.store.expire()
        lost = [Resolution(lease_id=grant.lease.lease_id) for grant in grants]
        answers = await asyncio.gather(*(store.resolve(lost) for store in stores))
        assert sum(len(found) for found in answers) == 6
        assert {job.losses for job in await world.all(Job)} == {1}


async def test_heartbeats_go_on_beside_all_other_work(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        await world.submit(*(spec(f"p{n % 4}") for n in range(40)))
        grants = await world.claim(2)
        renewals = [Renewal(ref=grant.lease.ref) for grant in grants]
        other = await world.another()
        answers = await asyncio.gather(
            *(store.renew(renewals) for store in (world.store, other) for _ in range(10)),
            *(world.store.submit([spec("p3")]) for _ in range(10)),
            *(other.promote() for _ in range(3)),
            world.declare(profile("p9")),
            world.decide_account(Action.PAUSE),
        )
        for answer in answers[:20]:
            assert isinstance(answer, list)
            assert all(renewed.refused is None for renewed in answer)
        assert len(await world.all(Lease, live="true")) == 2


async def test_an_apply_that_removes_and_a_submit_at_once_lose_no_job(new_world: NewWorld) -> None:
    """Either the job is there and its profile is kept, or the profile is gone and the job was refused."""
    async with new_world(profile("keep"), *(profile(f"p{n}") for n in range(10))) as world:
        other = await world.another()
        answers = await asyncio.gather(
            *(other.submit([spec(f"p{n}")]) for n in range(10)),
            world.declare(profile("keep"), prune=True),
            return_exceptions=True,
        )
        assert all(isinstance(answer, list | LeasekeeperError) for answer in answers), answers
        accepted = sum(isinstance(answer, list) for answer in answers[:10])
        assert len(await world.all(Job)) == accepted
        if accepted:
            assert isinstance(answers[10], Conflict)
        assert len(await world.claim(20)) == accepted


async def test_a_worker_that_reports_is_listed_with_what_it_said(new_world: NewWorld) -> None:
    async with new_world() as world:
        started = world.now
        await world.offer(
            "a", "b", pool="eu", worker_id="w7", incarnation="i7", concurrency=4, engine=131, version="1.0.0"
        )
        world.advance(30)
        await world.offer("a", pool="eu", worker_id="w7", incarnation="i7", concurrency=2, engine=132, version="1.1.0")
        worker = await world.store.get(Worker, "i7")
        assert (worker.worker_id, worker.pool, worker.tasks) == ("w7", "eu", ("a",))
        assert (worker.concurrency, worker.engine, worker.version) == (2, 132, "1.1.0")
        assert (worker.started_at, worker.heartbeat_at, worker.stopped_at) == (started, world.now, None)
        world.advance(30)
        await world.offer("a", pool="eu", worker_id="w7", incarnation="i7", stopping=True)
        assert (await world.store.get(Worker, "i7")).stopped_at == world.now
        reported = [event.type for event in await world.events(worker_id="w7")]
        assert reported == ["worker_started", "worker_stopped"]


async def test_waiting_ends_by_itself_and_at_once_when_there_is_work(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.store.wait("default", timedelta(milliseconds=1))
        async with asyncio.timeout(30):
            await world.store.wait("default", timedelta(milliseconds=50))
        other = await world.another()
        await world.store.stats()

        async def work_comes() -> None:
            for _ in range(100):
                await other.submit([spec()])
                await asyncio.sleep(0)
                if woken.done():
                    return
                await asyncio.wait([woken], timeout=0.3)

        woken = asyncio.create_task(world.store.wait("default", timedelta(seconds=120)))
        async with asyncio.timeout(60):
            await asyncio.gather(work_comes(), woken)


async def test_all_who_wait_in_one_process_are_woken(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.store.wait("default", timedelta(milliseconds=1))
        waiters = [asyncio.create_task(world.store.wait(f"pool{n}", timedelta(seconds=120))) for n in range(3)]
        async with asyncio.timeout(60):
            while any(not waiter.done() for waiter in waiters):
                await world.add()
                await asyncio.wait(waiters, timeout=0.3)


async def test_what_a_cancelled_claim_was_granted_is_given_back(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        # Long leases: a give-back that is under way while the clock is moved on must not come too late.
        jobs = await world.submit(*(spec(f"p{n}", lock_timeout_seconds=86_400) for n in range(4)))
        for turns in range(12):
            asked = asyncio.create_task(world.claim(2))
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
            if not asked.cancelled():
                await world.store.settle([Ending(ref=g.lease.ref, not_started=True) for g in asked.result()])
        taken: list[str] = []
        async with asyncio.timeout(30):
            while len(taken) < len(jobs):
                if await world.all(Job, state=JobState.SCHEDULED):
                    world.advance(60)  # what was given back that often waits a while
                    await world.store.promote()
                taken += [str(grant.lease.job_id) for grant in await world.claim(9)]
                await world.store.stats()
        assert sorted(taken) == sorted(job.job_id for job in jobs)
        assert {job.attempt for job in await world.all(Job)} == {1}
