"""What is wrong with a proxy blocks the lanes of its profiles, is reported once, and is over by itself."""

from dataclasses import replace

import pytest

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.decisions import Action, Review, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Purpose
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Possible
from leasekeeper.errors import NotFound, ProfileBusy
from leasekeeper.runtime.proxy_check import report_on
from tests.conformance.world import NewWorld, World, profile, proxy

DE, US = proxy("exit_de", region="DE"), proxy("exit_us")
RECORDS = (
    DE,
    US,
    profile("p1", proxy_id="exit_de"),
    profile("p2", proxy_id="exit_de"),
    profile("p3", proxy_id="exit_us"),
)
DEAD, ELSEWHERE = ProxyTrouble.UNREACHABLE, ProxyTrouble.MISMATCH
TOLD = (EventType.PROXY_MISMATCH, EventType.PROXY_UNREACHABLE, EventType.PROXY_RECOVERED)


async def find(world: World, trouble: ProxyTrouble | None, detail: str = "expected DE, seen FR") -> Proxy | None:
    return await world.store.report_proxy(report_on(DE, trouble, detail if trouble else ""))


async def reported(world: World) -> list[str]:
    return [event.type for event in await world.events() if event.type in TOLD]


async def holds(world: World) -> list[str | None]:
    return [(await world.lane(profile_id)).blocked_by for profile_id in ("p1", "p2", "p3")]


async def test_one_event_and_the_lanes_of_its_profiles_however_often_it_is_reported(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        jobs = [await world.add(profile_id) for profile_id in ("p1", "p1", "p2", "p3")]
        found = await find(world, DEAD)
        assert found is not None
        assert (found.trouble, found.trouble_at, found.asked) == (DEAD, world.now, 1)
        assert await find(world, DEAD) == found
        blocked = "blocked_by_proxy_unreachable"
        assert await holds(world) == [blocked, blocked, None]
        assert [(await world.job(job)).blocked_reason for job in jobs] == [blocked] * 3 + [None]
        (grant,) = await world.claim(10)
        assert grant.lease.profile_id == "p3"
        assert await reported(world) == ["proxy_unreachable"]
        (event,) = await world.events(type=EventType.PROXY_UNREACHABLE)
        assert event.data == {"proxy_id": "exit_de", "region": "DE", "profiles": 2, "detail": "expected DE, seen FR"}
        assert await world.all(Review) == []
        assert [each.proxy_id for each in await world.all(Proxy, trouble="1")] == ["exit_de"]
        assert [each.proxy_id for each in await world.all(Proxy, trouble="0")] == ["exit_us"]
        well = await find(world, None)
        assert well == DE
        assert await holds(world) == [None, None, "blocked_by_profile_lease"]
        assert [(await world.job(job)).attempt for job in jobs] == [0, 0, 0, 1]
        assert len(await world.claim(10)) == 2
        assert await reported(world) == ["proxy_unreachable", "proxy_recovered"]


async def test_a_mismatch_is_one_review_of_the_proxy_that_closes_by_itself(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        await find(world, ELSEWHERE)
        world.advance(3600)
        again = await find(world, ELSEWHERE)
        assert again is not None
        assert again.asked == 2
        (review,) = await world.all(Review, open="true")
        assert (review.target, review.proxy_id, review.reason) == (Target.PROXY, "exit_de", "PROXY_REGION_MISMATCH")
        assert (review.profile_id, review.job_id) == ("p1", None)
        assert "expected DE, seen FR" in review.summary
        assert await reported(world) == ["proxy_mismatch"]
        await find(world, None)
        assert await world.all(Review, open="true") == []
        assert (await world.all(Review))[0].decision is None


async def test_a_run_that_its_proxy_stopped_uses_no_attempt(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        for number in range(3):
            grant = await world.run("p1", max_attempts=1) if not number else await world.take()
            await find(world, DEAD)
            facts = EndFacts(browser=Browser.CLOSED, final_url="about:blank", proxy_trouble=True)
            settled = await world.finish(grant, "PROXY_UNREACHABLE", facts=facts)
            assert (settled.job_state, settled.profile_state) == ("queued", "available")
            job = await world.job(grant)
            assert (job.state, job.blocked_reason, job.attempt) == ("blocked", "blocked_by_proxy_unreachable", 0)
            assert await world.claim() == []
            await find(world, None)
        assert (await world.take()).job is not None


async def test_trouble_that_turns_into_another_is_reported_again(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        await find(world, DEAD)
        await find(world, ELSEWHERE)
        assert (await holds(world))[0] == "blocked_by_proxy_mismatch"
        assert await reported(world) == ["proxy_unreachable", "proxy_mismatch"]


async def test_a_report_on_what_is_not_declared_changes_nothing(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        before, logged = await world.everything(), await world.events()
        for other in (replace(DE, server="http://10.0.0.7:1"), replace(DE, region="FR"), proxy("nobody")):
            await world.store.report_proxy(report_on(other, DEAD, "dead"))
        assert (await world.everything(), await world.events()) == (before, logged)


async def test_a_proxy_that_is_declared_anew_is_well_and_one_that_is_not_stays_as_it_is(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        await find(world, ELSEWHERE)
        assert await world.declare(*RECORDS) == []
        assert (await holds(world))[0] == "blocked_by_proxy_mismatch"
        await world.declare(replace(DE, region="FR"))
        assert await holds(world) == [None, None, None]
        assert await world.all(Review, open="true") == []
        assert (await world.store.get(Proxy, "exit_de")).trouble is None


async def test_a_profile_that_gets_another_proxy_is_free(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        await find(world, DEAD)
        await world.declare(profile("p1", proxy_id="exit_us"))
        assert await holds(world) == [None, "blocked_by_proxy_unreachable", None]


async def test_programs_wait_for_the_proxy_and_people_may_look_themselves(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        await find(world, DEAD)
        with pytest.raises(ProfileBusy) as busy:
            await world.acquire()
        assert busy.value.reason == "blocked_by_proxy_unreachable"
        assert (await world.acquire(purpose=Purpose.MANUAL)).lease.profile_id == "p1"


async def test_a_person_may_have_it_asked_at_once(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        found = await find(world, ELSEWHERE)
        assert found is not None
        assert found.ask_at is not None
        assert found.ask_at > world.now
        decided = await world.decide(Target.PROXY, "exit_de", Action.RETRY)
        assert decided.state == "mismatch"
        assert (await world.store.get(Proxy, "exit_de")).ask_at == world.now
        assert len(await world.all(Review, open="true")) == 1
        assert (await world.decide(Target.PROXY, "exit_us", Action.RETRY)).state == "well"
        with pytest.raises(NotFound):
            await world.decide(Target.PROXY, "nobody", Action.RETRY)


async def test_why_names_the_proxy_what_is_wrong_and_when_it_is_asked_again(new_world: NewWorld) -> None:
    async with new_world(*RECORDS) as world:
        job = await world.add("p1")
        found = await find(world, ELSEWHERE)
        assert found is not None
        for subject in ({"job_id": job.job_id}, {"profile_id": "p1"}):
            why = explain(await world.store.why(**subject))
            assert why.proxy is not None
            assert (why.proxy.proxy_id, why.proxy.trouble, why.proxy.ask_at) == ("exit_de", ELSEWHERE, found.ask_at)
            assert Possible(target=Target.PROXY, id="exit_de", action=Action.RETRY) in why.possible
        assert explain(await world.store.why(profile_id="p3")).proxy is None
