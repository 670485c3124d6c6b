"""Holders that vanish: an expiry frees nothing, and each unexplained ending is resolved once (I7)."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease, LeaseStatus, RunResult
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, LostFacts
from leasekeeper.errors import Conflict, NotFound
from leasekeeper.ports import Grant, Renewal, Resolution
from tests.conformance.world import URL, NewWorld, World, end, profile, proxy, seconds

RECOVERABLE = {"final_url": URL, "browser_dead": True}


async def test_an_expiry_frees_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        world.clock.now = grant.lease.expires_at
        assert await world.claim() == []
        assert await world.state() == "leased"
        (lease,) = await world.store.expire()
        assert (lease.lease_id, lease.status) == (grant.lease.lease_id, LeaseStatus.EXPIRED)
        assert (lease.ended_at, lease.unresolved) == (grant.lease.expires_at, True)
        assert await world.state() == "stale"
        assert (await world.job(grant)).state == "running"
        assert await world.claim() == []
        world.advance(timedelta(days=30))
        assert await world.claim() == []
        assert await world.state() == "stale"


async def test_a_sweep_ends_each_lease_once_and_no_live_one(new_world: NewWorld) -> None:
    names = [f"p{n}" for n in range(5)]
    async with new_world(*(profile(name) for name in names)) as world:
        grants = [await world.run(name, lock_timeout_seconds=60 * (n + 1)) for n, name in enumerate(names)]
        assert await world.store.expire() == []
        world.clock.now = grants[2].lease.expires_at
        swept = await world.store.expire(limit=2)
        assert [lease.profile_id for lease in swept] == ["p0", "p1"]
        assert [lease.profile_id for lease in await world.store.expire()] == ["p2"]
        assert await world.store.expire() == []
        assert [lease.profile_id for lease in await world.store.unresolved()] == ["p0", "p1", "p2"]
        assert len(await world.events(type=EventType.LEASE_EXPIRED)) == 3
        assert len(await world.store.unresolved(limit=1)) == 1


async def test_the_event_of_an_expiry_says_where_the_worker_was(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.store.enter_section(grant.lease.ref, "pay")
        await world.lose(grant)
        (event,) = await world.events(type=EventType.LEASE_EXPIRED)
        assert (event.profile_state, event.worker_id, event.run_id) == ("stale", "w1", grant.lease.run_id)
        assert (event.data["last_safe_step"], event.data["open_section"]) == ("cart_full", "pay")


async def test_a_renewed_lease_does_not_expire(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        for _ in range(10):
            world.advance(50)
            (answer,) = await world.store.renew([Renewal(ref=grant.lease.ref)])
            assert answer.expires_at == world.now + seconds(60)
            assert await world.store.expire() == []
        assert (await world.lease(grant)).heartbeat_at == world.now
        assert await world.state() == "leased"


@dataclass(frozen=True)
class Case:
    """What is known of a lost run, and what must become of its profile and its job."""

    policy: ReleasePolicy
    profile: str
    job: str = "scheduled"
    step: bool = True
    section: bool = False
    url: bool = True
    dead: bool = True
    proxy_changed: bool = False
    says: str = ""


Q, R, C = ReleasePolicy.QUARANTINE, ReleasePolicy.REVIEW, ReleasePolicy.RECOVER

CASES = {
    "quarantine": Case(Q, "quarantined", says="release policy is quarantine"),
    "quarantine_section": Case(Q, "quarantined", "review", section=True, says="died inside pay"),
    "quarantine_proxy": Case(Q, "quarantined", proxy_changed=True, says="proxy changed"),
    "review": Case(R, "review_required", says="release policy is review"),
    "review_section": Case(R, "quarantined", "review", section=True, says="died inside pay"),
    "review_proxy": Case(R, "quarantined", proxy_changed=True, says="proxy changed"),
    "recover": Case(C, "available", says="recovered after safe step cart_full"),
    "recover_section": Case(C, "quarantined", "review", section=True, says="died inside pay"),
    "recover_proxy": Case(C, "quarantined", proxy_changed=True, says="proxy changed"),
    "recover_no_step": Case(C, "review_required", step=False, says="no safe step is known"),
    "recover_no_url": Case(C, "review_required", url=False, says="final URL is unknown"),
    "recover_not_dead": Case(C, "review_required", dead=False, says="not proven dead"),
    "recover_nothing": Case(C, "review_required", step=False, url=False, dead=False, says="not proven dead"),
}


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_lost_run_is_resolved_by_its_policy_and_the_facts(new_world: NewWorld, how: str) -> None:
    records = [profile(name, release_policy=case.policy) for name, case in CASES.items()]
    async with new_world(*records) as world:
        grants = {name: await world.run(name) for name in CASES}
        for name, case in CASES.items():
            if case.step:
                await world.store.checkpoint(grants[name].lease.ref, "cart_full")
            if case.section:
                await world.store.enter_section(grants[name].lease.ref, "pay")
        if how == "revoked":
            for grant in grants.values():
                await world.revoke(grant, over=False)
        await world.lose(*grants.values())
        assert {await world.state(name) for name in CASES} == {"stale"}
        world.advance(15)
        answers = await world.store.resolve([found_out(grants[name], case) for name, case in CASES.items()])
        for (name, case), answer in zip(CASES.items(), answers, strict=True):
            lane = await world.lane(name)
            assert (lane.state, (await world.job(grants[name])).state) == (case.profile, case.job), name
            assert (answer.profile_state, answer.job_state) == (case.profile, case.job)
            assert (case.says.replace("died", "revoked") if how == "revoked" else case.says) in lane.state_reason
            run = await world.run_of(grants[name])
            assert (run.result, run.stop_reason) == (RunResult.FAILED, "WORKER_LOST")
            assert run.status == ("expired" if how == "expired" else "revoked")
            assert (await world.job(grants[name])).losses == 1
        assert await world.store.unresolved() == []
        assert len(await world.events(type=EventType.STALE_RESOLVED)) == len(CASES)


def found_out(grant: Grant, case: Case) -> Resolution:
    facts = LostFacts(
        final_url=URL if case.url else None,
        browser_dead=case.dead,
        proxy_changed=case.proxy_changed,
        reported_by="keeper",
    )
    return Resolution(lease_id=grant.lease.lease_id, facts=facts)


async def test_a_profile_whose_proxy_was_exchanged_meanwhile_is_not_recovered(new_world: NewWorld) -> None:
    async with new_world(proxy("x1"), proxy("x2"), profile(release_policy=C, proxy_id="x1")) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.declare(profile(release_policy=C, proxy_id="x2"))
        await world.lose(grant)
        world.advance(15)
        await world.resolve(grant, **RECOVERABLE)
        lane = await world.lane()
        assert (lane.state, "its proxy was x1 and is x2 now" in lane.state_reason) == ("review_required", True)


async def test_recovery_waits_for_the_lock_delay(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=C)) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.lose(grant)
        world.clock.now = grant.lease.expires_at + seconds(15) - timedelta(microseconds=1)
        before = await world.everything()
        assert await world.resolve(grant, **RECOVERABLE) == []
        assert await world.everything() == before
        world.advance(timedelta(microseconds=1))
        assert len(await world.resolve(grant, **RECOVERABLE)) == 1
        assert await world.state() == "available"


async def test_the_lock_delay_scales_with_the_ttl_of_the_job_up_to_a_minute(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=C)) as world:
        grant = await world.run(lock_timeout_seconds=900)
        assert grant.lease.expires_at == world.now + seconds(900)
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.lose(grant)
        world.advance(59)
        assert await world.resolve(grant, **RECOVERABLE) == []
        world.advance(1)
        assert len(await world.resolve(grant, **RECOVERABLE)) == 1


async def test_the_url_of_the_last_safe_step_is_not_where_the_run_ended(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=C)) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full", url="https://site.test/cart")
        await world.lose(grant)
        world.advance(15)
        await world.resolve(grant, browser_dead=True)
        assert await world.state() == "review_required"
        assert (await world.run_of(grant)).final_url is None


async def test_a_lost_run_is_resolved_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        assert len(await world.resolve(grant)) == 1
        before, logged = await world.everything(), await world.events()
        assert await world.resolve(grant, browser_dead=True) == []
        assert await world.everything() == before
        assert await world.events() == logged


async def test_nothing_but_an_unexplained_ending_can_be_resolved(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        live, over = await world.run("p1"), await world.run("p2")
        await world.finish(over)
        before = await world.everything()
        for name in (live.lease.lease_id, over.lease.lease_id, "p1:99", "nobody:1", "nonsense", "", "p1:x", ":"):
            assert await world.store.resolve([Resolution(lease_id=name)]) == []  # type: ignore[arg-type] # as typed in
        assert await world.everything() == before
        await world.finish(live)


async def test_two_sweepers_resolve_a_run_once(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=R)) as world:
        grant = await world.run()
        await world.lose(grant)
        other = await world.another()
        first = await world.store.resolve([Resolution(lease_id=grant.lease.lease_id)])
        second = await other.resolve([Resolution(lease_id=grant.lease.lease_id)])
        assert (len(first), len(second)) == (1, 0)


async def test_what_the_keeper_found_is_kept_with_the_run(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        await world.resolve(grant, final_url="https://site.test/x", reported_by="keeper", evidence={"screenshot": "ab"})
        run = await world.run_of(grant)
        assert (run.final_url, run.evidence["screenshot"]) == ("https://site.test/x", "ab")
        (event,) = await world.events(type=EventType.STALE_RESOLVED)
        assert event.data["reported_by"] == "keeper"
        assert (event.job_state, event.profile_state) == ("scheduled", "quarantined")


async def test_a_job_whose_runs_kill_workers_leaves_the_rotation_after_two(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=R)) as world:
        job = await world.add(max_attempts=10)
        for losses, state in ((1, "scheduled"), (2, "review")):
            grant = await world.take()
            await world.lose(grant)
            await world.resolve(grant)
            lost = await world.job(job)
            assert (lost.losses, lost.state, lost.attempt) == (losses, state, losses)
            await world.clear()
            world.advance(60)
            await world.store.promote()
        assert "2 of its runs lost their worker" in (await world.job(job)).detail
        assert await world.claim() == []


async def test_losses_are_counted_apart_from_failures(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=R)) as world:
        job = await world.add(max_attempts=10)
        for reason in ("TIMEOUT", "TIMEOUT", None, "TIMEOUT"):
            grant = await world.take()
            if reason is None:
                await world.lose(grant)
                await world.resolve(grant)
                await world.clear()
            else:
                await world.finish(grant, reason)
            world.advance(900)
            assert await world.store.promote() == 1
        known = await world.job(job)
        assert (known.losses, known.attempt, known.state) == (1, 4, "queued")


async def test_a_lost_run_that_was_the_last_attempt_goes_to_a_person(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(max_attempts=1)
        await world.lose(grant)
        await world.resolve(grant)
        job = await world.job(grant)
        assert (job.state, job.stop_reason) == ("review", "WORKER_LOST")
        reviews = await world.all(Review, open="true")
        assert sorted(review.target for review in reviews) == ["job", "profile"]


async def test_a_lease_that_was_asked_for_directly_is_resolved_without_a_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.acquire(release_policy=ReleasePolicy.REVIEW)
        assert grant.lease.release_policy is ReleasePolicy.QUARANTINE
        await world.lose(grant)
        (answer,) = await world.resolve(grant)
        assert (answer.job_state, answer.profile_state) == (None, "quarantined")


async def test_a_job_may_only_make_the_release_policy_stricter(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=C)) as world:
        grant = await world.run(release_policy="review")
        assert grant.lease.release_policy is ReleasePolicy.REVIEW
        await world.finish(grant)
        await world.add(release_policy="review")
        await world.declare(profile(release_policy=Q))
        assert (await world.take()).lease.release_policy is ReleasePolicy.QUARANTINE


async def test_a_revoked_lease_is_reported_with_who_did_it(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        decided = await world.revoke(grant, over=False)
        assert decided.state == "revoked"
        (event,) = await world.events(type=EventType.LEASE_REVOKED)
        assert (event.actor, event.data["note"], event.profile_state) == ("ann", "looked at it", "leased")
        assert await world.store.expire() == []
        world.advance(60)
        await world.store.expire()
        assert await world.state() == "stale"
        assert (await world.lease(grant)).status is LeaseStatus.REVOKED
        await world.resolve(grant)
        assert "revoked" in (await world.lane()).state_reason


async def test_a_lease_that_was_revoked_already_is_reported_with_what_becomes_of_it(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        world.advance(25)
        await world.revoke(grant, over=False)
        with pytest.raises(Conflict, match=r"p1:1 was revoked already") as refused:
            await world.revoke(grant, over=False)
        assert (refused.value.cause, refused.value.lease_id) == (ConflictReason.LEASE_REVOKED, "p1:1")
        assert refused.value.until_at == world.now + seconds(35)
        assert len(await world.events(type=EventType.LEASE_REVOKED)) == 1
        world.advance(35)
        with pytest.raises(Conflict):
            await world.revoke(grant, over=False)
        await world.store.expire()
        with pytest.raises(NotFound):
            await world.revoke(grant, over=False)


async def test_a_lost_run_is_reported_by_when_it_was_last_heard_of(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_open")
        world.advance(5)
        await world.store.enter_section(grant.lease.ref, "pay")
        world.advance(7)
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        world.advance(60)
        await world.store.expire()
        await world.resolve(grant)
        sentence = "died inside pay; last heard of 12 s after the last safe step cart_open"
        assert (await world.lane()).state_reason == sentence
        assert (await world.job(grant)).detail == (
            f"WORKER_LOST: {sentence}; mutating section pay was open: it may have been done"
        )


async def test_a_revoked_lease_keeps_its_profile_until_its_holder_must_have_stopped(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.add()
        world.advance(30)
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        await world.revoke(grant, over=False)
        assert (await world.store.renew([Renewal(ref=grant.lease.ref)]))[0].refused
        for _ in range(3):
            assert await world.store.expire() == []
            assert await world.claim() == []
            assert await world.state() == "leased"
            world.advance(19)
        world.advance(3)
        assert [lease.status for lease in await world.store.expire()] == ["revoked"]
        assert await world.state() == "stale"


async def test_a_recovered_profile_goes_on_with_its_queue(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=C)) as world:
        grant = await world.run()
        waiting = await world.add()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.lose(grant)
        world.advance(15)
        await world.resolve(grant, **RECOVERABLE)
        assert (await world.take()).lease.job_id == waiting.job_id


async def sharers(world: World, count: int) -> list[Grant]:
    for _ in range(count):
        await world.add(shared=True)
    return [await world.take() for _ in range(count)]


async def test_a_lost_sharer_lets_the_others_end_first(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        lost, first, second = await sharers(world, 3)
        world.advance(30)
        await world.store.renew([Renewal(ref=grant.lease.ref) for grant in (first, second)])
        await world.lose(lost)
        assert await world.state() == "leased"
        await world.add(shared=True)
        assert await world.claim() == []
        (answer,) = await world.resolve(lost)
        assert (answer.profile_state, answer.job_state) == ("leased", "scheduled")
        assert (await world.finish(first)).profile_state == "leased"
        assert (await world.finish(second)).profile_state == "quarantined"
        assert "no heartbeat of worker w1 reached the store" in (await world.lane()).state_reason


async def test_a_lost_sharer_that_is_not_resolved_yet_leaves_a_stale_profile(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        lost, other = await sharers(world, 2)
        world.advance(30)
        await world.store.renew([Renewal(ref=other.lease.ref)])
        await world.lose(lost)
        assert (await world.finish(other)).profile_state == "stale"
        (answer,) = await world.resolve(lost)
        assert answer.profile_state == "quarantined"


async def test_the_worst_verdict_on_sharers_stands(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=3)) as world:
        first, second, third = await sharers(world, 3)
        await world.finish(first, "SECURITY_PROMPT")
        await world.finish(second, "LOGIN_REQUIRED")
        assert await world.state() == "leased"
        assert (await world.finish(third)).profile_state == "quarantined"
        assert (await world.lane()).state_reason == "a security prompt appeared"
        await world.clear()
        assert (await world.finish(await world.acquire())).profile_state == "available"


async def test_sharers_that_all_vanished_are_resolved_together(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2, release_policy=R)) as world:
        grants = await sharers(world, 2)
        await world.lose(*grants)
        assert len(await world.store.unresolved()) == 2
        answers = await world.store.resolve([Resolution(lease_id=g.lease.lease_id) for g in grants])
        assert [answer.profile_state for answer in answers] == ["stale", "review_required"]


async def test_one_sharer_that_recovers_does_not_free_a_profile_of_another_that_is_in_doubt(
    new_world: NewWorld,
) -> None:
    async with new_world(profile(max_active_runs=2, release_policy=C)) as world:
        good, bad = await sharers(world, 2)
        for grant in (good, bad):
            await world.store.checkpoint(grant.lease.ref, "seen")
        await world.lose(good, bad)
        world.advance(15)
        assert [a.profile_state for a in await world.resolve(bad, final_url=URL)] == ["stale"]
        assert [a.profile_state for a in await world.resolve(good, **RECOVERABLE)] == ["review_required"]


async def test_a_drain_ends_with_the_last_sharer(new_world: NewWorld) -> None:
    async with new_world(profile(max_active_runs=2)) as world:
        first, second = await sharers(world, 2)
        await world.decide_profile(Action.DISABLE)
        await world.add(shared=True)
        assert (await world.finish(first)).profile_state == "leased"
        assert await world.claim() == []
        assert (await world.finish(second)).profile_state == "disabled"


async def test_a_late_ending_of_a_lost_run_cannot_be_smuggled_into_a_batch(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        lost, good = await world.run("p1"), await world.run("p2")
        world.advance(30)
        await world.store.renew([Renewal(ref=good.lease.ref)])
        await world.lose(lost)
        first, second = await world.store.settle([end(lost.lease.ref), end(good.lease.ref)])
        assert (first.refused is None, second.refused is None) == (False, True)
        assert [lease.status for lease in await world.all(Lease, lease_id="p1:1")] == ["expired"]


async def test_a_report_that_comes_early_counts_for_whoever_resolves(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        await world.lose(grant)
        found = {"reported_by": "keeper", "evidence": {"screenshot": "last.png"}, **RECOVERABLE}
        assert await world.resolve(grant, **found) == []
        assert await world.state() == "stale"
        world.advance(grant.lease.lock_delay_ms / 1000)
        (settled,) = await world.resolve(grant)
        assert settled.profile_state == "available"
        run = await world.run_of(grant)
        assert run.final_url == URL
        assert run.evidence["screenshot"] == "last.png"
        assert run.evidence["report"] == {"by": "keeper", "browser_dead": True, "proxy_changed": False}


async def test_a_report_that_comes_late_is_kept_once_and_changes_no_state(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        await world.resolve(grant)
        assert await world.state() == "quarantined"
        for shot in ("last.png", "other.png"):
            found = {"reported_by": "keeper", "evidence": {"screenshot": shot}, **RECOVERABLE}
            assert await world.resolve(grant, **found) == []
        run = await world.run_of(grant)
        assert (run.final_url, run.evidence["screenshot"]) == (URL, "last.png")
        assert await world.state() == "quarantined"


async def test_a_report_about_a_live_or_released_lease_changes_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        found = {"reported_by": "keeper", "evidence": {"screenshot": "last.png"}, **RECOVERABLE}
        assert await world.resolve(grant, **found) == []
        assert (await world.run_of(grant)).evidence == {}
        await world.finish(grant, evidence={"screenshot": "own.png"})
        assert await world.resolve(grant, **found) == []
        assert (await world.run_of(grant)).evidence == {"screenshot": "own.png"}


async def test_the_evidence_of_a_run_that_was_not_proven_closed_is_joined_by_the_report(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        grant = await world.run()
        doubtful = EndFacts(browser=Browser.NOT_PROVEN, final_url=URL)
        await world.finish(grant, facts=doubtful, evidence={"screenshot": "own.png"})
        assert await world.state() == "stale"
        await world.resolve(grant, reported_by="keeper", evidence={"last": "last.png"}, **RECOVERABLE)
        evidence = (await world.run_of(grant)).evidence
        assert (evidence["screenshot"], evidence["last"]) == ("own.png", "last.png")
