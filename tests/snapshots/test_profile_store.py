"""What every profile store promises, in each place: a folder, a bucket of a real S3 server, a real server."""

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from leasekeeper import config as settings
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import LeaseRef, Purpose
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.encryption import new_key
from leasekeeper.errors import EvidenceRefused, InputError, LeaseLost, NotFound
from leasekeeper.evidence import s3 as bucket
from leasekeeper.ports import LeaseRequest
from leasekeeper.snapshots.packing import Packed, SnapshotDamaged
from leasekeeper.snapshots.profile_store import ProfileStore, key_of, open_profile_store
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.serving import Served


@dataclass
class Shelf:
    """A profile store, and a lease to use it under where that is needed."""

    store: ProfileStore
    ref: LeaseRef | None = None
    served: Served | None = None

    @property
    def token(self) -> int:
        return 7 if self.ref is None else self.ref.token


def opened(place: str, **more: str) -> ProfileStore:
    config = settings.load({}, profile_store=place, secret_key=new_key(), **more)
    return open_profile_store(place, config.browsers)


@pytest.fixture(params=["folder", "bucket", "server"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    if request.param == "folder":
        yield Shelf(opened(f"file://{tmp_path}/shared"))
    elif request.param == "bucket":
        yield Shelf(opened(request.getfixturevalue("bucket_url")))
    else:
        served: Served = request.getfixturevalue("served")
        served.run(served.store.apply(fleet(profile("p1")), actor="test"))
        asked = LeaseRequest(
            profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1", purpose=Purpose.API
        )
        ref = asyncio.run(acquire(served, asked))
        yield Shelf(opened("server", store=served.url, token=served.token), ref, served)


async def acquire(served: Served, asked: LeaseRequest) -> LeaseRef:
    """A lease that the token of these tests holds."""
    store = await open_store(served.url, token=served.token)
    try:
        return (await store.acquire(asked)).lease.ref
    finally:
        await store.close()


def packed(data: bytes, path: Path) -> Packed:
    path.write_bytes(data)
    return Packed(size=len(data), sha256=hashlib.sha256(data).hexdigest(), unpacked=0, key_id=None)


async def fetch(shelf: Shelf, key: str, target: Path, found: Packed) -> bytes:
    await shelf.store.download(
        key, target, size=found.size, sha256=found.sha256, under=shelf.ref, on_bytes=lambda _size: None
    )
    return await asyncio.to_thread(target.read_bytes)


async def test_what_was_uploaded_is_downloaded_and_never_replaced(shelf: Shelf, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9_000
    first = packed(data, tmp_path / "object")
    key = key_of("p1", shelf.token, first.sha256)
    await shelf.store.check()
    await shelf.store.upload(tmp_path / "object", key, first, under=shelf.ref)
    await shelf.store.upload(tmp_path / "object", key, first, under=shelf.ref)
    assert await fetch(shelf, key, tmp_path / "got", first) == data
    assert (tmp_path / "got").stat().st_mode & 0o777 == 0o600
    second = packed(b"another", tmp_path / "other")
    with pytest.raises(EvidenceRefused):
        await shelf.store.upload(tmp_path / "other", key, second, under=shelf.ref)
    assert await fetch(shelf, key, tmp_path / "got", first) == data
    missing = key_of("p1", shelf.token, "0" * 64)
    with pytest.raises(NotFound):
        await fetch(shelf, missing, tmp_path / "none", first)
    with pytest.raises(SnapshotDamaged):
        await fetch(shelf, key, tmp_path / "got", replace(first, sha256="0" * 64))


async def test_a_file_that_changed_since_it_was_packed_is_not_uploaded(shelf: Shelf, tmp_path: Path) -> None:
    found = packed(b"packed", tmp_path / "object")
    (tmp_path / "object").write_bytes(b"change")
    key = key_of("p1", shelf.token, found.sha256)
    with pytest.raises(EvidenceRefused):
        await shelf.store.upload(tmp_path / "object", key, found, under=shelf.ref)
    with pytest.raises(NotFound):
        await fetch(shelf, key, tmp_path / "none", found)


async def test_objects_of_one_profile_are_listed_and_deleted(tmp_path: Path, bucket_url: str) -> None:
    for place in (f"file://{tmp_path}/shared", bucket_url):
        store = opened(place)
        keys = []
        for profile_id, data in (("p1", b"a"), ("p1", b"b"), ("p10", b"c")):
            found = packed(data, tmp_path / "object")
            keys.append(key_of(profile_id, 1, found.sha256))
            await store.upload(tmp_path / "object", keys[-1], found, under=None)
        assert {entry.key async for entry in store.entries("p1")} == set(keys[:2])
        assert {entry.key async for entry in store.entries()} == set(keys)
        await store.delete([keys[0], key_of("p1", 9, "0" * 64)])
        assert {entry.key async for entry in store.entries()} == set(keys[1:])


async def test_a_large_object_is_uploaded_in_parts(
    tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MAX_SINGLE_BYTES", 1_000)
    shelf = Shelf(opened(bucket_url))
    data = bytes(range(256)) * 50_000
    found = packed(data, tmp_path / "object")
    key = key_of("p1", 7, found.sha256)
    await shelf.store.upload(tmp_path / "object", key, found, under=None)
    await shelf.store.upload(tmp_path / "object", key, found, under=None)
    assert await fetch(shelf, key, tmp_path / "got", found) == data


@pytest.mark.parametrize("shelf", ["server"], indirect=True)
async def test_the_server_gives_and_takes_only_under_a_live_lease_of_the_profile(shelf: Shelf, tmp_path: Path) -> None:
    assert shelf.ref is not None
    assert shelf.served is not None
    found = packed(b"object", tmp_path / "object")
    own = key_of("p1", shelf.token, found.sha256)
    await shelf.store.upload(tmp_path / "object", own, found, under=shelf.ref)
    with pytest.raises(EvidenceRefused, match="token of the lease"):
        await shelf.store.upload(
            tmp_path / "object", key_of("p1", shelf.token + 1, found.sha256), found, under=shelf.ref
        )
    wrong = replace(shelf.ref, token=type(shelf.ref.token)(shelf.token - 1))
    with pytest.raises(LeaseLost):
        await shelf.store.upload(tmp_path / "object", own, found, under=wrong)
    ended = Ending(ref=shelf.ref, facts=EndFacts(browser=Browser.NONE))
    shelf.served.run(shelf.served.store.settle([ended]))
    with pytest.raises(LeaseLost):
        await fetch(shelf, own, tmp_path / "late", found)
    with pytest.raises(LeaseLost):
        await shelf.store.upload(tmp_path / "object", own, found, under=shelf.ref)


@pytest.mark.parametrize("place", ["relative/folder", "s3://", "server"])
def test_what_is_no_place_is_refused_by_name(place: str) -> None:
    with pytest.raises(InputError, match="profile_store"):
        opened(place)
