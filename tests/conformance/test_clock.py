"""The store's clock may jump: ahead, leases end by a sweep alone; back, nothing breaks and tokens still grow."""

from dataclasses import replace
from datetime import timedelta

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import Token
from leasekeeper.core.policy import Retention
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.ports import Renewal
from tests.conformance.world import URL, NewWorld, profile, seconds


async def test_a_jump_ahead_ends_leases_by_a_sweep_alone(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(timedelta(days=365))
        assert await world.state() == "leased"
        assert await world.claim() == []
        assert (await world.lease(grant)).ended_at is None
        assert [lease.lease_id for lease in await world.store.expire()] == [grant.lease.lease_id]
        assert await world.state() == "stale"


async def test_a_lease_that_was_saved_from_a_jump_goes_on_when_the_clock_comes_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(3600)
        (refused,) = await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert refused.refused
        world.advance(-3600)
        (renewed,) = await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert renewed.expires_at == world.now + seconds(60)
        assert (await world.finish(grant)).refused is None


async def test_after_a_jump_back_leases_last_longer_and_tokens_still_grow(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        world.advance(-86_400)
        assert await world.store.expire() == []
        (renewed,) = await world.store.renew([Renewal(ref=first.lease.ref)])
        assert renewed.expires_at == world.now + seconds(60)
        await world.finish(first)
        second = await world.run()
        assert second.lease.token > first.lease.token
        assert second.lease.acquired_at < first.lease.acquired_at
        await world.lose(second)
        assert len(await world.resolve(second)) == 1


async def test_after_a_jump_back_everything_else_goes_on(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2", release_policy=ReleasePolicy.RECOVER)) as world:
        lost = await world.run("p2")
        waiting = [await world.add("p1") for _ in range(2)]
        await world.store.checkpoint(lost.lease.ref, "seen", url=URL)
        await world.lose(lost)
        world.advance(-86_400)
        assert await world.resolve(lost, browser_dead=True, final_url=URL) == []
        grant = await world.take()
        assert grant.lease.job_id == waiting[0].job_id
        await world.finish(grant, "TIMEOUT")
        retried = await world.job(grant)
        assert retried.run_at is not None
        assert retried.run_at > world.now
        assert (await world.take()).lease.job_id == waiting[1].job_id
        await world.declare(profile("p1", language="fr"))
        assert await world.store.prune(Retention(jobs=timedelta(days=1), events=timedelta(days=1))) == 0
        world.advance(86_400 + 15)
        assert len(await world.resolve(lost, browser_dead=True, final_url=URL)) == 1
        assert await world.state("p2") == "available"


async def test_a_blocked_job_that_was_due_before_a_jump_back_is_not_scheduled_again(new_world: NewWorld) -> None:
    async with new_world(profile(language="en")) as world:
        job = await world.add(run_at=world.now + seconds(5), expected_language="fr")
        world.advance(5)
        assert await world.store.promote() == 1
        assert (await world.job(job)).state == "blocked"
        world.advance(-60)
        await world.declare(profile(language="fr"))
        assert (await world.job(job)).state == "queued"
        assert (await world.take()).lease.job_id == job.job_id


async def test_lanes_take_turns_across_a_jump_back(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.add("p1")
        world.advance(-3600)
        await world.add("p2")
        assert len(await world.claim(1)) == 1
        assert len(await world.claim(1)) == 1


async def test_all_times_are_the_stores_own(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        assert grant.job is not None
        assert {grant.job.created_at, grant.lease.acquired_at, (await world.lane()).state_at} == {world.now}
        assert (await world.store.check()).now == world.now
        assert {event.at for event in await world.events(type=EventType.LEASE_GRANTED)} == {world.now}


async def test_expiry_pauses_when_somebody_saw_the_clock_jump(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant, other = await world.run("p1"), await world.run("p2")
        world.advance(3600)
        await world.store.pause_expiry(seconds(60), seconds(3600))
        assert await world.store.expire() == []
        (renewed,) = await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert renewed.expires_at == world.now + seconds(60)
        await world.store.checkpoint(other.lease.ref, "still_here")
        assert (await world.finish(other)).refused is None
        world.advance(59)
        assert await world.store.expire() == []
        (event,) = await world.events(type=EventType.CLOCK_JUMPED)
        assert (event.data["jump_seconds"], event.data["expiry_paused_seconds"]) == (3600, 60)


async def test_a_pause_of_expiry_ends_and_who_did_not_renew_is_swept(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        silent, alive = await world.run("p1"), await world.run("p2")
        world.advance(3600)
        await world.store.pause_expiry(seconds(60), seconds(3600))
        world.advance(50)
        await world.store.renew([Renewal(ref=alive.lease.ref)])
        await world.reopen()
        world.advance(9)
        assert await world.store.expire() == []
        world.advance(1)
        assert [lease.lease_id for lease in await world.store.expire()] == [silent.lease.lease_id]
        (refused,) = await world.store.renew([Renewal(ref=silent.lease.ref)])
        assert refused.refused


async def test_a_pause_of_expiry_lets_no_other_rule_sleep(new_world: NewWorld) -> None:
    """Tokens, revoked leases and taken profiles count as ever: only the time is in doubt."""
    async with new_world(profile("p1"), profile("p2")) as world:
        grant, revoked = await world.run("p1"), await world.run("p2")
        await world.revoke(revoked, over=False)
        await world.add("p1")
        world.advance(3600)
        await world.store.pause_expiry(seconds(60), seconds(3600))
        assert await world.claim() == []
        assert (await world.finish(revoked)).refused
        stranger = replace(grant.lease.ref, token=Token(grant.lease.token + 1))
        assert (await world.store.renew([Renewal(ref=stranger)]))[0].refused


async def test_a_jump_back_that_somebody_saw_leaves_no_lease_longer_than_its_ttl(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        short, long = await world.run("p1"), await world.run("p2", lock_timeout_seconds=900)
        world.advance(-86_400)
        await world.store.pause_expiry(seconds(60), seconds(-86_400))
        assert (await world.lease(short)).expires_at == world.now + seconds(60)
        assert (await world.lease(long)).expires_at == world.now + seconds(900)
        world.advance(60)
        assert [lease.lease_id for lease in await world.store.expire()] == [short.lease.lease_id]


async def test_a_jump_ahead_that_somebody_saw_leaves_every_lease_its_own_ttl(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        short, revoked = await world.run("p1"), await world.run("p3")
        long = await world.run("p2", lock_timeout_seconds=900)
        await world.revoke(revoked, over=False)
        world.advance(3600)
        await world.store.pause_expiry(seconds(60), seconds(3600))
        world.advance(60)
        over = {short.lease.lease_id, revoked.lease.lease_id}
        assert {lease.lease_id for lease in await world.store.expire()} == over
        world.advance(839)
        assert (await world.store.renew([Renewal(ref=long.lease.ref)]))[0].refused is None


async def test_a_lock_delay_does_not_end_while_the_clock_is_in_doubt(new_world: NewWorld) -> None:
    async with new_world(profile("p1", release_policy=ReleasePolicy.RECOVER)) as world:
        lost = await world.run()
        await world.store.checkpoint(lost.lease.ref, "seen", url=URL)
        await world.lose(lost)
        world.advance(3600)
        await world.store.pause_expiry(seconds(60), seconds(3600))
        assert await world.resolve(lost, browser_dead=True, final_url=URL) == []
        world.advance(60)
        assert len(await world.resolve(lost, browser_dead=True, final_url=URL)) == 1
        assert await world.state() == "available"


async def test_nothing_expires_that_was_not_over_when_the_clock_was_read(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        first = await world.run("p1")
        world.advance(10)
        second = await world.run("p2")
        world.advance(50)
        seen = world.now
        world.advance(3600)
        assert [lease.lease_id for lease in await world.store.expire(seen=seen)] == [first.lease.lease_id]
        world.advance(-3600)
        assert await world.store.expire(seen=seen + seconds(3600)) == []
        assert (await world.store.renew([Renewal(ref=second.lease.ref)]))[0].refused is None


async def test_a_second_pause_does_not_shorten_the_first(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.run()
        world.advance(3600)
        await world.store.pause_expiry(seconds(100), seconds(3600))
        await world.store.pause_expiry(seconds(10), seconds(1))
        world.advance(99)
        assert await world.store.expire() == []
        world.advance(1)
        assert len(await world.store.expire()) == 1


async def test_a_jump_that_is_taken_back_does_not_pause_expiry_for_as_long_as_it_was(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(86_400)
        await world.store.pause_expiry(seconds(60), seconds(86_400))
        world.advance(-86_400)
        await world.store.pause_expiry(seconds(60), seconds(-86_400))
        world.advance(60)
        assert [lease.lease_id for lease in await world.store.expire()] == [grant.lease.lease_id]
