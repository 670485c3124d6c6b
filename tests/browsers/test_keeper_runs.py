"""The keeper in an ordinary run: what passes, what survives, what the report says, and what ends it in good order."""

import asyncio
import fcntl
import json
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Error, Page

from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_reports import LaunchRefused, read_report
from leasekeeper.core.browsers import LeaseTerms
from tests.browsers.keeper_stage import (
    PATIENCE,
    Stage,
    boot_time,
    command_line,
    environment_of,
    eventually_async,
    memory_of,
    open_files,
    stage_in,
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
        stage.all_gone()


async def test_an_ordinary_run_is_proven_clean(stage: Stage) -> None:
    report = await stage.visit(KeeperLink(stage.orders(token=7)))
    assert (report.cause, report.stopped_by, report.exit_code, report.signal) == ("closed", "Browser.close", 0, None)
    assert report.proof.holds, report.proof
    assert (report.profile_id, report.run_id, report.lease_id, report.token) == ("shop", "run_1", "lease_7", 7)
    assert report.final_url == stage.site.url + "/"
    assert report.refused is None
    assert report.started_at is not None
    assert report.started_at < report.ended_at <= time.time()


@pytest.mark.parametrize("by_worker", [True, False])
async def test_who_closes_the_browser_decides_whose_evidence_it_is(stage: Stage, by_worker: bool) -> None:
    """A worker has its own by then; of a task that closes its browser, or a driver that does, the keeper takes some."""
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        await context.pages[0].goto(stage.site.url)
        if by_worker:
            link.request_close()
        else:
            await context.close()
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.cause, report.stopped_by, report.proof.holds) == ("closed", "Browser.close", True)
    assert (report.final_url, report.screenshot is None) == (stage.site.url + "/", by_worker)
    link.close()


async def test_cookies_and_local_storage_survive_to_the_next_run(stage: Stage) -> None:
    async def store(context: BrowserContext) -> None:
        await context.pages[0].evaluate("document.cookie = 'a=b; max-age=1000'; localStorage.setItem('c', 'd')")

    found = []

    async def look(context: BrowserContext) -> None:
        found.append(await context.pages[0].evaluate("[document.cookie, localStorage.getItem('c')]"))

    await stage.visit(KeeperLink(stage.orders(token=1)), store)
    await stage.visit(KeeperLink(stage.orders(token=2, run_id="run_2")), look)
    assert found == [["a=b", "d"]]


async def test_a_lease_may_be_used_for_a_second_launch(stage: Stage) -> None:
    assert (await stage.visit(KeeperLink(stage.orders()))).proof.holds
    assert (await stage.visit(KeeperLink(stage.orders()))).proof.holds


async def test_the_last_commands_are_recorded_without_payloads(stage: Stage) -> None:
    async def act(context: BrowserContext) -> None:
        page = context.pages[0]
        await page.goto(stage.site.url + "/orders?token=hunter2#part")
        for _ in range(20):
            await page.click("#go")
        await page.evaluate("secret => secret.length", "hunter2")

    began = time.time()
    report = await stage.visit(KeeperLink(stage.orders()), act)
    assert len(report.commands) == 50
    assert report.commands[-1].method == "Browser.close"
    clicks = [command for command in report.commands if command.method == "Input.dispatchMouseEvent"]
    assert clicks
    assert {command.url for command in clicks} == {stage.site.url + "/orders"}
    assert all(began <= command.at <= time.time() for command in report.commands)
    assert report.final_url == stage.site.url + "/orders"
    assert "hunter2" not in (stage.folder() / "report.json").read_text()


async def test_megabytes_pass_in_both_directions(stage: Stage) -> None:
    async with stage.browser(link := KeeperLink(stage.orders())) as context:
        page = context.pages[0]
        await page.goto(stage.site.url)
        size = 12_000_000
        assert await page.evaluate("text => text.length", "x" * size) == size
        assert len(await page.evaluate(f"'y'.repeat({size})")) == size
        await page.evaluate(
            """() => { const c = document.createElement('canvas'); c.width = 1600; c.height = 1600;
            document.body.append(c); const g = c.getContext('2d'), i = g.createImageData(1600, 1600);
            for (let n = 0; n < i.data.length; n++) i.data[n] = Math.random() * 256; g.putImageData(i, 0, 0) }"""
        )
        assert len(await page.screenshot(full_page=True)) > 3_000_000
        both = await asyncio.gather(*[page.evaluate("text => text", "z" * 3_000_000) for _ in range(4)])
        assert [len(text) for text in both] == [3_000_000] * 4
        assert memory_of(link.keeper_pid) < 30_000_000
    link.close()


async def test_the_environment_and_the_command_line_keep_no_secret_and_no_port_is_open(stage: Stage) -> None:
    async with stage.browser(link := KeeperLink(stage.orders())) as context:
        await context.pages[0].goto(stage.site.url)
        browser = await link.started()
        assert "LEASEKEEPER_KEEPER" not in environment_of(browser)
        assert not [pid for pid in stage.processes() if link.orders.secret in command_line(pid)]
        orders = (stage.folder() / "keeper.json").read_text()
        assert json.loads(orders)["lease_id"] == link.orders.lease_id
        assert not [text for text in (link.orders.secret, link.orders.control, "launcher") if text in orders]
        assert stage.listeners() == []
        assert (stage.folder() / "keeper.json").stat().st_mode & 0o777 == 0o600
        assert stage.folder().stat().st_mode & 0o777 == 0o700
    link.close()


async def test_the_directory_stays_locked_by_the_browser_itself(stage: Stage) -> None:
    async with stage.browser(link := KeeperLink(stage.orders())):
        browser = await link.started()
        assert str(stage.profile / ".leasekeeper" / "lock") in open_files(browser).values()
    link.close()


async def test_past_the_deadline_nothing_reaches_the_site_and_the_task_hears_of_it_at_once(stage: Stage) -> None:
    link = KeeperLink(stage.orders(seconds=300))
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/cart?item=1")
        await act(page)
        deadline = boot_time() + 2
        link.extend(deadline, deadline + 60)
        with pytest.raises(Error) as raised:
            await act_for_ever(page)
        raised_at = boot_time()
        assert type(raised.value).__name__ == "TargetClosedError"
        report = await link.ended(PATIENCE)
    assert report is not None
    assert deadline <= raised_at < deadline + PATIENCE
    assert (report.cause, report.stopped_by) == ("deadline", "Browser.close")
    assert report.final_url == stage.site.url + "/cart"
    assert report.screenshot == "last.png"
    assert (stage.folder() / "last.png").read_bytes().startswith(b"\x89PNG")
    assert report.proof.holds, report.proof
    arrived = [float(path.partition("sent=")[2]) for path in stage.site.acts()]
    assert arrived
    assert max(arrived) < deadline
    link.close()


async def test_renewals_keep_it_going(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url)
        first = boot_time() + 10
        link.extend(first, first + 60)
        await page.evaluate("1")
        link.extend(boot_time() + 300, boot_time() + 310)
        await eventually_async(lambda: boot_time() > first + 0.5, "the end of the first deadline")
        assert await page.evaluate("1 + 1") == 2
        await context.close()
        report = await link.ended(PATIENCE)
    assert report is not None
    assert report.cause == "closed"
    assert report.proof.holds
    link.close()


async def test_a_fence_ends_it_at_once_and_leaves_evidence(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/checkout")
        second = await context.new_page()
        await second.goto(stage.site.url + "/help")
        await page.click("#go")
        link.revoke("the lease was revoked by ada")
        with pytest.raises(Error, match="closed"):
            await page.wait_for_selector("#never", timeout=PATIENCE * 1000)
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.cause, report.revoke_reason) == ("revoked", "the lease was revoked by ada")
    assert report.final_url == stage.site.url + "/checkout"
    assert report.screenshot == "last.png"
    assert report.proof.holds, report.proof
    link.close()


async def test_a_renewal_after_the_fence_changes_nothing(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link):
        await link.started()
        link.revoke("lost")
        link.extend(boot_time() + 1000, boot_time() + 1001)
        report = await link.ended(PATIENCE)
    assert report is not None
    assert report.cause == "revoked"
    link.close()


def terms(stage: Stage, lease_id: str, token: int, run_id: str, until: float) -> LeaseTerms:
    folder = str(stage.folder(run_id))
    return LeaseTerms(lease_id=lease_id, token=token, run_id=run_id, folder=folder, deadline=until, kill_at=until)


async def test_a_warm_browser_is_handed_over_to_the_next_lease(stage: Stage) -> None:
    link = KeeperLink(stage.orders(token=3))
    until = boot_time() + 300
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/first")
        with pytest.raises(LaunchRefused) as refused:
            await link.hand_over(terms(stage, "old", 2, "x", until))
        assert refused.value.reason == "STALE_TOKEN"
        await link.hand_over(terms(stage, "lease_4", 4, "run_2", until))
        fence = json.loads((stage.profile / ".leasekeeper" / "fence").read_text())
        assert (fence["token"], fence["lease_id"]) == (4, "lease_4")
        await page.goto(stage.site.url + "/second")
        await context.close()
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.run_id, report.lease_id, report.token, report.cause) == ("run_2", "lease_4", 4, "closed")
    assert report.final_url == stage.site.url + "/second"
    assert all(command.method != "Browser.getVersion" for command in report.commands), "commands of the run before"
    assert report.proof.holds
    assert read_report(stage.folder("run_1")) is None
    link.close()


async def test_a_page_that_hangs_does_not_hold_up_the_end(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/hang")
        await page.screenshot()  # so that it is drawn: a page that hangs before has no frame to give
        await page.evaluate("setTimeout(() => { fetch('/act'); while (true) {} }, 0)")
        await eventually_async(stage.site.acts, "the page's last request before it hangs")
        link.revoke("hung")
        with pytest.raises(Error, match="closed"):
            await page.wait_for_selector("#never", timeout=PATIENCE * 1000)
    # Playwright is left while the keeper waits for the page's picture, and kills the group that it launched.
    report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.cause, report.stopped_by, report.final_url) == ("revoked", "Browser.close", stage.site.url + "/hang")
    assert report.screenshot == "last.png", "a frame of the screencast needs no help of the page"
    assert report.proof.holds, report.proof
    link.close()


async def test_an_open_dialog_does_not_hold_up_the_end(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/ask")
        shown = asyncio.Event()
        page.on("dialog", lambda _: shown.set())
        await page.evaluate("setTimeout(() => { alert('sure?'); fetch('/act') }, 0)")
        await asyncio.wait_for(shown.wait(), PATIENCE)
        link.revoke("asked")
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.stopped_by, report.final_url) == ("Browser.close", stage.site.url + "/ask")
    assert report.proof.holds, report.proof
    assert stage.site.acts() == [], "nobody answered the dialog"
    link.close()


async def test_a_page_that_asks_before_leaving_does_not_hold_up_the_end(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url)
        await page.evaluate("window.onbeforeunload = event => { event.preventDefault(); return 'stay' }; 0")
        await page.click("h1")
        link.revoke("leaving")
        report = await link.ended(PATIENCE)
    assert report is not None
    assert report.stopped_by == "Browser.close"
    assert report.proof.holds, report.proof
    link.close()


async def test_what_a_page_stored_last_survives_a_slow_storage_process(stage: Stage) -> None:
    """It ends with the browser: without a question to it before, its last seconds are lost in a clean close."""

    async def store(context: BrowserContext) -> None:
        await context.pages[0].evaluate("localStorage.setItem('kept', 'yes')")
        (slow,) = [pid for pid, line in stage.processes().items() if "storage.mojom.StorageService" in line]
        os.kill(slow, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (slow, signal.SIGCONT)).start()

    async def read(context: BrowserContext) -> None:
        assert await context.pages[0].evaluate("localStorage.getItem('kept')") == "yes"

    for token, visit in enumerate((store, read), 1):
        report = await stage.visit(KeeperLink(stage.orders(token=token, run_id=f"run_{token}")), visit)
        assert report.proof.holds, report.proof


async def test_half_a_command_at_the_fence_is_cut_off_and_does_nothing(stage: Stage) -> None:
    link = KeeperLink(stage.orders())
    async with stage.browser(link) as context:
        page = context.pages[0]
        await page.goto(stage.site.url + "/half")
        await page.evaluate("() => 1")  # what Playwright needs in a page is there now: the next message is the command
        browser = await link.started()
        os.kill(browser, signal.SIGSTOP)
        command = asyncio.create_task(page.evaluate("text => fetch('/act?' + text.length)", "x" * 8_000_000))
        await eventually_async(lambda: waiting_in(browser) > 100_000, "a part of the command in the browser's pipe")
        link.revoke("half way")
        with pytest.raises(Error, match="closed"):
            await command
        assert not link.over, "the task hears of the fence before the keeper has its picture"
        os.kill(browser, signal.SIGCONT)
        report = await link.ended(PATIENCE)
    assert report is not None
    assert (report.cause, report.stopped_by) == ("revoked", "Browser.close")
    assert report.final_url == stage.site.url + "/half"
    assert report.screenshot == "last.png"
    assert report.proof.holds, report.proof
    assert stage.site.acts() == []
    link.close()


async def act(page: Page) -> None:
    await page.evaluate("sent => fetch('/act?sent=' + sent).then(r => r.text())", boot_time())


async def act_for_ever(page: Page) -> None:
    while True:
        await act(page)


def waiting_in(browser: int) -> int:
    """How much of a command lies unread in the pipe that the browser reads from."""
    pipe = os.open(f"/proc/{browser}/fd/3", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(pipe)
