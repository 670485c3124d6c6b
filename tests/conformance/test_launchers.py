"""Launchers as declared, and turns to call their APIs, shared by everybody who uses the store."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.browsers import LAUNCHER
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError, NotFound
from tests.conformance.world import NewWorld, fleet, limit, profile, seconds

MLX = Launcher(
    launcher_id=LauncherId("mlx"),
    driver="multilogin",
    api_token="env:MLX_TOKEN",  # noqa: S106 - this reference
    folder="f1",
    calls_per_minute=120,
    calls={"start": {"path": "/x"}},
)


def launched(profile_id: str = "p1", **more: Any) -> Profile:
    settings: dict[str, Any] = {
        "driver": LAUNCHER,
        "launcher_id": LauncherId("mlx"),
        "launcher_profile": f"id-of-{profile_id}",
        **more,
    }
    return profile(profile_id, **settings)


async def test_a_launcher_is_declared_changed_and_removed(new_world: NewWorld) -> None:
    async with new_world() as world:
        declared = replace(fleet(launched("p2")), launchers={"mlx": MLX})
        changes = await world.store.apply(declared, actor="ann")
        assert {(c.kind, c.what, c.id) for c in changes} >= {("add", "launcher", "mlx"), ("add", "profile", "p2")}
        assert await world.store.get(Launcher, "mlx") == MLX
        assert (await world.store.get(Profile, "p2")).launcher_profile == "id-of-p2"
        other = replace(declared, launchers={"mlx": replace(MLX, folder="f2")})
        (changed,) = await world.store.apply(other, actor="ann")
        assert (changed.what, changed.fields) == ("launcher", {"folder": ("f1", "f2")})
        assert [each.folder for each in await world.all(Launcher)] == ["f2"]
        await world.store.apply(fleet(profile("p2")), actor="ann")
        await world.store.apply(fleet(profile("p1"), profile("p2")), actor="ann", prune=True)
        with pytest.raises(NotFound):
            await world.store.get(Launcher, "mlx")


@pytest.mark.parametrize(
    ("given", "path", "says"),
    [
        (replace(fleet(launched())), "profiles.p1.launcher", "no launcher mlx"),
        (replace(fleet(profile("p1", driver=LAUNCHER))), "profiles.p1.launcher", "is missing"),
        (fleet(launched(launcher_profile=None)), "profiles.p1.launcher_profile", "is missing"),
        (fleet(launched(user_data_dir="/x")), "profiles.p1.user_data_dir", "is the launcher's to set"),
        (fleet(launched(max_active_runs=2)), "profiles.p1.max_active_runs", "must be 1"),
        (fleet(launched("p1"), launched("p2", launcher_profile="id-of-p1")), "profiles.p2.launcher_profile", "p1"),
    ],
)
async def test_what_does_not_hold_together_is_refused(new_world: NewWorld, given: Fleet, path: str, says: str) -> None:
    async with new_world() as world:
        with_launcher = given if "no launcher" in says else replace(given, launchers={"mlx": MLX})
        with pytest.raises(InputError) as refused:
            await world.store.apply(with_launcher, actor="ann")
        assert any(each.where == path and says in each.message for each in refused.value.problems)


async def test_a_browser_that_nobody_could_stop_is_not_described(new_world: NewWorld) -> None:
    async with new_world() as world:
        start_only = replace(MLX, driver="http", url="http://127.0.0.1:1", calls={"start": {"path": "/x"}})
        with pytest.raises(InputError) as refused:
            await world.store.apply(replace(fleet(launched()), launchers={"mlx": start_only}), actor="ann")
        assert [each.where for each in refused.value.problems] == ["launchers.mlx.calls.stop"]


async def test_no_pool_allows_more_than_the_plan(new_world: NewWorld) -> None:
    async with new_world() as world:
        plan = {"mlx": replace(MLX, max_running=2)}
        for records in ([launched("p2", pool="mlx")], [launched("p2", pool="mlx"), limit("mlx", 3)]):
            with pytest.raises(InputError, match="allow more"):
                await world.store.apply(replace(fleet(*records), launchers=plan), actor="ann")
        await world.store.apply(
            replace(fleet(launched("p2", pool="mlx"), limit("mlx", 2)), launchers=plan), actor="ann"
        )


async def test_a_launcher_without_what_its_kind_needs_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        bare = Launcher(launcher_id=LauncherId("mlx"), driver="multilogin")
        with pytest.raises(InputError) as refused:
            await world.store.apply(replace(fleet(), launchers={"mlx": bare}), actor="ann")
        assert [each.where for each in refused.value.problems] == ["launchers.mlx.folder", "launchers.mlx.token"]


async def test_turns_of_one_key_are_spaced_whoever_takes_them(new_world: NewWorld) -> None:
    async with new_world() as world:
        other = await world.another()
        stores = [world.store, other] * 3
        turns = await asyncio.gather(*(store.reserve_call("mlx", seconds(0.5)) for store in stores))
        assert sorted(turns) == [seconds(n / 2) for n in range(6)]
        assert await world.store.reserve_call("other", seconds(0.5)) == timedelta()
        world.advance(10)
        assert await other.reserve_call("mlx", seconds(0.5)) == timedelta()


async def test_after_a_refusal_nobody_calls_for_as_long_as_was_asked(new_world: NewWorld) -> None:
    async with new_world() as world:
        assert await world.store.reserve_call("mlx", seconds(1)) == timedelta()
        assert await world.store.reserve_call("mlx", seconds(1), pause=seconds(30)) == seconds(30)
        assert await world.store.reserve_call("mlx", seconds(1)) == seconds(30)
        assert await world.store.reserve_call("mlx", seconds(1)) == seconds(31)
        with pytest.raises(InputError):
            await world.store.reserve_call("", seconds(1))
