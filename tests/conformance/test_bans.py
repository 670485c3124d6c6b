"""What is known of bans and tiers: changed by people and by runs, kept when a fleet is applied, and filtered by."""

import pytest

from leasekeeper.core.accounts import Account, BanStatus
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.events import EventType
from leasekeeper.core.profiles import Lane, Profile, ProfileState
from leasekeeper.errors import VersionConflict
from tests.conformance.world import NewWorld, World, account, profile

S = ProfileState


async def shop(world: World, account_id: str = "shop") -> Account:
    return await world.store.get(Account, account_id)


async def test_a_run_that_finds_its_account_banned_pauses_it_in_the_same_commit(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2"), profile("p3", account_id="other")) as world:
        grant = await world.run("p1", max_attempts=3)
        waits = await world.add("p2")
        before = await shop(world)
        settled = await world.finish(grant, "ACCOUNT_BANNED", message="the shop is closed")
        assert (settled.profile_state, settled.job_state) == (S.REVIEW_REQUIRED, "review")
        after = await shop(world)
        assert (after.ban_status, after.paused, after.version) == (BanStatus.BANNED, True, before.version + 1)
        assert after.pause_note == "ACCOUNT_BANNED: the shop is closed"
        assert (await world.job(waits)).blocked_reason == "blocked_by_account_pause"
        assert await world.claim() == []
        assert [(await world.lane(name)).ban_status for name in ("p1", "p2", "p3")] == ["banned", "none", "none"]
        assert (await shop(world, "other")).ban_status is BanStatus.NONE
        (changed,) = await world.events(type=EventType.ACCOUNT_BAN_CHANGED)
        assert (changed.account_id, changed.run_id) == ("shop", grant.lease.run_id)
        assert (changed.data["ban_status"], changed.data["from"]) == ("banned", "none")
        (paused,) = await world.events(type=EventType.ACCOUNT_PAUSED)
        assert paused.data["note"] == after.pause_note


async def test_a_late_word_of_a_ban_changes_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        assert (await world.finish(grant, "ACCOUNT_BANNED")).refused is not None
        assert (await shop(world)).ban_status is BanStatus.NONE
        assert not (await shop(world)).paused


async def test_two_runs_that_find_the_same_ban_ban_it_once(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        first, second = await world.run("p1"), await world.run("p2")
        await world.finish(first, "ACCOUNT_BANNED", message="seen first")
        await world.finish(second, "ACCOUNT_BANNED", message="seen again")
        assert (await shop(world)).pause_note == "ACCOUNT_BANNED: seen first"
        assert len(await world.events(type=EventType.ACCOUNT_BAN_CHANGED)) == 1
        assert len(await world.events(type=EventType.ACCOUNT_PAUSED)) == 1


async def test_a_person_says_what_is_known_of_an_account(new_world: NewWorld) -> None:
    async with new_world() as world:
        decided = await world.decide_account(Action.SUSPECT)
        assert (decided.state, decided.version) == ("active", (await shop(world)).version)
        assert ((await shop(world)).ban_status, (await shop(world)).paused) == (BanStatus.SUSPECTED, False)
        assert (await world.decide_account(Action.BAN)).state == "paused"
        assert await world.all(Lane, state="available") != []
        assert (await world.add()).blocked_reason == "blocked_by_account_pause"
        with pytest.raises(VersionConflict):
            await world.decide_account(Action.UNBAN, version=1)
        await world.decide_account(Action.UNBAN)
        assert ((await shop(world)).ban_status, (await shop(world)).paused) == (BanStatus.NONE, True)
        await world.decide_account(Action.RESUME)
        assert not (await shop(world)).paused
        told = [event.data["ban_status"] for event in await world.events(type=EventType.ACCOUNT_BAN_CHANGED)]
        assert told == ["suspected", "banned", "none"]


async def test_what_is_known_of_a_profile_leaves_its_state_and_its_review_alone(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(), "LOGIN_REQUIRED")
        before = await world.lane()
        assert (await world.decide_profile(Action.SUSPECT)).state == S.REVIEW_REQUIRED
        lane = await world.lane()
        assert (lane.ban_status, lane.state, lane.state_reason) == ("suspected", before.state, before.state_reason)
        assert lane.version == before.version + 1
        assert len(await world.all(Review, open="1", target="profile")) == 1
        await world.clear()
        grant = await world.run()
        assert (await world.decide_profile(Action.BAN)).state == S.LEASED
        assert (await world.finish(grant)).profile_state is S.AVAILABLE
        assert (await world.lane()).ban_status == "banned"


async def test_a_fleet_changes_no_ban_and_removing_forgets_none(new_world: NewWorld) -> None:
    async with new_world(account("shop"), profile("p1")) as world:
        await world.decide_account(Action.BAN)
        await world.decide_profile(Action.SUSPECT)
        await world.declare(account("shop", notes="new"), profile("p1", language="en-US"))
        assert ((await shop(world)).ban_status, (await world.lane()).ban_status) == ("banned", "suspected")
        await world.declare(account("other"), prune=True)
        await world.declare(account("shop"), profile("p1"))
        assert ((await shop(world)).ban_status, (await shop(world)).paused) == ("banned", True)
        assert (await world.lane()).ban_status == "suspected"


async def test_lists_are_filtered_by_tier_and_by_ban(new_world: NewWorld) -> None:
    async with new_world(profile("p1", tier="gold"), profile("p2", tier="silver"), profile("p3")) as world:
        assert [lane.profile_id for lane in await world.all(Lane, tier="gold")] == ["p1"]
        assert [each.profile_id for each in await world.all(Profile, tier="silver")] == ["p2"]
        await world.declare(profile("p3", tier="gold"), profile("p1"))
        assert [lane.profile_id for lane in await world.all(Lane, tier="gold")] == ["p3"]
        await world.decide_profile(Action.BAN, "p2")
        assert [lane.profile_id for lane in await world.all(Lane, ban_status="banned")] == ["p2"]
        assert await world.all(Account, ban_status="banned") == []
        await world.decide_account(Action.SUSPECT)
        assert [each.account_id for each in await world.all(Account, ban_status="suspected")] == ["shop"]
