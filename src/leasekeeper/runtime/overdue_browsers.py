"""Ends browsers of this machine whose keepers should have ended them and did not: the keeper is stopped, or hangs.

Every worker and every sweeper does so on its own machine. Two conditions must hold: the keeper's deadline has passed
(by the machine's clock), and in the store the lease has ended, or was not renewed for as long.
"""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.status_file import Status, read_status
from leasekeeper.browsers.overdue import EndedBrowser, end_overdue
from leasekeeper.core.events import Event, browser_outlived_lease
from leasekeeper.core.leases import Lease, Timing, browser_overdue
from leasekeeper.errors import NotFound
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

# A lease ends only seconds after its browser is overdue: check more often than that.
MAX_PAUSE_SECONDS: Final = 1.0
# Limit of browsers that are ended at the same time.
AT_ONCE: Final = 4


class OverdueBrowsers:
    """Watches the browsers of one data directory. Any number may run at once."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self._ledger = ledger
        self._timing = timing
        self._together = asyncio.Semaphore(AT_ONCE)
        self._unrecorded: list[Event] = []

    async def round(self, store: Store) -> int:
        """End every overdue browser of this machine. Returns how many. The store is asked only about browsers whose
        keepers should have ended them already."""
        found = await run_in_thread(self._past_deadline)
        if found:
            ended = await asyncio.gather(*(self._check_browser(store, status) for status in found))
            self._unrecorded += [event for event in ended if event is not None]
        count = len(self._unrecorded)
        while self._unrecorded:  # what the store could not take now is recorded in a later round
            await store.record(self._unrecorded[0])
            self._unrecorded.pop(0)
        return count

    async def run(self, store: Store, every: timedelta, trouble: FailureLog) -> None:
        """Make rounds until cancelled, at least one a second. Errors are logged, and the next round comes."""
        what = "overdue browsers could not be ended"
        while True:
            try:
                await self.round(store)
                trouble.over(what)
            except Exception as error:  # noqa: BLE001 - nobody else would end them
                trouble.again(what, error)
            await asyncio.sleep(min(every.total_seconds(), MAX_PAUSE_SECONDS))

    def _past_deadline(self) -> list[Status]:
        now, found = boot_time(), []
        for run_id, lease_id in self._ledger.entries().items():
            status = read_status(str(self._folder(run_id)))
            if status is not None and (status.run_id, status.lease_id) == (run_id, lease_id) and status.kill_at < now:
                found.append(status)
        return found

    async def _check_browser(self, store: Store, status: Status) -> Event | None:
        try:
            lease = await store.get(Lease, status.lease_id)
        except NotFound:
            return None  # a lease that the store does not know may be another store's
        now = (await store.check()).now
        if lease.run_id != status.run_id or not browser_overdue(lease, now, self._timing):
            return None
        async with self._together:
            ended = await run_in_thread(self._end, lease, status, (lease.expires_at - now).total_seconds())
        if ended is None:
            return None
        _LOG.warning(
            "profile %s: the browser of lease %s outlived it: its keeper did not end it, so it was ended (%s)",
            lease.profile_id,
            lease.lease_id,
            ended.stopped_by,
        )
        late = boot_time() - status.kill_at
        return browser_outlived_lease(
            lease,
            now,
            stopped_by=ended.stopped_by,
            processes=ended.processes,
            keeper=ended.keeper,
            all_gone=ended.all_gone,
            seconds_late=round(late, 1),
        )

    def _end(self, lease: Lease, status: Status, expires_in: float) -> EndedBrowser | None:
        folder, claim = self._folder(lease.run_id), self._ledger.path_of(lease.run_id)
        return end_overdue(lease, status, folder, claim, expires_in=expires_in)

    def _folder(self, run_id: str) -> Path:
        return self._ledger.runs_dir / run_id
