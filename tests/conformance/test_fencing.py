"""Fencing: a write is accepted from the live lease with its own token, and from nothing else (I3).

Every way in which a lease can be over, times every operation that takes a token.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from leasekeeper.core.decisions import Review
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import LeaseId, ProfileId, RunId, Token
from leasekeeper.core.leases import LeaseRef, LeaseStatus, Refusal
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import Renewal
from tests.conformance.world import NewWorld, World, end, profile

Write = Callable[[World, LeaseRef], Awaitable[str | None]]
Over = Callable[[World], Awaitable[LeaseRef]]


async def refusal_of(call: Awaitable[None]) -> str | None:
    try:
        await call
    except LeaseLost as error:
        return error.refusal
    return None


async def renew(world: World, ref: LeaseRef) -> str | None:
    (answer,) = await world.store.renew([Renewal(ref=ref)])
    assert (answer.refused is None) is (answer.expires_at is not None)
    return answer.refused


async def releasing(world: World, ref: LeaseRef) -> str | None:
    (answer,) = await world.store.renew([Renewal(ref=ref, status=LeaseStatus.RELEASING)])
    return answer.refused


async def checkpoint(world: World, ref: LeaseRef) -> str | None:
    return await refusal_of(world.store.checkpoint(ref, "logged_in", url="https://site.test/"))


async def enter_section(world: World, ref: LeaseRef) -> str | None:
    return await refusal_of(world.store.enter_section(ref, "submit_order"))


async def leave_section(world: World, ref: LeaseRef) -> str | None:
    return await refusal_of(world.store.leave_section(ref, "open_already"))


async def settle(world: World, ref: LeaseRef) -> str | None:
    (answer,) = await world.store.settle([end(ref, output={"late": True})])
    assert (answer.settlement is None) is (answer.refused is not None)
    return answer.refused


WRITES: dict[str, Write] = {
    "renew": renew,
    "renew_as_releasing": releasing,
    "checkpoint": checkpoint,
    "enter_section": enter_section,
    "leave_section": leave_section,
    "settle": settle,
}


async def expired_and_not_swept(world: World) -> LeaseRef:
    grant = await world.run()
    world.clock.now = grant.lease.expires_at
    return grant.lease.ref


async def expired_and_swept(world: World) -> LeaseRef:
    grant = await world.run()
    await world.lose(grant)
    return grant.lease.ref


async def expired_and_resolved(world: World) -> LeaseRef:
    grant = await world.run()
    await world.lose(grant)
    assert await world.resolve(grant)
    return grant.lease.ref


async def revoked(world: World) -> LeaseRef:
    grant = await world.run()
    await world.revoke(grant)
    return grant.lease.ref


async def released(world: World) -> LeaseRef:
    grant = await world.run()
    await world.finish(grant)
    return grant.lease.ref


async def released_without_proof(world: World) -> LeaseRef:
    grant = await world.run()
    facts = EndFacts(browser=Browser.NOT_PROVEN, final_url="https://site.test/")
    await world.finish(grant, facts=facts)
    return grant.lease.ref


async def superseded(world: World) -> LeaseRef:
    ref = await released(world)
    await world.run()
    return ref


async def superseded_with_the_next_token(world: World) -> LeaseRef:
    """The old lease's name with the token of the one that is live now."""
    ref = await released(world)
    return replace(ref, token=(await world.run()).lease.token)


async def renamed_with_its_old_token(world: World) -> LeaseRef:
    """The live lease's name with the token of the one before."""
    ref = await released(world)
    return replace(ref, lease_id=(await world.run()).lease.lease_id)


async def of_a_token_before(world: World) -> LeaseRef:
    await world.finish(await world.run())
    ref = (await world.run()).lease.ref
    return replace(ref, token=Token(ref.token - 1))


async def of_a_token_to_come(world: World) -> LeaseRef:
    ref = (await world.run()).lease.ref
    return replace(ref, token=Token(ref.token + 1), lease_id=LeaseId(f"p1:{ref.token + 1}"))


async def of_token_zero(world: World) -> LeaseRef:
    return replace((await world.run()).lease.ref, token=Token(0))


async def of_another_routing_key(world: World) -> LeaseRef:
    return replace((await world.run()).lease.ref, routing_key="account:shop")


async def of_another_profile(world: World) -> LeaseRef:
    return replace((await world.run()).lease.ref, profile_id=ProfileId("p2"))


async def of_a_profile_that_is_not_there(world: World) -> LeaseRef:
    ref = (await world.run()).lease.ref
    return replace(ref, profile_id=ProfileId("nobody"), lease_id=LeaseId("nobody:1"), routing_key="profile:nobody")


async def of_a_lease_that_is_not_there(world: World) -> LeaseRef:
    return replace((await world.run()).lease.ref, lease_id=LeaseId("not a lease"))


OVER: dict[str, Over] = {
    "expired_and_not_swept": expired_and_not_swept,
    "expired_and_swept": expired_and_swept,
    "expired_and_resolved": expired_and_resolved,
    "revoked": revoked,
    "released": released,
    "released_without_proof": released_without_proof,
    "superseded": superseded,
    "superseded_with_the_next_token": superseded_with_the_next_token,
    "renamed_with_its_old_token": renamed_with_its_old_token,
    "of_a_token_before": of_a_token_before,
    "of_a_token_to_come": of_a_token_to_come,
    "of_token_zero": of_token_zero,
    "of_another_routing_key": of_another_routing_key,
    "of_another_profile": of_another_profile,
    "of_a_profile_that_is_not_there": of_a_profile_that_is_not_there,
    "of_a_lease_that_is_not_there": of_a_lease_that_is_not_there,
}


@pytest.mark.parametrize("over", OVER)
async def test_a_lease_that_is_over_or_wrong_writes_nothing(new_world: NewWorld, over: str) -> None:
    async with new_world(profile(), profile("p2")) as world:
        ref = await OVER[over](world)
        for name, write in WRITES.items():
            before, logged = await world.everything(), await world.events()
            refused = await write(world, ref)
            assert refused, f"{name} was accepted"
            assert await world.everything() == before, f"{name} changed something"
            (event,) = (await world.events())[len(logged) :]
            assert event.type is EventType.STALE_WORKER_WRITE_REJECTED
            assert (event.profile_id, event.run_id) == (ref.profile_id, ref.run_id)
            assert event.job_state is None
            assert event.profile_state is None
            assert event.data["token"] == ref.token
            assert event.data["lease_id"] == ref.lease_id
            assert event.data["write"] == name.removesuffix("_as_releasing")
            assert event.data["why"] == refused == Refusal(refused)


@pytest.mark.parametrize("name", WRITES)
async def test_the_live_lease_with_its_own_token_writes(new_world: NewWorld, name: str) -> None:
    async with new_world() as world:
        grant = await world.run()
        if name == "leave_section":
            await world.store.enter_section(grant.lease.ref, "open_already")
        world.clock.now = grant.lease.expires_at - (grant.lease.expires_at - world.now) / 1_000_000
        before = await world.everything()
        assert await WRITES[name](world, grant.lease.ref) is None
        assert await world.everything() != before
        assert await world.events(type="stale_worker_write_rejected") == []


@pytest.mark.parametrize(
    ("over", "why"),
    [
        (expired_and_not_swept, Refusal.OVERDUE),
        (expired_and_swept, Refusal.EXPIRED),
        (revoked, Refusal.REVOKED),
        (released, Refusal.RELEASED),
        (superseded, Refusal.RELEASED),
        (of_a_token_to_come, Refusal.NO_SUCH_LEASE),
        (of_another_routing_key, Refusal.WRONG_ROUTING_KEY),
    ],
)
async def test_a_refusal_says_what_became_of_the_lease(new_world: NewWorld, over: Over, why: Refusal) -> None:
    async with new_world() as world:
        ref = await over(world)
        assert await renew(world, ref) is why
        with pytest.raises(LeaseLost) as lost:
            await world.store.checkpoint(ref, "late")
        assert lost.value.code == ("LEASE_EXPIRED" if why is Refusal.OVERDUE else "STALE_WORKER_WRITE_REJECTED")
        assert lost.value.data == {"refusal": why, "lease_id": ref.lease_id, "profile_id": ref.profile_id}


@pytest.mark.parametrize("name", ["renew", "settle"])
async def test_a_lease_that_the_store_forgot_sends_its_profile_to_review(new_world: NewWorld, name: str) -> None:
    """The server lost its last writes: somebody worked in the profile, and only that worker knows."""
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant)
        token = Token(grant.lease.token + 1)
        ref = replace(grant.lease.ref, token=token, lease_id=LeaseId(f"p1:{token}"), run_id=RunId("forgotten"))
        for _ in range(2):
            assert await WRITES[name](world, ref) is Refusal.NO_SUCH_LEASE
        assert await world.state("p1") is ProfileState.REVIEW_REQUIRED
        (review,) = (await world.store.find(Review, {"open": "1"})).items
        assert "run forgotten did" in review.summary
        assert await world.claim() == []


async def test_a_refused_ending_leaves_the_others_of_its_batch_alone(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2"), profile("p3")) as world:
        late, good, other = [await world.run(name) for name in ("p1", "p2", "p3")]
        await world.revoke(late, over=False)
        answers = await world.store.settle([end(g.lease.ref) for g in (good, late, other)])
        assert [answer.refused is None for answer in answers] == [True, False, True]
        assert [await world.state(name) for name in ("p1", "p2", "p3")] == [
            ProfileState.LEASED,
            ProfileState.AVAILABLE,
            ProfileState.AVAILABLE,
        ]


async def test_a_refused_renewal_leaves_the_others_of_its_batch_alone(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        late, good = await world.run("p1"), await world.run("p2")
        await world.finish(late)
        world.advance(10)
        first, second = await world.store.renew([Renewal(ref=late.lease.ref), Renewal(ref=good.lease.ref)])
        assert first.refused
        assert second.expires_at == world.now + world.policy.timing.ttl


async def test_an_ending_that_is_reported_twice_in_one_batch_counts_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        first, second = await world.store.settle([end(grant.lease.ref), end(grant.lease.ref, "TIMEOUT")])
        assert first.refused is None
        assert second.refused is not None
        assert (await world.job(grant)).state == "completed"


async def test_an_ending_that_is_reported_again_is_refused_and_changes_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, output={"orders": 3})
        before = await world.everything()
        assert (await world.finish(grant, "TIMEOUT")).refused
        assert await world.everything() == before


async def test_a_stale_worker_cannot_end_the_run_of_the_next_one(new_world: NewWorld) -> None:
    async with new_world() as world:
        old = await world.run()
        await world.lose(old)
        await world.resolve(old)
        await world.clear()
        new = await world.run()
        assert (await world.finish(old)).refused
        assert (await world.lease(new)).ended_at is None
        assert (await world.job(new)).state == "running"


async def test_tokens_of_a_profile_grow_whatever_ended_the_lease_before(
    new_world: NewWorld,
) -> None:
    async with new_world() as world:
        tokens = []
        for ending in ("finish", "lose", "revoke", "acquire", "finish"):
            grant = await (world.acquire() if ending == "acquire" else world.run())
            tokens.append(grant.lease.token)
            if ending in ("finish", "acquire"):
                await world.finish(grant)
                continue
            await (world.lose(grant) if ending == "lose" else world.revoke(grant))
            await world.resolve(grant)
            await world.clear()
        assert tokens == [1, 2, 3, 4, 5]
        assert (await world.lane()).token == 5


async def test_tokens_go_on_after_the_store_was_closed_and_opened(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run())
        await world.reopen()
        grant = await world.run()
        assert grant.lease.token == 2
        await world.reopen()
        assert await renew(world, grant.lease.ref) is None


async def test_tokens_go_on_when_a_profile_is_removed_and_declared_again(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        old = await world.acquire("p2")
        await world.finish(old)
        await world.declare(profile(), prune=True)
        await world.declare(profile(), profile("p2"))
        new = await world.acquire("p2")
        assert new.lease.token > old.lease.token
        assert (await world.finish(old)).refused


async def test_tokens_of_two_profiles_are_counted_apart(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        for _ in range(3):
            await world.finish(await world.run("p1"))
        assert (await world.run("p2")).lease.token == 1


async def test_a_lease_is_named_by_its_profile_and_token(new_world: NewWorld) -> None:
    async with new_world(profile("shop.eu-1")) as world:
        grant = await world.acquire("shop.eu-1")
        assert grant.lease.lease_id == "shop.eu-1:1"
        assert (await world.lease(grant)).run_id == grant.lease.run_id


async def test_the_event_of_a_late_write_names_who_wrote_and_for_which_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        late = await world.run()
        await world.lose(late)
        await world.finish(late)
        (event,) = await world.events(type=EventType.STALE_WORKER_WRITE_REJECTED)
        assert (event.worker_id, event.run_id, event.job_id) == ("w1", late.lease.run_id, late.lease.job_id)
        assert (event.account_id, event.job_state) == ("shop", None)
        other = replace(late.lease.ref, run_id=RunId("of-a-store-that-was-restored"))
        await world.store.settle([end(other)])
        event = (await world.events(type=EventType.STALE_WORKER_WRITE_REJECTED))[-1]
        assert (event.worker_id, event.run_id, event.job_id) == (None, other.run_id, None)
