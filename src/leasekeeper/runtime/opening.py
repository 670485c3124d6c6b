"""From a lease to an open browser: the directory looked at, the proxy asked, the keeper given its orders, the launch.

Each reason not to open says what becomes of the job: given back untouched, or ended for that reason.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from leasekeeper.aside import aside
from leasekeeper.browsers.checkout import (
    OWN_FOLDER,
    Condition,
    Inspection,
    StrangeDirectory,
    claim_data_dir,
    claim_directory,
    directory_of,
    inspect,
    keep_seal,
    last_engine,
    refuse_empty,
    refuse_foreign,
    seal,
)
from leasekeeper.browsers.copying import copy_profile
from leasekeeper.browsers.finding import Found, find_browser, version_of
from leasekeeper.browsers.keeper.processes import users_of
from leasekeeper.browsers.launching import forget_tabs, launch_options
from leasekeeper.browsers.link import KeeperLink, KeeperReport, LaunchRefused, Orders
from leasekeeper.browsers.probe import Probe, ProbeResult, probe
from leasekeeper.browsers.reports import ReportUnreadable
from leasekeeper.browsers.secrets import Credentials, resolve_credentials
from leasekeeper.browsers.wrapper import write_wrapper
from leasekeeper.config import BrowserConfig
from leasekeeper.core.classify import classify, kind_of, summary
from leasekeeper.core.events import manual_use
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ManualUse
from leasekeeper.errors import Fail, InputError, LeasekeeperError, LeaseLost
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.drivers import Driver, write_starter
from leasekeeper.runtime.gathering import RunEvidence, redacted
from leasekeeper.runtime.lifeline import Lifeline
from leasekeeper.runtime.sessions import AsyncSession, Host, Session, SyncSession
from leasekeeper.runtime.testimony import Ledger

_LOG = logging.getLogger(__name__)


class NotOpened(Exception):
    """There is no browser for this run. `give_back`: the job was not touched and keeps its place. `begun`: a keeper
    was there, so that there may have been a browser for a moment. `engine`, `fence`: what the directory told."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        give_back: bool = False,
        engine: int | None = None,
        fence: int | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.give_back = give_back
        self.engine = engine
        self.fence = fence
        self.begun = False


@dataclass(slots=True, kw_only=True)
class Opened:
    """A browser that is open under a lease. `copy` is a throwaway directory, deleted when it closes."""

    session: Session
    link: KeeperLink
    browser: Found
    directory: Path
    sync: bool
    copy: Path | None = None
    credentials: Credentials | None = None
    probed: Probe | None = None
    opened_at: float = field(default_factory=boot_time)
    runs: int = 1
    _environments: dict[tuple[str | None, bool], dict[str, str]] = field(default_factory=dict)

    @property
    def engine(self) -> int | None:
        """The version that the profile's own directory has seen: a copy tells nothing of it."""
        return self.browser.engine if self.copy is None else None

    async def environment(self, timezone: str | None, *, untouched: bool) -> dict[str, str]:
        """Language, time zone and so on as a page sees them, asked once in each browser.

        `untouched`: no site has had the page yet. Only such a page counts for a check: a site's own may say anything.
        """
        known = self._environments.get((timezone, True)) or self._environments.get((timezone, untouched), {})
        if not known and not self.link.over:
            known = self._environments[timezone, untouched] = await self.session.environment(timezone)
        return known


class Kit:
    """What a worker needs to open browsers: found once, shared by all its runs."""

    def __init__(self, config: BrowserConfig, store: Store, on_launch: Callable[[], None] = lambda: None) -> None:
        self.config = config
        self._on_launch = on_launch
        self.store = store
        self.data_dir = Path(config.data_dir).absolute()
        self.ledger = Ledger(self.data_dir)
        self.runs_dir = self.ledger.runs_dir
        self.redactor = Redactor()
        self.launches = asyncio.Semaphore(config.launch_together)
        self._driver = Driver()
        self._hosts: list[Host] = []
        self._leaving: set[asyncio.Future[None]] = set()
        self._browser: Found | None = None
        self._wrapper: Path | None = None

    async def prepare(self) -> Found:
        """Find the browser and write the keeper's wrapper. Raises a clear error if this machine cannot run any."""
        if self._browser is None:
            await aside(claim_data_dir, self.data_dir)
            try:
                self._wrapper = await aside(write_wrapper, self.data_dir)
                self._driver.starter = write_starter(self.data_dir)
            except OSError as error:
                raise InputError(f"the data folder {self.data_dir} cannot be written to: {error.strerror}") from error
            self._browser = await aside(find_browser, self.config.browser)
        return self._browser

    async def look_again(self) -> Found:
        """The browser as it is now: it may have been upgraded since it was found."""
        found = self.browser
        self._browser = replace(found, version=await aside(version_of, found.path))
        return self._browser

    @property
    def browser(self) -> Found:
        if self._browser is None:
            raise RuntimeError("prepare the kit first")
        return self._browser

    def session(self, *, sync: bool) -> Session:
        if not sync:
            return AsyncSession(self._driver, self.redactor)
        return SyncSession(self._hosts.pop() if self._hosts else Host(self._driver.starter), self.redactor)

    async def take_back(self, session: Session, *, failed: bool = False) -> None:
        """A session is over: its thread, if it had one and all went well, may serve another."""
        if isinstance(session, SyncSession):
            if session.host.stuck or failed:
                await aside(session.host.close)
            else:
                self._hosts.append(session.host)

    async def close(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._driver.stop()
        for host in self._hosts:
            await aside(host.close)

    async def open(
        self, grant: Grant, lifeline: Lifeline, evidence: RunEvidence, *, sync: bool, by_person: bool = False
    ) -> Opened:
        """Open the browser of a lease. Raises NotOpened; then no process of it is left.

        `by_person`: somebody who opens a profile by hand is not kept out because somebody used it by hand.
        """
        credentials = await self._credentials(grant)
        probed = await self.probe(grant, credentials)
        if probed is not None and probed.result is not ProbeResult.OK:
            failed = probed.result is ProbeResult.FAILED
            raise NotOpened("PROXY_UNREACHABLE" if failed else "PROXY_REGION_MISMATCH", probed.detail)
        copy = evidence.folder / "profile" if _throwaway(grant) else None
        try:
            directory, sealed = await self._directory(grant, lifeline, copy, by_person=by_person)
            async with self.launches:
                lifeline.hold.check()
                link = self._link(grant, lifeline, directory, evidence)
                session = self.session(sync=sync)
                try:
                    await self._launch(session, link, grant, directory, credentials)
                except BaseException as error:
                    await self._abandon(link, sealed=sealed)
                    await self.take_back(session, failed=True)
                    if isinstance(error, Exception):
                        refused = _not_opened(error, link, self.redactor)
                        refused.begun = link.keeper_pid is not None
                        raise refused from error
                    raise
        except BaseException:
            await discard(copy)
            raise
        finally:
            self._on_launch()
        return Opened(
            session=session,
            link=link,
            browser=self.browser,
            directory=directory,
            copy=copy,
            sync=sync,
            credentials=credentials,
            probed=probed,
        )

    async def _directory(
        self, grant: Grant, lifeline: Lifeline, copy: Path | None, *, by_person: bool
    ) -> tuple[Path, bool]:
        """The profile's own directory, or a throwaway copy of it for a run that shares it with others.

        With it, whether its seal tells of manual use: not in a copy, nor after a close that was not proven.
        """
        place = directory_of(grant.profile, self.data_dir)
        try:
            own = await aside(claim_directory, place)
            seen = await aside(inspect, own, engine=(await self.look_again()).engine)
            if copy is None:
                await aside(refuse_foreign, own, token=grant.lease.token, run_id=grant.lease.run_id)
            await aside(refuse_empty, own, opened_by=grant.engine)
        except StrangeDirectory as strange:
            raise NotOpened(strange.reason, strange.detail, give_back=True, fence=strange.fence) from strange
        except Fail as refused:
            newer = last_engine(place) if refused.reason == "PROFILE_NEWER_THAN_BROWSER" else None
            raise NotOpened(refused.reason, refused.detail, give_back=newer is not None, engine=newer) from refused
        if seen.manual_use:
            await self._manual_use(grant, own, seen, accepted=by_person)
        lifeline.hold.check()
        if copy is None:
            await aside(forget_tabs, own)
            return own, seen.condition is not Condition.UNSEALED
        await aside(copy_profile, own, copy)
        return copy, False

    async def _manual_use(self, grant: Grant, directory: Path, seen: Inspection, *, accepted: bool) -> None:
        """Somebody used the profile outside a lease: say so, then go on or leave it to a person, as configured."""
        accepted = accepted or grant.profile.manual_use is ManualUse.ACCEPT
        await self.store.record(manual_use(grant.lease, seen.words, grant.profile.manual_use, datetime.now(UTC)))
        # What was reported once is known: the next run must not find it again.
        await aside(seal, directory)
        if not accepted:
            raise NotOpened("MANUAL_USE_DETECTED", seen.words, give_back=True)

    async def _credentials(self, grant: Grant) -> Credentials | None:
        try:
            found = await aside(resolve_credentials, grant.proxy.credentials if grant.proxy else None)
        except LeasekeeperError as error:
            raise NotOpened("PROXY_UNREACHABLE", error.message) from error
        if found is not None:
            self.redactor.add(found.password, found.basic)
        return found

    async def probe(self, grant: Grant, credentials: Credentials | None) -> Probe | None:
        """Ask through the profile's proxy, if a probe is configured."""
        url, proxy = self.config.probe_url, grant.proxy
        if proxy is None or url is None:
            return None
        found = await aside(probe, proxy.server, url, credentials=credentials, expected=proxy.region)
        return replace(found, seen=self.redactor.text(found.seen), detail=self.redactor.text(found.detail))

    def _link(self, grant: Grant, lifeline: Lifeline, directory: Path, evidence: RunEvidence) -> KeeperLink:
        lease, hold = grant.lease, lifeline.hold
        link = KeeperLink(
            Orders(
                browser=str(self.browser.path),
                user_data_dir=str(directory),
                profile_id=lease.profile_id,
                lease_id=lease.lease_id,
                token=lease.token,
                run_id=lease.run_id,
                folder=str(evidence.folder),
                deadline=hold.deadline,
                kill_at=hold.dead_by,
                close_seconds=self.config.close_after.total_seconds(),
            )
        )
        lifeline.tie(link)
        return link

    async def _launch(
        self, session: Session, link: KeeperLink, grant: Grant, directory: Path, credentials: Credentials | None
    ) -> None:
        launch = launch_options(
            grant.profile,
            proxy=grant.proxy,
            credentials=credentials,
            directory=directory,
            executable=self._wrapper or Path("keeper"),
            run_mode=run_mode(grant),
            environ=os.environ,
            root=os.geteuid() == 0,
            extra_env=link.env,
            extra_args=self.config.browser_args,
        )
        try:
            await session.open(launch)
        except Exception:
            if link.keeper_pid is not None or not await self._driver.replace_if_dead():
                raise
            await session.open(launch)

    async def report_of(self, link: KeeperLink, seconds: float) -> KeeperReport | None:
        """Wait so long for the keeper's end, and return its report if there is one that can be read."""
        try:
            report = await link.ended(seconds)
            return None if report is None else redacted(report, self.redactor)
        except ReportUnreadable as error:
            _LOG.warning("%s", error)
            return None

    async def driver_is_dead(self) -> bool:
        """Whether the driver of the async sessions has ended or does not answer. The next launch then gets another."""
        return await self._driver.replace_if_dead()

    async def close_browser(
        self, opened: Opened, *, fence: str | None = None, with_evidence: bool = False
    ) -> KeeperReport | None:
        """Close a browser and return its keeper's word on how it ended; with `fence`, whatever it is doing."""
        patience = self.config.close_after.total_seconds()
        if fence is not None:
            opened.link.fence(fence)
        else:
            opened.link.ask_to_close(with_evidence=with_evidence)
        failed = self._leave(opened)
        try:
            report = await self.report_of(opened.link, patience * 2)
            if report is None and not opened.link.over:
                opened.link.fence("the browser did not close")
                report = await self.report_of(opened.link, patience * 3)
            if report is None:
                await aside(kill_own, opened.link)
            opened.link.close()
            failed.set_result(report is None or report.cause == "driver_gone")
        finally:
            failed.cancel()
        await discard(opened.copy)
        if report is not None and report.proof.holds and opened.copy is None:
            with suppress(OSError):
                await aside(seal, opened.directory)
        return report

    def _leave(self, opened: Opened) -> "asyncio.Future[bool]":
        """The keeper closes the browser: let Playwright notice, and clear up. Nobody waits for that but the kit's end.

        The answer is to be told whether that failed: then the session's thread, if it has one, serves no other.
        """
        failed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def leave() -> None:
            left = False
            with suppress(Exception):
                await opened.link.closing(self.config.close_after.total_seconds())
                await opened.session.close()
                left = True
            await asyncio.wait({failed})
            await self.take_back(opened.session, failed=not left or failed.cancelled() or failed.result())

        leaving = asyncio.ensure_future(leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return failed

    async def _abandon(self, link: KeeperLink, *, sealed: bool) -> None:
        """The launch did not work: whatever was started of it ends now. A seal that no browser broke stays valid."""
        link.fence("the launch failed")
        if link.keeper_pid is not None:
            report = await self.report_of(link, self.config.close_after.total_seconds() * 3)
            if report is None:
                await aside(kill_own, link)
            elif sealed and report.no_browser:
                with suppress(OSError):
                    await aside(keep_seal, Path(link.orders.user_data_dir), link.orders.token)
        link.close()


def _throwaway(grant: Grant) -> bool:
    """Whether the run shares its profile, and works in a copy of it."""
    return grant.lease.mode is Mode.SHARED or grant.profile.disposable


def kill_own(link: KeeperLink) -> None:
    """The last resort, when a keeper gave no answer: nothing may go on in a directory whose lease ends now.

    Unless somebody else has it by now: the directory's fence says under which lease it was opened last.
    """
    directory = Path(link.orders.user_data_dir)
    try:
        fence = json.loads((directory / OWN_FOLDER / "fence").read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(fence, dict) or fence.get("lease_id") != link.orders.lease_id:
        return
    for pid in users_of(str(directory)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def run_mode(grant: Grant) -> RunMode:
    """Visible only where somebody could see it."""
    wanted = grant.job.run_mode if grant.job else RunMode.VISIBLE
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return wanted if screen else RunMode.HEADLESS


def _not_opened(error: Exception, link: KeeperLink, redactor: Redactor) -> NotOpened:
    if isinstance(error, NotOpened):
        return error
    refused = error if isinstance(error, LaunchRefused) else None
    with suppress(Exception):
        refused = refused or link.refusal()
    if refused is not None:
        reason = {"STALE_TOKEN": "PROFILE_IN_USE_ELSEWHERE", "BAD_ORDERS": "BROWSER_LAUNCH_FAILED"}
        # A lease that was lost before there was a browser: nothing happened to the profile.
        lost = refused.reason == "LEASE_LOST"
        return NotOpened(reason.get(refused.reason, refused.reason), refused.message, give_back=lost)
    found = classify(kind_of(error), str(error))
    reason_name = found if found != "TASK_ERROR" else "BROWSER_LAUNCH_FAILED"
    words = summary(str(error), redactor.text) or type(error).__name__
    return NotOpened(reason_name, f"the browser could not be started: {words}")


async def discard(copy: Path | None) -> None:
    """Delete a throwaway directory."""
    if copy is not None:
        import shutil

        await aside(shutil.rmtree, copy, True)


@asynccontextmanager
async def prepared(config: BrowserConfig, store: Store) -> AsyncIterator[Kit]:
    """A kit that is ready, and closed at the end."""
    kit = Kit(config, store)
    try:
        await kit.prepare()
        yield kit
    finally:
        await kit.close()


def as_not_opened(error: Exception) -> NotOpened:
    """Why no browser was opened, whatever came in the way."""
    match error:
        case NotOpened():
            return error
        case EvidenceNotSaved():
            return NotOpened("EVIDENCE_NOT_SAVED", str(error))
        case Fail():
            return NotOpened(error.reason, error.detail)
        case LeaseLost():
            return NotOpened("LEASE_LOST", error.message, give_back=True)
        case LeasekeeperError():
            return NotOpened("BROWSER_LAUNCH_FAILED", error.message)
    return NotOpened("BROWSER_LAUNCH_FAILED", str(error))
