"""The driver `local`: Chromium or Chrome on this machine, in the profile's own directory, behind a keeper.

Playwright starts the keeper in place of the browser. A run that shares its profile gets a throwaway copy of the
directory. Knows no Playwright: its endpoint is a set of launch arguments.
"""

import asyncio
import logging
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leasekeeper.browsers.data_directory import check_data_dir, claim_data_dir
from leasekeeper.browsers.empty_directories import EmptyDirectories
from leasekeeper.browsers.finding import Found, find_browser, version_of
from leasekeeper.browsers.keeper.directory import other_user_of
from leasekeeper.browsers.keeper.fence_file import FenceUnreadable, read_fence
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.processes import users_of
from leasekeeper.browsers.keeper_browser import KeeperBrowser, discard_later, orders_of
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.launching import launch_options
from leasekeeper.browsers.profile_copy import copy_profile
from leasekeeper.browsers.profile_directory import (
    StrangeDirectory,
    accept_changes,
    claim_directory,
    directory_of,
    inspect,
    last_engine,
    refuse_empty,
    refuse_foreign,
)
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import (
    Capacity,
    Checked,
    DriverInfo,
    Launch,
    LeaseTerms,
    Usage,
)
from leasekeeper.core.failures import Reason
from leasekeeper.core.profiles import Profile
from leasekeeper.driver_port import CannotOpen, OpenRequest
from leasekeeper.errors import Fail
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

COPY_NAME = "profile"


class LocalDriver:
    """Opens browsers of one worker on its own machine. See `driver_port.Driver`."""

    def __init__(self, config: BrowserConfig) -> None:
        self._config = config
        self._data_dir = Path(config.data_dir).absolute()
        self._found: Found | None = None
        self._empty = EmptyDirectories()

    @property
    def capacity(self) -> Capacity:
        return Capacity(launches=self._config.launch_together)

    async def prepare(self) -> DriverInfo:
        await run_in_thread(claim_data_dir, self._data_dir)
        await run_in_thread(write_wrapper, self._data_dir)
        self._found = await run_in_thread(find_browser, self._config.browser)
        return _info(self._found)

    async def ready(self) -> DriverInfo:
        """Raises ProfilesMissing if several profiles in a row have no session here: the data directory is wrong."""
        await run_in_thread(self._empty.check, self._data_dir)
        return await self._current()

    async def _current(self) -> DriverInfo:
        if self._found is None:
            return await self.prepare()
        self._found = replace(self._found, version=await run_in_thread(version_of, self._found.path))
        return _info(self._found)

    async def status(self, profile: Profile) -> Usage:
        user = await run_in_thread(other_user_of, str(directory_of(profile, self._data_dir)))
        return Usage(user=user or "")

    async def check(self, request: OpenRequest) -> Checked:
        """Check that the directory is the profile's own, unused, not newer than the browser, and not damaged."""
        engine = (await self._current()).engine or 0
        return await run_in_thread(self._check, request, engine)

    def _check(self, request: OpenRequest, engine: int) -> Checked:
        grant = request.grant
        place = directory_of(grant.profile, self._data_dir)
        try:
            own = claim_directory(place)
            found = inspect(own, engine=engine)
            if not request.throwaway:
                refuse_foreign(own, token=grant.lease.token, run_id=grant.lease.run_id)
            refuse_empty(own, opened_by=grant.engine)
        except StrangeDirectory as strange:
            if strange.reason == Reason.PROFILE_DIRECTORY_EMPTY:
                self._empty.met(grant.profile.profile_id, place)
            raise CannotOpen(
                strange.reason, strange.detail, give_back=True, directory_token=strange.directory_token
            ) from strange
        except Fail as refused:
            newer = last_engine(place) if refused.reason == Reason.PROFILE_NEWER_THAN_BROWSER else None
            raise CannotOpen(refused.reason, refused.detail, give_back=newer is not None, engine=newer) from refused
        if grant.engine is not None:
            self._empty.session_found()
        return Checked(manual_use=found.manual_use_text)

    async def accept_manual_use(self, request: OpenRequest) -> None:
        lease = request.grant.lease
        directory = claim_directory(directory_of(request.grant.profile, self._data_dir))
        await run_in_thread(lambda: accept_changes(directory, token=lease.token, run_id=lease.run_id))

    async def start(self, request: OpenRequest, terms: LeaseTerms) -> KeeperBrowser:
        info = await self._current()
        starting = asyncio.ensure_future(run_in_thread(self._start, request, terms, info))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(discard_later)
            raise

    def _start(self, request: OpenRequest, terms: LeaseTerms, info: DriverInfo) -> KeeperBrowser:
        directory = claim_directory(directory_of(request.grant.profile, self._data_dir))
        copy = Path(terms.folder) / COPY_NAME if request.throwaway else None
        link: KeeperLink | None = None
        try:
            check_data_dir(self._data_dir)
            if copy is not None:
                copy_profile(directory, copy)
                directory = copy
            link = KeeperLink(orders_of(request, terms, self._config, browser=info.program, directory=directory))
            launch = launch_options(
                request.grant.profile,
                proxy=request.grant.proxy,
                credentials=request.credentials,
                directory=directory,
                executable=write_wrapper(self._data_dir),
                run_mode=request.run_mode,
                environ=os.environ,
                root=os.geteuid() == 0,
                extra_env=link.env,
                extra_args=self._config.browser_args,
            )
        except BaseException:
            if link is not None:
                link.close()
            if copy is not None:
                shutil.rmtree(copy, ignore_errors=True)
            raise
        close_seconds = self._config.close_after.total_seconds()
        return KeeperBrowser(link, Launch(options=launch), info, copy, close_seconds, _kill_browser_of)

    async def close(self) -> None:
        """Nothing: every browser has a keeper of its own."""


def _info(found: Found) -> DriverInfo:
    return DriverInfo(program=str(found.path), version=found.version, engine=found.engine)


def _kill_browser_of(orders: Orders) -> None:
    """Kill every process in the directory, unless its fence file names another lease: then the browser is not ours."""
    try:
        fence = read_fence(orders.user_data_dir)
    except FenceUnreadable:
        return
    if fence is None or fence.lease_id != orders.lease_id:
        return
    for pid in users_of(orders.user_data_dir):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
