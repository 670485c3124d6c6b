"""Home: only workers of the machine that has a profile's directory are given it."""

from typing import Any

import pytest

from leasekeeper.core.browsers import NULL
from leasekeeper.core.decisions import Action
from leasekeeper.core.events import Event
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Purpose, RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.core.readiness import Block, Blocked
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.core.why import explain
from leasekeeper.core.workers import Worker
from leasekeeper.errors import IllegalTransition, InputError, ProfileBusy
from leasekeeper.ports import ClaimRequest, Grant
from leasekeeper.stores.sql.claiming import WINDOW
from tests.conformance.world import CLEAN, NewWorld, World, end, profile, spec


async def opened_on(world: World, machine: str, profile_id: str = "p1") -> Grant:
    """A run in the profile's own directory on this machine, ended cleanly."""
    await world.add(profile_id)
    grant = await world.take(machine=machine)
    assert grant.lease.profile_id == profile_id
    await world.finish(grant, engine=150)
    return grant


async def home(world: World, profile_id: str = "p1") -> str:
    return (await world.store.get(Lane, profile_id)).home


async def workers_on(world: World, *machines: str) -> None:
    for machine in machines:
        await world.offer("visit", worker_id=f"w_{machine}", incarnation=f"i_{machine}", machine=machine)


async def test_a_profile_is_anybodys_until_a_browser_opened_it_then_its_machines(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await world.add()
        grant = await world.take(machine="rack1")
        assert grant.lease.machine == "rack1"
        await world.finish(grant, "BROWSER_LAUNCH_FAILED", facts=EndFacts(browser=Browser.NONE))
        assert await home(world) == ""
        world.advance(3600)
        await world.store.promote()
        grant = await world.take(machine="rack2")
        await world.finish(grant, engine=150)
        assert await home(world) == "rack2"
        assert (await world.store.get(RunRecord, grant.lease.run_id)).machine == "rack2"
        await world.add()
        assert await world.claim(machine="rack1") == []
        assert await world.claim(machine=None) == []
        assert (await world.take(machine="rack2")).lease.profile_id == "p1"


async def test_a_claim_takes_the_best_of_nobodys_and_its_own_in_their_order(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n}") for n in range(6))) as world:
        await opened_on(world, "rack1", "p1")
        await opened_on(world, "rack2", "p2")
        await opened_on(world, "rack1", "p3")
        for n in range(6):
            world.advance(1)
            await world.add(f"p{n}", priority=1 if n == 5 else 0)
        taken = await world.claim(9, machine="rack1")
        assert [grant.lease.profile_id for grant in taken] == ["p5", "p0", "p1", "p3", "p4"]
        assert [grant.lease.profile_id for grant in await world.claim(9, machine="rack2")] == ["p2"]


async def test_lanes_of_other_machines_hide_nothing(new_world: NewWorld) -> None:
    """More of them come first than a claim of one job reads of any home."""
    many = 2 * (WINDOW + WINDOW)
    away = [f"p{n:02}" for n in range(many)]
    async with new_world(*map(profile, away), profile("last")) as world:
        await world.submit(*map(spec, away))
        grants = await world.claim(many, machine="rack1")
        await world.store.settle([end(grant.lease.ref, engine=150) for grant in grants])
        await world.submit(*map(spec, away))
        world.advance(1)
        await world.add("last")
        assert [grant.lease.profile_id for grant in await world.claim(1, machine="rack2")] == ["last"]


async def test_a_job_is_blocked_by_home_until_a_worker_is_there(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await opened_on(world, "rack1")
        job = await world.add()
        await workers_on(world, "rack2")
        shown = await world.store.get(Job, job.job_id)
        assert (shown.state, shown.blocked_reason) == ("blocked", Blocked.HOME)
        assert "rack1" in shown.detail
        why = explain(await world.store.why(job_id=job.job_id))
        assert why.block == Block(reason=Blocked.HOME, home="rack1")
        assert (await world.store.stats()).blocked == {Blocked.HOME: 1}
        assert [each.job_id for each in await world.all(Job, blocked_reason=Blocked.HOME)] == [job.job_id]
        assert [each.job_id for each in await world.all(Job, state="blocked")] == [job.job_id]
        assert await world.all(Job, state="queued") == []
        await workers_on(world, "rack1")
        assert (await world.store.get(Job, job.job_id)).state == "queued"
        assert [each.job_id for each in await world.all(Job, state="queued")] == [job.job_id]
        assert {each.machine for each in await world.all(Worker) if each.machine} == {"rack1", "rack2"}


async def test_without_any_worker_a_job_waits_for_one_whatever_its_home(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await opened_on(world, "rack1")
        await world.offer("visit", stopping=True)
        job = await world.add()
        assert (await world.store.get(Job, job.job_id)).blocked_reason == Blocked.NO_WORKER


@pytest.mark.parametrize("purpose", [Purpose.API, Purpose.MANUAL, Purpose.INSPECT])
async def test_a_direct_lease_elsewhere_is_refused_with_the_machines_name(
    new_world: NewWorld, purpose: Purpose
) -> None:
    async with new_world(profile()) as world:
        await opened_on(world, "rack1")
        with pytest.raises(ProfileBusy, match=r"blocked_by_home.*machine rack1") as refused:
            await world.acquire(machine="rack2", purpose=purpose)
        assert refused.value.reason == Blocked.HOME
        await world.finish(await world.acquire(machine="rack1", purpose=purpose))
        await world.finish(await world.acquire(machine=None, purpose=purpose))
        assert await home(world) == "rack1"


async def test_any_free_profile_is_one_that_can_be_opened_here(new_world: NewWorld) -> None:
    async with new_world(profile("a"), profile("b")) as world:
        await opened_on(world, "rack1", "a")
        there = ProfileChoice(machine="rack2")
        assert [each.profile_id for each in (await world.store.free_profiles(there)).items] == ["b"]
        assert (await world.store.free_profiles(there, counted=True)).counts == {"": 1, Blocked.HOME: 1}
        anywhere = await world.store.free_profiles(ProfileChoice())
        assert {each.profile_id for each in anywhere.items} == {"a", "b"}


async def test_a_lost_run_leaves_the_directory_where_it_ran(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await world.add()
        grant = await world.take(machine="rack1")
        await world.lose(grant)
        world.advance(60)
        await world.resolve(grant)
        assert await home(world) == "rack1"


async def test_a_browser_that_is_not_proven_closed_counts_as_opened(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await world.add()
        await world.finish(await world.take(machine="rack1"), facts=EndFacts(browser=Browser.NOT_PROVEN))
        assert await home(world) == "rack1"


@pytest.mark.parametrize("settings", [{"disposable": True}, {"driver": NULL}], ids=["disposable", "no_directory"])
async def test_profiles_that_keep_no_directory_have_no_home(new_world: NewWorld, settings: dict[str, Any]) -> None:
    async with new_world(profile(**settings)) as world:
        await opened_on(world, "rack1")
        assert await home(world) == ""
        await opened_on(world, "rack2")


async def test_a_person_moves_a_profile_that_nobody_has(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await opened_on(world, "rack1")
        await world.add()
        grant = await world.take(machine="rack1")
        with pytest.raises(IllegalTransition, match="rack1"):
            await world.decide_profile(Action.MOVE, to="rack2")
        await world.finish(grant, engine=150)
        with pytest.raises(InputError, match="machine"):
            await world.decide_profile(Action.MOVE)
        before = (await world.store.get(Lane, "p1")).version
        await world.decide_profile(Action.MOVE, to="rack2", version=before)
        lane = await world.store.get(Lane, "p1")
        assert (lane.home, lane.version, lane.state) == ("rack2", before + 1, "available")
        assert [each.profile_id for each in await world.all(Lane, home="rack2")] == ["p1"]
        said = (await world.store.find(Event, {"type": "profile_decided"})).items[0]
        assert (said.data["home_before"], said.data["home"]) == ("rack1", "rack2")
        await world.add()
        assert await world.claim(machine="rack1") == []
        assert len(await world.claim(machine="rack2")) == 1


async def test_a_removed_profile_that_comes_back_is_at_home_where_it_was(new_world: NewWorld) -> None:
    async with new_world(profile(), profile("p2")) as world:
        await opened_on(world, "rack1")
        await world.declare(profile("p2"), prune=True)
        await world.declare(profile(), profile("p2"))
        assert await home(world) == "rack1"


async def test_a_hand_over_stays_on_its_machine(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await world.add()
        grant = await world.take(machine="rack1")
        await world.add()
        wanted = ClaimRequest(worker_id=grant.lease.worker_id, incarnation="w1-1", tasks=("visit",), machine="rack1")
        warm = EndFacts(browser=Browser.HANDED_OVER, final_url=CLEAN.final_url)
        handed = await world.store.hand_over(end(grant.lease.ref, facts=warm, engine=150), wanted)
        assert handed is not None
        assert handed.grant is not None
        assert (handed.grant.lease.machine, await home(world)) == ("rack1", "rack1")
        await world.finish(handed.grant, engine=150)
