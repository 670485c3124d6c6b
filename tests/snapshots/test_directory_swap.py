"""A directory put in the place of another: the same lock, the same fence, sealed, and the old one whole until then."""

import os
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.directory import take_directory
from leasekeeper.browsers.keeper.fence_file import lock_directory, lock_path, read_fence
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.snapshots.directory_swap import Beside, swap
from tests.unit.used_profiles import make_used


def test_the_new_directory_has_the_lock_the_fence_and_a_seal(tmp_path: Path) -> None:
    own = make_used(tmp_path / "p1")
    lock, _ = take_directory(str(own), 7, "p1:7", "run-7")
    before = Path(lock_path(str(own))).stat().st_ino
    make_used(Beside(own).incoming)
    (Beside(own).incoming / "Default/Cookies").write_text("new")
    swap(own, token=7)
    assert (own / "Default/Cookies").read_text() == "new"
    assert not Beside(own).incoming.exists()
    assert Path(lock_path(str(own))).stat().st_ino == before
    with pytest.raises(Refused, match="locked"):
        lock_directory(str(own))
    os.close(lock)
    fence = read_fence(str(own))
    assert fence is not None
    assert (fence.token, fence.run_id) == (7, "run-7")
    assert inspect(own, engine=200).condition is Condition.SEALED
    with pytest.raises(Refused, match="already opened under 7"):
        take_directory(str(own), 6, "p1:6", "run-6")


def test_a_swap_under_another_token_than_the_fence_changes_nothing(tmp_path: Path) -> None:
    own = make_used(tmp_path / "p1")
    lock, _ = take_directory(str(own), 7, "p1:7", "run-7")
    make_used(Beside(own).incoming)
    (Beside(own).incoming / "Default/Cookies").write_text("new")
    with pytest.raises(OSError, match="cannot be sealed"):
        swap(own, token=6)
    os.close(lock)
    assert (own / "Default/Cookies").read_text() == "cookies"


def test_what_was_not_finished_is_cleared(tmp_path: Path) -> None:
    own = make_used(tmp_path / "p1")
    make_used(Beside(own).incoming)
    Beside(own).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["p1"]
