"""Applying a fleet: the difference, idempotence, what is refused, and that runtime state is never touched."""

from dataclasses import replace

import pytest

from leasekeeper.core.accounts import Account, Limit, Proxy, Routing
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.events import EventType
from leasekeeper.core.fleet import ChangeKind, Fleet, tag_of
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import Lane, ManualUse, Profile, ReleasePolicy
from leasekeeper.errors import Conflict, InputError, NotFound, VersionConflict
from tests.conformance.world import NewWorld, Record, World, account, fleet, limit, profile, proxy, seconds

FULL: tuple[Record, ...] = (
    account("shop", routing=Routing.ACCOUNT, labels={"a": "ü"}, notes="n"),
    account("idle"),
    proxy("exit", server="socks5://10.0.0.2:1080", region=None, credentials="env:EXIT"),
    profile(
        "p1",
        pool="vendor",
        driver="null",
        user_data_dir="/profiles/1",
        proxy_id="exit",
        language="de-AT",
        timezone="Europe/Vienna",
        window="1280x800",
        max_active_runs=4,
        disposable=True,
        release_policy=ReleasePolicy.RECOVER,
        manual_use=ManualUse.ACCEPT,
        labels={"b": "c"},
        notes="line\nline",
    ),
    limit("vendor", 100),
)


async def applied(world: World) -> list[object]:
    kinds: tuple[type[Account | Profile | Proxy | Limit], ...] = (Account, Profile, Proxy, Limit)
    return [record for kind in kinds for record in await world.all(kind)]


async def test_every_setting_is_kept(new_world: NewWorld) -> None:
    async with new_world(*FULL) as world:
        kept = await applied(world)
        assert len(kept) == len(FULL)
        assert all(record in kept for record in FULL)


async def test_the_difference_names_what_was_added_and_is_empty_the_second_time(new_world: NewWorld) -> None:
    async with new_world(profile("first")) as world:
        changes = await world.declare(*FULL)
        assert {(change.kind, change.what, change.id) for change in changes} == {
            (ChangeKind.ADD, "account", "idle"),
            (ChangeKind.CHANGE, "account", "shop"),
            (ChangeKind.ADD, "proxy", "exit"),
            (ChangeKind.ADD, "profile", "p1"),
            (ChangeKind.ADD, "limit", "vendor"),
        }
        before, logged = await world.everything(), await world.events()
        assert await world.declare(*FULL) == []
        assert await world.everything() == before
        assert await world.events() == logged


async def test_the_difference_names_each_field_that_changes(new_world: NewWorld) -> None:
    async with new_world(*FULL) as world:
        (change,) = await world.declare(*FULL[:4], limit("vendor", 3))
        assert (change.kind, change.what, change.id) == (ChangeKind.CHANGE, "limit", "vendor")
        assert change.fields == {"max_leases": (100, 3)}


async def test_a_dry_run_shows_the_difference_and_writes_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        before, logged = await world.everything(), await world.events()
        assert len(await world.declare(*FULL, dry_run=True)) == 5
        assert await world.everything() == before
        assert await world.events() == logged


async def test_an_apply_is_logged_with_what_it_did(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.declare(profile("p2"), limit("vendor", 3))
        event = (await world.events(type=EventType.FLEET_APPLIED))[-1]
        assert (event.actor, event.data) == ("ann", {"profile_add": 1, "limit_add": 1})
        added = [event.profile_id for event in await world.events(type=EventType.PROFILE_ADDED)]
        assert added == ["p1", "p2"]


async def test_what_the_fleet_does_not_name_stays_unless_it_is_pruned(new_world: NewWorld) -> None:
    async with new_world(*FULL) as world:
        assert await world.declare(FULL[1]) == []
        changes = await world.declare(FULL[1], prune=True)
        assert {(change.kind, change.what) for change in changes} == {
            (ChangeKind.REMOVE, what) for what in ("account", "profile", "proxy", "limit")
        }
        assert await applied(world) == [FULL[1]]
        assert await world.all(Lane) == []


async def test_a_profile_that_is_leased_or_has_open_jobs_is_not_removed(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3"), profile("p4")) as world:
        await world.acquire("p1")
        await world.add("p2", run_at=world.now + seconds(9))
        lost = await world.acquire("p3")
        await world.revoke(lost)
        for name in ("p1", "p2", "p3"):
            kept = [profile(n) for n in ("p1", "p2", "p3", "p4") if n != name]
            before = await world.everything()
            with pytest.raises(Conflict, match=name) as refused:
                await world.declare(*kept, prune=True)
            assert refused.value.code == "CONFLICT"
            assert await world.everything() == before
        await world.declare(profile("p1"), profile("p2"), profile("p3"), prune=True)
        with pytest.raises(NotFound):
            await world.lane("p4")


async def test_a_profile_that_waits_for_a_person_still_does_when_it_comes_back(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant = await world.acquire("p2")
        await world.finish(grant, "SECURITY_PROMPT")
        await world.declare(profile("p1"), prune=True)
        await world.declare(profile("p1"), profile("p2"))
        lane = await world.lane("p2")
        assert (lane.state, lane.state_reason) == ("quarantined", "a security prompt appeared")
        (review,) = await world.all(Review, open="true")
        assert (review.profile_id, review.summary) == ("p2", "a security prompt appeared")
        await world.clear("p2")
        assert (await world.acquire("p2")).lease.token == 2


async def test_a_profile_that_comes_back_is_not_opened_by_an_older_browser(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(), engine=140)
        await world.declare(prune=True)
        await world.declare(profile())
        assert (await world.lane()).engine == 140
        await world.add()
        assert await world.claim(engine=139) == []
        assert len(await world.claim(engine=140)) == 1


async def test_a_removed_profile_comes_back_to_its_own_account_only(new_world: NewWorld) -> None:
    """What is in its directory is that account's session."""
    async with new_world(profile("p1", "shop"), profile("p2", "other")) as world:
        await world.declare(profile("p2", "other"), prune=True)
        with pytest.raises(InputError) as refused:
            await world.declare(profile("p1", "other"))
        (problem,) = refused.value.problems
        assert problem.where == "profiles.p1.account"
        assert problem.message.startswith("was shop and cannot become other")
        await world.declare(profile("p1", "shop"))
        assert (await world.lane("p1")).account_id == "shop"


async def test_a_removed_profile_keeps_its_finished_jobs(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        grant = await world.run("p2")
        await world.finish(grant)
        await world.declare(profile("p1"), prune=True)
        assert (await world.job(grant)).state == "completed"
        assert [job.profile_id for job in await world.all(Job, profile_id="p2")] == ["p2"]
        assert [job.profile_id for job in await world.all(Job, account_id="shop")] == ["p2"]
        assert (await world.store.stats()).jobs == {"completed": 1}


async def test_an_apply_never_touches_runtime_state(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3")) as world:
        running = await world.run("p1")
        await world.finish(await world.acquire("p2"), "SECURITY_PROMPT", engine=131)
        await world.decide_account(Action.PAUSE)
        await world.decide_profile(Action.DISABLE, "p3")
        before = {name: await world.lane(name) for name in ("p1", "p2", "p3")}
        await world.declare(*(profile(name, notes="new", language="fr") for name in before))
        await world.declare(account("shop", notes="new"))
        for name, lane in before.items():
            after = await world.lane(name)
            assert replace(after, version=lane.version) == lane
        shop = await world.store.get(Account, "shop")
        assert (shop.paused, shop.pause_note, shop.notes) == (True, "looked at it", "new")
        assert (await world.finish(running)).refused is None


BROKEN: dict[str, tuple[Record, ...]] = {
    "profiles.p2.proxy": (profile("p2", proxy_id="nowhere"),),
    "profiles.p2.user_data_dir": (profile("p1", user_data_dir="/d"), profile("p2", user_data_dir="/d")),
    "profiles.p1.account": (profile("p1", "other"),),
    "profiles": (profile("../p2"),),
    "profiles.p2.max_active_runs": (profile("p2", max_active_runs=0),),
    "limits.vendor.max_leases": (limit("vendor", 0),),
}


@pytest.mark.parametrize("where", BROKEN)
async def test_a_fleet_that_does_not_hold_together_is_refused_whole(new_world: NewWorld, where: str) -> None:
    async with new_world() as world:
        before, logged = await world.everything(), await world.events()
        for dry_run in (True, False):
            with pytest.raises(InputError) as refused:
                await world.declare(*BROKEN[where], profile("good"), dry_run=dry_run)
            assert [problem.where for problem in refused.value.problems] == [where]
        assert await world.everything() == before
        assert await world.events() == logged


async def test_an_account_or_a_proxy_that_is_in_use_is_not_removed_from_under_a_profile(new_world: NewWorld) -> None:
    async with new_world(proxy(), profile(proxy_id="exit_us")) as world:
        mine = profile(proxy_id="exit_us")
        for broken in (
            Fleet(profiles={"p1": mine}, proxies={"exit_us": proxy()}),
            Fleet(profiles={"p1": mine}, accounts={"shop": account()}),
        ):
            with pytest.raises(InputError):
                await world.store.apply(broken, actor="ann", prune=True)
        assert len(await applied(world)) == 3


async def test_a_pause_outlives_an_account_that_is_removed(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), account("gone")) as world:
        await world.decide_account(Action.PAUSE, "gone")
        await world.declare(profile("p1"), prune=True)
        await world.declare(account("gone"))
        assert (await world.store.get(Account, "gone")).paused


async def test_a_driver_that_nobody_knows_is_refused_with_those_there_are(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        with pytest.raises(
            InputError, match="no driver lokal; there are: local, launcher, null; did you mean local"
        ) as raised:
            await world.declare(profile("p2", driver="lokal"))
        assert [problem.where for problem in raised.value.problems] == ["profiles.p2.driver"]
        assert [record.profile_id for record in await world.all(Profile)] == ["p1"]


async def test_a_fleet_that_changed_since_it_was_read_is_left_as_it_is(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = fleet(*FULL)
        await world.store.apply(first, actor="ann")
        seen = tag_of(first)
        more = fleet(account("late"), profile("p2"))
        assert await world.store.apply(more, actor="ann", dry_run=True, expected=seen)
        await world.store.apply(more, actor="ann", expected=seen)
        with pytest.raises(VersionConflict, match="has changed since"):
            await world.store.apply(first, actor="bob", expected=seen)
        with pytest.raises(VersionConflict):
            await world.store.apply(first, actor="bob", prune=True, dry_run=True, expected=seen)
        assert (await world.store.get(Account, "late")).account_id == "late"
