"""Snapshots: named by the settle that frees the profile, preferred at home, kept by retention, gone back to."""

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.core.calls import CallAttempt, Request
from leasekeeper.core.decisions import Action
from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import ProfileId, Token, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot, Snapshot, Verdict
from leasekeeper.errors import IllegalTransition, InputError, NotFound, ProfileBusy
from leasekeeper.ports import Grant, LeaseRequest
from tests.conformance.world import NewWorld, World, profile

STORE = "s3://acme-profiles/leasekeeper"
IN, OUT = Verdict.LOGGED_IN, Verdict.LOGGED_OUT


async def stored(world: World, place: str | None = STORE, *, prune: bool = False) -> None:
    await world.store.apply(Fleet(profile_store=place), actor="ann", prune=prune)


def uploaded(grant: Grant, place: str = "") -> NewSnapshot:
    token = grant.lease.token
    return NewSnapshot(
        place=place or f"{grant.lease.profile_id}/{token}", sha256="5a", packed_bytes=40, contents_hash=f"c{token}"
    )


async def saved_by(
    world: World, grant: Grant, verdict: Verdict = Verdict.NOT_ASKED, size: int = 100, **ending: Any
) -> Grant:
    """Settle a run that changed the profile and uploaded it."""
    report = DirectoryReport(size_bytes=size, verdict=verdict)
    settled = await world.finish(grant, **{"engine": 150, "snapshot": uploaded(grant), "directory": report, **ending})
    assert settled.refused is None
    return grant


async def run_on(world: World, machine: str, verdict: Verdict = Verdict.NOT_ASKED, **more: Any) -> Grant:
    """A whole run on a machine that takes the profile there, with its snapshot."""
    await world.add()
    found = await world.claim(machine=machine)
    if not found:
        world.advance(60)
        await world.store.heal()
        found = await world.claim(machine=machine)
    return await saved_by(world, found[0], verdict, **more)


async def tokens(world: World, **where: str) -> list[int]:
    return sorted(each.token for each in await world.all(Snapshot, profile_id="p1", **where))


async def events(world: World, *kinds: str) -> list[Event]:
    """Of these types, oldest first."""
    return [event for event in reversed(await world.all(Event)) if event.type in kinds]


async def test_settling_a_run_makes_its_snapshot_the_newest_in_the_same_commit(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await world.add()
        grant = await world.take(machine="rack1")
        assert (grant.newest, grant.unsaved_on, grant.profile_store) == (None, None, STORE)
        await saved_by(world, grant, IN)
        lane = await world.lane()
        assert (lane.state, lane.home, lane.snapshot, lane.saved) == (ProfileState.AVAILABLE, "rack1", 1, True)
        assert lane.size_bytes == 100
        (kept,) = await world.all(Snapshot, profile_id="p1")
        assert (kept.token, kept.run_id, kept.task, kept.machine) == (1, grant.lease.run_id, "visit", "rack1")
        assert (kept.size_bytes, kept.packed_bytes, kept.engine, kept.verdict, kept.clean) == (100, 40, 150, IN, True)
        assert (kept.created_at, kept.restored_from, kept.discarded_at) == (world.now, None, None)
        assert await world.store.get(Snapshot, kept.snapshot_id) == kept
        await world.add()
        again = await world.take(machine="rack1")
        assert (again.newest, again.unsaved_on) == (kept, None)
        assert [event.data["token"] for event in await events(world, "snapshot_saved")] == [1]


async def test_a_refused_ending_names_no_snapshot(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await world.add()
        lost = await world.take(machine="rack1")
        await world.lose(lost)
        late = await world.finish(lost, engine=150, snapshot=uploaded(lost))
        assert late.refused is not None
        assert await tokens(world) == []
        assert (await world.lane()).saved is False


async def test_workers_of_the_home_come_first_and_others_after_a_while(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        for machine in ("rack1", "rack2"):
            await world.offer("visit", worker_id=f"w_{machine}", incarnation=f"i_{machine}", machine=machine)
        await run_on(world, "rack1")
        job = await world.add()
        await world.store.heal()
        assert await world.claim(machine="rack2") == []
        assert (await world.store.get(Job, job.job_id)).state == "queued"
        world.advance(world.policy.home_wait)
        await world.store.heal()
        taken = await world.take(machine="rack2")
        assert taken.newest is not None
        assert (taken.newest.token, taken.unsaved_on) == (1, None)
        await saved_by(world, taken)
        lane = await world.lane()
        assert (lane.home, lane.snapshot, lane.saved) == ("rack2", 2, True)


async def test_without_a_worker_at_home_others_get_the_job_with_the_next_sweep(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.offer("visit", worker_id="w_rack2", incarnation="i_rack2", machine="rack2")
        job = await world.add()
        assert (await world.store.get(Job, job.job_id)).state == "queued"
        assert await world.store.heal() == 1
        assert await world.store.heal() == 0
        assert await world.claim(machine=None) == []
        assert (await world.take(machine="rack2")).lease.profile_id == "p1"


async def test_a_direct_lease_elsewhere_is_granted_at_once_if_the_profile_is_saved(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        grant = await world.acquire(machine="rack2")
        assert grant.newest is not None
        assert grant.newest.token == 1


async def test_an_upload_that_failed_leaves_the_profile_at_home(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.add()
        failed = await world.take(machine="rack1")
        report = DirectoryReport(size_bytes=120, problem="the bucket did not answer")
        await world.finish(failed, engine=150, directory=report)
        lane = await world.lane()
        assert (lane.home, lane.snapshot, lane.saved) == ("rack1", 1, False)
        assert lane.unsaved_reason == "the bucket did not answer"
        assert [each.profile_id for each in await world.all(type(lane), saved="0")] == ["p1"]
        (event,) = await events(world, "profile_not_saved")
        assert event.data == {"home": "rack1", "reason": "the bucket did not answer"}
        await world.offer("visit", worker_id="w_rack2", incarnation="i_rack2", machine="rack2")
        job = await world.add()
        world.advance(3600)
        await world.store.heal()
        assert await world.claim(machine="rack2") == []
        assert (await world.store.get(Job, job.job_id)).blocked_reason == Blocked.HOME
        with pytest.raises(ProfileBusy, match="machine rack1"):
            await world.acquire(machine="rack2")
        again = await world.take(machine="rack1")
        assert again.unsaved_on == "rack1"
        await saved_by(world, again)
        lane = await world.lane()
        assert (lane.snapshot, lane.saved, lane.unsaved_reason) == (again.lease.token, True, "")
        assert [each.profile_id for each in await world.all(type(lane), saved="1")] == ["p1"]


async def test_a_run_that_changed_nothing_keeps_the_newest_snapshot(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        same = DirectoryReport(size_bytes=100, same_as=Token(1))
        grant = await world.acquire(machine="rack2")
        await world.finish(grant, engine=150, directory=same)
        lane = await world.lane()
        assert (lane.home, lane.snapshot, lane.saved) == ("rack2", 1, True)
        # What was the same as an older one is not the newest.
        await run_on(world, "rack2")
        grant = await world.acquire(machine="rack2")
        await world.finish(grant, engine=150, directory=same)
        lane = await world.lane()
        assert (lane.snapshot, lane.saved) == (3, False)


@pytest.mark.parametrize("browser", [Browser.NOT_PROVEN, Browser.HANDED_OVER])
async def test_a_snapshot_of_a_browser_that_may_be_open_is_never_the_newest(
    new_world: NewWorld, browser: Browser
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.QUARANTINE)) as world:
        await stored(world)
        await run_on(world, "rack1")
        grant = await world.acquire(machine="rack1")
        await saved_by(world, grant, facts=EndFacts(browser=browser, final_url="https://site.test"))
        lane = await world.lane()
        assert (lane.snapshot, lane.saved, lane.home) == (1, False, "rack1")
        assert [each.clean for each in await world.all(Snapshot) if each.token == 2] == [False]
        await world.resolve(grant)
        with pytest.raises(IllegalTransition, match="not proven closed"):
            await world.decide_profile(Action.RESTORE, to="2")


async def test_retention_discards_in_the_commit_of_a_settle_and_forgets_what_was_deleted(new_world: NewWorld) -> None:
    async with new_world(profile(keep_snapshots=2)) as world:
        await stored(world)
        for verdict in (IN, OUT, OUT, OUT):
            await run_on(world, "rack1", verdict)
        gone = await world.all(Snapshot, discarded="1")
        assert [each.token for each in gone] == [2]
        assert await tokens(world, discarded="0") == [1, 3, 4]
        kept = [each.snapshot_id for each in await world.all(Snapshot, discarded="0")]
        assert await world.store.forget_snapshots([gone[0].snapshot_id, *kept, "nobody"]) == 1
        assert await world.store.forget_snapshots([gone[0].snapshot_id]) == 0
        assert await tokens(world) == [1, 3, 4]
        assert [event.data["token"] for event in await events(world, "snapshot_deleted")] == [2]


async def test_a_restore_makes_a_snapshot_the_newest_under_a_token_of_its_own(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        for verdict in (IN, IN, OUT):
            await run_on(world, "rack1", verdict)
        version = (await world.lane()).version
        decided = await world.decide_profile(Action.RESTORE, note="shop logged us out", version=version)
        assert decided.state == ProfileState.AVAILABLE
        lane = await world.lane()
        assert (lane.token, lane.snapshot, lane.saved, lane.home) == (4, 4, True, "")
        assert decided.version == lane.version > version
        (copy,) = [each for each in await world.all(Snapshot) if each.token == 4]
        assert (copy.restored_from, copy.place, copy.verdict) == (2, "p1/2", IN)
        (event,) = await events(world, "profile_restored")
        assert (event.data["token"], event.data["restored_from"], event.actor) == (4, 2, "ann")
        await world.add()
        grant = await world.take(machine="rack3")
        assert (grant.newest, grant.unsaved_on, grant.lease.token) == (copy, None, 5)


async def test_a_restored_snapshot_keeps_its_object_when_the_first_record_of_it_goes(new_world: NewWorld) -> None:
    async with new_world(profile(keep_snapshots=1)) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.decide_profile(Action.RESTORE, to="1")
        await run_on(world, "rack1", OUT)
        assert await world.all(Snapshot, discarded="1") == []
        assert await tokens(world) == [2, 3]


@pytest.mark.parametrize(
    ("action", "after"),
    [(Action.REVIEW, "available"), (Action.QUARANTINE, "available"), (Action.DISABLE, "disabled")],
)
async def test_a_restore_decides_a_review_and_leaves_what_is_disabled(
    new_world: NewWorld, action: Action, after: str
) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.decide_profile(action)
        assert (await world.decide_profile(Action.RESTORE, to="1")).state == after


async def test_a_restore_of_a_stale_profile_outlasts_its_resolution(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.add()
        lost = await world.take(machine="rack1")
        await world.lose(lost)
        assert (await world.decide_profile(Action.RESTORE)).state == ProfileState.STALE
        await world.resolve(lost)
        lane = await world.lane()
        assert (lane.state, lane.snapshot, lane.saved, lane.home) == (ProfileState.QUARANTINED, 3, True, "")
        assert (await world.clear()).state == ProfileState.AVAILABLE


async def test_what_cannot_be_restored_is_refused_with_what_there_is(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        with pytest.raises(NotFound, match="has no snapshots"):
            await world.decide_profile(Action.RESTORE)
        await run_on(world, "rack1", OUT)
        with pytest.raises(IllegalTransition, match="known to be good"):
            await world.decide_profile(Action.RESTORE)
        with pytest.raises(NotFound, match="the newest are 1"):
            await world.decide_profile(Action.RESTORE, to="7")
        with pytest.raises(InputError, match="token of a snapshot"):
            await world.decide_profile(Action.RESTORE, to="newest")
        held = await world.acquire(machine="rack1")
        with pytest.raises(IllegalTransition, match="is leased"):
            await world.decide_profile(Action.RESTORE, to="1")
        await world.finish(held)
        assert (await world.lane()).snapshot == 1


@pytest.mark.parametrize(
    ("good", "section", "state", "snapshot"),
    [
        (IN, False, ProfileState.AVAILABLE, 3),
        (OUT, False, ProfileState.REVIEW_REQUIRED, 1),
        (IN, True, ProfileState.QUARANTINED, 1),
    ],
)
async def test_the_release_policy_restore_goes_back_by_itself_outside_of_sections(
    new_world: NewWorld, good: Verdict, section: bool, state: ProfileState, snapshot: int
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RESTORE)) as world:
        await stored(world)
        await run_on(world, "rack1", good)
        await world.add()
        lost = await world.take(machine="rack1")
        if section:
            await world.store.enter_section(lost.lease.ref, "submit_order")
        await world.lose(lost)
        if not section:
            assert await world.resolve(lost) == []
        world.advance(60)
        await world.resolve(lost)
        lane = await world.lane()
        assert (lane.state, lane.snapshot, lane.saved) == (state, snapshot, snapshot == 3)
        restored = [event.data["restored_from"] for event in await events(world, "profile_restored")]
        assert restored == ([1] if snapshot == 3 else [])


@pytest.mark.parametrize(("same_as", "saved"), [(None, False), (Token(1), True)])
async def test_recovered_elsewhere_only_if_the_lost_workers_directory_is_proven_not_newer(
    new_world: NewWorld, same_as: Token | None, saved: bool
) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        await stored(world)
        await run_on(world, "rack1")
        await world.add()
        lost = await world.take(machine="rack1")
        await world.store.checkpoint(lost.lease.ref, "dashboard_open", url="https://site.test")
        await world.lose(lost)
        world.advance(60)
        report = {"browser_dead": True, "final_url": "https://site.test", "reported_by": "rack1", "same_as": same_as}
        await world.resolve(lost, **report)
        lane = await world.lane()
        assert (lane.state, lane.home, lane.saved) == (ProfileState.AVAILABLE, "rack1", saved)
        if saved:
            await world.finish(await world.acquire(machine="rack2"))
        else:
            with pytest.raises(ProfileBusy):
                await world.acquire(machine="rack2")


async def test_a_directory_that_grew_too_large_is_said_once(new_world: NewWorld) -> None:
    async with new_world(profile(max_size_mb=1)) as world:
        await stored(world)
        for size in (900_000, 1_100_000, 1_200_000, 900_000, 1_300_000):
            await run_on(world, "rack1", size=size)
        assert [event.data["size_bytes"] for event in await events(world, "profile_too_large")] == [
            1_100_000,
            1_300_000,
        ]
        assert (await world.lane()).size_bytes == 1_300_000
        # How it grew is in the log, whether or not there is a profile store.
        settled = await events(world, "run_settled")
        assert [event.data["size_bytes"] for event in settled] == [900_000, 1_100_000, 1_200_000, 900_000, 1_300_000]


async def test_a_profile_store_that_is_changed_leaves_what_it_had_at_home(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        changes = await world.store.apply(Fleet(profile_store=STORE), actor="ann")
        assert changes == []
        await run_on(world, "rack1")
        await stored(world, "server")
        lane = await world.lane()
        assert (lane.saved, lane.home, lane.unsaved_reason) == (False, "rack1", "the profile store was changed")
        with pytest.raises(ProfileBusy):
            await world.acquire(machine="rack2")
        again = await world.acquire(machine="rack1")
        assert again.profile_store == "server"
        await saved_by(world, again)
        assert (await world.lane()).saved is True


async def test_a_profile_that_is_declared_again_has_its_snapshots_still(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        before = await world.lane()
        await world.store.apply(Fleet(profile_store=STORE), actor="ann", prune=True)
        await world.declare(profile())
        after = await world.lane()
        assert (after.home, after.snapshot, after.saved) == (before.home, before.snapshot, before.saved)
        assert await tokens(world) == [1]
        await world.add()
        assert (await world.take(machine="rack1")).newest is not None


async def test_what_a_repeated_call_is_answered_names_the_newest_too(new_world: NewWorld) -> None:
    async with new_world(profile()) as world:
        await stored(world)
        await run_on(world, "rack1")
        request = Request(slot="s1", sequence=1, attempt=CallAttempt.FIRST)
        asked = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w1"), incarnation="w1-1", machine="rack1")
        first = await world.store.once(request).acquire(asked)
        again = await world.store.once(replace(request, attempt=CallAttempt.AGAIN)).acquire(asked)
        assert first == again
        assert (again.newest, again.profile_store) == ((await world.all(Snapshot))[0], STORE)
