"""Launches the browsers of one worker: its drivers, and how many browsers each may start at the same time.

A launch waits for a free place and for a turn at the launcher, lets the driver check the profile, and starts the
browser. The session on the browser, and what runs share, are `opening`'s.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from leasekeeper.browsers.drivers import create_driver
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import Credentials, DriverInfo, LeaseTerms, Usage
from leasekeeper.core.events import manual_use
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import ManualUse, Profile
from leasekeeper.driver_port import Driver, OpenRequest, RunningBrowser
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.launchers import Launchers
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.not_opened import NotOpened


class BrowserLaunches:
    """Launches browsers by the drivers of their profiles."""

    def __init__(self, config: BrowserConfig, store: Store, redactor: Redactor) -> None:
        self.launchers = Launchers(store, redactor)
        self._config = config
        self._store = store
        self._info: DriverInfo | None = None
        self._drivers: dict[str, Driver] = {}
        self._places: dict[tuple[str, str | None], asyncio.Semaphore] = {}
        self._launching: Counter[str] = Counter()

    async def prepare(self) -> list[DriverInfo]:
        """Check the drivers that this worker uses. Raises InputError if this machine cannot run one of them."""
        found = [await self._driver(name).prepare() for name in self._config.drivers]
        self._info = found[0]
        return found

    @property
    def program(self) -> Path | None:
        """The program of the worker's first driver, or None before `prepare`."""
        return None if self._info is None else Path(self._info.program)

    @property
    def info(self) -> DriverInfo:
        """The info of the worker's first driver, from the last `prepare` or `ready`."""
        if self._info is None:
            raise RuntimeError("prepare the opener first")
        return self._info

    async def ready(self) -> DriverInfo:
        """Check every driver in use, before a claim. Returns the first one's info. Raises InputError while one of them
        should open no profile."""
        # A copy: a run may bring another driver into use meanwhile.
        found = {name: await driver.ready() for name, driver in list(self._drivers.items())}
        self._info = found[self._config.drivers[0]]
        return self._info

    @property
    def busy(self) -> bool:
        """Whether some driver launches as many browsers as it may at the same time. A browser that waits for its turn
        at a launcher does not count."""
        return any(self._launching[name] >= driver.capacity.launches for name, driver in self._drivers.items())

    def _driver(self, name: str) -> Driver:
        if name not in self._drivers:
            self._drivers[name] = create_driver(name, self._config)
        return self._drivers[name]

    async def request(self, grant: Grant, credentials: Credentials | None, mode: RunMode | None) -> OpenRequest:
        """What the driver is asked to open. Raises Fail if its launcher's token cannot be read."""
        launcher, token = await self.launchers.of(grant.profile)
        return OpenRequest(
            grant=grant,
            run_mode=run_mode(grant, mode),
            credentials=credentials,
            launcher=launcher,
            launcher_token=token,
        )

    async def check(self, request: OpenRequest, *, by_person: bool) -> None:
        """Let the driver check the profile. Manual use outside a lease is recorded; the profile's setting says whether
        the run goes on. Raises NotOpened if not."""
        grant, driver = request.grant, self._driver(request.grant.profile.driver)
        used = (await driver.check(request)).manual_use
        if not used:
            return
        await self._store.record(manual_use(grant.lease, used, grant.profile.manual_use, datetime.now(UTC)))
        await driver.accept_manual_use(request)
        if not by_person and grant.profile.manual_use is not ManualUse.ACCEPT:
            raise NotOpened(Reason.MANUAL_USE_DETECTED, used, give_back=True)

    @asynccontextmanager
    async def start(self, request: OpenRequest, guard: LeaseGuard, folder: Path) -> AsyncIterator[RunningBrowser]:
        """Start the browser. The block opens the session on it; until the block ends, the launch keeps its place."""
        profile = request.grant.profile
        guard.kept.check()
        async with self._turn(profile, request.launcher):
            guard.kept.check()
            yield await self._driver(profile.driver).start(request, terms_of(guard, folder))

    @asynccontextmanager
    async def _turn(self, profile: Profile, launcher: Launcher | None) -> AsyncIterator[None]:
        """Wait for a free launch place, and for a turn at the launcher. Each launcher has its own places: one that is
        paused or slow delays no other."""
        key = (profile.driver, profile.launcher_id)
        if key not in self._places:
            self._places[key] = asyncio.Semaphore(self._driver(profile.driver).capacity.launches)
        async with self._places[key]:
            await self.launchers.turn(launcher)
            self._launching[profile.driver] += 1
            try:
                yield
            finally:
                self._launching[profile.driver] -= 1

    async def status(self, profile: Profile) -> Usage:
        """Which program has the profile open, as its driver knows."""
        return await self._driver(profile.driver).status(profile)

    async def close(self) -> None:
        """Close the drivers. All runs must have ended before."""
        for driver in list(self._drivers.values()):
            await driver.close()


def terms_of(guard: LeaseGuard, folder: Path) -> LeaseTerms:
    """What the browser of a lease must know of it: ids, token, folder, and the deadlines at this moment."""
    lease = guard.kept.lease
    return LeaseTerms(
        lease_id=lease.lease_id,
        token=lease.token,
        run_id=lease.run_id,
        folder=str(folder),
        deadline=guard.kept.deadline,
        kill_at=guard.kept.dead_by,
    )


def run_mode(grant: Grant, mode: RunMode | None = None) -> RunMode:
    """The run mode of this lease's browser: visible only where there is a display. `mode`: for a lease without a job.
    See `check_display` for jobs that need a display."""
    wanted = grant.job.run_mode if grant.job else mode or RunMode.VISIBLE
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return wanted if screen else RunMode.HEADLESS


def check_display(grant: Grant, *, headless_allowed: bool) -> None:
    """Raise NotOpened for a job with run_mode visible on a machine without a display, unless the settings say that it
    may run headless. The job is given back: a worker with a display takes it."""
    if grant.job is None or headless_allowed or run_mode(grant) is grant.job.run_mode:
        return
    raise NotOpened(
        Reason.VISIBLE_NEEDS_DISPLAY,
        "run_mode is visible, and this worker's machine has no display: set DISPLAY (for instance to an Xvfb), start a "
        "worker where there is one, or allow it with LEASEKEEPER_HEADLESS_WITHOUT_DISPLAY=1",
        give_back=True,
    )
