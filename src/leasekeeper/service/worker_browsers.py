"""The browsers that one connected worker reports to have open for jobs: each is checked in the store before it is
accepted.

Reports are processed one after the other, in order.
"""

import asyncio
import logging
from typing import Any, Final

from leasekeeper.core.leases import Lease
from leasekeeper.core.tokens import ApiToken, holds
from leasekeeper.errors import LeasekeeperError, LeaseOfAnotherToken, StoreUnavailable
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.remote_live import LiveNews, RemoteLive
from leasekeeper.runtime.session_link import Link
from leasekeeper.service.session_fleet import Place
from leasekeeper.wire.shapes import decode

_LOG = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0
_LEARNING: Final = "the browsers of workers are not known"


class WorkerBrowsers:
    """Keeps `place.lives` as the worker reports. `process_reports` runs while the connection is open."""

    def __init__(self, store: Store, token: ApiToken, place: Place, link: Link) -> None:
        self._store = store
        self._token = token
        self._place = place
        self._link = link
        self._news: asyncio.Queue[LiveNews] = asyncio.Queue()
        self._leases: dict[str, Lease] = {}
        self._trouble = FailureLog()

    def queue_report(self, said: Any) -> None:
        """Queue a report of the worker. Raises InputError if it cannot be parsed."""
        self._news.put_nowait(decode(LiveNews, said))

    async def all_processed(self) -> None:
        """Wait until every report so far is processed."""
        await self._news.join()

    async def process_reports(self) -> None:
        """Process reports until cancelled."""
        try:
            while True:
                news = await self._news.get()
                try:
                    await self._process(news)
                except LeasekeeperError as error:
                    _LOG.warning("worker %s reports a browser that is not its own: %s", self._place.worker_id, error)
                finally:
                    self._news.task_done()
        finally:
            while not self._news.empty():
                self._news.get_nowait()
                self._news.task_done()

    async def _process(self, news: LiveNews) -> None:
        lives = self._place.lives
        if news.over or not news.leases:
            gone = lives.pop(news.key, None)
            for lease in gone.leases if gone is not None else ():
                self._leases.pop(lease.lease_id, None)
            return
        leases = [await self._lease(lease_id) for lease_id in news.leases]
        if news.key in lives:
            lives[news.key].hear(news, leases)
        else:
            lives[news.key] = RemoteLive(self._link, self.all_processed, news, leases)

    async def _lease(self, lease_id: str) -> Lease:
        """The lease, from the store. Raises LeaseOfAnotherToken if it was not granted to this worker's token."""
        lease = self._leases.get(lease_id) or await self._read(lease_id)
        if not holds(self._token, lease.incarnation):
            raise LeaseOfAnotherToken(f"lease {lease_id} was not granted to this worker", token_id=self._token.token_id)
        self._leases[lease_id] = lease
        return lease

    async def _read(self, lease_id: str) -> Lease:
        while True:
            try:
                lease = await self._store.get(Lease, lease_id)
            except StoreUnavailable as error:
                self._trouble.again(_LEARNING, error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._trouble.over(_LEARNING)
                return lease
