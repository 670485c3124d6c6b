"""A profile's directory under its lock: who gets it, and what is true of it after nobody opened a browser there."""

from functools import partial
from pathlib import Path

import pytest

from leasekeeper.browsers.locked_directory import (
    has_session,
    held_snapshot,
    known_hashes,
    lock,
    lock_unused,
    record_snapshot,
    record_token,
    take,
)
from leasekeeper.core.ids import LeaseId, RunId, Token
from leasekeeper.core.leases import Lease
from leasekeeper.errors import Fail
from tests.unit.records import a_lease


def lease_of(token: int) -> Lease:
    return a_lease(token=Token(token), run_id=RunId(f"run_{token}"), lease_id=LeaseId(f"lease_{token}"))


def test_one_program_has_the_directory_until_it_lets_it_go(tmp_path: Path) -> None:
    with take(tmp_path, lease_of(1)) as taken:
        for attempt in (lock, lock_unused, partial(take, lease=lease_of(2))):
            with pytest.raises(Fail, match="is locked") as refused:
                attempt(tmp_path)
            assert refused.value.reason == "PROFILE_IN_USE_ELSEWHERE"
        taken.release()
        lock(tmp_path).release()
    with lock(tmp_path, shared=True), lock_unused(tmp_path, shared=True):
        pass


def test_a_lower_token_is_refused_with_a_reason_of_the_table(tmp_path: Path) -> None:
    take(tmp_path, lease_of(2)).release()
    with pytest.raises(Fail, match="already opened under 2") as refused:
        take(tmp_path, lease_of(1))
    assert refused.value.reason == "PROFILE_IN_USE_ELSEWHERE"
    lock(tmp_path).release()


def test_a_directory_that_was_given_back_unchanged_holds_its_snapshot_still(tmp_path: Path) -> None:
    assert (has_session(tmp_path), held_snapshot(tmp_path), known_hashes(tmp_path)) == (False, None, {})
    hashes = {"Local State": (2, 1, "abc")}
    record_snapshot(tmp_path, 7, token=7, digest="d", hashes=hashes)
    record_token(tmp_path, 7, lease_of(7))
    assert (held_snapshot(tmp_path), known_hashes(tmp_path)) == (7, hashes)
    with take(tmp_path, lease_of(8)) as taken:
        taken.accept()
        assert held_snapshot(tmp_path) is None
    with take(tmp_path, lease_of(9)) as taken:
        (tmp_path / "Local State").write_text("{}")
        assert not taken.give_back_unchanged()
    assert (has_session(tmp_path), held_snapshot(tmp_path)) == (True, None)
    record_snapshot(tmp_path, 9, token=9, digest="d", hashes=hashes)
    with take(tmp_path, lease_of(10)) as taken:
        assert taken.seal() == ""
    with take(tmp_path, lease_of(11)) as taken:
        assert taken.give_back_unchanged()


def test_a_directory_that_its_browser_left_in_disorder_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "Default").mkdir()
    (tmp_path / "Default" / "Preferences").write_text('{"profile": {"exit_type": "Crashed"}}')
    with take(tmp_path, lease_of(1)) as taken:
        assert taken.seal() == "the profile's exit_type is Crashed, not Normal"
