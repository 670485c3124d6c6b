"""What a holder may write: heartbeats, safe steps and mutating sections."""

import pytest

from leasekeeper.core.events import EventType
from leasekeeper.core.leases import LeaseStatus
from leasekeeper.errors import Conflict, InputError
from leasekeeper.ports import Renewal
from tests.conformance.world import NewWorld, profile, seconds


async def test_a_heartbeat_moves_the_end_one_ttl_from_now(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(lock_timeout_seconds=900)
        world.advance(600)
        (answer,) = await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert (answer.lease_id, answer.refused) == (grant.lease.lease_id, None)
        assert answer.expires_at == world.now + seconds(900)
        lease = await world.lease(grant)
        assert (lease.expires_at, lease.heartbeat_at) == (world.now + seconds(900), world.now)
        assert lease.acquired_at == world.now - seconds(600)


async def test_a_heartbeat_writes_no_event(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        before = len(await world.events())
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert len(await world.events()) == before


async def test_many_heartbeats_go_in_one_call(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(20))) as world:
        grants = [await world.acquire(f"p{n}", ttl=seconds(60 + n)) for n in range(20)]
        world.advance(30)
        answers = await world.store.renew([Renewal(ref=grant.lease.ref) for grant in reversed(grants)])
        assert [answer.lease_id for answer in answers] == [g.lease.lease_id for g in reversed(grants)]
        assert [answer.expires_at for answer in answers] == [world.now + seconds(60 + n) for n in reversed(range(20))]
        assert await world.store.renew([]) == []
        with pytest.raises(InputError, match="at most 1000"):
            await world.store.renew([Renewal(ref=grants[0].lease.ref)] * 1001)


async def test_one_lease_that_is_renewed_twice_in_a_call_is_renewed(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(30)
        twice = [Renewal(ref=grant.lease.ref), Renewal(ref=grant.lease.ref, status=LeaseStatus.RELEASING)]
        answers = await world.store.renew(twice)
        assert [answer.expires_at for answer in answers] == [world.now + seconds(60)] * 2
        assert (await world.lease(grant)).status is LeaseStatus.RELEASING


async def test_a_safe_step_is_kept_with_its_time_and_address(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "logged_in", url="https://site.test/home")
        world.advance(7)
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        lease = await world.lease(grant)
        assert (lease.last_safe_step, lease.last_safe_at) == ("cart_full", world.now)
        assert lease.last_url == "https://site.test/home"
        steps = [event.data["step"] for event in await world.events(type=EventType.CHECKPOINT_SAVED)]
        assert steps == ["logged_in", "cart_full"]
        assert (await world.run_of(grant)).last_safe_step == "cart_full"


async def test_a_checkpoint_is_no_heartbeat(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(30)
        await world.store.checkpoint(grant.lease.ref, "logged_in")
        assert (await world.lease(grant)).expires_at == grant.lease.expires_at


async def test_a_section_is_open_from_entering_to_leaving(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.enter_section(grant.lease.ref, "submit_order")
        lease = await world.lease(grant)
        assert (lease.open_section, lease.section_at) == ("submit_order", world.now)
        world.advance(5)
        await world.store.checkpoint(grant.lease.ref, "order_number_seen")
        assert (await world.lease(grant)).open_section == "submit_order"
        await world.store.leave_section(grant.lease.ref, "submit_order")
        lease = await world.lease(grant)
        assert (lease.open_section, lease.section_at) == (None, None)
        assert lease.last_safe_step == "order_number_seen"
        reported = [event.type for event in await world.events(run_id=grant.lease.run_id)]
        assert reported[-3:] == ["section_entered", "checkpoint_saved", "section_left"]


async def test_sections_do_not_nest_and_must_match(new_world: NewWorld) -> None:
    async with new_world() as world:
        ref = (await world.run()).lease.ref
        with pytest.raises(Conflict) as refused:
            await world.store.leave_section(ref, "submit_order")
        assert refused.value.code == "CONFLICT"
        await world.store.enter_section(ref, "submit_order")
        before, logged = await world.everything(), await world.events()
        for name in ("submit_order", "pay"):
            with pytest.raises(Conflict, match="submit_order"):
                await world.store.enter_section(ref, name)
        with pytest.raises(Conflict, match="submit_order"):
            await world.store.leave_section(ref, "pay")
        assert await world.everything() == before
        assert await world.events() == logged
        await world.store.leave_section(ref, "submit_order")
        await world.store.enter_section(ref, "pay")


async def test_a_heartbeat_leaves_steps_and_sections_alone(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full", url="https://site.test/cart")
        await world.store.enter_section(grant.lease.ref, "pay")
        world.advance(9)
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        lease = await world.lease(grant)
        assert (lease.last_safe_step, lease.open_section) == ("cart_full", "pay")
        assert lease.last_url == "https://site.test/cart"


async def test_sharers_hold_steps_and_sections_of_their_own(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2, disposable=True)) as world:
        await world.add(shared=True)
        await world.add(shared=True)
        first, second = await world.take(), await world.take()
        await world.store.enter_section(first.lease.ref, "pay")
        await world.store.checkpoint(second.lease.ref, "seen")
        assert (await world.lease(second)).open_section is None
        assert (await world.lease(first)).last_safe_step is None


async def test_a_run_that_shares_its_profile_may_change_nothing(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        await world.add(shared=True)
        grant = await world.take()
        with pytest.raises(Conflict, match="needs it alone"):
            await world.store.enter_section(grant.lease.ref, "pay")
        assert (await world.lease(grant)).open_section is None
