"""What a keeper does by itself, with real browsers: the largest message, seal, tabs, workers it cannot watch."""

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import async_playwright

from leasekeeper.browsers.keeper.control import Control
from leasekeeper.browsers.keeper.fence_file import lock_directory
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.profile_directory import Condition, inspect
from tests.browsers.keeper_stage import CHROMIUM, FLAGS, PATIENCE, Stage, stage_in

ANY_ENGINE = 10**6
MEGABYTE = 1_000_000


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as made:
        yield made
        made.all_gone()


async def test_a_browser_that_sends_too_large_a_message_ends_alone(stage: Stage) -> None:
    """Two browsers of one Playwright process: the one whose page floods it ends, the other goes on."""
    link = KeeperLink(stage.orders(max_message_bytes=2 * MEGABYTE))
    async with async_playwright() as playwright:
        beside = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        quiet = await beside.new_page()
        flooded = await playwright.chromium.launch_persistent_context(
            stage.profile, executable_path=stage.wrapper, args=FLAGS, env={**os.environ, **link.env}
        )
        page = flooded.pages[0]
        await page.goto(stage.site.url)
        assert len(await page.evaluate("'x'.repeat(1e6)")) == MEGABYTE
        with pytest.raises(PlaywrightError, match="closed"):
            await page.evaluate("'x'.repeat(2e8)")
        report = await link.ended(PATIENCE)
        assert await quiet.evaluate("1 + 1") == 2
        await beside.close()
    link.close()
    assert report is not None
    assert (report.cause, report.final_url) == ("message_too_large", stage.site.url + "/")
    assert report.proof.holds


async def test_a_proven_close_is_sealed_by_the_keeper_itself(stage: Stage) -> None:
    report = await stage.visit(KeeperLink(stage.orders()))
    assert report.proof.holds
    assert inspect(stage.profile, engine=ANY_ENGINE).condition is Condition.SEALED


def test_a_keeper_whose_worker_died_seals_the_directory_too(stage: Stage) -> None:
    worker = stage.start_worker(stage.orders())
    worker.process.kill()
    report = stage.report()
    stage.all_gone()
    assert (report.cause, report.proof.holds) == ("worker_gone", True)
    assert inspect(stage.profile, engine=ANY_ENGINE).condition is Condition.SEALED


async def test_tabs_are_deleted_only_by_the_keeper_that_has_the_directory(stage: Stage) -> None:
    tabs = stage.profile / "Default" / "Sessions" / "Tabs_1"
    tabs.parent.mkdir(parents=True)
    tabs.write_text("tabs")
    lock = lock_directory(str(stage.profile))
    with pytest.raises(PlaywrightError):
        await stage.visit(KeeperLink(stage.orders()))
    assert tabs.exists()
    os.close(lock)
    await stage.visit(KeeperLink(stage.orders(token=2, run_id="run_2")))
    assert not tabs.exists()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ESRCH, "LEASE_LOST"), (errno.EPERM, "BROWSER_LAUNCH_FAILED"), (errno.EMFILE, "BROWSER_LAUNCH_FAILED")],
)
def test_a_worker_that_cannot_be_watched_is_not_taken_for_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refused(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    orders = stage.orders(control=f"leasekeeper-test-{os.getpid()}", secret="s")  # noqa: S106 - nobody's secret
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0" + orders.control.encode())
        listener.listen()
        with pytest.raises(Refused) as raised:
            Control(orders)
    assert raised.value.reason == reason


@pytest.mark.parametrize(("name", "reason"), [("nobody-here", "LEASE_LOST"), ("x" * 200, "BROWSER_LAUNCH_FAILED")])
def test_only_a_refused_connection_means_that_the_worker_is_gone(stage: Stage, name: str, reason: str) -> None:
    with pytest.raises(Refused) as raised:
        Control(stage.orders(control=name, secret="s"))  # noqa: S106 - nobody's secret
    assert raised.value.reason == reason
