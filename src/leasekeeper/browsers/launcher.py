"""The driver `launcher`: browsers that a vendor's launcher starts, behind a keeper that connects over a WebSocket.

Playwright starts the keeper as it does for a local browser. The keeper asks the launcher to start the browser, and
later to stop it. So if the worker dies at any moment, the keeper still stops the browser.
"""

import asyncio
import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from leasekeeper.browsers.data_directory import check_data_dir, claim_data_dir
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.launcher_calls import CallFailed
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_browser import KeeperBrowser, discard_later, orders_of
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.launcher_status import NotOurs, ask
from leasekeeper.browsers.launchers import describe
from leasekeeper.browsers.launching import passed_environment
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import Capacity, Checked, DriverInfo, Launch, LeaseTerms, Usage
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.launchers import Launcher, LauncherSaid
from leasekeeper.core.profiles import Profile
from leasekeeper.driver_port import CannotOpen, OpenRequest
from leasekeeper.errors import InputError
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

# The launcher brings its own engine, so no version of this machine can be compared with the profile's.
_INFO: Final = DriverInfo(program=sys.executable)
# Added to the start's own timeout: for the status call before, the connection after, and the stop if that fails.
_MORE_SECONDS: Final = 90.0
# How long a launcher may take to stop a profile and to confirm it.
_STOP_SECONDS: Final = 40.0


class LauncherDriver:
    """Opens the profiles of launchers. See `driver_port.Driver`."""

    def __init__(self, config: BrowserConfig) -> None:
        self._config = config
        self._data_dir = Path(config.data_dir).absolute()

    @property
    def capacity(self) -> Capacity:
        return Capacity(launches=self._config.launch_together)

    async def prepare(self) -> DriverInfo:
        packages_folder()
        await run_in_thread(claim_data_dir, self._data_dir)
        await run_in_thread(write_wrapper, self._data_dir)
        return _INFO

    async def ready(self) -> DriverInfo:
        return _INFO

    async def status(self, profile: Profile) -> Usage:  # noqa: ARG002 - only its launcher knows, which is not given here
        return Usage()

    async def check(self, request: OpenRequest) -> Checked:
        """Check that the launcher is known. At the start, the keeper asks it whether the profile is in use."""
        _launcher_of(request)
        return Checked()

    async def accept_manual_use(self, request: OpenRequest) -> None:
        """Nothing: `check` never finds any. Only the launcher knows what people do in its own windows."""

    async def start(self, request: OpenRequest, terms: LeaseTerms) -> KeeperBrowser:
        starting = asyncio.ensure_future(run_in_thread(self._start, request, terms))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(discard_later)
            raise

    def _start(self, request: OpenRequest, terms: LeaseTerms) -> KeeperBrowser:
        check_data_dir(self._data_dir)
        launcher = _launcher_of(request)
        directory = self._data_dir / "launchers" / launcher.launcher_id / request.grant.profile.profile_id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = KeeperLink(self._orders(request, launcher, terms, directory))
        options = self._options(directory, link, launcher.start_timeout_seconds + _MORE_SECONDS)
        return KeeperBrowser(link, Launch(options=options), _INFO, None, _STOP_SECONDS, _stop_browser_of)

    def _orders(self, request: OpenRequest, launcher: Launcher, terms: LeaseTerms, directory: Path) -> Orders:
        headless = request.run_mode is RunMode.HEADLESS
        name = request.grant.profile.launcher_profile or ""
        described = describe(launcher, name, headless=headless, token=request.launcher_token)
        return orders_of(
            request,
            terms,
            self._config,
            browser=launcher.driver,
            directory=directory,
            launcher={**described, "packages": packages_folder()},
        )

    def _options(self, directory: Path, link: KeeperLink, seconds: float) -> dict[str, Any]:
        """Playwright's launch arguments. The launcher sets language, time zone and window: none is overridden."""
        return {
            "user_data_dir": str(directory),
            "executable_path": str(write_wrapper(self._data_dir)),
            "headless": False,
            "no_viewport": True,
            "timeout": seconds * 1000,
            "handle_sigint": False,
            "handle_sigterm": False,
            "handle_sighup": False,
            "env": {**passed_environment(os.environ), **link.env},
        }

    async def close(self) -> None:
        """Nothing: every browser has a keeper of its own."""


def packages_folder() -> str:
    """Where the WebSocket library is. Raises InputError if it is not installed."""
    found = find_spec("websockets")
    if found is None or found.origin is None:
        raise InputError("launchers need the package websockets; install the extra leasekeeper[launchers]")
    return str(Path(found.origin).parents[1])


def _launcher_of(request: OpenRequest) -> Launcher:
    if request.launcher is None:
        profile = request.grant.profile
        raise CannotOpen(Reason.LAUNCHER_UNAVAILABLE, f"profile {profile.profile_id} has no launcher", give_back=True)
    return request.launcher


def _stop_browser_of(orders: Orders) -> None:
    """Stop the profile in its launcher, but only before the lease's deadline: later it may be somebody else's.

    After the deadline, whoever resolves the lease asks the launcher.
    """
    if boot_time() >= orders.deadline:
        return
    try:
        if ask(orders.launcher, lambda: boot_time() < orders.deadline) is not LauncherSaid.RUNNING:
            return
        why = "its launcher says that the profile still runs"
    except NotOurs:
        why = "its lease was over before it could be stopped"
    except CallFailed as error:
        why = f"its launcher did not answer: {error}"
    _LOG.warning("profile %s: its keeper left no report, and %s", orders.profile_id, why)
