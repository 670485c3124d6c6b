"""Opens the browser of a lease (proxy, driver, session), and closes it with a report.

Only the driver knows what kind of browser it is. Each reason not to open says what becomes of the job: given back
untouched, or ended for that reason.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leasekeeper.browsers.data_directory import claim_data_dir
from leasekeeper.browsers.drivers import create_driver
from leasekeeper.browsers.probe import Probe
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import BrowserReport, Credentials, DriverInfo, EndCause, LaunchRefusal, LeaseTerms
from leasekeeper.core.classify import classify, kind_of, summary
from leasekeeper.core.environment import browser_version
from leasekeeper.core.events import manual_use
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import ManualUse, Profile
from leasekeeper.driver_port import CannotOpen, Driver, OpenRequest, RunningBrowser
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, safe_str
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.places import open_place
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.evidence import RunEvidence, redacted
from leasekeeper.runtime.launchers import Launchers
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.machine import Machine
from leasekeeper.runtime.memory import MemoryWatch
from leasekeeper.runtime.proxy_check import ProxyCheck, ProxyNotReady
from leasekeeper.runtime.saving import Snapshots
from leasekeeper.runtime.sessions import Sessions
from leasekeeper.runtime.task_browsers import Session
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)


class NotOpened(Exception):
    """There is no browser for this run. `give_back`: the job was not touched and keeps its place. `begun`: there may
    have been a browser for a moment; then `report` says how it ended. `engine`, `directory_token`: see `CannotOpen`;
    `retry_after`: see `LaunchRefusal`."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        give_back: bool = False,
        engine: int | None = None,
        directory_token: int | None = None,
        retry_after: timedelta = timedelta(),
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.give_back = give_back
        self.engine = engine
        self.directory_token = directory_token
        self.retry_after = retry_after
        self.begun = False
        self.report: BrowserReport | None = None


@dataclass(slots=True, kw_only=True)
class Opened:
    """A browser that is open under a lease, and the session on it. `throwaway`: the profile itself is not touched."""

    profile: Profile
    session: Session
    browser: RunningBrowser
    sync: bool
    throwaway: bool = False
    credentials: Credentials | None = None
    probed: Probe | None = None
    opened_at: float = field(default_factory=boot_time)
    runs: int = 1
    _environments: dict[tuple[str | None, bool], dict[str, str]] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The browser's version: as its driver knows it, else as its pages say."""
        seen = next(iter(self._environments.values()), {})
        return self.browser.info.version or browser_version(seen) or "unknown"

    async def environment(self, timezone: str | None, *, untouched: bool) -> dict[str, str]:
        """Language, time zone and so on as a page sees them, read once in each browser.

        `untouched`: no site was opened in the page yet. Only such a page counts for a check: a site's page may report
        anything.
        """
        known = self._environments.get((timezone, True)) or self._environments.get((timezone, untouched), {})
        if not known and not self.browser.over:
            known = self._environments[timezone, untouched] = await self.session.environment(timezone)
        return known


class BrowserOpener:
    """Opens and closes the browsers of one worker. What it needs is prepared once and shared by all runs.

    `machine`: the health of this machine, if another opener in this process has it already. `on_launch` is called after
    each launch, also one that failed.
    """

    def __init__(
        self,
        config: BrowserConfig,
        store: Store,
        on_launch: Callable[[], None] = lambda: None,
        machine: Machine | None = None,
    ) -> None:
        self.config = config
        self.data_dir = Path(config.data_dir).absolute()
        self.redactor = Redactor()
        self.place = open_place(config, self.redactor)
        self.machine = machine or Machine(self.data_dir, self._program, self.place)
        self.proxies = ProxyCheck(store, config.probe_url, config.secrets, self.redactor)
        self.sessions = Sessions(self.data_dir, self.redactor)
        self.memory = MemoryWatch(
            self.sessions, run_bytes=config.run_memory_bytes, playwright_bytes=config.playwright_memory_bytes
        )
        self.snapshots = Snapshots(store, config, self.redactor)
        self._launchers = Launchers(store, self.redactor)
        self._store = store
        self._on_launch = on_launch
        self._info: DriverInfo | None = None
        self._drivers: dict[str, Driver] = {}
        self._places: dict[tuple[str, str | None], asyncio.Semaphore] = {}
        self._launching: Counter[str] = Counter()

    async def prepare(self) -> DriverInfo:
        """Check the drivers that this worker uses, and return the first one's info. Raises InputError if this machine
        cannot run one of them."""
        await run_in_thread(claim_data_dir, self.data_dir)
        found = [await self._driver(name).prepare() for name in self.config.drivers]
        if any(info.playwright for info in found):
            await self.sessions.prepare()
        self._info = found[0]
        return self._info

    def _program(self) -> Path | None:
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
        self._info = found[self.config.drivers[0]]
        return self._info

    @property
    def busy(self) -> bool:
        """Whether some driver launches as many browsers as it may at the same time. A browser that waits for its turn
        at a launcher does not count."""
        return any(self._launching[name] >= driver.capacity.launches for name, driver in self._drivers.items())

    def _driver(self, name: str) -> Driver:
        if name not in self._drivers:
            self._drivers[name] = create_driver(name, self.config)
        return self._drivers[name]

    async def open(
        self,
        grant: Grant,
        guard: LeaseGuard,
        evidence: RunEvidence,
        *,
        sync: bool,
        by_person: bool = False,
        mode: RunMode | None = None,
    ) -> Opened:
        """Open the browser of a lease. Raises NotOpened or a LeasekeeperError; then no process of the browser is left.

        `by_person`: a person opens the profile, and manual use of it does not keep them out. `mode`: the run mode of a
        lease without a job.
        """
        check_display(grant, headless_allowed=self.config.headless_without_display)
        credentials = await self.proxies.credentials(grant)
        probed = await self.proxies.probe_before_launch(grant.proxy, credentials)
        driver = self._driver(grant.profile.driver)
        launcher, token = await self._launchers.of(grant.profile)
        request = OpenRequest(
            grant=grant,
            run_mode=run_mode(grant, mode),
            credentials=credentials,
            launcher=launcher,
            launcher_token=token,
        )
        try:
            await self.snapshots.bring(grant, guard.kept, by_person=by_person)
            await self._check(driver, request, by_person=by_person)
            guard.kept.check()
            async with self._launch(grant.profile, launcher):
                guard.kept.check()
                browser = await driver.start(request, terms_of(guard, evidence.folder))
                session = await self._open_session(browser, guard, sync=sync)
        except NotOpened as refused:
            await self._launchers.back_off(launcher, refused.reason, refused.retry_after)
            raise
        finally:
            self._on_launch()
        await self._launchers.back_off(launcher)
        opened = Opened(
            profile=grant.profile,
            session=session,
            browser=browser,
            sync=sync,
            throwaway=request.throwaway,
            credentials=credentials,
            probed=probed,
        )
        if launcher is not None and not by_person:
            await self._check_launched(opened, grant)
        return opened

    @asynccontextmanager
    async def _launch(self, profile: Profile, launcher: Launcher | None) -> AsyncIterator[None]:
        """Wait for a free launch place, and for a turn at the launcher. Each launcher has its own places: one that is
        paused or slow delays no other."""
        key = (profile.driver, profile.launcher_id)
        if key not in self._places:
            self._places[key] = asyncio.Semaphore(self._driver(profile.driver).capacity.launches)
        async with self._places[key]:
            await self._launchers.turn(launcher)
            self._launching[profile.driver] += 1
            try:
                yield
            finally:
                self._launching[profile.driver] -= 1

    async def _check_launched(self, opened: Opened, grant: Grant) -> None:
        """Close the browser and raise NotOpened if a page of the launcher's browser sees something else than the
        profile declares."""
        try:
            found = await self._launchers.mismatch(opened, grant.proxy, self.config.probe_url)
            if found is None:
                return
            raise NotOpened(Reason.PROFILE_MISMATCH, self.redactor.text(found))
        except Exception as error:
            refused = as_not_opened(error)
            refused.begun, refused.report = True, await self.close_browser(opened)
            raise refused from error

    async def _check(self, driver: Driver, request: OpenRequest, *, by_person: bool) -> None:
        """Let the driver check the profile. Manual use outside a lease is recorded; the profile's setting says whether
        the run goes on. Raises NotOpened if not."""
        grant = request.grant
        used = (await driver.check(request)).manual_use
        if not used:
            return
        await self._store.record(manual_use(grant.lease, used, grant.profile.manual_use, datetime.now(UTC)))
        await driver.accept_manual_use(request)
        if not by_person and grant.profile.manual_use is not ManualUse.ACCEPT:
            raise NotOpened(Reason.MANUAL_USE_DETECTED, used, give_back=True)

    async def _open_session(self, browser: RunningBrowser, guard: LeaseGuard, *, sync: bool) -> Session:
        """Open a session on a browser that was just started. If that fails, the browser is ended."""
        guard.attach(browser)
        try:
            return await self.sessions.open(browser, sync=sync)
        except BaseException as error:
            report = await self._redacted(browser.stop(revoke="the launch failed"))
            if not isinstance(error, Exception):
                raise
            refused = self._not_opened(error, browser.refusal(), lost=guard.kept.lost is not None)
            refused.begun, refused.report = browser.begun, report
            raise refused from error

    def _not_opened(self, error: Exception, refusal: LaunchRefusal | None, *, lost: bool) -> NotOpened:
        """Why a launch failed: the keeper's reason if there is one, else Playwright's error."""
        if refusal is None:
            reason = classify(kind_of(error), str(error))
            text = summary(str(error), self.redactor.text) or type(error).__name__
            failed = reason if reason != Reason.TASK_ERROR else Reason.BROWSER_LAUNCH_FAILED
            return NotOpened(failed, f"the browser could not be started: {text}")
        if refusal.reason != Reason.LEASE_LOST:
            # A launcher that is unavailable is not the job's failure.
            away = refusal.reason == Reason.LAUNCHER_UNAVAILABLE
            return NotOpened(refusal.reason, refusal.message, give_back=away, retry_after=refusal.retry_after)
        # The lease was lost before there was a browser: nothing happened to the profile, and the job keeps its place.
        # If only the keeper says so, the launch counts as failed: otherwise it would be retried without end.
        reason = Reason.LEASE_LOST if lost else Reason.BROWSER_LAUNCH_FAILED
        return NotOpened(reason, refusal.message, give_back=lost)

    def refusal(self, error: Exception) -> NotOpened:
        """The error of an opening as NotOpened. If this machine caused it, the job is given back."""
        refused = as_not_opened(error)
        before_task = refused.reason in (Reason.BROWSER_LAUNCH_FAILED, Reason.EVIDENCE_NOT_SAVED)
        lost = refused.reason == Reason.LEASE_LOST
        unwell = None if lost else self.machine.blame(error, before_task=before_task)
        if unwell is not None:
            return _given_back(refused, Reason.MACHINE_UNWELL, unwell.message)
        if not isinstance(error, NotOpened | LeasekeeperError | OSError):
            _LOG.error("no browser was opened: an error of Leasekeeper's own", exc_info=error)
        return refused

    async def report_of(self, browser: RunningBrowser, seconds: float) -> BrowserReport | None:
        """Wait up to `seconds` for the browser's end. Returns its report, or None if there is none."""
        return await self._redacted(browser.ended(seconds))

    async def close_browser(
        self, opened: Opened, *, revoke: str | None = None, with_evidence: bool = False
    ) -> BrowserReport | None:
        """Close a browser and return its report, or None if there is none. `revoke`: why it must end at once, whatever
        it is doing. `with_evidence`: the keeper takes URL and screenshot."""
        failed = self.sessions.leave(opened.session, opened.browser, self.config.close_after.total_seconds())
        try:
            report = await self._redacted(opened.browser.stop(revoke=revoke, with_evidence=with_evidence))
            failed.set_result(report is None or report.cause is EndCause.DRIVER_GONE)
        finally:
            failed.cancel()
        if report is None:
            await self._log_user(opened.profile)
        elif report.retry_after:
            await self._launchers.refused_calls(opened.profile, report.retry_after)
        return report

    async def _log_user(self, profile: Profile) -> None:
        """Called for a browser that left no report: log which program still uses its profile, if there is one."""
        usage = await self._driver(profile.driver).status(profile)
        if usage.user:
            _LOG.warning("profile %s: its browser left no report, and %s", profile.profile_id, usage.user)

    async def _redacted(self, reporting: Awaitable[BrowserReport | None]) -> BrowserReport | None:
        report = await reporting
        return None if report is None else redacted(report, self.redactor)

    async def close(self) -> None:
        """Close what the runs share. All runs must have ended before."""
        await self.sessions.close()
        for driver in list(self._drivers.values()):
            await driver.close()


def _given_back(refused: NotOpened, reason: str, message: str) -> NotOpened:
    """The same refusal for another reason, with the job given back: it keeps its place and its attempts."""
    answer = NotOpened(reason, message, give_back=True, engine=refused.engine, directory_token=refused.directory_token)
    answer.begun, answer.report = refused.begun, refused.report
    return answer


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


def as_not_opened(error: Exception) -> NotOpened:
    """Any error of an opening as NotOpened."""
    match error:
        case NotOpened():
            return error
        case EvidenceNotSaved():
            return NotOpened(Reason.EVIDENCE_NOT_SAVED, str(error))
        case CannotOpen():
            return NotOpened(
                error.reason,
                error.detail,
                give_back=error.give_back,
                engine=error.engine,
                directory_token=error.directory_token,
            )
        case ProxyNotReady():
            return NotOpened(error.reason, error.detail, give_back=True)
        case Fail():
            # Without the key of a secret this worker cannot run the job, but another may.
            return NotOpened(error.reason, error.detail, give_back=error.reason == Reason.SECRET_UNAVAILABLE)
        case LeaseLost():
            return NotOpened(Reason.LEASE_LOST, error.message, give_back=True)
        case LeasekeeperError():
            return NotOpened(Reason.BROWSER_LAUNCH_FAILED, error.message)
        case OSError():
            return NotOpened(Reason.BROWSER_LAUNCH_FAILED, str(error))
    return NotOpened(Reason.BROWSER_LAUNCH_FAILED, f"{type(error).__name__}: {safe_str(error)}")
