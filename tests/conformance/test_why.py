"""The facts behind `why`, read at one moment, and that they explain every situation."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action
from leasekeeper.core.jobs import Risk
from leasekeeper.core.leases import Purpose
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.core.why_facts import WhyFacts
from leasekeeper.errors import InputError, NotFound
from leasekeeper.ports import Renewal
from leasekeeper.wording.why import why_text
from tests.conformance.world import NewWorld, World, account, limit, profile, proxy, seconds


def text_of(why: Why) -> str:
    """The answer in sentences, then what can be decided and which runs to look at."""
    said = why_text(why)
    possible = [f"{each.action} {each.target} {each.id} {each.section or ''}" for each in why.possible]
    facts = [f"{name}: {value}" for name, value in said.facts]
    return "\n".join([said.headline, *facts, *said.next, *possible, *(f"see {run_id}" for run_id in why.evidence)])


async def about(world: World, **subject: Any) -> WhyFacts:
    return await world.store.why(**subject)


async def test_all_facts_about_a_waiting_job_are_there(new_world: NewWorld) -> None:
    records = (proxy(), profile(proxy_id="exit_us"), limit("default", 7))
    async with new_world(*records) as world:
        holder = await world.acquire(purpose=Purpose.MANUAL)
        await world.store.checkpoint(holder.lease.ref, "cart_full")
        first, job = await world.add(), await world.add()
        await world.add(expected_language="fr")
        facts = await about(world, job_id=job.job_id)
        assert facts.now == world.now
        assert facts.job is not None
        assert (facts.job.job_id, facts.job.blocked_reason) == (job.job_id, "blocked_by_profile_lease")
        assert (facts.profile, facts.proxy, facts.limit) == (records[1], records[0], records[2])
        assert facts.account.account_id == "shop"
        assert facts.lane == await world.lane()
        assert facts.holders == (await world.lease(holder),)
        assert facts.holders[0].last_safe_step == "cart_full"
        assert (facts.ahead, facts.waiting, facts.pool_leases) == (1, 3, 1)
        assert (facts.key_holders, facts.unresolved, facts.reviews) == ((), (), ())
        assert facts.last_run is not None
        assert facts.last_run.run_id == holder.lease.run_id
        assert (await about(world, job_id=first.job_id)).ahead == 0


async def test_the_place_in_the_queue_counts_priority(new_world: NewWorld) -> None:
    async with new_world() as world:
        low = await world.add(priority=-5)
        for priority in (0, 5, -5):
            await world.add(priority=priority)
        urgent = await world.add(priority=9)
        assert (await about(world, job_id=low.job_id)).ahead == 3
        assert (await about(world, job_id=urgent.job_id)).ahead == 0


async def test_the_holder_of_the_key_in_another_profile_is_named(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        holder = await world.run("p1")
        job = await world.add("p2")
        assert await world.claim() == []
        facts = await about(world, job_id=job.job_id)
        assert [lease.run_id for lease in facts.key_holders] == [holder.lease.run_id]
        assert facts.holders == ()
        assert holder.lease.run_id in text_of(explain(facts))
        whole = await about(world, profile_id="p2")
        assert [lease.run_id for lease in whole.key_holders] == [holder.lease.run_id]


async def a_queued_job(world: World) -> dict[str, str]:
    return {"job_id": (await world.add()).job_id}


async def a_scheduled_job(world: World) -> dict[str, str]:
    return {"job_id": (await world.add(run_at=world.now + seconds(60))).job_id}


async def a_running_job(world: World) -> dict[str, str]:
    return {"job_id": str((await world.run()).lease.job_id)}


async def a_paused_job(world: World) -> dict[str, str]:
    await world.decide_account(Action.PAUSE, note="bank holiday")
    return await a_queued_job(world)


async def a_mismatched_job(world: World) -> dict[str, str]:
    return {"job_id": (await world.add(expected_proxy_region="EU")).job_id}


async def a_job_without_approval(world: World) -> dict[str, str]:
    return {"job_id": (await world.add(risk_level=Risk.REVIEW_REQUIRED)).job_id}


async def a_job_without_a_worker(world: World) -> dict[str, str]:
    return {"job_id": (await world.add(task="rare")).job_id}


async def a_job_without_capacity(world: World) -> dict[str, str]:
    await world.declare(limit("default", 1), profile("other", "elsewhere"))
    await world.acquire("other")
    return await a_queued_job(world)


async def a_reviewed_job(world: World) -> dict[str, str]:
    grant = await world.run()
    await world.finish(grant, "LOGIN_REQUIRED")
    return {"job_id": str(grant.lease.job_id)}


async def a_dead_job(world: World) -> dict[str, str]:
    grant = await world.run(max_attempts=1)
    await world.finish(grant, "TIMEOUT")
    return {"job_id": str(grant.lease.job_id)}


async def a_finished_job(world: World) -> dict[str, str]:
    grant = await world.run()
    await world.finish(grant)
    return {"job_id": str(grant.lease.job_id)}


async def a_job_of_a_lost_worker(world: World) -> dict[str, str]:
    grant = await world.run()
    await world.lose(grant)
    await world.resolve(grant)
    return {"job_id": str(grant.lease.job_id)}


async def an_idle_profile(world: World) -> dict[str, str]:
    return {"profile_id": "p1"}


async def a_leased_profile(world: World) -> dict[str, str]:
    grant = await world.run()
    await world.store.enter_section(grant.lease.ref, "submit_order")
    return {"profile_id": "p1"}


async def a_revoked_profile(world: World) -> dict[str, str]:
    grant = await world.run()
    world.advance(25)
    await world.revoke(grant, over=False)
    return {"profile_id": "p1"}


async def a_job_that_died_inside_a_section(world: World) -> dict[str, str]:
    grant = await world.run()
    await world.store.enter_section(grant.lease.ref, "submit_order")
    await world.lose(grant)
    await world.resolve(grant)
    await world.clear()
    await world.finish(await world.acquire())
    return {"job_id": str(grant.lease.job_id)}


async def a_profile_without_a_worker(world: World) -> dict[str, str]:
    await world.add()
    await world.offer("visit", stopping=True)
    return {"profile_id": "p1"}


async def a_profile_whose_task_nobody_ever_offered(world: World) -> dict[str, str]:
    await world.add(task="rare")
    return {"profile_id": "p1"}


async def a_stale_profile(world: World) -> dict[str, str]:
    await world.lose(await world.run())
    return {"profile_id": "p1"}


async def a_quarantined_profile(world: World) -> dict[str, str]:
    await world.finish(await world.acquire(), "SECURITY_PROMPT")
    return {"profile_id": "p1"}


async def a_draining_profile(world: World) -> dict[str, str]:
    await world.acquire()
    await world.decide_profile(Action.DISABLE)
    return {"profile_id": "p1"}


async def a_disabled_profile(world: World) -> dict[str, str]:
    await world.decide_profile(Action.DISABLE, note="sold")
    return {"profile_id": "p1"}


SITUATIONS: dict[Callable[[World], Awaitable[dict[str, str]]], tuple[str, ...]] = {
    a_queued_job: ("ready and waits for a worker",),
    a_scheduled_job: ("is due in 60 s",),
    a_running_job: ("is running", "w1", "revoke lease p1:1"),
    a_paused_job: ("blocked_by_account_pause", "resume account shop"),
    a_mismatched_job: ("blocked_by_proxy_mismatch", "expects proxy region EU", "cancel job"),
    a_job_without_approval: ("blocked_by_approval", "approve job"),
    a_job_without_a_worker: ("blocked_by_no_worker", "start a worker"),
    a_job_without_capacity: ("blocked_by_capacity", "1 of 1 leases of pool default"),
    a_reviewed_job: ("waits for a person", "LOGIN_REQUIRED", "requeue job", "clear profile p1"),
    a_dead_job: ("is dead", "TIMEOUT", "retry job"),
    a_finished_job: ("is completed", "it is over"),
    a_job_of_a_lost_worker: ("is due", "WORKER_LOST", "lost workers: 1"),
    an_idle_profile: ("p1 is available", "nothing waits for it"),
    a_revoked_profile: ("p1 is leased", "p1:1 was revoked", "until it expires, in 35 s", "the next sweep quarantines"),
    a_job_that_died_inside_a_section: ("last run: ", "see ", "submit_order"),
    a_profile_without_a_worker: ("p1 is available", "visit in pool default", "blocked_by_no_worker"),
    a_profile_whose_task_nobody_ever_offered: ("rare in pool default", "blocked_by_no_worker"),
    a_leased_profile: ("p1 is leased", "inside submit_order", "revoke lease p1:1"),
    a_stale_profile: ("p1 is stale", "release policy quarantine", "disable profile p1"),
    a_quarantined_profile: ("p1 is quarantined", "a security prompt appeared", "clear profile p1"),
    a_draining_profile: ("p1 is leased", "will be disabled when the present lease ends"),
    a_disabled_profile: ("p1 is disabled", "sold", "enable profile p1"),
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
async def test_every_situation_is_explained_by_its_facts(new_world: NewWorld, situation: Any) -> None:
    async with new_world(proxy(), profile(proxy_id="exit_us")) as world:
        facts = await about(world, **await situation(world))
        answer = text_of(explain(facts))
        for part in SITUATIONS[situation]:
            assert part in answer


async def test_a_job_s_own_last_run_is_among_the_facts_and_so_is_its_profile_s(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "TIMEOUT")
        later = await world.acquire()
        facts = await about(world, job_id=grant.lease.job_id)
        assert facts.job_run == await world.run_of(grant)
        assert facts.last_run == await world.run_of(later)
        fresh = await world.add()
        assert (await about(world, job_id=fresh.job_id)).job_run is None


async def test_open_reviews_and_unresolved_endings_are_among_the_facts(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        facts = await about(world, profile_id="p1")
        assert [lease.lease_id for lease in facts.unresolved] == [grant.lease.lease_id]
        await world.resolve(grant)
        facts = await about(world, profile_id="p1")
        assert facts.unresolved == ()
        assert [review.profile_id for review in facts.reviews] == ["p1"]


async def test_why_about_nothing_two_things_or_a_stranger_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add()
        with pytest.raises(InputError):
            await world.store.why()
        with pytest.raises(InputError):
            await world.store.why(job_id=job.job_id, profile_id="p1")
        for subject in ({"job_id": "nobody"}, {"profile_id": "nobody"}, {"profile_id": ""}):
            with pytest.raises(NotFound):
                await world.store.why(**subject)


async def test_a_silent_holder_of_a_long_lease_is_noticed_long_before_it_is_over(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(lock_timeout_seconds=900)
        world.advance(60)
        assert [holder.silent_seconds for holder in explain(await about(world, profile_id="p1")).holders] == [None]
        world.advance(31)
        answer = explain(await about(world, profile_id="p1"))
        assert [holder.silent_seconds for holder in answer.holders] == [91]
        assert "silent for 91 s" in text_of(answer)
        assert f"lease {grant.lease.lease_id} expires in 13 min" in text_of(answer)
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert [holder.silent_seconds for holder in explain(await about(world, profile_id="p1")).holders] == [None]
