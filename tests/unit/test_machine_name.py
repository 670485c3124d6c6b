"""The machine's name: made once, whole, and kept."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leasekeeper.browsers.machine_name import known_machine_name, machine_name
from leasekeeper.config import BrowserConfig, load
from leasekeeper.errors import InputError


def in_folder(data_dir: Path, machine: str = "") -> BrowserConfig:
    return load({"LEASEKEEPER_DATA_DIR": str(data_dir), "LEASEKEEPER_MACHINE": machine}).browsers


def test_a_name_is_made_once_and_kept(tmp_path: Path) -> None:
    name = machine_name(in_folder(tmp_path / "data"))
    assert re.fullmatch(r"[A-Za-z0-9_.-]+-[0-9a-f]{8}", name)
    assert machine_name(in_folder(tmp_path / "data")) == name
    assert (tmp_path / "data" / "machine").read_text() == f"{name}\n"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["machine"]


def test_machines_of_one_hostname_differ(tmp_path: Path) -> None:
    assert machine_name(in_folder(tmp_path / "a")) != machine_name(in_folder(tmp_path / "b"))


def test_processes_that_ask_at_once_get_the_same_name(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: machine_name(in_folder(tmp_path)), range(32)))) == 1


@pytest.mark.parametrize("host", ["", "-", "büro rechner", "a" * 300, "host.example.com"])
def test_any_hostname_gives_a_name_that_is_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert machine_name(in_folder(tmp_path))


def test_a_spoiled_file_is_not_replaced_by_a_new_name(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("not a name\n\n")
    with pytest.raises(InputError, match="does not hold a machine's name"):
        machine_name(in_folder(tmp_path))
    assert known_machine_name(in_folder(tmp_path)) is None


def test_a_machine_that_can_keep_no_name_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="machine"):
        machine_name(in_folder(tmp_path / "file"))


def test_machines_that_share_directories_have_the_name_of_the_settings(tmp_path: Path) -> None:
    assert machine_name(in_folder(tmp_path, "shared-1")) == "shared-1"
    assert not (tmp_path / "machine").exists()
    with pytest.raises(InputError, match="not a name"):
        machine_name(in_folder(tmp_path, "two words"))
