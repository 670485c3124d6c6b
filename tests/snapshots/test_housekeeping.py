"""Objects that nobody wants any more go: discarded ones with their records, and those that no ending ever named."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper import config as settings
from leasekeeper.browsers.keeper.seal import seal_directory
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.core.settle import Ending
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.runtime.snapshot_housekeeping import (
    ORPHAN_AGE,
    delete_orphans,
    fleet_profile_store,
    keep_snapshots_in_order,
)
from leasekeeper.snapshots.profile_store import store_without_keys
from leasekeeper.snapshots.trimming import find_caches, size_of, trim
from tests.conformance.world import fleet, profile
from tests.snapshots.two_machines import CLOSED, two_machines, use
from tests.unit.used_profiles import make_used


async def test_discarded_and_orphaned_objects_are_deleted(sqlite_url: str, tmp_path: Path) -> None:
    place = f"file://{tmp_path}/shared"
    profiles = (profile("p1", keep_snapshots=1),)
    async with two_machines(sqlite_url, tmp_path, place, *profiles) as at:
        config = settings.load({}, data_dir=str(tmp_path / "a")).browsers
        assert await keep_snapshots_in_order(at.store, config) == 0
        await at.store.apply(replace(fleet(*profiles), profile_store=place), actor="test")
        assert await fleet_profile_store(at.store) == place
        a, shelf = at.machine("a"), store_without_keys(place, config)
        for number in range(9):
            grant, kept = await at.lease(a)
            use(a.directory(), grant, f"session {number}")
            ending = await a.snapshots.saved(Ending(ref=grant.lease.ref, facts=CLOSED, engine=150), grant, kept)
            at.heartbeat.drop(kept)
            # The last one dies before its settle.
            await at.store.settle([ending if number < 8 else Ending(ref=grant.lease.ref, facts=CLOSED)])
        kept_now = (await at.store.find(Snapshot, {"discarded": "0"})).items
        discarded = (await at.store.find(Snapshot, {"discarded": "1"})).items
        assert (len(kept_now) + len(discarded), len([each async for each in shelf.entries()])) == (8, 9)
        assert await keep_snapshots_in_order(at.store, config) == len(discarded)
        assert (await at.store.find(Snapshot, {"discarded": "1"})).items == []
        late = {each.key async for each in shelf.entries()} - {each.place for each in kept_now}
        assert len(late) == 1
        assert await delete_orphans(at.store, shelf) == 0
        later = datetime.now(UTC) + ORPHAN_AGE + timedelta(minutes=1)
        assert await delete_orphans(at.store, shelf, later) == 1
        assert {each.key async for each in shelf.entries()} == {each.place for each in kept_now}


async def test_of_a_removed_profile_the_uploads_go_that_nothing_names_and_of_an_unknown_one_none(
    sqlite_url: str, tmp_path: Path
) -> None:
    profiles = (profile("p1"), profile("p2"))
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/shared", *profiles) as at:
        a = at.machine("a")
        shelf = store_without_keys(at.place, settings.load({}, data_dir=str(a.data)).browsers)
        for number in range(2):
            grant, kept = await at.lease(a)
            use(a.directory(), grant, f"session {number}")
            ending = await a.snapshots.saved(Ending(ref=grant.lease.ref, facts=CLOSED, engine=150), grant, kept)
            at.heartbeat.drop(kept)
            # The second dies before its settle.
            await at.store.settle([ending if number == 0 else Ending(ref=grant.lease.ref, facts=CLOSED)])
        (kept_one,) = (await at.store.find(Snapshot)).items
        strange = tmp_path / "shared/of_another_fleet"
        strange.mkdir()
        for each in (tmp_path / "shared/p1").iterdir():
            (strange / each.name).write_bytes(each.read_bytes())
        await at.store.apply(fleet(profile("p2")), actor="test", prune=True)
        later = datetime.now(UTC) + ORPHAN_AGE + timedelta(minutes=1)
        assert await delete_orphans(at.store, shelf, later) == 1
        assert {each.key async for each in shelf.entries("p1")} == {kept_one.place}
        assert len(list(strange.iterdir())) == 2


async def test_parts_of_uploads_that_were_cut_off_are_deleted_after_a_day(sqlite_url: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with two_machines(sqlite_url, tmp_path, f"file://{shared}") as at:
        a = at.machine("a")
        await at.run(a, "session")
        await at.store.apply(replace(fleet(profile("p1")), profile_store=at.place), actor="test")
        config = settings.load({}, data_dir=str(a.data)).browsers
        names = (f".part-{'0' * 32}", f".part-{'1' * 32}", ".part-of-something-else")
        old, new, other = (shared / "p1" / name for name in names)
        for path in (old, new, other):
            path.write_bytes(b"half")
        before = (datetime.now(UTC) - ORPHAN_AGE - timedelta(minutes=1)).timestamp()
        for path in (old, other):
            os.utime(path, (before, before))
        assert await keep_snapshots_in_order(at.store, config) == 1
        assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
        assert len([each async for each in store_without_keys(at.place, config).entries()]) == 1


def test_caches_go_and_logins_stay(tmp_path: Path) -> None:
    used = make_used(tmp_path / "p1")
    for name in ("Default/Cache/Cache_Data/f_1", "GrShaderCache/data_0", "Default/Service Worker/ScriptCache/a_0"):
        path = used / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    (used / ".leasekeeper").mkdir()
    (used / ".leasekeeper/fence").write_text("7")
    before = size_of(used)
    assert sum(1 for _ in find_caches(used)) == 2
    seen: list[int] = []
    assert trim(used, seen.append) == sum(seen) == 2000
    assert size_of(used) == before - 2000
    assert (used / ".leasekeeper/fence").exists()
    assert (used / "Default/Service Worker/ScriptCache/a_0").exists()
    assert (used / "Default/Cookies").exists()


@pytest.mark.parametrize(("touched", "found"), [(False, Condition.SEALED), (True, Condition.CHANGED)])
def test_trimming_is_no_manual_use_and_hides_none(tmp_path: Path, touched: bool, found: Condition) -> None:
    used = make_used(tmp_path / "p1")
    for name in (
        *("Default/Local Storage/leveldb/LOG", "Default/Local Storage/leveldb/LOG.old", "Default/Session Storage/LOG"),
        *("Default/IndexedDB/http_shop.leveldb/LOG", "Default/IndexedDB/http_shop.leveldb/Cache"),
    ):
        path = used / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    assert seal_directory(str(used), None)
    if touched:
        (used / "Default/Cookies").write_text("by hand, much longer")
    assert trim(used) == 1000
    assert (used / "Default/Local Storage/leveldb/LOG").exists()
    assert inspect(used, engine=200).condition is found
