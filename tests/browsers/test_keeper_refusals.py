"""When the keeper does not start a browser: said before launch, in the report and on Playwright's error."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Error

from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_reports import LaunchRefused
from tests.browsers.keeper_stage import CHROMIUM, FLAGS, PATIENCE, Stage, boot_time, eventually_async, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
        stage.all_gone()


async def refused(stage: Stage, orders: Orders, *flags: str) -> LaunchRefused:
    """Launch, expect no browser, and return what the worker gets. Playwright's error names the reason too."""
    link = KeeperLink(orders)
    try:
        with pytest.raises(Error) as raised:
            async with stage.browser(link, *flags):
                pytest.fail("there should be no browser")
        with pytest.raises(LaunchRefused) as reported:
            await link.started()
        assert reported.value.reason in str(raised.value)
        report = await link.ended(5)
        if report is not None:
            assert not report.proof.holds
        return reported.value
    finally:
        link.close()


async def test_a_second_browser_on_the_same_directory(stage: Stage) -> None:
    link = KeeperLink(stage.orders(token=1))
    async with stage.browser(link) as context:
        await context.pages[0].goto(stage.site.url)
        reported = await refused(stage, stage.orders(token=2, run_id="run_2"))
        assert reported.reason == "PROFILE_IN_USE_ELSEWHERE"
        assert str(stage.profile) in reported.message
        assert await context.pages[0].evaluate("1 + 1") == 2, "the first browser was not disturbed"
    link.close()


@pytest.mark.release_if(when=lambda chosen: chosen["way"] == "link")  # "relative" is not the plain name either
@pytest.mark.parametrize("way", ["plain", "link", "relative"])
async def test_a_browser_that_somebody_started_by_hand(stage: Stage, tmp_path: Path, way: str) -> None:
    stage.profile.mkdir(parents=True)
    (tmp_path / "alias").symlink_to(stage.profile)
    named = {"plain": str(stage.profile), "link": str(tmp_path / "alias"), "relative": "shop"}[way]
    command = [CHROMIUM, "--headless", "--no-sandbox", f"--user-data-dir={named}", *FLAGS, stage.site.url]
    hand = stage.start_foreign(command)
    await eventually_async(lambda: stage.site.requests, "the other browser's first request")
    reported = await refused(stage, stage.orders())
    assert reported.reason == "PROFILE_IN_USE_ELSEWHERE"
    assert str(hand.pid) in reported.message or way != "plain"
    assert (stage.profile / "SingletonLock").is_symlink(), "the lock of a live browser is left alone"
    hand.terminate()
    hand.wait()


async def test_a_lower_token_also_after_a_restart(stage: Stage) -> None:
    assert (await stage.visit(KeeperLink(stage.orders(token=9)))).proof.holds
    reported = await refused(stage, stage.orders(token=8, run_id="run_2"))
    assert reported.reason == "STALE_TOKEN"
    assert "8" in reported.message
    assert "9" in reported.message


async def test_the_same_token_of_another_lease(stage: Stage) -> None:
    await stage.visit(KeeperLink(stage.orders(token=9)))
    reported = await refused(stage, stage.orders(token=9, run_id="run_2", lease_id="lease_of_somebody_else"))
    assert reported.reason == "STALE_TOKEN"


async def test_a_fence_file_that_cannot_be_read(stage: Stage) -> None:
    (stage.profile / ".leasekeeper").mkdir(parents=True)
    (stage.profile / ".leasekeeper" / "fence").write_text("{")
    reported = await refused(stage, stage.orders())
    assert reported.reason == "STALE_TOKEN"


async def test_a_deadline_that_has_passed(stage: Stage) -> None:
    reported = await refused(stage, stage.orders(deadline=boot_time() - 1))
    assert reported.reason == "LEASE_LOST"
    assert not (stage.profile / ".leasekeeper").exists(), "the directory was not touched"


def test_a_debugging_port(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    try:
        # Playwright itself refuses this flag in `args`, so the keeper is started as Playwright would start it.
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pipe = theirs.fileno()
            shell = (
                f"exec {stage.wrapper} --user-data-dir={stage.profile} --remote-debugging-pipe {{}} 3<&{pipe} 4>&{pipe}"
            )
            port = subprocess.run(
                ["bash", "-c", shell.format("--remote-debugging-port=0")],
                env={**os.environ, **link.env},
                pass_fds=[pipe],
                capture_output=True,
                text=True,
                check=False,
            )
        assert port.returncode == 78
        assert port.stderr.startswith("leasekeeper keeper: BAD_ORDERS: --remote-debugging-port")
        assert port.stderr.count("\n") == 1
        refusal = link.refusal()
        assert refusal is not None
        assert refusal.reason == "BAD_ORDERS"
    finally:
        link.close()


async def test_a_directory_that_is_not_the_one_of_the_orders(stage: Stage, tmp_path: Path) -> None:
    link = KeeperLink(stage.orders())
    with pytest.raises(Error, match="BAD_ORDERS"):
        async with stage.browser(link, directory=tmp_path / "other"):
            pytest.fail("there should be no browser")
    link.close()


async def test_orders_of_an_unknown_version_or_none_at_all(stage: Stage) -> None:
    for change in ({"version": 2}, None):
        link = KeeperLink(stage.orders())
        path = stage.folder() / "keeper.json"
        if change is None:
            path.unlink()
        else:
            path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(Error, match="BAD_ORDERS"):
            async with stage.browser(link):
                pytest.fail("there should be no browser")
        refusal = link.refusal()
        assert refusal is not None
        assert refusal.reason == "BAD_ORDERS"
        link.close()


async def test_a_browser_that_is_not_there(stage: Stage) -> None:
    reported = await refused(stage, stage.orders(browser="/nowhere/chromium"))
    assert reported.reason == "BROWSER_LAUNCH_FAILED"
    assert "/nowhere/chromium" in reported.message


async def test_a_browser_that_ends_at_once(stage: Stage) -> None:
    link = KeeperLink(stage.orders(browser=shutil.which("false") or ""))
    with pytest.raises(Error):
        async with stage.browser(link):
            pytest.fail("there should be no browser")
    report = await link.ended(PATIENCE)
    assert report is not None
    assert report.refused is not None
    assert report.refused.reason == "BROWSER_LAUNCH_FAILED"
    assert report.exit_code == 1
    link.close()


async def test_a_worker_that_is_gone_before_the_browser_starts(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    link.close()
    with pytest.raises(Error, match="LEASE_LOST"):
        async with stage.browser(link):
            pytest.fail("there should be no browser")
    refusal = link.refusal()
    assert refusal is not None
    assert refusal.reason == "LEASE_LOST"


@pytest.mark.release_if(when=lambda chosen: chosen["left_by"] == "dead process")  # "other program" is one that lives
@pytest.mark.parametrize("left_by", ["another host", "dead process", "other program"])
async def test_a_lock_left_by_a_dead_browser_or_another_host_is_removed(stage: Stage, left_by: str) -> None:
    here = socket.gethostname()
    holders = {
        "another host": "elsewhere-4242",
        "dead process": f"{here}-4000000",
        "other program": f"{here}-{os.getpid()}",
    }
    stage.profile.mkdir(parents=True)
    (stage.profile / "SingletonLock").symlink_to(holders[left_by])
    (stage.profile / "SingletonCookie").symlink_to("123")
    (stage.profile / "SingletonSocket").symlink_to("/nowhere/SingletonSocket")
    report = await stage.visit(KeeperLink(stage.orders()))
    assert report.proof.holds, report.proof


LOCKS = """
import fcntl, pathlib, signal, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    pathlib.Path(sys.argv[2]).touch()
    signal.pause()
"""


@pytest.mark.release_if(when=lambda chosen: chosen["folder"] == "Default/Session Storage")  # beside Local Storage
@pytest.mark.parametrize(
    "folder", ["Default/Local Storage/leveldb", "Default/Session Storage", "Profile 1/shared_proto_db"]
)
async def test_a_live_browser_of_another_container_is_company(stage: Stage, tmp_path: Path, folder: str) -> None:
    """Seen from here its process is not there and its host is another one; but what it has locked is locked."""
    lock = stage.profile / folder / "LOCK"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (stage.profile / "SingletonLock").symlink_to("container-1")
    # Its command line names no directory, as if it were in a process list that is not ours.
    alias = tmp_path / "alias"
    alias.symlink_to(lock)
    stage.start_foreign([sys.executable, "-c", LOCKS, str(alias), str(tmp_path / "ready")])
    await eventually_async((tmp_path / "ready").exists, "the lock")
    before = sorted(stage.profile.rglob("*"))
    reported = await refused(stage, stage.orders())
    assert reported.reason == "PROFILE_IN_USE_ELSEWHERE"
    assert "container-1" in reported.message
    own = stage.profile / ".leasekeeper"
    assert sorted(path for path in stage.profile.rglob("*") if not path.is_relative_to(own)) == before


async def test_a_live_process_with_files_in_the_directory_is_company(stage: Stage) -> None:
    stage.profile.mkdir(parents=True)
    (stage.profile / "History").write_text("")
    other = stage.start_foreign(["sleep", "600"], stdin=stage.profile / "History")
    (stage.profile / "SingletonLock").symlink_to(f"{socket.gethostname()}-{other.pid}")
    reported = await refused(stage, stage.orders())
    assert reported.reason == "PROFILE_IN_USE_ELSEWHERE"
