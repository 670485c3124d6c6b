"""A running browser behind its keeper: `driver_port.RunningBrowser` for the drivers `local` and `launcher`.

Does not know how the keeper reaches the browser: as a child process, or over a launcher's WebSocket.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_clients import KeeperClient
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_reports import ReportUnreadable, failure_reason
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import BrowserReport, DriverInfo, Endpoint, Launch, LaunchRefusal, LeaseTerms
from leasekeeper.driver_port import OpenRequest
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)


def orders_of(
    request: OpenRequest,
    terms: LeaseTerms,
    config: BrowserConfig,
    *,
    browser: str,
    directory: Path,
    launcher: dict[str, object] | None = None,
) -> Orders:
    """The keeper's orders: which browser to open, under which lease, with the settings of `config`."""
    return Orders(
        browser=browser,
        user_data_dir=str(directory),
        profile_id=request.grant.lease.profile_id,
        lease_id=terms.lease_id,
        token=terms.token,
        run_id=terms.run_id,
        folder=terms.folder,
        deadline=terms.deadline,
        kill_at=terms.kill_at,
        close_seconds=config.close_after.total_seconds(),
        max_message_bytes=config.max_message_bytes,
        launcher=launcher,
    )


class KeeperBrowser:
    """One browser. `copy` is a throwaway profile, deleted at the end; `close_seconds` is how long a close may take.

    `end_browser` is called if the keeper left no report: the browser must not run on after its lease.
    """

    def __init__(
        self,
        link: KeeperLink,
        endpoint: Launch,
        info: DriverInfo,
        copy: Path | None,
        close_seconds: float,
        end_browser: Callable[[Orders], None],
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._info = info
        self._copy = copy
        self._close_seconds = close_seconds
        self._end_browser = end_browser

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def info(self) -> DriverInfo:
        return self._info

    @property
    def engine(self) -> int | None:
        return self._info.engine if self._copy is None else None

    @property
    def begun(self) -> bool:
        return self._link.keeper_pid is not None

    @property
    def pid(self) -> int | None:
        return self._link.browser_pid or None  # 0: the launcher's process, which we do not know

    @property
    def relayed_bytes(self) -> int:
        return self._link.relayed_bytes

    @property
    def over(self) -> bool:
        return self._link.over

    def extend(self, deadline: float, kill_at: float) -> None:
        self._link.extend(deadline, kill_at)

    def revoke(self, why: str) -> None:
        self._link.revoke(why)

    async def hand_over(self, terms: LeaseTerms) -> None:
        await self._link.hand_over(terms)

    async def pause(self, why: str) -> None:
        await self._link.pause(why)

    def resume(self) -> None:
        self._link.resume()

    async def add_client(self) -> KeeperClient:
        return await self._link.add_client()

    async def close_asked(self) -> None:
        await self._link.close_asked()

    async def ended(self, timeout: float) -> BrowserReport | None:
        try:
            return await self._link.ended(timeout)
        except ReportUnreadable as error:
            _LOG.warning("%s", error)
            return None

    async def closing(self, timeout: float) -> None:
        await self._link.closing(timeout)

    async def stop(self, *, revoke: str | None = None, with_evidence: bool = False) -> BrowserReport | None:
        if revoke is not None:
            self._link.revoke(revoke)
        else:
            self._link.request_close(with_evidence=with_evidence)
        report = None
        if self.begun:
            report = await self.ended(self._close_seconds * 2)
            if report is None and not self._link.over:
                self._link.revoke("the browser did not close")
                report = await self.ended(self._close_seconds * 3)
            if report is None:
                await run_in_thread(self._end_browser, self._link.orders)
        await run_in_thread(self.discard)
        return report

    def discard(self) -> None:
        """Close the connection to the keeper, and delete the copy."""
        self._link.close()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def refusal(self) -> LaunchRefusal | None:
        with suppress(ReportUnreadable, OSError):
            refused = self._link.refusal()
            if refused is None:
                return None
            reason = failure_reason(refused.reason)
            return LaunchRefusal(reason=reason, message=refused.message, retry_after=refused.retry_after)
        return None


def discard_later(starting: "asyncio.Future[KeeperBrowser]") -> None:
    """Discard a browser whose start was cancelled: nobody has used its endpoint."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().discard()
