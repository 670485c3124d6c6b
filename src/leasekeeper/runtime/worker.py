"""A worker: claims jobs that it can start, runs them, and stops without leaving anything behind.

One loop claims; each grant is a task of its own. The worker reports to the store at intervals, so that the store knows
which tasks are offered.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from leasekeeper.app import App
from leasekeeper.browsers.machine_name import machine_name
from leasekeeper.config import Config
from leasekeeper.core.calls import LONG_POLL
from leasekeeper.core.ids import WorkerId, is_id
from leasekeeper.core.profiles import Lane
from leasekeeper.core.settle import Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import EvidenceUnavailable, InputError, LeasekeeperError, Problem, StoreError
from leasekeeper.evidence.delivery import EvidenceNotDelivered
from leasekeeper.ports import ClaimRequest, Grant, Store
from leasekeeper.runtime.child_tasks import keep_track
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import unknown_here
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.launcher_checks import LauncherAsker
from leasekeeper.runtime.lost_runs import Ledger, LostRunReports
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.overdue_browsers import OverdueBrowsers
from leasekeeper.runtime.proxy_checks import ProxyAsker
from leasekeeper.runtime.runner import Runner
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.stores import split
from leasekeeper.threads import run_in_thread
from leasekeeper.version import __version__

_LOG = logging.getLogger(__name__)

TROUBLE_SECONDS = 1.0
GIVE_BACK_TRIES = 5
# While no proxy is in trouble, the pause between checks grows up to this many times.
SELDOM = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker process joins a fleet."""

    concurrency: int = 1
    pool: str = "default"
    worker_id: str | None = None

    def check(self) -> None:
        problems = []
        if not 1 <= self.concurrency <= 1000:
            problems.append(Problem("concurrency", "must be from 1 to 1000"))
        if self.worker_id is not None and not is_id(self.worker_id):
            problems.append(Problem("worker_id", f"{self.worker_id!r} is not a name for a worker"))
        if not is_id(self.pool):
            problems.append(Problem("pool", f"{self.pool!r} is not a pool's name"))
        if problems:
            raise InputError("the worker did not start", problems)


def _check_reasons(app: App) -> None:
    """Raise InputError for a detector whose reason is unknown. Checked when the worker starts: an app may register
    detectors and reasons in any order."""
    own = [detector for task in app.tasks.values() for detector in task.detectors]
    faults = {each.reason: unknown_here(each.reason, app.reasons) for each in (*app.detectors, *own)}
    problems = [Problem("detector", fault) for fault in faults.values() if fault]
    if problems:
        raise InputError("the worker did not start", problems)


class Worker:
    """One worker process. `run` returns when it was asked to stop and everything has ended."""

    def __init__(
        self,
        app: App,
        store: Store,
        config: Config,
        options: WorkerOptions,
        *,
        open_store: Callable[[], Awaitable[Store]],
        stop: Shutdown,
    ) -> None:
        options.check()
        if not app.tasks:
            raise InputError("the app has no tasks; register one with @app.task")
        _check_reasons(app)
        self._app = app
        self._store = store
        self._config = config
        self._options = options
        self._stop = stop
        # A server polls its store for all who wait there: more frequent requests to the server would not help.
        remote = split(config.store)[0] == "http"
        self._idle_wait = max(config.poll_every, LONG_POLL) if remote else config.poll_every
        host = socket.gethostname()
        self.worker_id = WorkerId(options.worker_id or f"{host}-{os.getpid()}"[:128])
        self.incarnation = f"{self.worker_id}-{os.urandom(6).hex()}"[-128:]
        self._heartbeat = Heartbeat(open_store, config.policy.timing)
        self.trouble = self._heartbeat.trouble
        self._running: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._opener = BrowserOpener(config.browsers, store, on_launch=self._freed.set)
        self._report_now = asyncio.Event()
        self._machine_name: str | None = None
        self.machine = self._opener.machine
        self.machine.watch(self._report_now.set)

    @property
    def running(self) -> int:
        """How many runs are in progress."""
        return len(self._running)

    async def run(self) -> None:
        """Work until asked to stop."""
        browser = await self._opener.prepare()
        self._machine_name = await run_in_thread(machine_name, self._config.browsers)
        keep_track(asyncio.get_running_loop())
        self._request = ClaimRequest(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            tasks=tuple(self._app.tasks),
            pool=self._options.pool,
            engine=browser.engine,
            machine=self._machine_name,
        )
        self._runner = Runner(
            self._app,
            self._store,
            self._opener,
            self._heartbeat,
            self._stop,
            self._request,
        )
        overdue = OverdueBrowsers(Ledger(self._opener.data_dir), self._config.policy.timing)
        duties = (
            self._report_often(),
            self._deliver_often(),
            self._ask_proxies_often(),
            self._ask_launchers_often(),
            overdue.run(self._store, self._config.sweep_every, self.trouble),
        )
        background = [asyncio.create_task(duty) for duty in duties]
        _LOG.info(
            "worker %s: %s %s, pool %s",
            self.worker_id,
            browser.program,
            browser.version or "(version unknown)",
            self._options.pool,
        )
        try:
            await self._check_evidence()
            await self._claim_until_stopped()
            await self._drain()
        finally:
            for task in (*background, *self._running):
                task.cancel()
            await asyncio.gather(*background, *self._running, return_exceptions=True)
            await self._opener.close()
            await run_in_thread(self._heartbeat.close)
            with suppress(LeasekeeperError):
                await self._report(stopping=True)

    async def _claim_until_stopped(self) -> None:
        while not self._stop.asked.is_set():
            self.machine.check_room()
            if self.machine.unwell is not None:
                await self._until_well()
                continue
            free = self._options.concurrency - len(self._running)
            if free < 1 or self._opener.busy:
                await self._pause(self._config.poll_every)
                continue
            sent_at = boot_time()
            try:
                self._heartbeat.start()
                engine = (await self._opener.ready()).engine
                limit = 1 if self.machine.on_trial else min(free, self._config.browsers.launch_together)
                grants = await self._store.claim(replace(self._request, limit=limit, engine=engine))
            except Exception as error:  # noqa: BLE001 - what runs must not end because nothing more can be claimed
                if not isinstance(error, StoreError) and self.machine.blame(error) is not None:
                    continue
                self.trouble.again("no claim", error)
                await self._pause(timedelta(seconds=TROUBLE_SECONDS))
                continue
            self.trouble.over("no claim")
            if self._stop.asked.is_set():
                await self._give_back(grants)
                return
            _LOG.debug("asked pool %s for %d jobs, got %d", self._options.pool, limit, len(grants))
            for grant in grants:
                self._start(grant, sent_at)
            if not grants:
                await self._wait_for_work()

    async def _check_evidence(self) -> None:
        """Mark the machine unwell if evidence cannot be delivered: the worker claims nothing then, as with a full
        disk."""
        try:
            if self._opener.place is not None:
                await self._opener.place.check()
        except EvidenceUnavailable as error:
            self.machine.blame(EvidenceNotDelivered(errno.EREMOTEIO, error.message))

    async def _until_well(self) -> None:
        """Wait until the next check of the machine is due, and make it. The end of a run does not make it earlier."""
        while not self._stop.asked.is_set() and (left := self.machine.seconds_to_check) > 0:
            await self._pause(timedelta(seconds=left))
        if not self._stop.asked.is_set():
            await self._forget_cleared()
            await self.machine.check()

    async def _forget_cleared(self) -> None:
        """No longer count profiles as missing that a person has cleared: they may begin with an empty directory."""
        missing = self.machine.unwell.missing if self.machine.unwell is not None else None
        for profile_id in missing.profile_ids if missing is not None else ():
            with suppress(LeasekeeperError):
                lane = await self._store.get(Lane, profile_id)
                if missing is not None and lane.engine is None:
                    missing.cleared(profile_id)

    async def _wait_for_work(self) -> None:
        waiting = asyncio.ensure_future(self._store.wait(self._options.pool, self._idle_wait))
        stopping = asyncio.ensure_future(self._stop.asked.wait())
        done, pending = await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if waiting in done and (error := waiting.exception()) is not None:
            self.trouble.again("cannot wait for work", error)
            await self._pause(timedelta(seconds=TROUBLE_SECONDS))

    def _start(self, grant: Grant, sent_at: float) -> None:
        task = asyncio.create_task(self._runner.run(grant, sent_at))
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a run ended in an error of Leasekeeper's own; its lease will expire", exc_info=task.exception())

    async def _pause(self, limit: timedelta) -> None:
        """Wait until a browser was launched, a run has ended or a stop was requested, but not longer than `limit`."""
        self._freed.clear()
        waits = {asyncio.ensure_future(self._freed.wait()), asyncio.ensure_future(self._stop.asked.wait())}
        _, pending = await asyncio.wait(waits, timeout=limit.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        for future in pending:
            future.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _drain(self) -> None:
        """Wait for the runs in progress: each knows by itself that a stop was requested."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _give_back(self, grants: list[Grant]) -> None:
        """Give back jobs that were claimed at the moment of the stop: they keep their places."""
        for _ in range(GIVE_BACK_TRIES if grants else 0):
            try:
                await self._store.settle([Ending(ref=grant.lease.ref, not_started=True) for grant in grants])
            except LeasekeeperError as error:
                _LOG.warning("%d jobs could not be given back, trying again: %s", len(grants), error)
                await asyncio.sleep(TROUBLE_SECONDS)
            else:
                return

    async def _report_often(self) -> None:
        every, what = self._config.policy.worker_ttl.total_seconds() / 3, f"worker {self.worker_id} could not report"
        while True:
            try:
                await self._report(stopping=False)
                self.trouble.over(what)
            except Exception as error:  # noqa: BLE001 - nobody else would report
                self.trouble.again(what, error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._report_now.wait(), every)
            self._report_now.clear()

    async def _deliver_often(self) -> None:
        """Deliver the reports of keepers on this machine about runs whose workers are gone."""
        reports, what = (
            LostRunReports(self._opener.data_dir, self._opener.place),
            "reports of lost runs were not delivered",
        )
        while True:
            try:
                await reports.deliver(self._store)
                self.trouble.over(what)
            except Exception as error:  # noqa: BLE001 - nobody else would deliver them
                self.trouble.again(what, error)
            await asyncio.sleep(self._config.sweep_every.total_seconds())

    async def _ask_proxies_often(self) -> None:
        """Check proxies in trouble again: jobs wait for them. Less often while all are well."""
        asker, what = ProxyAsker(self._store, self._config.browsers), "proxies in trouble were not asked"
        pause = often = self._config.sweep_every.total_seconds()
        while True:
            try:
                await asker.ask_due()
                self.trouble.over(what)
            except Exception as error:  # noqa: BLE001 - it is asked again later
                self.trouble.again(what, error)
            pause = often if asker.in_trouble else min(2 * pause, SELDOM * often)
            await asyncio.sleep(pause)

    async def _ask_launchers_often(self) -> None:
        """Ask launchers that this machine can reach about lost runs: a sweeper elsewhere may not reach them."""
        reports = LostRunReports(self._opener.data_dir, self._opener.place)
        asker = LauncherAsker(self._store, lambda: self._machine_name, reports.facts)
        what = "launchers were not asked about lost runs"
        while True:
            try:
                await asker.ask_due()
                self.trouble.over(what)
            except Exception as error:  # noqa: BLE001 - they are asked again later
                self.trouble.again(what, error)
            await asyncio.sleep(self._config.sweep_every.total_seconds())

    async def _report(self, *, stopping: bool) -> None:
        await self._store.report(
            WorkerReport(
                worker_id=self.worker_id,
                incarnation=self.incarnation,
                pool=self._options.pool,
                tasks=tuple(self._app.tasks),
                concurrency=self._options.concurrency,
                engine=self._opener.info.engine,
                version=__version__,
                machine=self._machine_name,
                stopping=stopping,
                unwell_reason=self.machine.unwell.message if self.machine.unwell is not None else None,
            )
        )
