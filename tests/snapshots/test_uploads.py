"""A profile's directory travels between machines: saved after a run that changed it, brought before the next."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.fence_file import lock_directory, unlock_directory
from leasekeeper.config import SecretConfig
from leasekeeper.core.events import Event
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ManualUse
from leasekeeper.core.settle import Ending
from leasekeeper.driver_port import CannotOpen
from leasekeeper.encryption import read_keyring
from leasekeeper.errors import LeaseLost
from leasekeeper.snapshots.profile_store import own_profile_store
from tests.conformance.world import profile
from tests.snapshots.two_machines import CLOSED, two_machines, use


def cookies(directory: Path) -> str:
    return (directory / "Default/Cookies").read_text()


def objects(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "shared"


async def test_what_one_machine_wrote_is_there_on_the_other(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, b = at.machine("a"), at.machine("b")
        for number in range(3):
            machine = (a, b)[number % 2]
            ending = await at.run(machine, f"session {number}")
            assert ending.snapshot is not None
            assert cookies(machine.directory()) == f"session {number}"
            other, kept = await at.lease((b, a)[number % 2])
            assert await (b, a)[number % 2].snapshots.bring(other, kept)
            assert cookies((b, a)[number % 2].directory()) == f"session {number}"
            await at.end(kept)
        assert len(objects(place)) == 3
        assert not any(b"session" in path.read_bytes() for path in objects(place))
        assert (a.beside(), b.beside()) == ([], [".p1.replaced"])


async def test_a_run_that_changed_nothing_uploads_nothing(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(a, "session")
        assert at.newest is not None
        for machine in (a, b):
            ending = await at.run(machine, None)
            assert ending.snapshot is None
            assert ending.directory is not None
            assert (ending.directory.same_as, ending.directory.problem) == (at.newest.token, "")
            assert ending.directory.size_bytes > 0
        assert len(objects(place)) == 1
        # Both still hold the newest: neither downloads it again.
        for machine in (a, b):
            grant, kept = await at.lease(machine)
            assert not await machine.snapshots.bring(grant, kept)
            await at.end(kept)


async def test_a_place_that_is_away_leaves_the_profile_at_home_and_says_so(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasekeeper.snapshots.profile_store.UPLOAD_SECONDS", 0.5)
    (tmp_path / "shared").write_text("no folder")
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/shared") as at:
        a = at.machine("a")
        ending = await at.run(a, "session")
        assert ending.snapshot is None
        assert ending.directory is not None
        assert ending.directory.same_as is None
        assert "cannot be used for snapshots" in ending.directory.problem
        assert cookies(a.directory()) == "session"
        # The store keeps it on this machine, which opens what it has.
        at.unsaved_on = "a"
        grant, kept = await at.lease(a)
        assert not await a.snapshots.bring(grant, kept)
        await at.end(kept)
        grant, kept = await at.lease(at.machine("b"))
        with pytest.raises(CannotOpen, match="directory on machine a"):
            await at.machine("b").snapshots.bring(grant, kept)


async def test_a_directory_that_was_opened_since_does_not_count_as_the_newest(
    sqlite_url: str, tmp_path: Path, place: Path
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a = at.machine("a")
        await at.run(a, "session")
        # A run here that nobody settled: its lease was lost, and a person decided that it does not count.
        grant, kept = await at.lease(a)
        use(a.directory(), grant, "never settled")
        await at.end(kept)
        grant, kept = await at.lease(a)
        assert await a.snapshots.bring(grant, kept)
        assert cookies(a.directory()) == "session"
        assert cookies(a.data / "profiles/.p1.replaced") == "never settled"
        use(a.directory(), grant, None)
        await a.snapshots.saved(Ending(ref=grant.lease.ref, facts=CLOSED, engine=150), grant, kept)
        assert a.beside() == []


async def test_what_was_set_aside_outlives_a_run_that_was_killed(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, aside = at.machine("a"), tmp_path / "a/profiles/.p1.replaced"
        await at.run(a, "first")
        await at.run(at.machine("b"), "second")
        for number in range(2):
            grant, kept = await at.lease(a)
            assert await a.snapshots.bring(grant, kept)
            assert (cookies(a.directory()), cookies(aside)) == ("second", "first")
            use(a.directory(), grant, f"never settled {number}")
            await at.end(kept)
        await at.run(a, "third")
        assert a.beside() == []


async def test_a_damaged_or_missing_object_is_never_opened(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(b, "old")
        await at.run(a, "session")
        newest = objects(place)[-1]
        whole = newest.read_bytes()
        for damage in (whole[:-1], whole[:-1] + b"x", None):
            newest.unlink()
            if damage is not None:
                newest.write_bytes(damage)
            grant, kept = await at.lease(b)
            with pytest.raises(CannotOpen) as refused:
                await b.snapshots.bring(grant, kept)
            assert (refused.value.reason, refused.value.give_back) == (Reason.PROFILE_CORRUPT, True)
            assert cookies(b.directory()) == "old"
            assert b.beside() == []
            await at.end(kept)
            newest.write_bytes(b"")
        newest.write_bytes(whole)
        grant, kept = await at.lease(b)
        assert await b.snapshots.bring(grant, kept)
        assert cookies(b.directory()) == "session"


async def test_without_a_key_nothing_leaves_the_machine_unless_that_is_allowed(
    sqlite_url: str, tmp_path: Path, place: Path
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}", secret_key="") as at:
        grant, kept = await at.lease(at.machine("a"))
        with pytest.raises(CannotOpen, match=r"SECRET_KEY_MISSING.*LEASEKEEPER_UNENCRYPTED_SNAPSHOTS=1"):
            await at.machine("a").snapshots.bring(grant, kept)
        await at.end(kept)
        plain = at.machine("a", unencrypted_snapshots=1.0)
        ending = await at.run(plain, "session")
        assert ending.snapshot is not None
        assert ending.snapshot.key_id is None
        # Whoever has a key reads plain ones too; another key opens nothing.
        grant, kept = await at.lease(at.machine("b", secret_key=KEY))
        assert await at.machine("b", secret_key=KEY).snapshots.bring(grant, kept)
        await at.end(kept)
        await at.run(at.machine("b", secret_key=KEY), "sealed")
        grant, kept = await at.lease(at.machine("a", secret_key=OTHER))
        with pytest.raises(CannotOpen, match="which is not set here") as refused:
            await at.machine("a", secret_key=OTHER).snapshots.bring(grant, kept)
        assert refused.value.reason == Reason.SNAPSHOT_UNAVAILABLE

        assert await at.machine("a", secret_key=f"{OTHER} {KEY}").snapshots.bring(grant, kept)


async def test_under_a_new_key_also_a_run_that_changed_nothing_is_uploaded_once(
    sqlite_url: str, tmp_path: Path, place: Path
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}", secret_key=KEY) as at:
        await at.run(at.machine("a"), "session")
        rotated = at.machine("a", secret_key=f"{OTHER} {KEY}")
        ending = await at.run(rotated, None)
        assert ending.snapshot is not None
        assert ending.snapshot.key_id == read_keyring(SecretConfig(keys=OTHER)).current
        again = await at.run(rotated, None)
        assert (again.snapshot, len(objects(place))) == (None, 2)
        # The old key is not needed any more.
        grant, kept = await at.lease(at.machine("b", secret_key=OTHER))
        assert await at.machine("b", secret_key=OTHER).snapshots.bring(grant, kept)
        assert cookies(at.machine("b").directory()) == "session"


KEY = "lkey_" + "a" * 43 + "="
OTHER = "lkey_" + "b" * 42 + "A="


async def test_a_lost_lease_stops_the_download_and_names_nothing(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(a, "session")
        grant, kept = await at.lease(b)
        kept.lose("somebody took it")
        with pytest.raises(LeaseLost):
            await b.snapshots.bring(grant, kept)
        use(b.directory(), grant, "late")
        ending = Ending(ref=grant.lease.ref, facts=CLOSED, engine=150)
        assert await b.snapshots.saved(ending, grant, kept) == ending
        assert len(objects(place)) == 1


async def test_use_outside_a_lease_is_said_before_the_directory_is_replaced(
    sqlite_url: str, tmp_path: Path, place: Path
) -> None:
    profiles = profile("p1", manual_use=ManualUse.REVIEW)
    async with two_machines(sqlite_url, tmp_path, f"file://{place}", profiles) as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(a, "first")
        await at.run(b, "second")
        (a.directory() / "Default/Cookies").write_text("by hand, much longer")
        grant, kept = await at.lease(a)
        with pytest.raises(CannotOpen) as refused:
            await a.snapshots.bring(grant, kept)
        assert refused.value.reason == Reason.MANUAL_USE_DETECTED
        assert [event.type for event in (await at.store.find(Event)).items if "manual" in event.type]
        await at.end(kept)
        grant, kept = await at.lease(a)
        assert await a.snapshots.bring(grant, kept)
        assert (cookies(a.directory()), cookies(a.data / "profiles/.p1.replaced")) == ("second", "by hand, much longer")


async def test_runs_that_share_a_profile_bring_it_once(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    profiles = profile("p1", max_active_runs=3)
    async with two_machines(sqlite_url, tmp_path, f"file://{place}", profiles) as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(a, "session")
        grant, kept = await at.lease(b)
        shared = replace(grant, lease=replace(grant.lease, mode=Mode.SHARED))
        lower = replace(shared, lease=replace(shared.lease, token=type(grant.lease.token)(grant.lease.token - 1)))
        found = await asyncio.gather(*(b.snapshots.bring(each, kept) for each in (shared, lower, shared)))
        assert sum(found) >= 1
        assert cookies(b.directory()) == "session"


async def test_a_directory_in_use_is_neither_replaced_nor_packed(sqlite_url: str, tmp_path: Path, place: Path) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(b, "old")
        await at.run(a, "session")
        lock = lock_directory(str(b.directory()))
        grant, kept = await at.lease(b)
        with pytest.raises(CannotOpen, match="locked"):
            await b.snapshots.bring(grant, kept)
        ending = await b.snapshots.saved(Ending(ref=grant.lease.ref, facts=CLOSED, engine=150), grant, kept)
        assert ending.directory is not None
        assert "locked" in ending.directory.problem
        assert ending.directory.size_bytes > 0
        os.close(lock)
        assert cookies(b.directory()) == "old"


def test_a_lock_that_was_given_up_is_free_although_a_child_process_has_it_still(tmp_path: Path) -> None:
    lock = lock_directory(str(tmp_path))
    inherited = os.dup(lock)
    unlock_directory(lock)
    unlock_directory(lock_directory(str(tmp_path)))
    os.close(inherited)


async def test_disposable_profiles_and_those_of_launchers_do_not_travel(
    sqlite_url: str, tmp_path: Path, place: Path
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{place}", profile("p1", disposable=True)) as at:
        ending = await at.run(at.machine("a"), "session")
        assert (ending.snapshot, ending.directory) == (None, None)
        assert objects(place) == []


def test_a_server_keeps_snapshots_in_its_data_directory_unless_told_otherwise(tmp_path: Path) -> None:
    from leasekeeper import config as settings

    own = settings.load({}, data_dir=str(tmp_path / "data"), profile_store="server").browsers
    assert own_profile_store(own).location == f"{tmp_path}/data/snapshots"
