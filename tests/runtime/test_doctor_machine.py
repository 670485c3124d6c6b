"""`leasekeeper doctor` on this machine: real folders, disks, sockets and browsers, sound and broken."""

import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import config
from leasekeeper.core.doctor.findings import Status, Verdict
from leasekeeper.core.doctor.machine_checks import Place, judge_space
from leasekeeper.core.jobs import RunMode
from leasekeeper.runtime import machine_facts
from leasekeeper.runtime.doctor import ALL, Installation, examine_site
from leasekeeper.wording.doctor import todo_text
from tests.conformance.audit import audit
from tests.conformance.world import new_world
from tests.runtime.browsing import processes_about
from tests.servers import closed_port

OK, WARN, FAIL, SKIP = Status.OK, Status.WARN, Status.FAIL, Status.SKIP
NOTHING = Path("/proc")  # a file system without any room, to which nobody can add a file
CHROMIUM = "/usr/bin/chromium"


def site(
    tmp_path: Path, environ: Mapping[str, str] | None = None, *, with_browser: bool = False, **settings: Any
) -> Installation:
    given = {"store": f"sqlite:///{tmp_path}/leasekeeper.db", "data_dir": str(tmp_path / "data"), **settings}
    return Installation(config.load({}, **given), environ=environ or {}, with_browser=with_browser)


async def verdicts(made: Installation, *names: str) -> dict[str, Verdict]:
    findings = await examine_site(made, [check for check in ALL if check.id in names])
    return {finding.check.id: finding.verdict for finding in findings}


async def verdict(made: Installation, name: str) -> Verdict:
    return (await verdicts(made, name))[name]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_data_directory_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def status() -> Status:
        return (await verdict(site(tmp_path), "data_dir")).status

    assert await status() is OK, "it will be made"
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    assert await status() is OK
    folder.chmod(0o750)
    assert await status() is WARN
    folder.rmdir()
    folder.write_text("not a folder")
    assert await status() is FAIL
    assert (await verdict(site(tmp_path, data_dir=str(folder / "below")), "data_dir")).status is FAIL


async def test_the_data_directory_of_somebody_else_fails(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        folder = Path("/usr")
    found = await verdict(site(tmp_path, data_dir=str(folder)), "data_dir")
    assert found.status is FAIL
    assert "belongs to user" in found.found


async def test_a_data_directory_that_cannot_be_made_fails(tmp_path: Path) -> None:
    found = await verdicts(site(tmp_path, data_dir=str(NOTHING / "data")), "data_dir", "disk_sync")
    assert found["disk_sync"].status is FAIL
    assert "data directory" in found["disk_sync"].found


@pytest.mark.parametrize(
    ("kind", "at", "status"),
    [("ext4", "", OK), ("nfs4", "/data", WARN), ("tmpfs", "/data", WARN), ("nfs4", "", FAIL)],
)
async def test_file_systems_are_distinguished(tmp_path: Path, kind: str, at: str, status: Status) -> None:
    (tmp_path / "data").mkdir()
    made = site(tmp_path)
    made.mounts = f"/dev/sda1 / xfs rw 0 0\nsomewhere {tmp_path}{at} {kind} rw 0 0\n"
    assert (await verdict(made, "file_system")).status is status


async def test_disks_are_measured_and_nothing_is_left_on_them(tmp_path: Path) -> None:
    found = await verdicts(site(tmp_path), "disk_space", "disk_sync")
    facts: Any = found["disk_space"].facts
    disk = os.statvfs(tmp_path)
    assert facts["store"]["total_bytes"] == disk.f_blocks * disk.f_frsize
    assert found["disk_sync"].status in (OK, WARN)
    sync: Any = found["disk_sync"].facts
    assert 0 < sync["data directory"]["median_ms"] <= sync["data directory"]["max_ms"]
    assert left_in(tmp_path) == []


async def test_a_server_as_store_has_no_disk_here(tmp_path: Path) -> None:
    made = site(tmp_path, store="postgresql://127.0.0.1/fleet")
    assert list((await verdict(made, "disk_space")).facts) == ["data directory"]


def test_a_disk_without_room_fails() -> None:
    assert judge_space([machine_facts.space_at(Place(name="store", path=str(NOTHING)))]).status is FAIL


async def test_a_disk_that_takes_no_more_fails(tmp_path: Path) -> None:
    with largest_file(2 * 4096):
        found = await verdict(site(tmp_path), "disk_sync")
    assert (found.status, "File too large" in found.found) == (FAIL, True)


async def test_no_browser_fails_and_is_not_started(tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    found = await verdicts(site(tmp_path, nowhere, with_browser=True), "browser", "launch", "fonts")
    assert {name: v.status for name, v in found.items()} == {"browser": FAIL, "launch": SKIP, "fonts": SKIP}
    assert todo_text(found["browser"]).startswith("Install one")


async def test_a_browser_that_is_not_there_fails(tmp_path: Path) -> None:
    found = await verdict(site(tmp_path, browser=str(tmp_path / "chrome")), "browser")
    assert found.status is FAIL
    assert "LEASEKEEPER_BROWSER" in found.found


async def test_a_browser_is_started_closed_and_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    made = site(tmp_path, os.environ, with_browser=True, browser=CHROMIUM, close_after=60)
    found = await verdicts(made, "browser", "launch", "fonts")
    assert found["browser"].status is OK
    launch = found["launch"]
    assert launch.status is (WARN if os.geteuid() == 0 else OK), launch
    assert "sandbox" in launch.found or os.geteuid() != 0
    fonts: Any = found["fonts"].facts
    assert fonts["drawn"]["Latin"] is True
    assert found["fonts"].status is (OK if all(fonts["drawn"].values()) else WARN)
    assert left_in(tmp_path / "data") == []
    assert processes_about(str(tmp_path)) == []


async def test_without_fonts_pages_show_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none").mkdir()
    empty = tmp_path / "fonts.conf"
    empty.write_text(f"<?xml version='1.0'?><fontconfig><dir>{tmp_path}/none</dir></fontconfig>")
    monkeypatch.setenv("FONTCONFIG_FILE", str(empty))
    made = site(tmp_path, os.environ, with_browser=True, browser=CHROMIUM)
    found = await verdicts(made, "fonts")
    assert found["fonts"].status is FAIL
    assert "Install fonts" in todo_text(found["fonts"])
    assert (await verdict(site(tmp_path, os.environ), "fonts")).facts == {"fonts": 0}


async def test_a_browser_that_ends_at_once_fails(tmp_path: Path) -> None:
    script = 'case "$*" in *--version*) echo "Chromium 150.0.1.2";; *) echo "no libnss3" >&2; exit 127;; esac'
    broken = program(tmp_path / "chrome", script)
    found = await verdicts(site(tmp_path, os.environ, with_browser=True, browser=broken), "browser", "launch")
    assert (found["browser"].status, found["launch"].status) == (OK, FAIL)
    assert "does not start" in found["launch"].found
    assert processes_about(str(tmp_path)) == []


async def test_a_browser_that_leaves_its_lock_did_not_close_cleanly(tmp_path: Path) -> None:
    script = (
        'for each in "$@"; do case "$each" in --user-data-dir=*) folder="${each#--user-data-dir=}";; esac; done\n'
        f'{CHROMIUM} "$@"\ncode=$?\n[ -n "$folder" ] && ln -s left-1 "$folder/SingletonLock"\nexit $code'
    )
    untidy = program(tmp_path / "chrome", script)
    made = site(tmp_path, os.environ, with_browser=True, browser=untidy, close_after=60)
    found = await verdict(made, "launch")
    assert found.status is FAIL
    assert "did not close cleanly" in found.found


async def test_without_playwright_no_browser_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright", None)
    found = await verdict(site(tmp_path, os.environ, with_browser=True, browser=CHROMIUM), "launch")
    assert found.status is FAIL
    assert "Playwright is not installed" in found.found


async def test_a_browser_is_not_started_if_nobody_wants_it(tmp_path: Path) -> None:
    found = await verdicts(site(tmp_path, os.environ, browser=CHROMIUM), "launch", "fonts")
    assert found["launch"].status is SKIP
    assert list(found["fonts"].facts) == ["fonts"]


async def test_a_display_is_asked_for_only_where_jobs_want_one(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:
        with closed_port() as port:
            dead = {"DISPLAY": f"127.0.0.1:{port - 6000}.0"}

            async def status(environ: Mapping[str, str]) -> Status:
                made = site(tmp_path, environ, store=store_url, keep_jobs=0)
                return (await verdict(made, "display")).status

            assert (await status({}), await status(dead)) == (SKIP, WARN)
            await world.add(run_mode=RunMode.VISIBLE)
            assert (await status({}), await status(dead)) == (WARN, FAIL)


async def test_displays_that_answer_are_found(tmp_path: Path, short_dir: Path) -> None:
    number = 1_000 + os.getpid() % 8_000
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as remote,
        closing(socket.socket(socket.AF_UNIX)) as local,
        closing(socket.socket(socket.AF_UNIX)) as wayland,
    ):
        local.bind(f"\0/tmp/.X11-unix/X{number}")
        wayland.bind(str(short_dir / "wayland-7"))
        local.listen()
        wayland.listen()
        for environ in (
            {"DISPLAY": f"127.0.0.1:{remote.getsockname()[1] - 6000}"},
            {"DISPLAY": f":{number}"},
            {"WAYLAND_DISPLAY": "wayland-7", "XDG_RUNTIME_DIR": str(short_dir)},
        ):
            assert (await verdict(site(tmp_path, environ), "display")).status is OK, environ
    assert (await verdict(site(tmp_path, {"DISPLAY": f":{number}"}), "display")).status is WARN
    assert (await verdict(site(tmp_path, {"DISPLAY": "nonsense"}), "display")).status is WARN
    assert (await verdict(site(tmp_path, {"DISPLAY": "127.0.0.1:60000"}), "display")).status is WARN
