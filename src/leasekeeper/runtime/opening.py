"""From a lease to an open browser, and back: proxy, launch, session; then stop and report.

Owns what the runs of one worker share: evidence place, proxies, sessions, memory, snapshots, health of the machine.
How a browser is launched is in `browser_launches`; why there is none, in `not_opened`.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from leasekeeper.browsers.data_directory import claim_data_dir
from leasekeeper.browsers.probe import Probe
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import BrowserReport, Credentials, DriverInfo, EndCause
from leasekeeper.core.environment import browser_version
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.driver_port import RunningBrowser
from leasekeeper.errors import LeasekeeperError
from leasekeeper.evidence.places import open_place
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.browser_launches import BrowserLaunches, check_display
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.evidence import RunEvidence, redacted
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.machine import Machine
from leasekeeper.runtime.memory import MemoryWatch
from leasekeeper.runtime.not_opened import NotOpened, as_not_opened, given_back, why_launch_failed
from leasekeeper.runtime.proxy_check import ProxyCheck
from leasekeeper.runtime.saving import Snapshots
from leasekeeper.runtime.sessions import Sessions
from leasekeeper.runtime.task_browsers import Session
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)


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
        self._launches = BrowserLaunches(config, store, self.redactor)
        self.machine = machine or Machine(self.data_dir, lambda: self._launches.program, self.place)
        self.proxies = ProxyCheck(store, config.probe_url, config.secrets, self.redactor)
        self.sessions = Sessions(self.data_dir, self.redactor)
        self.memory = MemoryWatch(
            self.sessions, run_bytes=config.run_memory_bytes, playwright_bytes=config.playwright_memory_bytes
        )
        self.snapshots = Snapshots(store, config, self.redactor)
        self._on_launch = on_launch

    async def prepare(self) -> DriverInfo:
        """Check the drivers that this worker uses, and return the first one's info. Raises InputError if this machine
        cannot run one of them."""
        await run_in_thread(claim_data_dir, self.data_dir)
        if any(info.playwright for info in await self._launches.prepare()):
            await self.sessions.prepare()
        return self._launches.info

    @property
    def info(self) -> DriverInfo:
        """See `BrowserLaunches.info`."""
        return self._launches.info

    async def ready(self) -> DriverInfo:
        """See `BrowserLaunches.ready`."""
        return await self._launches.ready()

    @property
    def busy(self) -> bool:
        """See `BrowserLaunches.busy`."""
        return self._launches.busy

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
        launches = self._launches
        request = await launches.request(grant, credentials, mode)
        try:
            await self.snapshots.bring(grant, guard.kept, by_person=by_person)
            await launches.check(request, by_person=by_person)
            async with launches.start(request, guard, evidence.folder) as browser:
                session = await self._open_session(browser, guard, sync=sync)
        except NotOpened as refused:
            with suppress(LeasekeeperError):  # why there is no browser counts, also while the store is away
                await launches.launchers.back_off(request.launcher, refused.reason, refused.retry_after)
            raise
        finally:
            self._on_launch()
        await launches.launchers.back_off(request.launcher)
        opened = Opened(
            profile=grant.profile,
            session=session,
            browser=browser,
            sync=sync,
            throwaway=request.throwaway,
            credentials=credentials,
            probed=probed,
        )
        if request.launcher is not None and not by_person:
            await self._check_launched(opened, grant)
        return opened

    async def _check_launched(self, opened: Opened, grant: Grant) -> None:
        """Close the browser and raise NotOpened if a page of the launcher's browser sees something else than the
        profile declares."""
        try:
            found = await self._launches.launchers.mismatch(opened, grant.proxy, self.config.probe_url)
            if found is None:
                return
            raise NotOpened(Reason.PROFILE_MISMATCH, self.redactor.text(found))
        except Exception as error:
            refused = as_not_opened(error)
            refused.begun, refused.report = True, await self.close_browser(opened)
            raise refused from error

    async def _open_session(self, browser: RunningBrowser, guard: LeaseGuard, *, sync: bool) -> Session:
        """Open a session on a browser that was just started. If that fails, the browser is ended."""
        guard.attach(browser)
        try:
            return await self.sessions.open(browser, sync=sync)
        except BaseException as error:
            report = await self._redacted(browser.stop(revoke="the launch failed"))
            if not isinstance(error, Exception):
                raise
            refused = why_launch_failed(error, browser.refusal(), self.redactor.text, lost=guard.kept.lost is not None)
            refused.begun, refused.report = browser.begun, report
            raise refused from error

    async def refusal(self, error: Exception) -> NotOpened:
        """The error of an opening as NotOpened. If this machine caused it, the job is given back."""
        refused = as_not_opened(error)
        if refused.reason == Reason.LEASE_LOST:
            unwell = None
        elif refused.reason in (Reason.BROWSER_LAUNCH_FAILED, Reason.EVIDENCE_NOT_SAVED):
            unwell = await self.machine.blame_for_opening(error)
        else:
            unwell = self.machine.blame(error)
        if unwell is not None:
            return given_back(refused, Reason.MACHINE_UNWELL, unwell.message)
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
            await self._launches.launchers.refused_calls(opened.profile, report.retry_after)
        return report

    async def _log_user(self, profile: Profile) -> None:
        """Called for a browser that left no report: log which program still uses its profile, if there is one."""
        usage = await self._launches.status(profile)
        if usage.user:
            _LOG.warning("profile %s: its browser left no report, and %s", profile.profile_id, usage.user)

    async def _redacted(self, reporting: Awaitable[BrowserReport | None]) -> BrowserReport | None:
        report = await reporting
        return None if report is None else redacted(report, self.redactor)

    async def close(self) -> None:
        """Close what the runs share. All runs must have ended before."""
        await self.sessions.close()
        await self._launches.close()
