"""A profile directory before a launch, made by hand: what is claimed, found, sealed and refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, lock_directory, read_fence
from leasekeeper.browsers.keeper.seal import keep_seal, seal_directory
from leasekeeper.browsers.profile_directory import (
    Condition,
    StrangeDirectory,
    accept_changes,
    claim_directory,
    inspect,
    last_engine,
    refuse_empty,
    refuse_foreign,
)
from leasekeeper.errors import Fail
from tests.unit.used_profiles import make_used

ENGINE = 150


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory that looks as a browser leaves it."""
    return make_used(tmp_path / "used")


def fence(directory: Path, token: int) -> None:
    """What a keeper writes before it launches."""
    own = directory / OWN_FOLDER
    own.mkdir(exist_ok=True)
    holder = {"lease_id": f"p:{token}", "run_id": f"run_{token}"}
    (own / "fence").write_text(json.dumps({"version": 1, "token": token, **holder}))


def seal(directory: Path) -> None:
    """What a keeper does after a proven close, under the token that it recorded."""
    found = read_fence(str(directory))
    assert seal_directory(str(directory), None if found is None else found.token)


def condition(directory: Path) -> Condition:
    return inspect(directory, engine=ENGINE).condition


@pytest.mark.parametrize(
    ("fenced", "token", "run_id", "opened_by", "reason"),
    [
        (None, 1, "run_1", None, None),  # a new profile
        (None, 5, "run_5", 150, "PROFILE_DIRECTORY_EMPTY"),  # its session is somewhere else
        (4, 5, "run_5", 150, "PROFILE_DIRECTORY_EMPTY"),  # somebody emptied it
        (4, 5, "run_5", None, None),  # a launch that failed was here
        (5, 5, "run_5", None, None),  # the same run, once more
        (5, 5, "run_x", None, "PROFILE_IN_USE_ELSEWHERE"),  # another store's lease of the same name
        (6, 5, "run_5", None, "PROFILE_IN_USE_ELSEWHERE"),
    ],
)
def test_a_directory_that_is_not_the_profiles_is_refused(
    tmp_path: Path, fenced: int | None, token: int, run_id: str, opened_by: int | None, reason: str | None
) -> None:
    directory = claim_directory(tmp_path / "p")
    if fenced is not None:
        fence(directory, fenced)
    refused = None
    try:
        refuse_foreign(directory, token=token, run_id=run_id)
        refuse_empty(directory, opened_by=opened_by)
    except StrangeDirectory as strange:
        refused = strange
    assert (refused.reason if refused else None) == reason
    assert (refused.directory_token if refused else None) == (fenced if reason == "PROFILE_IN_USE_ELSEWHERE" else None)
    left = reason != "PROFILE_DIRECTORY_EMPTY" or fenced is not None
    assert directory.exists() == left, "no empty directory is left in the wrong place"


def test_a_used_directory_is_the_profiles_also_if_nothing_is_known_of_it(used: Path) -> None:
    refuse_foreign(used, token=1, run_id="run_1")
    refuse_empty(used, opened_by=150)


def test_a_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    claimed = claim_directory(tmp_path / "profiles" / "p")
    assert claimed.is_dir()
    assert claimed.stat().st_mode & 0o777 == 0o700
    claimed.chmod(0o755)
    assert claim_directory(claimed).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/", "/etc", "/tmp", "~", "/usr/..", "/tmp/../etc"])  # noqa: S108 - to be refused
def test_a_folder_of_the_system_cannot_be_a_profile(path: str) -> None:
    with pytest.raises(Fail, match="cannot be a profile's directory") as raised:
        claim_directory(Path(path))
    assert raised.value.reason == "PROFILE_MISMATCH"


def test_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "profiles" / "p").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fail, match="outside its folder"):
        claim_directory(tmp_path / "profiles" / "p")


def test_a_link_inside_its_folder_and_a_linked_folder_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "profiles").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "p").symlink_to("real")
    assert claim_directory(tmp_path / "profiles" / "p") == (tmp_path / "disk" / "real").resolve()


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir(mode=0o755)
    (folder / "cat.jpg").write_text("x")
    with pytest.raises(Fail, match="holds something else than a browser's user data") as raised:
        claim_directory(folder)
    assert raised.value.reason == "PROFILE_MISMATCH"
    assert folder.stat().st_mode & 0o777 == 0o755
    (folder / "Local State").write_text("{}")
    assert claim_directory(folder) == folder.resolve()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Fail, match="cannot be used"):
        claim_directory(tmp_path / "file")


def test_an_empty_directory_is_new(tmp_path: Path) -> None:
    found = inspect(tmp_path, engine=ENGINE)
    assert (found.condition, found.manual_use, found.engine) == (Condition.NEW, False, None)


def test_a_used_profile_that_no_run_has_opened_is_adopted(used: Path) -> None:
    found = inspect(used, engine=ENGINE)
    assert (found.condition, found.manual_use, found.engine) == (Condition.ADOPTED, True, 150)
    assert found.manual_use_text == "the directory held a used profile before Leasekeeper first opened it"


def test_a_sealed_profile_is_as_the_last_run_left_it(used: Path) -> None:
    fence(used, 7)
    seal(used)
    found = inspect(used, engine=ENGINE)
    assert (found.condition, found.manual_use, found.manual_use_text) == (Condition.SEALED, False, "")


def rewrite(directory: Path) -> None:
    (directory / "Default/Cookies").write_text("other cookies")


def touch(directory: Path) -> None:
    """Written again as it was, a moment later: file systems may count in steps longer than the time since the seal."""
    path = directory / "Default/Preferences"
    facts = path.stat()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 10_000_000))


def add(directory: Path) -> None:
    (directory / "Default/Login Data").write_text("logins")


def remove(directory: Path) -> None:
    (directory / "Default/Cookies").unlink()


def grow(directory: Path) -> None:
    (directory / "Default/Local Storage/leveldb/000004.log").write_text("more")


CHANGES = {
    rewrite: "Default/Cookies",
    touch: "Default/Preferences",
    add: "Default/Login Data",
    remove: "Default/Cookies",
    grow: "Default/Local Storage/leveldb",
}


@pytest.mark.parametrize(("change", "name"), CHANGES.items())
def test_a_change_after_the_seal_is_manual_use(used: Path, change: Callable[[Path], None], name: str) -> None:
    fence(used, 7)
    seal(used)
    change(used)
    found = inspect(used, engine=ENGINE)
    assert (found.condition, found.changed, found.manual_use) == (Condition.CHANGED, (name,), True)
    assert name in found.manual_use_text


def test_a_run_that_ended_without_a_seal_is_not_taken_for_manual_use(used: Path) -> None:
    fence(used, 7)
    assert condition(used) is Condition.UNSEALED
    seal(used)
    fence(used, 8)
    rewrite(used)
    assert condition(used) is Condition.UNSEALED
    seal(used)
    assert condition(used) is Condition.SEALED


def test_a_seal_is_kept_over_a_launch_that_started_no_browser(used: Path) -> None:
    fence(used, 7)
    seal(used)
    fence(used, 8)
    assert keep_seal(str(used), 8, before=7)
    assert condition(used) is Condition.SEALED
    rewrite(used)
    fence(used, 9)
    assert keep_seal(str(used), 9, before=8)
    assert condition(used) is Condition.CHANGED


def test_a_seal_is_not_kept_for_a_token_that_is_not_the_highest(used: Path) -> None:
    fence(used, 7)
    seal(used)
    fence(used, 9)
    assert not keep_seal(str(used), 8, before=7)
    assert not seal_directory(str(used), 8)
    assert condition(used) is Condition.UNSEALED


def test_a_seal_that_was_not_valid_before_is_not_kept(used: Path) -> None:
    fence(used, 7)
    seal(used)
    fence(used, 9)
    assert not keep_seal(str(used), 9, before=8)
    (used / OWN_FOLDER / "closed.json").unlink()
    assert not keep_seal(str(used), 9, before=8)
    assert condition(used) is Condition.UNSEALED


def test_a_directory_that_was_new_before_such_a_launch_is_known_to_have_been_empty(tmp_path: Path) -> None:
    fence(tmp_path, 1)
    assert keep_seal(str(tmp_path), 1, before=None)
    assert condition(tmp_path) is Condition.SEALED
    (tmp_path / "Local State").write_text("{}")
    assert condition(tmp_path) is Condition.CHANGED


def test_changes_are_accepted_only_under_the_lock_and_by_nobody_who_is_late(used: Path) -> None:
    fence(used, 7)
    seal(used)
    rewrite(used)
    lock = lock_directory(str(used))
    try:
        with pytest.raises(Fail, match="is locked") as raised:
            accept_changes(used, token=8, run_id="run_8")
        assert raised.value.reason == "PROFILE_IN_USE_ELSEWHERE"
    finally:
        os.close(lock)
    with pytest.raises(StrangeDirectory, match="already opened under token 7"):
        accept_changes(used, token=6, run_id="run_6")
    assert condition(used) is Condition.CHANGED
    accept_changes(used, token=8, run_id="run_8")
    assert condition(used) is Condition.SEALED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}', '{"version": 1, "token": 7, "files": 3}'])
def test_a_seal_that_cannot_be_read_proves_nothing(used: Path, content: str) -> None:
    fence(used, 7)
    seal(used)
    (used / OWN_FOLDER / "closed.json").write_text(content)
    assert condition(used) is Condition.UNSEALED


def test_a_fence_that_cannot_be_read_proves_nothing(used: Path) -> None:
    fence(used, 7)
    seal(used)
    (used / OWN_FOLDER / "fence").write_text("{")
    assert condition(used) is Condition.UNSEALED


def test_caches_do_not_count(used: Path) -> None:
    seal(used)
    (used / "Default" / "Cache").mkdir()
    (used / "Default" / "Cache" / "data_1").write_text("x")
    assert condition(used) is Condition.SEALED


def test_a_profile_of_a_newer_browser_is_refused(used: Path) -> None:
    with pytest.raises(Fail, match="last used by version 150, this browser is 149") as raised:
        inspect(used, engine=149)
    assert raised.value.reason == "PROFILE_NEWER_THAN_BROWSER"
    assert inspect(used, engine=151).engine == 150


@pytest.mark.parametrize("content", ["", "nonsense", ".1", "١٥٠.0"])
def test_a_last_version_that_says_nothing_is_no_version(tmp_path: Path, content: str) -> None:
    (tmp_path / "Last Version").write_text(content)
    assert last_engine(tmp_path) is None


@pytest.mark.parametrize("name", ["Local State", "Default/Preferences"])
@pytest.mark.parametrize("content", [b"", b'{"profile": {"exit', b"\0" * 100, b"[]", b"\xff\xfe"])
def test_preferences_that_cannot_be_read_are_a_corrupt_profile(used: Path, name: str, content: bytes) -> None:
    (used / name).write_bytes(content)
    with pytest.raises(Fail) as raised:
        inspect(used, engine=ENGINE)
    assert raised.value.reason == "PROFILE_CORRUPT"


@pytest.mark.parametrize("lock", ["another-host-123", f"{os.uname().nodename}-99999999", "nonsense"])
def test_a_lock_that_nobody_holds_does_not_count(used: Path, lock: str) -> None:
    (used / "SingletonLock").symlink_to(lock)
    assert condition(used) is Condition.ADOPTED


def test_a_lock_that_somebody_holds_is_use_elsewhere(used: Path) -> None:
    (used / "SingletonLock").symlink_to(f"{os.uname().nodename}-{os.getpid()}")
    with (used / "Default/Cookies").open("rb"), pytest.raises(Fail, match="close it first") as raised:
        inspect(used, engine=ENGINE)
    assert raised.value.reason == "PROFILE_IN_USE_ELSEWHERE"
    assert condition(used) is Condition.ADOPTED


def test_a_seal_is_not_written_through_a_link(used: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (used / OWN_FOLDER).mkdir()
    (used / OWN_FOLDER / "closed.json.part").symlink_to(tmp_path / "precious")
    assert not seal_directory(str(used), None)
    assert (tmp_path / "precious").read_text() == "x"
