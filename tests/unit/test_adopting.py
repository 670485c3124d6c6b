"""Directories of profiles that were used before Leasekeeper: found, refused, adopted."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from leasekeeper.browsers.adopting import NotAdopted, UsedDirectory, adopting, find_used
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER
from leasekeeper.browsers.keeper.seal import seal_directory
from leasekeeper.browsers.profile_directory import Condition, inspect
from leasekeeper.core.profiles import Profile
from tests.conformance.world import profile
from tests.unit.used_profiles import make_used

ENGINE = 150


def at(directory: Path, name: str = "p1") -> Profile:
    return profile(name, user_data_dir=str(directory))


def found(tmp_path: Path, *profiles: Profile, others: tuple[Profile, ...] = ()) -> list[UsedDirectory]:
    return find_used(profiles, (*profiles, *others), tmp_path / "data")


def test_a_used_directory_is_found_with_the_version_that_used_it(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (used,) = found(tmp_path, at(directory))
    assert (used.directory, used.engine, used.refused) == (directory, 150, "")


def test_a_directory_in_the_data_folder_is_found_too(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "data" / "profiles" / "p1")
    (used,) = found(tmp_path, profile("p1"))
    assert used.directory == directory


def test_what_nobody_used_and_what_leasekeeper_opened_is_not_found(tmp_path: Path) -> None:
    empty, sealed, fenced = tmp_path / "empty", make_used(tmp_path / "sealed"), make_used(tmp_path / "fenced")
    empty.mkdir()
    seal_directory(str(sealed), None)
    (fenced / OWN_FOLDER).mkdir()
    (fenced / OWN_FOLDER / "fence").write_text(json.dumps({"version": 1, "token": 4, "run_id": "r"}))
    places = (tmp_path / "nowhere", empty, sealed, fenced)
    assert found(tmp_path, *(at(place, f"p{n}") for n, place in enumerate(places))) == []


def test_finding_changes_nothing(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    directory.chmod(0o755)
    before = sorted(tmp_path.rglob("*"))
    found(tmp_path, at(directory), profile("p2"))
    assert sorted(tmp_path.rglob("*")) == before
    assert directory.stat().st_mode & 0o777 == 0o755


def test_an_adopted_directory_is_as_if_leasekeeper_had_closed_it(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    directory.chmod(0o755)
    (used,) = found(tmp_path, at(directory))
    with adopting(used):
        assert inspect(directory, engine=ENGINE).condition is Condition.ADOPTED
    assert inspect(directory, engine=ENGINE).condition is Condition.SEALED
    assert directory.stat().st_mode & 0o777 == 0o700
    assert found(tmp_path, at(directory)) == []
    (directory / "Default" / "Cookies").write_text("changed by hand")
    assert inspect(directory, engine=ENGINE).condition is Condition.CHANGED


def test_a_block_that_fails_adopts_nothing_and_lets_go(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (used,) = found(tmp_path, at(directory))
    with pytest.raises(ZeroDivisionError), adopting(used):
        raise ZeroDivisionError
    (again,) = found(tmp_path, at(directory))
    with adopting(again):
        pass
    assert inspect(directory, engine=ENGINE).condition is Condition.SEALED


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_used(tmp_path / "a")
    (used,) = found(tmp_path, at(directory))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    (refused,) = found(tmp_path, at(directory))
    assert "belongs to another user" in refused.refused
    with pytest.raises(NotAdopted, match="belongs to another user"), adopting(used):
        raise AssertionError("it was held")
    assert not (directory / OWN_FOLDER).exists()


def test_a_directory_that_a_lease_holds_is_refused(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (used,) = found(tmp_path, at(directory))
    (directory / OWN_FOLDER).mkdir()
    with (directory / OWN_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotAdopted, match="in use under a lease"), adopting(used):
            raise AssertionError("it was held")
    assert inspect(directory, engine=ENGINE).condition is Condition.ADOPTED


def test_two_profiles_that_links_lead_to_one_directory_are_refused(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (tmp_path / "b").symlink_to(directory)
    one, two = found(tmp_path, at(directory, "p1"), at(tmp_path / "b", "p2"))
    assert one.refused == "it is that of profile p2 too: each profile needs a directory of its own"
    assert two.refused == "it is that of profile p1 too: each profile needs a directory of its own"


def test_a_directory_of_a_profile_that_the_file_does_not_name_is_refused(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (tmp_path / "b").symlink_to(directory)
    (used,) = found(tmp_path, at(directory), others=(at(tmp_path / "b", "p2"),))
    assert "that of profile p2" in used.refused


def test_a_directory_inside_that_of_another_profile_is_refused(tmp_path: Path) -> None:
    outer = make_used(tmp_path / "a")
    inner = make_used(outer / "inner")
    _, used = found(tmp_path, at(outer, "p1"), at(inner, "p2"))
    assert used.refused.startswith("it lies inside that of profile p1 too")


def test_a_link_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a").symlink_to(make_used(tmp_path / "a"))
    (used,) = found(tmp_path, at(tmp_path / "links" / "a"))
    assert "name the real directory" in used.refused


def test_one_of_chromiums_own_profiles_is_refused_with_the_folder_to_name(tmp_path: Path) -> None:
    inner = make_used(tmp_path / "User Data") / "Default"
    (used,) = found(tmp_path, at(inner))
    assert f"name the folder around it, {tmp_path}/User Data" in used.refused


def test_a_directory_that_cannot_be_read_by_a_browser_is_refused(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (directory / "Default" / "Preferences").write_text("{")
    (used,) = found(tmp_path, at(directory))
    assert "Preferences cannot be read" in used.refused


def test_one_that_was_opened_meanwhile_is_refused(tmp_path: Path) -> None:
    directory = make_used(tmp_path / "a")
    (used,) = found(tmp_path, at(directory))
    seal_directory(str(directory), None)
    with pytest.raises(NotAdopted, match="a moment ago"), adopting(used):
        raise AssertionError("it was held")
