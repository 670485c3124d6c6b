"""What of a directory travels, and the object that it is packed into: whole, or refused."""

import os
import shutil
from pathlib import Path

import pytest

from leasekeeper.encryption import Keyring, key_id_of
from leasekeeper.errors import InputError, LeasekeeperError, SecretKeyMissing, SecretKeyWrong
from leasekeeper.snapshots.contents import counts, read_contents, safe_path, travels
from leasekeeper.snapshots.packing import CHUNK, SnapshotDamaged, pack, unpack
from leasekeeper.snapshots.trimming import trim


def keyring(*keys: bytes) -> Keyring:
    return Keyring({key_id_of(key): key for key in keys})


KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory as a browser leaves it, in small. One file is larger than a chunk and cannot be compressed."""
    contents = {
        "Local State": b"{}",
        "Last Version": b"156.0.1",
        "Default/Preferences": b"{}",
        "Default/Cookies": b"session=very-secret" * 10,
        "Default/Local Storage/leveldb/000003.log": b"stored",
        "Default/Local Storage/leveldb/LOG": b"log",
        "Default/Service Worker/Database/000003.log": b"worker",
        "Default/Service Worker/CacheStorage/a/index": b"offline page",
        "Default/Service Worker/ScriptCache/2cc80dabc69f58b6_0": b"its script",
        "Default/Extensions/abc/1.0/manifest.json": b"{}",
        "Default/IndexedDB/https_a_0.indexeddb.leveldb/000005.ldb": os.urandom(3 * CHUNK),
        "Default/Cache/Cache_Data/f_000001": b"cached",
        "Default/Code Cache/js/index": b"code",
        ".leasekeeper/fence": b"7",
    }
    for name, content in contents.items():
        path = tmp_path / "used" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "used" / "SingletonLock").symlink_to("host-1")
    return tmp_path / "used"


def all_files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("ring", [None, keyring(KEY)], ids=["plain", "encrypted"])
def test_what_is_unpacked_is_what_travels(used: Path, tmp_path: Path, ring: Keyring | None) -> None:
    found = read_contents(used)
    packed = pack(used, found.files, tmp_path / "object", profile_id="p1", keyring=ring)
    target = tmp_path / "new"
    assert unpack(tmp_path / "object", target, profile_id="p1", keyring=ring) == packed.unpacked == found.size
    assert all_files(target) == {file.path for file in found.files}
    assert all((target / file.path).read_bytes() == (used / file.path).read_bytes() for file in found.files)
    assert read_contents(target).digest == found.digest
    assert target.stat().st_mode & 0o777 == 0o700
    assert (target / "Default/Cookies").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "object").stat().st_mode & 0o777 == 0o600


def test_an_extension_travels_whole_whatever_its_files_are_called(used: Path, tmp_path: Path) -> None:
    program = "Default/Extensions/abc/2.0_0"
    names = {f"{program}/{name}" for name in ("manifest.json", "Cache/LOG", "GPUCache/a.tmp", "Extensions/Cache/b")}
    for name in (*names, "Default/Other/Extensions/Cache/c"):
        path = used / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"program")
    assert trim(used) == len(b"cached") + len(b"code") + len(b"program")
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=None)
    unpack(tmp_path / "object", tmp_path / "arrived", profile_id="p1", keyring=None)
    assert {name for name in all_files(tmp_path / "arrived") if "2.0_0" in name} == names
    assert all(travels(name) for name in names)
    assert not travels("Default/Other/Extensions/Cache/c")


def test_caches_locks_and_logs_stay_behind(used: Path) -> None:
    names = {file.path for file in read_contents(used).files}
    assert "Default/Service Worker/CacheStorage/a/index" in names
    assert "Default/Extensions/abc/1.0/manifest.json" in names
    for left in (
        "Default/Cache/Cache_Data/f_000001",
        "Default/Code Cache/js/index",
        ".leasekeeper/fence",
        "SingletonLock",
    ):
        assert left not in names
        assert not travels(left)
    assert "Default/Service Worker/ScriptCache/2cc80dabc69f58b6_0" in names
    assert "Default/Local Storage/leveldb/LOG" not in names


def test_the_digest_changes_with_a_session_and_not_with_an_idle_browser(used: Path) -> None:
    before = read_contents(used)
    (used / "Default/Preferences").write_text('{"opened": 2}')
    (used / "Default/Cache/Cache_Data/f_000002").write_text("more")
    os.utime(used / "Default/Cookies")
    assert read_contents(used).digest == before.digest
    assert read_contents(used, before.hashes).digest == before.digest
    (used / "Default/Cookies").write_text("session=other")
    assert read_contents(used, before.hashes).digest != before.digest
    assert counts("Default/Cookies")
    assert not counts("Default/Preferences")


def test_an_encrypted_object_shows_no_cookie(used: Path, tmp_path: Path) -> None:
    secret = os.urandom(2 * CHUNK)  # as good as not compressed: a plain object shows it
    (used / "Default/Cookies").write_bytes(secret)
    files = read_contents(used).files
    pack(used, files, tmp_path / "plain", profile_id="p1", keyring=None)
    pack(used, files, tmp_path / "object", profile_id="p1", keyring=keyring(KEY))
    assert secret[CHUNK : CHUNK + 20] in (tmp_path / "plain").read_bytes()
    data = (tmp_path / "object").read_bytes()
    assert secret[CHUNK : CHUNK + 20] not in data
    assert KEY not in data


def test_a_replaced_key_still_opens_what_it_encrypted(used: Path, tmp_path: Path) -> None:
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=keyring(KEY))
    unpack(tmp_path / "object", tmp_path / "new", profile_id="p1", keyring=keyring(OTHER, KEY))
    with pytest.raises(SecretKeyWrong, match=key_id_of(KEY)):
        unpack(tmp_path / "object", tmp_path / "other", profile_id="p1", keyring=keyring(OTHER))
    with pytest.raises(SecretKeyMissing):
        unpack(tmp_path / "object", tmp_path / "none", profile_id="p1", keyring=None)


@pytest.mark.parametrize("ring", [None, keyring(KEY)], ids=["plain", "encrypted"])
def test_an_object_that_was_cut_anywhere_is_refused(used: Path, tmp_path: Path, ring: Keyring | None) -> None:
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=ring)
    whole = (tmp_path / "object").read_bytes()
    chunk = len(whole) // 3
    for size in (0, 5, 12, 60, 300, chunk, 2 * chunk, len(whole) - CHUNK // 2, len(whole) - 1):
        (tmp_path / "object").write_bytes(whole[:size])
        with pytest.raises(SnapshotDamaged):
            unpack(tmp_path / "object", tmp_path / f"cut-{size}", profile_id="p1", keyring=ring)


def test_an_encrypted_object_that_was_changed_is_refused(used: Path, tmp_path: Path) -> None:
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=keyring(KEY))
    whole = (tmp_path / "object").read_bytes()
    for place in range(0, len(whole), len(whole) // 23):
        changed = bytearray(whole)
        changed[place] ^= 1
        (tmp_path / "object").write_bytes(changed)
        with pytest.raises(LeasekeeperError):  # in its header it may name another key
            unpack(tmp_path / "object", tmp_path / f"at-{place}", profile_id="p1", keyring=keyring(KEY))


def test_an_object_of_another_profile_is_refused(used: Path, tmp_path: Path) -> None:
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=keyring(KEY))
    with pytest.raises(SnapshotDamaged, match="one of p1"):
        unpack(tmp_path / "object", tmp_path / "new", profile_id="p2", keyring=keyring(KEY))
    renamed = (tmp_path / "object").read_bytes().replace(b'"profile_id": "p1"', b'"profile_id": "p2"', 1)
    (tmp_path / "object").write_bytes(renamed)
    with pytest.raises(SnapshotDamaged, match="not what was written"):
        unpack(tmp_path / "object", tmp_path / "other", profile_id="p2", keyring=keyring(KEY))


def test_an_object_larger_than_allowed_is_refused(used: Path, tmp_path: Path) -> None:
    pack(used, read_contents(used).files, tmp_path / "object", profile_id="p1", keyring=None)
    with pytest.raises(SnapshotDamaged, match="too large"):
        unpack(tmp_path / "object", tmp_path / "new", profile_id="p1", keyring=None, max_bytes=CHUNK)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a\\b", "a\0b"])
def test_no_member_leads_out_of_the_directory(name: str) -> None:
    with pytest.raises(InputError):
        safe_path(name)


def test_a_file_that_grows_while_it_is_packed_does_not_spoil_the_object(used: Path, tmp_path: Path) -> None:
    files = read_contents(used).files
    (used / "Default/Cookies").write_bytes(b"longer than before" * 100)
    pack(used, files, tmp_path / "object", profile_id="p1", keyring=None)
    unpack(tmp_path / "object", tmp_path / "new", profile_id="p1", keyring=None)
    shutil.rmtree(used)
    with pytest.raises(OSError, match="No such file"):
        pack(used, files, tmp_path / "gone", profile_id="p1", keyring=None)
