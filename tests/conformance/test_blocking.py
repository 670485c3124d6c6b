"""Blocked is not failed: each reason, and how it heals by itself when the fact changes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import ProxyTrouble
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.jobs import Job, Risk
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.policy import Policy
from leasekeeper.core.readiness import Block, Blocked, Expected, NoWorker
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Next
from leasekeeper.errors import ProfileBusy
from leasekeeper.runtime.proxy_check import report_on
from tests.conformance.world import NewWorld, Record, World, limit, profile, proxy, seconds, spec

Step = Callable[[World], Awaitable[Any]]
US, EU = proxy("exit_us", region="US"), proxy("exit_eu", region="EU")
READY: tuple[Record, ...] = (US, EU, profile(proxy_id="exit_us", language="en", timezone="UTC"))


@dataclass(frozen=True)
class Case:
    """Why a job is blocked, how that comes, and what heals it."""

    reason: Blocked
    heals: Step
    first: Step | None = None
    job: dict[str, Any] | None = None
    task: str = "visit"
    block: Block | None = None


def differs(field: Expected, wanted: str, actual: str) -> Block:
    reason = Blocked.PROXY_MISMATCH if field.startswith("proxy") else Blocked.ENVIRONMENT_MISMATCH
    return Block(reason=reason, field=field, wanted=wanted, actual=actual)


NEVER_OFFERED = Block(reason=Blocked.NO_WORKER, no_worker=NoWorker.NEVER_OFFERED)
NOT_OFFERED_NOW = Block(reason=Blocked.NO_WORKER, no_worker=NoWorker.NOT_OFFERED_NOW)


async def block_of(world: World, job: Job) -> Block | None:
    """What `why` says that blocks the job."""
    return explain(await world.store.why(job_id=job.job_id)).block


def applies(*records: Record) -> Step:
    async def step(world: World) -> None:
        assert await world.declare(*records)

    return step


def decides(action: Action) -> Step:
    return lambda world: world.decide_profile(action)


async def takes(world: World) -> None:
    await world.acquire()


async def gives_back(world: World) -> None:
    (lease,) = await world.all(Lease, live="true")
    await world.finish(await world.grant_of(lease))


async def pauses(world: World) -> None:
    await world.decide_account(Action.PAUSE)


async def resumes(world: World) -> None:
    await world.decide_account(Action.RESUME)


async def needs_login(world: World) -> None:
    await world.finish(await world.acquire(), "LOGIN_REQUIRED")


async def shows_a_prompt(world: World) -> None:
    await world.finish(await world.acquire(), "SECURITY_PROMPT")


async def fills_the_pool(world: World) -> None:
    await world.declare(limit("default", 1), profile("other", "elsewhere"))
    await world.acquire("other")


async def approves(world: World) -> None:
    (job,) = await world.all(Job, blocked_reason="blocked_by_approval")
    await world.decide_job(job, Action.APPROVE)


async def a_worker_appears(world: World) -> None:
    await world.offer("rare", worker_id="w2", incarnation="i2")


def decides_on_all(action: Action) -> Step:
    return lambda world: world.decide(Target.PAUSE, "all", action)


def finds(trouble: ProxyTrouble | None) -> Step:
    """Somebody asks the proxy, and this is what is wrong with it."""
    return lambda world: world.store.report_proxy(report_on(US, trouble, "seen elsewhere"))


CASES = {
    "proxy_elsewhere": Case(Blocked.PROXY_MISMATCH, finds(None), finds(ProxyTrouble.MISMATCH)),
    "proxy_dead": Case(Blocked.PROXY_UNREACHABLE, finds(None), finds(ProxyTrouble.UNREACHABLE)),
    "proxy_declared_anew": Case(
        Blocked.PROXY_UNREACHABLE, applies(replace(US, server="http://10.0.0.9:1")), finds(ProxyTrouble.UNREACHABLE)
    ),
    "leased": Case(Blocked.PROFILE_LEASE, gives_back, takes),
    "paused": Case(Blocked.ACCOUNT_PAUSE, resumes, pauses),
    "all_paused": Case(Blocked.PAUSE, decides_on_all(Action.RESUME), decides_on_all(Action.PAUSE)),
    "proxy_region_of_the_proxy": Case(
        Blocked.PROXY_MISMATCH,
        applies(replace(US, region="EU")),
        job={"expected_proxy_region": "EU"},
        block=differs(Expected.PROXY_REGION, "EU", "US"),
    ),
    "proxy_region_of_the_profile": Case(
        Blocked.PROXY_MISMATCH,
        applies(profile(proxy_id="exit_eu", language="en", timezone="UTC")),
        job={"expected_proxy_region": "EU"},
        block=differs(Expected.PROXY_REGION, "EU", "US"),
    ),
    "proxy": Case(
        Blocked.PROXY_MISMATCH,
        applies(profile(proxy_id="exit_eu", language="en", timezone="UTC")),
        job={"proxy_id": "exit_eu"},
        block=differs(Expected.PROXY_ID, "exit_eu", "exit_us"),
    ),
    "language": Case(
        Blocked.ENVIRONMENT_MISMATCH,
        applies(profile(proxy_id="exit_us", language="fr", timezone="UTC")),
        job={"expected_language": "fr"},
        block=differs(Expected.LANGUAGE, "fr", "en"),
    ),
    "timezone": Case(
        Blocked.ENVIRONMENT_MISMATCH,
        applies(profile(proxy_id="exit_us", language="en", timezone="Europe/Paris")),
        job={"expected_timezone": "Europe/Paris"},
        block=differs(Expected.TIMEZONE, "Europe/Paris", "UTC"),
    ),
    "needs_a_person": Case(Blocked.REVIEW_REQUIRED, decides(Action.CLEAR), needs_login),
    "quarantined": Case(Blocked.PROFILE_STATE, decides(Action.CLEAR), shows_a_prompt),
    "disabled": Case(Blocked.PROFILE_STATE, decides(Action.ENABLE), decides(Action.DISABLE)),
    "capacity": Case(Blocked.CAPACITY, applies(limit("default", 2)), fills_the_pool),
    "approval": Case(
        Blocked.APPROVAL,
        approves,
        job={"risk_level": Risk.REVIEW_REQUIRED},
        block=Block(reason=Blocked.APPROVAL),
    ),
    "no_worker": Case(Blocked.NO_WORKER, a_worker_appears, task="rare", block=NEVER_OFFERED),
}


def test_every_reason_is_tried() -> None:
    # What a machine's name blocks is in test_homes: these claims name none.
    assert {case.reason for case in CASES.values()} | {Blocked.DUPLICATE, Blocked.HOME} == set(Blocked)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", ["before", "after"])
async def test_a_blocked_job_moves_by_itself_when_the_fact_changes(new_world: NewWorld, name: str, order: str) -> None:
    """The fact may be there when the job comes, or come while it waits."""
    case = CASES[name]
    async with new_world(*READY) as world:
        if case.first and order == "before":
            await case.first(world)
        (answer,) = await world.store.submit([spec(task=case.task, idempotency_key="k", **(case.job or {}))])
        job = answer.job
        if order == "before" or not case.first:
            assert (answer.job.state, answer.job.blocked_reason) == ("blocked", case.reason)
            reasons = [event.data.get("reason") for event in await world.events(job_id=job.job_id)]
            assert case.reason in reasons
        if case.first and order == "after":
            await case.first(world)
        shown = await world.job(job)
        assert (shown.state, shown.blocked_reason) == ("blocked", case.reason)
        assert shown.attempt == 0
        assert await block_of(world, job) == case.block
        (again,) = await world.store.submit([spec(task=case.task, idempotency_key="k", **(case.job or {}))])
        assert (again.already_handled, again.job) == (True, shown)
        stats = await world.store.stats()
        assert stats.blocked == {case.reason.value: 1}
        assert stats.jobs == {"blocked": 1}
        assert [j.job_id for j in await world.all(Job, blocked_reason=case.reason)] == [job.job_id]
        assert [j.job_id for j in await world.all(Job, state="blocked")] == [job.job_id]
        assert await world.all(Job, state="queued") == []
        assert await world.claim(5, tasks=("visit", "rare")) == []
        await case.heals(world)
        healed = await world.job(job)
        assert (healed.state, healed.blocked_reason) == ("queued", None)
        (grant,) = await world.claim(5, tasks=("visit", "rare"))
        assert grant.lease.job_id == job.job_id
        assert grant.job is not None
        assert (grant.job.attempt, grant.job.blocked_reason, grant.job.detail) == (1, None, "")


async def test_a_stale_profile_blocks_until_it_is_resolved_and_cleared(new_world: NewWorld) -> None:
    async with new_world() as world:
        lost = await world.acquire()
        job = await world.add()
        await world.lose(lost)
        assert (await world.job(job)).blocked_reason == "blocked_by_profile_state"
        await world.resolve(lost)
        assert (await world.job(job)).blocked_reason == "blocked_by_profile_state"
        await world.clear()
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_job_of_a_worker_that_stopped_reporting_is_shown_as_waiting_for_one(new_world: NewWorld) -> None:
    async with new_world(policy=Policy(worker_ttl=seconds(90))) as world:
        job = await world.add()
        assert (await world.job(job)).state == "queued"
        world.advance(90)
        assert (await world.job(job)).blocked_reason == "blocked_by_no_worker"
        assert await block_of(world, job) == NOT_OFFERED_NOW
        assert (await world.store.stats()).blocked == {"blocked_by_no_worker": 1}
        await world.offer("visit")
        assert (await world.job(job)).state == "queued"
        await world.offer("visit", stopping=True)
        assert (await world.job(job)).blocked_reason == "blocked_by_no_worker"
        assert (await world.take()).lease.job_id == job.job_id


async def test_a_worker_of_another_pool_does_not_count(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(task="rare")
        await world.offer("rare", pool="elsewhere", incarnation="i2")
        assert (await world.job(job)).blocked_reason == "blocked_by_no_worker"
        assert await world.claim(tasks=("rare",), pool="elsewhere") == []
        await world.offer("rare", incarnation="i3")
        assert (await world.take(tasks=("rare",))).lease.job_id == job.job_id


async def test_a_worker_that_appears_frees_all_jobs_that_waited_for_it(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(4))) as world:
        for start in range(0, 1200, 400):
            await world.submit(*(spec(f"p{n % 4}", "rare") for n in range(start, start + 400)))
        assert (await world.store.stats()).blocked == {"blocked_by_no_worker": 1200}
        await world.offer("rare", incarnation="i2")
        assert (await world.store.stats()).blocked == {}
        assert len(await world.claim(9, tasks=("rare",))) == 4


async def test_a_queued_job_that_became_wrong_is_blocked_at_its_turn_and_the_next_one_runs(
    new_world: NewWorld,
) -> None:
    async with new_world(*READY) as world:
        wrong = [await world.add(expected_language="en", priority=3) for _ in range(30)]
        right = await world.add()
        await world.declare(profile(proxy_id="exit_us", language="fr", timezone="UTC"))
        assert (await world.job(wrong[0])).state == "queued"
        grant = await world.take()
        assert grant.lease.job_id == right.job_id
        for job in wrong:
            shown = await world.job(job)
            assert (shown.state, shown.blocked_reason) == ("blocked", "blocked_by_environment_mismatch")
            assert "expects language en" in shown.detail
        assert len(await world.events(type=EventType.JOB_BLOCKED)) == 30
        await world.finish(grant)
        await world.declare(*READY)
        assert (await world.take()).lease.job_id == wrong[0].job_id


async def test_an_urgent_lane_of_wrong_jobs_does_not_keep_others_from_running(new_world: NewWorld) -> None:
    async with new_world(*READY, profile("p2")) as world:
        await world.submit(*(spec(expected_language="en", priority=9) for _ in range(100)))
        other = await world.add("p2")
        await world.declare(profile(proxy_id="exit_us", language="fr", timezone="UTC"))
        assert (await world.take()).lease.job_id == other.job_id


async def test_several_things_can_be_wrong_and_are_reported_one_after_the_other(new_world: NewWorld) -> None:
    async with new_world(*READY) as world:
        job = await world.add(
            task="rare", risk_level=Risk.REVIEW_REQUIRED, expected_proxy_region="EU", expected_language="fr"
        )
        seen = [(await world.job(job)).blocked_reason]
        await world.decide_job(job, Action.APPROVE)
        seen.append((await world.job(job)).blocked_reason)
        await world.declare(profile(proxy_id="exit_eu", language="en", timezone="UTC"))
        seen.append((await world.job(job)).blocked_reason)
        await world.declare(profile(proxy_id="exit_eu", language="fr", timezone="UTC"))
        seen.append((await world.job(job)).blocked_reason)
        await world.offer("rare", incarnation="i2")
        seen.append((await world.job(job)).blocked_reason)
        assert seen == [
            Blocked.APPROVAL,
            Blocked.PROXY_MISMATCH,
            Blocked.ENVIRONMENT_MISMATCH,
            Blocked.NO_WORKER,
            None,
        ]


async def test_an_apply_that_fixes_nothing_leaves_a_blocked_job_alone(new_world: NewWorld) -> None:
    async with new_world(*READY) as world:
        job = await world.add(expected_language="fr")
        before, logged = await world.job(job), len(await world.events(job_id=job.job_id))
        await world.declare(profile(proxy_id="exit_us", language="en", timezone="UTC", notes="new note"))
        assert await world.job(job) == before
        assert len(await world.events(job_id=job.job_id)) == logged


async def test_a_job_that_waits_on_several_things_shows_the_one_that_a_person_can_change(
    new_world: NewWorld,
) -> None:
    async with new_world() as world:
        await world.acquire()
        job = await world.add()
        await world.decide_account(Action.PAUSE)
        assert (await world.job(job)).blocked_reason == "blocked_by_account_pause"
        await world.decide_account(Action.RESUME)
        assert (await world.job(job)).blocked_reason == "blocked_by_profile_lease"


async def test_jobs_that_are_due_later_are_not_checked_before(new_world: NewWorld) -> None:
    async with new_world() as world:
        later = await world.add(run_at=world.now + timedelta(days=1), priority=9)
        now = await world.add(run_at=world.now)
        assert (later.state, now.state) == ("scheduled", "queued")
        assert await world.store.promote() == 0
        assert (await world.take()).lease.job_id == now.job_id
        world.advance(timedelta(days=1))
        assert await world.store.promote(limit=1) == 1
        assert (await world.job(later)).state == "blocked"


async def test_a_profile_that_is_newer_than_every_browser_is_shown_as_blocked(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await world.offer("visit", engine=140)
        await world.add("p1")
        await world.finish(await world.take(engine=150), engine=150)
        newer, other = await world.add("p1"), await world.add("p2")
        assert [grant.lease.profile_id for grant in await world.claim(9, engine=140)] == ["p2"]
        shown = await world.job(newer)
        assert (shown.state, shown.blocked_reason) == ("blocked", "blocked_by_no_worker")
        assert "was last opened by browser version 150" in shown.detail
        assert await block_of(world, newer) == Block(
            reason=Blocked.NO_WORKER, no_worker=NoWorker.BROWSER_TOO_OLD, engine=150
        )
        assert [job.job_id for job in await world.all(Job, state="blocked")] == [newer.job_id]
        assert await world.all(Job, state="queued") == []
        stats = await world.store.stats()
        assert (stats.jobs, stats.blocked) == (
            {"blocked": 1, "running": 1, "completed": 1},
            {"blocked_by_no_worker": 1},
        )
        facts = await world.store.why(profile_id="p1")
        assert [(step.code, step.engine) for step in explain(facts).next] == [(Next.BROWSER_UPGRADED, 150)]
        await world.offer("visit", engine=150, incarnation="i2")
        assert [job.job_id for job in await world.all(Job, state="queued")] == [newer.job_id]
        assert (await world.job(other)).state == "running"


async def test_the_detail_of_a_blocked_job_is_about_its_reason(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        await world.offer("visit", engine=140)
        await world.add("p1")
        await world.finish(await world.take(engine=150), engine=150)
        newer = await world.add("p1")
        grant = await world.acquire("p1")
        leased = await world.job(newer)
        assert (leased.blocked_reason, leased.detail) == ("blocked_by_profile_lease", "")
        await world.finish(grant)
        await world.decide_account(Action.PAUSE)
        paused = await world.job(newer)
        assert (paused.blocked_reason, paused.detail) == ("blocked_by_account_pause", "")


async def test_a_person_may_look_into_a_profile_before_any_job_does(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.acquire(), "LOGIN_REQUIRED")
        await world.add()
        for purpose in (Purpose.MANUAL, Purpose.API):
            with pytest.raises(ProfileBusy) as refused:
                await world.acquire(purpose=purpose)
            assert refused.value.data == {
                "profile_id": "p1",
                "account_id": "shop",
                "state": "review_required",
                "reason": "blocked_by_review_required",
            }
        await world.decide_account(Action.PAUSE)
        await world.clear()
        assert await world.claim() == []
        await world.finish(await world.acquire(purpose=Purpose.MANUAL))
        assert await world.claim() == []
        await world.decide_account(Action.RESUME)
        assert len(await world.claim()) == 1


async def test_a_person_may_open_a_profile_of_a_paused_account_and_a_program_may_not(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.decide_account(Action.PAUSE)
        with pytest.raises(ProfileBusy) as refused:
            await world.acquire(purpose=Purpose.API)
        assert refused.value.reason == "blocked_by_account_pause"
        grant = await world.acquire(purpose=Purpose.MANUAL)
        await world.add()
        assert await world.claim() == []
        assert (await world.finish(grant)).profile_state == "available"
        assert await world.claim() == []


@pytest.mark.parametrize(("declared", "expected"), [("US", "us"), ("us", "US")])
async def test_regions_compare_without_case(new_world: NewWorld, declared: str, expected: str) -> None:
    async with new_world(replace(US, region=declared), profile(proxy_id="exit_us")) as world:
        job = await world.add(expected_proxy_region=expected)
        assert (await world.take()).lease.job_id == job.job_id
