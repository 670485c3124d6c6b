"""A call that is repeated, because its answer was lost, gets the answer of the first time and changes nothing; also
after a restart, from another process, and beside the first one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.calls import ANSWERS_KEPT, CallAttempt, Request
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import Note
from leasekeeper.core.policy import Retention
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.tokens import ApiToken, NewToken, Scope
from leasekeeper.errors import Conflict, NotFound, ProfileBusy
from leasekeeper.ports import ClaimRequest, Grant, LeaseRequest, Store
from tests.conformance.world import URL, NewWorld, World, end, fleet, profile, spec

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=("visit",), limit=2)
LEASE = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w1"), incarnation="w1-1")
OPEN = EndFacts(browser=Browser.HANDED_OVER, final_url=URL)
NOTHING_OLD = Retention(jobs=None, events=None)
Call = Callable[[Store], Awaitable[Any]]


def named(slot: str = "s1", sequence: int = 1, attempt: CallAttempt = CallAttempt.AGAIN) -> Request:
    return Request(slot=slot, sequence=sequence, attempt=attempt)


async def twice(world: World, call: Call, slot: str = "s1", *, forgetful: bool = True) -> Any:
    """Do it, lose the answer, do it again: the answers are the same and the log has nothing more.

    `forgetful`: also if the caller does not know that it asked before.
    """
    first = await call(world.store.once(named(slot, attempt=CallAttempt.FIRST)))
    before = await world.all(Event)
    for attempt in CallAttempt if forgetful else (CallAttempt.AGAIN, CallAttempt.ASK):
        assert await call(world.store.once(named(slot, attempt=attempt))) == first
    await world.reopen()
    assert await call(world.store.once(named(slot))) == first
    assert await world.all(Event) == before
    return first


async def test_jobs_are_submitted_once(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        wanted = [spec("p1", payload={"order": 7}), spec("p2")]
        first = await twice(world, lambda store: store.submit(wanted))
        assert {job.job_id for job in await world.all(Job)} == {each.job.job_id for each in first}
        assert first[0].job.payload == {"order": 7}


async def test_grants_are_returned_to_whoever_claimed(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        await world.submit(spec("p1", payload={"order": 7}), spec("p2"), spec("p3"))
        grants = await twice(world, lambda store: store.claim(CLAIM))
        assert len(grants) == 2
        assert {lease.lease_id for lease in await world.all(Lease, live="1")} == {g.lease.lease_id for g in grants}
        for grant in grants:
            await world.finish(grant)


async def test_a_lease_without_a_job_is_returned_too(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await twice(world, lambda store: store.acquire(LEASE), forgetful=False)
        with pytest.raises(ProfileBusy):
            await world.store.once(named("other")).acquire(LEASE)
        await world.finish(grant)


async def test_runs_end_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        (settled,) = await twice(world, lambda store: store.settle([end(grant.lease.ref)]))
        assert (settled.refused, settled.job_state) == (None, "completed")
        assert not await world.all(Event, type=EventType.STALE_WORKER_WRITE_REJECTED)


async def test_a_browser_is_handed_over_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        waiting = await world.add()
        ending = Ending(ref=first.lease.ref, facts=OPEN)
        handed = await twice(world, lambda store: store.hand_over(ending, replace(CLAIM, limit=1)))
        assert handed.grant.job.job_id == waiting.job_id
        await world.finish(handed.grant)


async def test_sections_and_steps_are_written_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        ref = (grant := await world.run()).lease.ref
        await twice(world, lambda store: store.enter_section(ref, "pay"), "enter")
        await twice(world, lambda store: store.leave_section(ref, "pay"), "leave")
        await twice(world, lambda store: store.checkpoint(ref, "paid"), "step")
        await twice(world, lambda store: store.write_note(ref, "paid twice?"), "note")
        await world.finish(grant)


async def test_decisions_fleets_tokens_and_turns_count_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        decision = Decision(
            target=Target.PROFILE, id="p1", action=Action.DISABLE, note="broken", actor="ann",
            version=(await world.lane()).version,
        )  # fmt: skip
        await twice(world, lambda store: store.decide(decision), "decide")
        noted = replace(decision, action=Action.NOTE, version=None)
        await twice(world, lambda store: store.decide(noted), "note")
        assert len(await world.all(Note)) == 1
        changes = await twice(world, lambda store: store.apply(fleet(profile("p2")), actor="ann"), "apply")
        assert [change.id for change in changes] == ["p2"]
        new = NewToken(token_id="t" * 12, name="ci", scopes=(Scope.READ,), hash="c0ffee")
        await twice(world, lambda store: store.create_token(new, actor="ann"), "token")
        assert len(await world.all(ApiToken)) == 1
        spacing = timedelta(seconds=10)
        await twice(world, lambda store: store.reserve_call("api", spacing), "reserve_call")
        assert await world.store.reserve_call("api", spacing) == spacing


async def test_leases_expire_once_and_are_reported_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(timedelta(hours=2))
        (expired,) = await twice(world, lambda store: store.expire(), forgetful=False)
        assert expired.lease_id == grant.lease.lease_id


async def test_one_of_two_processes_does_it(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(8))) as world:
        await world.submit(*(spec(f"p{n}") for n in range(8)))
        stores = [world.store, await world.another()]
        one = replace(CLAIM, limit=1)
        # Eight calls, each sent twice at the same moment, to another process the second time.
        calls = [store.once(named(f"s{n}")).claim(one) for n in range(4) for store in stores]
        answers = await asyncio.gather(*calls)
        ids = [[grant.lease.lease_id for grant in grants] for grants in answers]
        assert ids[::2] == ids[1::2]
        assert len({each for granted in ids for each in granted}) == len(await world.all(Lease, live="1")) == 4
        grants: list[Grant] = [grants[0] for grants in answers[::2]]
        endings = [
            store.once(named(f"e{n}")).settle([end(grant.lease.ref)])
            for n, grant in enumerate(grants)
            for store in stores
        ]
        settled = await asyncio.gather(*endings)
        assert [each[0].refused for each in settled] == [None] * 8
        assert not await world.all(Event, type=EventType.STALE_WORKER_WRITE_REJECTED)


async def test_others_of_the_same_commit_get_their_own_answers(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        await world.submit(*(spec(f"p{n}") for n in range(4)))
        one = replace(CLAIM, limit=1)
        (known,) = await world.store.once(named("s0")).claim(one)
        # One of these was answered before, which the caller has forgotten: the others are not repeated with it.
        requests = [named(f"s{n}", attempt=CallAttempt.FIRST) for n in range(3)]
        answers = await asyncio.gather(*(world.store.once(request).claim(one) for request in requests))
        assert answers[0] == [known]
        leases = {grant.lease.lease_id for grants in answers for grant in grants}
        assert leases == {lease.lease_id for lease in await world.all(Lease, live="1")}
        assert len(leases) == 3
        for (grant,) in answers:
            await world.finish(grant)


async def test_a_lease_that_is_over_is_not_claimed_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add()
        (grant,) = await world.store.once(named()).claim(CLAIM)
        await world.finish(grant)
        assert await world.store.once(named()).claim(CLAIM) == []


async def test_nothing_and_errors_are_not_kept(new_world: NewWorld) -> None:
    async with new_world() as world:
        assert await world.store.once(named()).claim(CLAIM) == []
        with pytest.raises(NotFound):
            await world.store.once(named(attempt=CallAttempt.ASK)).claim(CLAIM)
        await world.add()
        (grant,) = await world.store.once(named()).claim(CLAIM)
        with pytest.raises(ProfileBusy):
            await world.store.once(named("s2")).acquire(LEASE)
        await world.finish(grant)
        assert (await world.store.once(named("s2")).acquire(LEASE)).lease.token == grant.lease.token + 1


async def test_the_next_call_of_a_slot_replaces_its_answer(new_world: NewWorld) -> None:
    async with new_world() as world:
        for sequence in (1, 2):
            await world.store.once(named(sequence=sequence)).submit([spec()])
        jobs = await world.all(Job)
        for attempt in (CallAttempt.FIRST, CallAttempt.AGAIN):
            with pytest.raises(Conflict) as late:
                await world.store.once(named(sequence=1, attempt=attempt)).submit([spec()])
            assert late.value.cause is ConflictReason.REQUEST_REUSED
            with pytest.raises(Conflict):
                await world.store.once(named(sequence=2, attempt=attempt)).acquire(LEASE)
        assert await world.all(Job) == jobs


async def test_answers_are_pruned(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.store.once(named()).submit([spec()])
        world.advance(ANSWERS_KEPT)
        await world.store.prune(NOTHING_OLD)
        assert await world.store.once(named(attempt=CallAttempt.ASK)).submit([spec()])
        world.advance(timedelta(seconds=1))
        await world.store.prune(NOTHING_OLD)
        with pytest.raises(NotFound):
            await world.store.once(named(attempt=CallAttempt.ASK)).submit([spec()])
