"""A worker's data directory: programs in it are run, so that nobody else may write there."""

import os
import re
from pathlib import Path

import pytest

from leasekeeper.browsers.data_directory import check_data_dir, claim_data_dir, place_program
from leasekeeper.errors import InputError


def test_only_its_owner_can_write_to_a_workers_folders(tmp_path: Path) -> None:
    (tmp_path / "data" / "runs").mkdir(parents=True)
    (tmp_path / "data" / "runs").chmod(0o775)
    before = os.umask(0)
    try:
        claim_data_dir(tmp_path / "data")
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert found == {"bin": 0o700, "open": 0o700, "profiles": 0o700, "runs": 0o755}


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    claim_data_dir(data)
    data.chmod(mode)
    with pytest.raises(InputError, match=re.escape(f"{data} can be written to by other users (mode {mode:04o})")):
        claim_data_dir(data)
    data.chmod(0o755)
    check_data_dir(data)


def test_a_directory_that_a_foreign_group_may_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o770)
    monkeypatch.setattr("leasekeeper.browsers.data_directory._is_own_group", lambda _gid: True)
    check_data_dir(tmp_path)
    monkeypatch.undo()
    group = next(gid for gid in range(60_000, 60_100) if gid != os.getegid())
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, group)
        with pytest.raises(InputError, match="chmod go-w"):
            check_data_dir(tmp_path)


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_folder_above_may_be_written_to_by_others_only_if_it_is_sticky(
    tmp_path: Path, mode: int, refused: bool
) -> None:
    above = tmp_path / "above"
    data = above / "between" / "data"
    claim_data_dir(data)
    above.chmod(mode)
    if refused:
        with pytest.raises(InputError, match=re.escape(f"{above}, above {data}, can be written to by other users")):
            check_data_dir(data)
    else:
        check_data_dir(data)


def test_a_folder_above_what_a_link_leads_to_is_checked_too(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "data").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(open_to_all / "data")
    with pytest.raises(InputError, match=r"open, above .*link, can be written to"):
        check_data_dir(tmp_path / "link")


def test_the_folders_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path} belongs to another user")):
        claim_data_dir(tmp_path)


def test_a_data_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be used: Not a directory; set LEASEKEEPER_DATA_DIR"):
        claim_data_dir(tmp_path / "file" / "data")


def test_a_program_is_put_in_place_once_and_replaced_if_it_is_not_safe(tmp_path: Path) -> None:
    path = place_program(tmp_path, "keeper", "#!/bin/sh\ntrue\n")
    first = path.stat().st_ino
    assert (path.stat().st_mode & 0o777, place_program(tmp_path, "keeper", "#!/bin/sh\ntrue\n")) == (0o700, path)
    assert path.stat().st_ino == first
    path.chmod(0o722)
    assert place_program(tmp_path, "keeper", "#!/bin/sh\ntrue\n").stat().st_mode & 0o777 == 0o700
    path.write_text("#!/bin/sh\nrm everything\n")
    assert place_program(tmp_path, "keeper", "#!/bin/sh\ntrue\n").read_text() == "#!/bin/sh\ntrue\n"
    (tmp_path / "elsewhere").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "elsewhere").chmod(0o700)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert not place_program(tmp_path, "keeper", "#!/bin/sh\ntrue\n").is_symlink()
