"""Endings that a holder reports: what becomes of the job, the profile, the lease and the run's record."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from leasekeeper.core.decisions import Action
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.failures import FAILURES, BelongsTo, Failure, ProfileRule, RetryRule
from leasekeeper.core.ids import RunId
from leasekeeper.core.jobs import Backoff, Retry, RunMode
from leasekeeper.core.leases import LeaseStatus, Purpose, Refusal, RunResult
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.errors import InputError, LeaseLost
from leasekeeper.ports import Renewal, Resolution
from tests.conformance.world import POLICY, URL, NewWorld, World, end, profile, proxy, seconds, spec

# Reason → what it belongs to, the job, the profile: PRODUCT's table, for a run that closed cleanly.
TABLE = {
    "TIMEOUT": ("page", "scheduled", "available"),
    "TEMPORARY_NAVIGATION_ERROR": ("page", "scheduled", "available"),
    "BROWSER_LAUNCH_FAILED": ("browser", "scheduled", "available"),
    "BROWSER_CRASHED": ("browser", "scheduled", "available"),
    "LOGIN_REQUIRED": ("account", "review", "review_required"),
    "PROFILE_MISMATCH": ("profile", "review", "review_required"),
    "PROFILE_DIRECTORY_EMPTY": ("profile", "review", "review_required"),
    "HUMAN_REVIEW_REQUIRED": ("workflow", "review", "review_required"),
    "SECURITY_PROMPT": ("account", "review", "quarantined"),
    "ACCOUNT_BANNED": ("account", "review", "review_required"),
    "PROXY_REGION_MISMATCH": ("proxy", "review", "available"),
    "PROXY_CHANGED": ("proxy", "review", "quarantined"),
    "PROXY_UNREACHABLE": ("proxy", "scheduled", "available"),
    "LAUNCHER_UNAVAILABLE": ("browser", "scheduled", "available"),
    "SECRET_UNAVAILABLE": ("worker", "scheduled", "available"),
    "SNAPSHOT_UNAVAILABLE": ("worker", "scheduled", "available"),
    "PROFILE_IN_USE_ELSEWHERE": ("profile", "review", "review_required"),
    "WORKER_STOPPED": ("worker", "scheduled", "available"),
    "MANUAL_USE_DETECTED": ("profile", "review", "review_required"),
    "PROFILE_CORRUPT": ("profile", "review", "quarantined"),
    "PROFILE_NEWER_THAN_BROWSER": ("profile", "review", "available"),
    "ACTION_NOT_ALLOWED": ("workflow", "review", "available"),
    "TAKEN_OVER": ("workflow", "review", "available"),
    "TASK_ERROR": ("code", "review", "available"),
    "VISIBLE_NEEDS_DISPLAY": ("worker", "scheduled", "available"),
    "MACHINE_UNWELL": ("worker", "scheduled", "available"),
    "MEMORY_EXCEEDED": ("page", "scheduled", "available"),
    "EVIDENCE_NOT_SAVED": ("worker", "review", "review_required"),
    "WORKER_LOST": ("worker", "scheduled", "stale"),
    "LEASE_LOST": ("worker", "scheduled", "stale"),
    "SOMETHING_NOBODY_KNOWS": ("code", "review", "available"),
}


async def test_each_reason_is_settled_as_the_table_says(new_world: NewWorld) -> None:
    assert set(FAILURES) < set(TABLE)
    async with new_world(*(profile(reason) for reason in TABLE)) as world:
        grants = {reason: await world.run(reason) for reason in TABLE}
        endings = [end(grant.lease.ref, reason, message="why") for reason, grant in grants.items()]
        answers = await world.store.settle(endings)
        for (reason, expected), answer in zip(TABLE.items(), answers, strict=True):
            run, job = await world.run_of(grants[reason]), await world.job(grants[reason])
            assert (run.belongs_to, job.state, await world.state(reason)) == expected, reason
            assert (answer.job_state, answer.profile_state) == expected[1:]
            assert (run.result, run.stop_reason, run.message) == (RunResult.FAILED, reason, "why")
            assert (job.stop_reason, job.detail) == (reason, f"{reason}: why")


async def test_a_completed_run_leaves_everything_behind(new_world: NewWorld) -> None:
    records = (proxy(), profile(proxy_id="exit_us", language="en", timezone="UTC"))
    async with new_world(*records) as world:
        grant = await world.run(
            expected_proxy_region="US",
            expected_language="en",
            expected_timezone="UTC",
            run_mode=RunMode.VISIBLE,
            callback_url="https://hook.test/",
        )
        await world.store.checkpoint(grant.lease.ref, "cart_full", url="https://site.test/cart")
        world.advance(5)
        settled = await world.finish(
            grant,
            output={"orders": [1, 2, {"ж": None}]},
            evidence={"screenshot": {"sha256": "ab" * 32, "bytes": 4096}},
            actual={"proxy_region": "US", "language": "en"},
            timings={"launch": 0.41, "task": 4.5},
            engine=131,
        )
        assert (settled.refused, settled.job_state, settled.profile_state) == (None, "completed", "available")
        run = await world.run_of(grant)
        assert (run.result, run.stop_reason, run.belongs_to) == (RunResult.COMPLETED, None, None)
        assert run.output == {"orders": [1, 2, {"ж": None}]}
        assert run.evidence == {"screenshot": {"sha256": "ab" * 32, "bytes": 4096}}
        assert run.actual == {"proxy_region": "US", "language": "en"}
        assert run.expected == {"proxy_region": "US", "language": "en", "timezone": "UTC"}
        assert run.timings == {"launch": 0.41, "task": 4.5}
        assert (run.final_url, run.last_safe_step, run.run_mode) == (URL, "cart_full", "visible")
        assert (run.task, run.attempt, run.purpose) == ("visit", 1, Purpose.JOB)
        assert (run.profile_id, run.account_id, run.proxy_id) == ("p1", "shop", "exit_us")
        assert (run.worker_id, run.lease_id, run.token) == ("w1", "p1:1", 1)
        assert (run.ended_at, run.status) == (world.now, LeaseStatus.RELEASED)
        job = await world.job(grant)
        assert (job.run_id, job.finished_at, job.attempt) == (run.run_id, world.now, 1)
        assert (await world.lane()).engine == 131
        (delivery,) = await world.all(Delivery)
        assert (delivery.type, delivery.url, delivery.attempts) == ("job.completed", "https://hook.test/", 0)
        assert delivery.body["run_id"] == run.run_id


async def test_an_ending_is_one_event_with_all_that_it_led_to(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "LOGIN_REQUIRED")
        (event,) = await world.events(type=EventType.RUN_SETTLED)
        assert (event.job_state, event.profile_state) == ("review", "review_required")
        assert (event.run_id, event.worker_id) == (grant.lease.run_id, "w1")
        assert (event.data["stop_reason"], event.data["belongs_to"]) == ("LOGIN_REQUIRED", "account")


async def test_a_direct_lease_is_settled_without_a_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.acquire(purpose=Purpose.MANUAL)
        settled = await world.finish(grant)
        assert (settled.job_state, settled.profile_state) == (None, "available")
        run = await world.run_of(grant)
        assert (run.job_id, run.task, run.purpose) == (None, None, Purpose.MANUAL)


async def test_a_run_without_saved_evidence_is_not_completed(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        facts = EndFacts(browser=Browser.CLOSED, final_url=URL, evidence_saved=False)
        await world.finish(grant, facts=facts)
        run = await world.run_of(grant)
        assert (run.result, run.stop_reason) == (RunResult.FAILED, "EVIDENCE_NOT_SAVED")
        assert (await world.job(grant)).state == "review"
        assert await world.state() == "review_required"


async def test_a_run_that_ends_inside_a_section_is_neither_completed_nor_tried_again(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        for name, reason in (("p1", None), ("p2", "TIMEOUT")):
            grant = await world.run(name)
            await world.store.enter_section(grant.lease.ref, "submit_order")
            await world.finish(grant, reason)
            assert (await world.job(grant)).state == "review"
            assert await world.state(name) == "quarantined"


async def test_a_run_that_left_its_section_and_reached_a_safe_step_is_tried_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.enter_section(grant.lease.ref, "submit_order")
        await world.store.leave_section(grant.lease.ref, "submit_order")
        await world.store.checkpoint(grant.lease.ref, "ordered")
        await world.finish(grant, "BROWSER_CRASHED")
        assert (await world.job(grant)).state == "scheduled"
        assert await world.state() == "available"


async def fail(world: World, reason: str = "TIMEOUT") -> timedelta:
    """Claim the job, fail it, and say how long it waits; then let it become due."""
    grant = await world.take()
    await world.finish(grant, reason)
    job = await world.job(grant)
    assert job.state == "scheduled"
    assert job.run_at is not None
    delay = job.run_at - world.now
    assert await world.store.promote() == 0
    world.clock.now = job.run_at
    assert await world.store.promote() == 1
    return delay


async def test_a_job_is_tried_again_with_growing_delays_and_then_is_dead(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(max_attempts=4)
        delays = [await fail(world) for _ in range(3)]
        for delay, longest in zip(delays, (10, 20, 40), strict=True):
            assert seconds(longest / 2) <= delay <= seconds(longest)
        await world.finish(await world.take(), "TIMEOUT", message="no answer")
        dead = await world.job(job)
        assert (dead.state, dead.attempt, dead.finished_at) == ("dead", 4, world.now)
        assert dead.detail == "TIMEOUT: no answer; attempt 4 of 4 was the last"
        assert await world.claim() == []


async def test_delays_are_spread_over_their_upper_half(new_world: NewWorld) -> None:
    names = [f"p{n}" for n in range(30)]
    async with new_world(*(profile(name) for name in names)) as world:
        for name in names:
            await world.add(name)
        grants = await world.claim(30)
        await world.store.settle([end(grant.lease.ref, "TIMEOUT") for grant in grants])
        jobs = [await world.job(grant) for grant in grants]
        delays = {(job.run_at - world.now).total_seconds() for job in jobs if job.run_at}
        assert len(delays) > 20
        assert all(5 <= delay <= 10 for delay in delays)
        assert max(delays) - min(delays) > 1


async def test_the_fleet_and_a_job_have_their_own_backoff(new_world: NewWorld) -> None:
    slow = Backoff(first=seconds(100), factor=3.0, max=seconds(250))
    policy = type(POLICY)(worker_ttl=POLICY.worker_ttl, backoff=slow)
    async with new_world(policy=policy) as world:
        await world.add(max_attempts=9)
        for longest in (100, 250, 250):
            assert seconds(longest / 2) <= await fail(world) <= seconds(longest)
        await world.finish(await world.take())
        await world.add(retry=Retry(backoff=Backoff(first=seconds(2), factor=1.0)))
        for _ in range(2):
            assert seconds(1) <= await fail(world) <= seconds(2)


async def test_a_job_may_say_which_reasons_are_tried_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(retry=Retry(reasons=("ACTION_NOT_ALLOWED",)))
        await fail(world, "ACTION_NOT_ALLOWED")
        await world.finish(await world.take(), "TIMEOUT")
        assert (await world.job(job)).state == "review"


async def test_a_task_may_say_that_its_own_error_can_be_tried_again(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "TASK_ERROR", retry=True)
        assert (await world.job(grant)).state == "scheduled"
        other = await world.run()
        await world.finish(other, "LOGIN_REQUIRED", retry=True)
        assert (await world.job(other)).state == "review"


async def test_a_project_may_register_a_reason_but_not_soften_one(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        mine = Failure("SHOP_CLOSED", BelongsTo.PAGE, RetryRule.YES, ProfileRule.QUARANTINED)
        grant = await world.run("p1")
        await world.finish(grant, "SHOP_CLOSED", registered=mine)
        assert ((await world.job(grant)).state, await world.state("p1")) == ("scheduled", "quarantined")
        soft = Failure("SECURITY_PROMPT", BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE)
        grant = await world.run("p2")
        await world.finish(grant, "SECURITY_PROMPT", registered=soft)
        assert ((await world.job(grant)).state, await world.state("p2")) == ("review", "quarantined")


async def test_waiting_for_a_profile_uses_up_no_attempt(new_world: NewWorld) -> None:
    async with new_world() as world:
        holder = await world.acquire(ttl=timedelta(hours=1))
        job = await world.add()
        for _ in range(5):
            assert await world.claim() == []
        await world.finish(holder)
        grant = await world.take()
        assert grant.job is not None
        assert (grant.job.job_id, grant.job.attempt) == (job.job_id, 1)


async def test_a_run_without_a_browser_needs_no_proof(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.finish(grant, "BROWSER_LAUNCH_FAILED", facts=EndFacts(browser=Browser.NONE))
        assert await world.state() == "available"


async def test_a_close_that_is_not_proven_names_its_clause_and_keeps_the_result(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        facts = EndFacts(browser=Browser.NOT_PROVEN, final_url=URL, failing_clause="the singleton lock is left")
        settled = await world.finish(grant, facts=facts, output={"done": True})
        assert (settled.job_state, settled.profile_state) == ("completed", "stale")
        assert "the singleton lock is left" in (await world.lane()).state_reason
        assert [lease.lease_id for lease in await world.store.unresolved()] == [grant.lease.lease_id]
        (answer,) = await world.resolve(grant)
        assert (answer.job_state, answer.profile_state) == (None, "quarantined")
        run = await world.run_of(grant)
        assert (run.result, run.stop_reason, run.output) == (RunResult.COMPLETED, None, {"done": True})
        assert (await world.job(grant)).state == "completed"
        assert "proven closed" in (await world.lane()).state_reason
        assert "no heartbeat" not in (await world.lane()).state_reason


async def test_a_releasing_lease_still_settles(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.renew([Renewal(ref=grant.lease.ref, status=LeaseStatus.RELEASING)])
        assert (await world.lease(grant)).status is LeaseStatus.RELEASING
        await world.store.renew([Renewal(ref=grant.lease.ref)])
        assert (await world.lease(grant)).status is LeaseStatus.RELEASING
        assert (await world.finish(grant)).refused is None


@pytest.mark.parametrize("text", ["zero \0 byte", "half a \ud83d pair", "tab\tand\x1b[0m", "🦊 ß \u2028", "\\u0000"])
async def test_whatever_a_page_put_into_an_ending_can_be_settled(new_world: NewWorld, text: str) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant, other = await world.run("p1"), await world.run("p2")
        await world.store.checkpoint(grant.lease.ref, text, url=f"https://site.test/{text}")
        facts = EndFacts(browser=Browser.CLOSED, final_url=f"https://site.test/{text}")
        answers = await asyncio.gather(
            world.finish(
                grant, "TASK_ERROR", message=text, facts=facts, output={text: [text]}, actual={"language": text}
            ),
            world.finish(other),
        )
        assert [answer.refused for answer in answers] == [None, None]
        run = await world.run_of(grant)
        assert run.message.isprintable() or run.message == text
        assert run.output is not None
        assert list(run.output) == [text]
        assert await world.state() == "available"


async def test_one_ending_that_cannot_be_written_does_not_take_others_with_it(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        bad, good = await world.run("p1"), await world.run("p2")
        await world.add("p3")
        answers = await asyncio.gather(
            world.finish(bad, output={"not JSON": object()}),
            world.finish(good),
            world.claim(),
            return_exceptions=True,
        )
        assert isinstance(answers[0], Exception)
        assert not isinstance(answers[1], BaseException)
        assert answers[1].refused is None
        assert not isinstance(answers[2], BaseException)
        assert [grant.lease.profile_id for grant in answers[2]] == ["p3"]
        assert (await world.job(bad)).state == "running"
        assert (await world.finish(bad)).refused is None


def nested(levels: int) -> dict[str, object]:
    """An object that holds lists in lists, so many levels in all."""
    value: object = "leaf"
    for _ in range(levels - 1):
        value = [value]
    return {"inner": value}


async def test_what_is_nested_too_deep_is_refused_at_every_door(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        before, logged, deep = await world.everything(), await world.events(), nested(MAX_DEPTH + 1)
        lost = Resolution(lease_id=grant.lease.lease_id, facts=LostFacts(evidence=deep))
        event = Event(at=world.now, type=EventType.MANUAL_USE_DETECTED, data=deep)
        for door, where in (
            (world.finish(grant, output=deep), "endings[0].output"),
            (world.finish(grant, evidence=deep), "endings[0].evidence"),
            (world.store.resolve([lost]), "resolutions[0].facts.evidence"),
            (world.store.record(event), "data"),
            (world.store.submit([spec(), spec(payload=deep)]), "jobs[1].payload"),
        ):
            with pytest.raises(InputError, match="nested more than 32 levels deep") as refused:
                await door
            assert [problem.where for problem in refused.value.problems] == [where]
        assert (await world.everything(), await world.events()) == (before, logged)
        await world.finish(grant, output=nested(MAX_DEPTH))
        assert (await world.run_of(grant)).output == nested(MAX_DEPTH)


async def test_a_batch_of_endings_has_a_limit(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        with pytest.raises(InputError, match="at most 1000"):
            await world.store.settle([end(grant.lease.ref)] * 1001)
        assert await world.store.settle([]) == []
        assert (await world.job(grant)).state == "running"


async def test_the_browser_version_of_a_profile_only_grows(new_world: NewWorld) -> None:
    async with new_world() as world:
        for engine, known in ((130, 130), (None, 130), (128, 130), (131, 131)):
            await world.finish(await world.acquire(engine=130), engine=engine)
            assert (await world.lane()).engine == known


async def test_a_grant_names_the_browser_that_opened_the_profile_until_a_person_accepts_an_empty_directory(
    new_world: NewWorld,
) -> None:
    async with new_world() as world:
        grant = await world.acquire(engine=131)
        assert grant.engine is None
        await world.finish(grant)
        grant = await world.run()
        assert grant.engine is None, "nobody said yet that a browser was open"
        await world.finish(grant, engine=131)
        grant = await world.run()
        assert grant.engine == 131
        await world.finish(grant, "LOGIN_REQUIRED")
        await world.clear()
        grant = await world.run()
        assert grant.engine == 131, "a person who logged in again has said nothing of the directory"
        await world.finish(grant, "PROFILE_DIRECTORY_EMPTY")
        await world.clear()
        assert (await world.run()).engine is None


async def test_a_lease_of_a_store_that_was_restored_is_not_taken_for_the_one_it_forgot(new_world: NewWorld) -> None:
    """Both have one name and one token; the run tells them apart."""
    async with new_world() as world:
        grant = await world.run()
        forgotten = replace(grant.lease.ref, run_id=RunId("another"))
        (settled,) = await world.store.settle([end(forgotten)])
        assert settled.refused is Refusal.OTHER_RUN
        with pytest.raises(LeaseLost, match="another run"):
            await world.store.checkpoint(forgotten, "dashboard")
        assert (await world.store.renew([Renewal(ref=forgotten)]))[0].refused is not None
        assert (await world.job(grant)).state == "running"


async def test_tokens_go_on_above_the_one_that_a_directory_has_seen(new_world: NewWorld) -> None:
    """Another store had the directory, or this one before it was restored: no lease may share a token with those."""
    async with new_world() as world:
        for directory_token, token in ((None, 1), (1, 2), (7, 3), (5, 8), (10**15, 9), (-1, 10)):
            grant = await world.acquire()
            assert grant.lease.token == token
            await world.finish(grant, directory_token=directory_token)
        settled = await world.events(type="run_settled")
        assert [event.data.get("directory_token") for event in settled] == [None, None, 7, None, None, None]


async def test_a_lease_that_is_not_live_raises_no_token(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.acquire()
        await world.finish(grant)
        assert (await world.finish(grant, directory_token=70)).refused is not None
        assert (await world.acquire()).lease.token == 2


async def test_a_job_that_is_given_back_unstarted_keeps_its_place_and_its_attempts(new_world: NewWorld) -> None:
    async with new_world() as world:
        first, second = await world.add(callback_url="https://hook.test/"), await world.add()
        grant = await world.take()
        (settled,) = await world.store.settle([Ending(ref=grant.lease.ref, not_started=True)])
        assert (settled.refused, settled.job_state, settled.profile_state) == (None, "queued", "available")
        job = await world.job(first)
        assert (job.state, job.attempt, job.losses, job.finished_at) == ("queued", 0, 0, None)
        run = await world.run_of(grant)
        assert (run.result, run.stop_reason, run.status) == (RunResult.BLOCKED, "NOT_STARTED", LeaseStatus.RELEASED)
        again = await world.take()
        assert (again.lease.job_id, again.lease.token) == (first.job_id, 2)
        await world.finish(again)
        assert (await world.take()).lease.job_id == second.job_id


async def test_a_job_is_not_given_back_out_of_a_section(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.enter_section(grant.lease.ref, "submit_order")
        (settled,) = await world.store.settle([Ending(ref=grant.lease.ref, not_started=True)])
        assert (settled.job_state, settled.profile_state) == ("review", "quarantined")


async def test_a_job_is_given_back_behind_what_became_more_urgent(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        urgent = await world.add(priority=7)
        await world.store.settle([Ending(ref=grant.lease.ref, not_started=True)])
        assert (await world.take()).lease.job_id == urgent.job_id


async def test_a_job_whose_profile_a_person_disabled_meanwhile_is_given_back_to_a_blocked_lane(
    new_world: NewWorld,
) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.decide_profile(Action.DISABLE)
        (settled,) = await world.store.settle([Ending(ref=grant.lease.ref, not_started=True)])
        assert (settled.job_state, settled.profile_state) == ("queued", "disabled")
        assert (await world.job(grant)).blocked_reason == "blocked_by_profile_state"
        assert await world.claim() == []
        await world.decide_profile(Action.ENABLE)
        assert (await world.take()).lease.job_id == grant.lease.job_id


async def test_a_profile_that_somebody_used_goes_to_a_person_and_its_job_keeps_its_place(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        said = "Default/Cookies changed since the last release"
        settled = await world.finish(grant, "MANUAL_USE_DETECTED", not_started=True, message=said)
        assert (settled.job_state, settled.profile_state) == ("queued", "review_required")
        assert (await world.lane()).state_reason == said
        assert (await world.job(grant)).attempt == 0
        assert (await world.run_of(grant)).stop_reason == "MANUAL_USE_DETECTED"
        assert await world.claim() == []
        await world.clear()
        again = await world.take()
        assert again.job is not None
        assert again.job.job_id == (await world.job(grant)).job_id
