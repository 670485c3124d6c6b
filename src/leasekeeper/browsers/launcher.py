"""The driver `launcher`: browsers of somebody else's program, behind a keeper that reaches them over a WebSocket.

Playwright starts the keeper as it does for a local browser; the keeper asks the launcher for the browser, and stops it
there. So a worker that dies at any moment leaves a process behind that knows how to stop what was started.
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

# The engine is the launcher's own: this machine has none to compare with the profile's.
_INFO: Final = DriverInfo(program=sys.executable)
# On top of the start itself: the question before it, the connection after it, and stopping again if that fails.
_MORE_SECONDS: Final = 90.0
# How long a launcher may take to stop a profile and to say so.
_STOP_SECONDS: Final = 40.0


class LauncherDriver:
    """Opens profiles that launchers have. See `driver_port.Driver`."""

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

    async def status(self, profile: Profile) -> Usage:  # noqa: ARG002 - only its launcher could say, and is not known here
        return Usage()

    async def check(self, request: OpenRequest) -> Checked:
        """The launcher is known. Whether the profile is in use the keeper asks, just before it starts it."""
        _launcher_of(request)
        return Checked()

    async def accept_manual_use(self, request: OpenRequest) -> None:
        """Nothing: none is ever found. What people do in the launcher's own window is the launcher's business."""

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
        """What Playwright is given. How the browser looks is the launcher's to set: nothing of that is overridden."""
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
    """While the lease is ours: after that the profile may be somebody else's, and who resolves the lease asks first."""
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
