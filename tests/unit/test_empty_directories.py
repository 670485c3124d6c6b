"""How many empty directories in a row a worker takes for its own mistake."""

from pathlib import Path

import pytest

from leasekeeper.browsers.empty_directories import EmptyDirectories
from leasekeeper.errors import InputError
from tests.unit.used_profiles import make_used


def test_one_profile_alone_is_a_matter_of_its_own(tmp_path: Path) -> None:
    found = EmptyDirectories()
    for _ in range(3):
        found.met("p1", tmp_path / "p1")
        found.check(tmp_path)


def test_a_session_that_was_found_in_between_breaks_the_row(tmp_path: Path) -> None:
    found = EmptyDirectories()
    found.met("p1", tmp_path / "p1")
    found.session_found()
    found.met("p2", tmp_path / "p2")
    found.check(tmp_path)


def test_two_in_a_row_are_too_many_until_one_of_them_is_there(tmp_path: Path) -> None:
    found = EmptyDirectories()
    for name in ("p1", "p2"):
        found.met(name, tmp_path / name)
    for _ in range(2):
        with pytest.raises(InputError, match=r"2 profiles in a row \(p1, p2\)"):
            found.check(tmp_path)
    found.met("p3", tmp_path / "p3")
    found.cleared("p1")
    found.cleared("p3")
    found.check(tmp_path)
    found.met("p1", tmp_path / "p1")
    make_used(tmp_path / "p2")
    found.check(tmp_path)
    found.met("p3", tmp_path / "p3")
    found.check(tmp_path)
