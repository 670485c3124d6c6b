"""One real browser, started behind the keeper in a throwaway directory and closed again: what a worker would do.

For `leasekeeper doctor`: needs no lease and no store. Nothing of it is left behind, whatever happens.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from leasekeeper.browsers.finding import Found
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.keeper_reports import LaunchRefused, ReportUnreadable
from leasekeeper.browsers.launching import launch_options
from leasekeeper.config import BrowserConfig
from leasekeeper.core.classify import summary
from leasekeeper.core.doctor.machine_checks import SCRIPTS, LaunchFacts
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.playwright_process import PlaywrightProcess
from leasekeeper.threads import run_in_thread

TRIAL_SECONDS: Final = 120.0
KILL_SECONDS: Final = 30.0
_NAME: Final = "doctor"

# Whether two characters of each script can be drawn. If not, both look the same: two boxes, or nothing at all.
_DRAWN: Final = """scripts => Object.fromEntries(Object.entries(scripts).map(([name, text]) => {
  const pixels = [...text].map(character => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 48;
    const pen = canvas.getContext('2d', {willReadFrequently: true});
    pen.font = '32px sans-serif';
    pen.fillText(character, 4, 36);
    return pen.getImageData(0, 0, 48, 48).data;
  });
  const blank = data => !data.some(value => value);
  const same = pixels[0].every((value, index) => value === pixels[1][index]);
  return [name, !same && !pixels.some(blank)];
}))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How the launch went, and which scripts a page could show. `drawn` is empty if there was no page."""

    launch: LaunchFacts
    drawn: Mapping[str, bool] = field(default_factory=dict)


async def try_browser(browser: Found, config: BrowserConfig) -> Trial:
    """Start the browser as a worker would, draw some text, close it."""
    root = os.geteuid() == 0
    try:
        parent = _parent(config.data_dir)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent, ignore_cleanup_errors=True) as folder:
            trial = await _try_in(Path(folder), browser, config, root=root)
    except (LeasekeeperError, OSError) as error:
        trial = Trial(launch=LaunchFacts(problem=str(error)))
    return replace(trial, launch=replace(trial.launch, root=root))


def _parent(data_dir: str) -> Path | None:
    """Where to make the throwaway directory: the data directory, so that what holds for it (noexec, a quota) holds for
    the trial. None if that cannot be written to: the system's folder for temporary files."""
    folder = Path(data_dir).absolute()
    return folder if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None


async def _try_in(folder: Path, browser: Found, config: BrowserConfig, *, root: bool) -> Trial:
    directory = folder / "profile"
    directory.mkdir(mode=0o700)
    playwright = PlaywrightProcess(folder)
    wrapper = await run_in_thread(write_wrapper, folder)
    deadline = boot_time() + TRIAL_SECONDS
    link = KeeperLink(
        Orders(
            browser=str(browser.path),
            user_data_dir=str(directory),
            profile_id=_NAME,
            lease_id=f"{_NAME}:1",
            token=1,
            run_id=_NAME,
            folder=str(folder / "run"),
            deadline=deadline,
            kill_at=deadline + KILL_SECONDS,
            close_seconds=config.close_after.total_seconds(),
        )
    )
    try:
        launch = launch_options(
            Profile(profile_id=ProfileId(_NAME), account_id=AccountId(_NAME)),
            directory=directory,
            executable=wrapper,
            run_mode=RunMode.HEADLESS,
            environ=os.environ,
            root=root,
            extra_env=link.env,
            extra_args=config.browser_args,
        )
        return await _run(playwright, launch, link, config)
    finally:
        link.close()
        await playwright.stop()


async def _run(
    playwright: PlaywrightProcess, launch: Mapping[str, Any], link: KeeperLink, config: BrowserConfig
) -> Trial:
    driver = await playwright.get()
    began = boot_time()
    drawn: Mapping[str, bool] = {}
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            context = await driver.chromium.launch_persistent_context(**launch)
            seconds = boot_time() - began
            page = context.pages[0] if context.pages else await context.new_page()
            drawn = await page.evaluate(_DRAWN, dict(SCRIPTS))
    except Exception as error:  # noqa: BLE001 - Playwright raises what it likes; all of it means no usable browser
        problem = await _why_not(error, link, config)
        return Trial(launch=LaunchFacts(problem=problem))
    asked = boot_time()
    link.request_close()
    unclean = await _unclean(link, config)
    closed = boot_time() - asked
    with suppress(Exception):
        async with asyncio.timeout(KILL_SECONDS):
            await context.close()
    return Trial(launch=LaunchFacts(seconds=seconds, close_seconds=closed, unclean=unclean), drawn=drawn)


async def _why_not(error: Exception, link: KeeperLink, config: BrowserConfig) -> str:
    """Why there is no browser: the keeper's reason if it has one, else Playwright's. Ends what was started of it."""
    link.revoke("the trial failed")
    if link.keeper_pid is not None:
        await _unclean(link, config)
    refused: LaunchRefused | None = None
    with suppress(ReportUnreadable, OSError):
        refused = link.refusal()
    message = refused.message if refused is not None else summary(str(error), str)
    return f"the browser does not start: {message or type(error).__name__}"


async def _unclean(link: KeeperLink, config: BrowserConfig) -> str:
    """Wait for the browser's end. Returns which clause of the clean-close proof failed, '' if none did."""
    try:
        report = await link.ended(config.close_after.total_seconds() * 3 + KILL_SECONDS)
    except ReportUnreadable as error:
        return str(error)
    if report is None:
        return "the keeper ended without a report" if link.over else "it did not end in time"
    return "" if report.proof.holds else report.proof.failing_clause or "the proof does not hold"
