"""Where a demo may play: an empty folder or one of its own. Nothing else is deleted or written to."""

from pathlib import Path

import pytest

from leasekeeper.demo.folder import MARK, taken
from leasekeeper.errors import InputError


def test_what_an_earlier_demo_left_is_removed(tmp_path: Path) -> None:
    for _ in range(2):
        with taken(tmp_path / "demo") as place:
            assert [path.name for path in place.folder.iterdir()] == [MARK]
            place.runs.mkdir(parents=True)
            place.database.write_text("x")


def test_a_store_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "leasekeeper.db").write_text("x")
    with pytest.raises(InputError, match=r"contains other files \(leasekeeper\.db\)"), taken(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["leasekeeper.db"]


def test_a_mark_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / MARK).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="cannot be used"), taken(tmp_path / "demo"):
        pass
    assert (tmp_path / "precious").read_text() == "x"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="Not a directory"), taken(tmp_path / "file" / "demo"):
        pass


def test_two_demos_cannot_have_one_folder(tmp_path: Path) -> None:
    with taken(tmp_path), pytest.raises(InputError, match="another demo runs"), taken(tmp_path):
        pass
