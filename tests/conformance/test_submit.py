"""Submitting: which profile a job is for, what is refused, and keys that make it idempotent (I4, I8)."""

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import AccountId, JobId, ProfileId, ProxyId
from leasekeeper.core.jobs import Backoff, Job, JobSpec, OnConflict, Retry, Risk, RunMode, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.errors import (
    AmbiguousProfile,
    IdempotencyConflict,
    InputError,
    UnknownAccount,
    UnknownProfile,
    UnknownTask,
)
from tests.conformance.world import POLICY, NewWorld, World, account, profile, seconds, spec


async def refused_whole(world: World, error: type[InputError], code: str, *specs: JobSpec) -> str:
    """Submit a batch with one fault: nothing of it may be left. Gives the message."""
    before, logged = await world.everything(), await world.events()
    with pytest.raises(error) as refused:
        await world.store.submit([spec("p1"), *specs, spec("p1", task="other")])
    assert type(refused.value) is error
    assert refused.value.code == code
    assert await world.everything() == before
    assert await world.events() == logged
    return str(refused.value)


async def test_every_field_of_a_job_is_kept(new_world: NewWorld) -> None:
    async with new_world() as world:
        wanted = JobSpec(
            task="visit",
            account_id=AccountId("shop"),
            profile_id=ProfileId("p1"),
            job_id=JobId("my-job.1"),
            payload={"a": {"b": [None, True, 1.5, "ß\u0000"]}},
            max_attempts=7,
            idempotency_key="k",
            priority=-3,
            run_at=world.now + seconds(5),
            pool="night",
            mode=Mode.SHARED,
            allowed_actions=(),
            expected_proxy_region="US",
            expected_language="en",
            expected_timezone="UTC",
            proxy_id=ProxyId("exit"),
            run_mode=RunMode.VISIBLE,
            risk_level=Risk.MEDIUM,
            lock_timeout_seconds=900,
            release_policy="quarantine",
            session_mode=SessionMode.ISOLATED,
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            on_conflict=OnConflict.REVIEW,
            conflict_delay_seconds=9,
            retry=Retry(reasons=("TIMEOUT",), backoff=Backoff(first=seconds(1.5), factor=1.5, max=seconds(9))),
            callback_url="https://hook.test/",
            created_at=world.now - seconds(60),
            labels={"team": "a b"},
            notes="two\nlines",
        )
        unset = {f.name for f in fields(JobSpec) if getattr(wanted, f.name) == f.default}
        assert unset == {"attempt"}
        (answer,) = await world.store.submit([wanted])
        stored = await world.job(answer.job)
        for field in fields(JobSpec):
            assert getattr(stored, field.name) == getattr(wanted, field.name), field.name
        assert replace(answer.job, seq=stored.seq) == stored


async def test_a_plain_job_gets_a_name_and_the_defaults(new_world: NewWorld) -> None:
    async with new_world(profile(pool="eu")) as world:
        job = await world.add()
        assert len(job.job_id) == 36
        assert (job.account_id, job.pool, job.created_at) == ("shop", "eu", world.now)
        assert (job.attempt, job.max_attempts, job.losses, job.approved) == (0, 3, 0, False)
        (event,) = await world.events(job_id=job.job_id)
        assert (event.type, event.data["task"]) == (EventType.JOB_SUBMITTED, "visit")


async def test_an_account_with_one_profile_stands_for_it(new_world: NewWorld) -> None:
    async with new_world() as world:
        job = await world.add(None, account_id="shop")
        assert job.profile_id == "p1"


async def test_an_account_with_several_profiles_is_ambiguous(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(1, 9))) as world:
        message = await refused_whole(world, AmbiguousProfile, "AMBIGUOUS_PROFILE", spec(None, account_id="shop"))
        assert "jobs[1].profile_id" in message
        assert "p1, p2, p3, p4, p5" in message
        assert "8 profiles" in message


async def test_an_account_that_is_not_there_is_named(new_world: NewWorld) -> None:
    async with new_world() as world:
        for wrong in (spec(None, account_id="nobody"), spec("p1", account_id="nobody")):
            message = await refused_whole(world, UnknownAccount, "UNKNOWN_ACCOUNT", wrong)
            assert "jobs[1].account_id" in message
            assert "nobody" in message


async def test_a_profile_that_is_not_there_is_named_with_those_that_are(new_world: NewWorld) -> None:
    async with new_world() as world:
        message = await refused_whole(world, UnknownProfile, "UNKNOWN_PROFILE", spec("p9", account_id="shop"))
        assert "jobs[1].profile_id" in message
        assert "account shop has: p1" in message
        assert "p9" in await refused_whole(world, UnknownProfile, "UNKNOWN_PROFILE", spec("p9"))


async def test_a_profile_of_another_account_is_refused(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("q1", "other")) as world:
        message = await refused_whole(world, UnknownProfile, "UNKNOWN_PROFILE", spec("p1", account_id="other"))
        assert "belongs to account shop" in message


async def test_an_account_without_a_profile_is_refused(new_world: NewWorld) -> None:
    async with new_world(profile(), account("empty")) as world:
        message = await refused_whole(world, UnknownProfile, "UNKNOWN_PROFILE", spec(None, account_id="empty"))
        assert "has no profile" in message


async def test_all_faults_of_a_batch_are_named_at_once(new_world: NewWorld) -> None:
    """The error is of the kind of the first fault that is found; what exists is found before what the job says."""
    async with new_world(profile("p1"), profile("p2"), account("empty")) as world:
        known = await world.add("p1", idempotency_key="k", job_id="mine")
        wrong = [
            spec("p1", job_id="mine"),
            spec(None, account_id="shop"),
            spec("p9"),
            spec("p1", idempotency_key="k", task="other"),
            spec("p1", release_policy=ReleasePolicy.RECOVER),
            spec(None, account_id="empty"),
        ]
        message = await refused_whole(world, AmbiguousProfile, "AMBIGUOUS_PROFILE", *wrong)
        named = [line.strip().partition(":")[0] for line in message.splitlines()[1:]]
        fields = ("job_id", "profile_id", "profile_id", "idempotency_key", "release_policy", "account_id")
        assert named == [f"jobs[{number}].{field}" for number, field in enumerate(fields, 1)]
        assert (await world.job(known)).state == known.state


async def test_a_job_for_nobody_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        message = await refused_whole(world, InputError, "INVALID_INPUT", spec(None))
        assert "account_id" in message
        assert "None" not in message


async def test_strict_tasks_refuse_what_no_worker_ever_offered(new_world: NewWorld) -> None:
    async with new_world(policy=Policy(strict_tasks=True, worker_ttl=POLICY.worker_ttl)) as world:
        await world.offer("visit", "other")
        message = await refused_whole(world, UnknownTask, "UNKNOWN_TASK", spec(task="rare"))
        assert "jobs[1].task" in message
        await world.offer("rare", pool="elsewhere", incarnation="i3")
        await refused_whole(world, UnknownTask, "UNKNOWN_TASK", spec(task="rare"))
        await world.offer("rare", incarnation="i2")
        assert (await world.add(task="rare")).state == "queued"
        await world.offer("rare", incarnation="i2", stopping=True)
        assert (await world.add(task="rare")).job_id


async def test_a_job_cannot_soften_the_release_policy(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        message = await refused_whole(world, InputError, "INVALID_INPUT", spec(release_policy="recover"))
        assert "jobs[1].release_policy" in message
        for policy in ("review", "quarantine"):
            assert (await world.add(release_policy=policy)).release_policy == policy


async def test_a_job_id_is_used_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.add(job_id="mine")
        for wrong in ([spec(job_id="mine")], [spec(job_id="yours"), spec(job_id="yours")]):
            message = await refused_whole(world, InputError, "INVALID_INPUT", *wrong)
            assert "job_id" in message


async def test_a_batch_has_a_limit_and_may_be_empty(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(InputError, match="at most 1000"):
            await world.submit(*(spec() for _ in range(1001)))
        assert await world.store.submit([]) == []
        assert len(await world.submit(*(spec() for _ in range(1000)))) == 1000
        assert (await world.store.stats()).jobs == {"queued": 1000}


async def test_the_same_key_and_body_gives_the_first_job_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        wanted = spec(idempotency_key="order-7", payload={"a": 1, "b": {"c": [2]}})
        (first,) = await world.store.submit([wanted])
        before = await world.everything()
        again = replace(wanted, payload={"b": {"c": [2]}, "a": 1}, job_id=None)
        (second,) = await world.store.submit([again])
        assert (first.already_handled, second.already_handled) == (False, True)
        assert second.job.job_id == first.job.job_id
        assert second.decision == "blocked_by_duplicate_idempotency_key"
        assert await world.everything() == before
        (event,) = await world.events(type=EventType.JOB_ALREADY_HANDLED)
        assert (event.job_id, event.job_state) == (first.job.job_id, None)


async def test_a_key_is_remembered_after_the_job_is_over(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run(idempotency_key="order-7")
        await world.finish(grant)
        await world.reopen()
        (answer,) = await world.store.submit([spec(idempotency_key="order-7")])
        assert (answer.already_handled, answer.job.state) == (True, "completed")
        assert await world.claim() == []


DIFFERENT: list[dict[str, Any]] = [
    {"payload": {"a": 2}},
    {"payload": {"a": True}},
    {"payload": {"a": "1"}},
    {"task": "other"},
    {"profile_id": "p2"},
    {"priority": 1},
    {"shared": True},
    {"max_attempts": 9},
    {"expected_language": "fr"},
    {"on_conflict": OnConflict.SKIP},
    {"labels": {"x": "y"}},
]


async def test_the_same_key_with_another_body_is_an_error(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        base: dict[str, Any] = {"idempotency_key": "order-7", "payload": {"a": 1}}
        first = await world.add(**base)
        before, logged = await world.everything(), await world.events()
        for change in DIFFERENT:
            with pytest.raises(IdempotencyConflict) as refused:
                await world.submit(spec(), spec(**{**base, **change}))
            assert refused.value.code == "IDEMPOTENCY_KEY_REUSED"
            assert "jobs[1]" in str(refused.value)
            assert refused.value.job_id == first.job_id
        assert await world.everything() == before
        assert await world.events() == logged


async def test_duplicates_inside_one_batch_are_one_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        answers = await world.store.submit([spec(idempotency_key="k") for _ in range(5)])
        assert [answer.already_handled for answer in answers] == [False, True, True, True, True]
        assert len({answer.job.job_id for answer in answers}) == 1
        assert len(await world.all(Job)) == 1


async def test_one_key_with_two_bodies_inside_one_batch_is_an_error(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(IdempotencyConflict):
            await world.submit(spec(idempotency_key="k"), spec(idempotency_key="k", payload={"a": 1}))
        assert await world.all(Job) == []


@pytest.mark.parametrize("profiles", [1, 5])
async def test_fifty_who_submit_one_key_at_once_get_one_job(new_world: NewWorld, profiles: int) -> None:
    """From three handles; with several profiles each has its own lane to lock, and only the key in common."""
    names = [f"p{n}" for n in range(profiles)]
    async with new_world(*(profile(name, name) for name in names)) as world:
        stores = [world.store, await world.another(), await world.another()]
        answers = await asyncio.gather(
            *(stores[n % 3].submit([spec(names[n % profiles], idempotency_key="order-7")]) for n in range(50)),
            return_exceptions=True,
        )
        (job,) = await world.all(Job)
        good = [answer for answer in answers if isinstance(answer, list)]
        assert all(isinstance(answer, list | IdempotencyConflict) for answer in answers)
        assert len(good) == 50 // profiles
        assert {answer[0].job.job_id for answer in good} == {job.job_id}
        assert sum(not answer[0].already_handled for answer in good) == 1
        assert len(await world.events(type=EventType.JOB_SUBMITTED)) == 1


async def test_fifty_who_submit_one_job_id_at_once_make_one_job(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(5))) as world:
        answers = await asyncio.gather(
            *(world.store.submit([spec(f"p{n % 5}", job_id="mine")]) for n in range(50)), return_exceptions=True
        )
        assert sum(isinstance(answer, list) for answer in answers) == 1
        assert all(isinstance(answer, list | InputError) for answer in answers)
        assert len(await world.all(Job)) == 1


async def test_text_that_no_database_takes_easily_comes_back_as_it_was(new_world: NewWorld) -> None:
    async with new_world() as world:
        odd = {"k\u0000": "\u0000", "half": "\ud83d", "quote": "'\"\\", "json": '{"a":"\\u0000"}', "🦊": "𝔘"}
        job = await world.add(payload=odd, labels={"a": "ü\t"}, idempotency_key="ключ")
        assert (await world.job(job)).payload == odd
        (grant,) = await world.claim()
        assert grant.job is not None
        assert grant.job.payload == odd
        assert grant.job.idempotency_key == "ключ"
