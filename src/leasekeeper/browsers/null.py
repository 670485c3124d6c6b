"""The driver `null`: no browser at all. For tests, and for benchmarks of everything around the browser.

Tasks run under real leases, with heartbeats, steps, sections and evidence files, but without a screenshot. The clean
close is always proven, since nothing runs.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import (
    BrowserReport,
    Capacity,
    Checked,
    DriverInfo,
    EndCause,
    Endpoint,
    LaunchRefusal,
    LeaseTerms,
    NoPage,
    Proof,
    Usage,
)
from leasekeeper.core.failures import Reason
from leasekeeper.core.profiles import Profile
from leasekeeper.driver_port import ClientRefused, DevToolsClient, OpenRequest
from leasekeeper.errors import Fail

# The interpreter: checks of whether this machine can start the driver's program start that.
_INFO: Final = DriverInfo(program=sys.executable, version="0", playwright=False)
_MESSAGE: Final = "this profile's driver is `null`, which opens no browser: there is no page. Give it `driver: local`"
NOWHERE: Final = "about:blank"


class NullDriver:
    """Opens nothing. See `driver_port.Driver`."""

    def __init__(self, config: BrowserConfig) -> None:
        self._launches = config.launch_together

    @property
    def capacity(self) -> Capacity:
        return Capacity(launches=self._launches)

    async def prepare(self) -> DriverInfo:
        return _INFO

    async def ready(self) -> DriverInfo:
        return _INFO

    async def status(self, profile: Profile) -> Usage:  # noqa: ARG002 - there is no browser that anybody could use
        return Usage()

    async def check(self, request: OpenRequest) -> Checked:  # noqa: ARG002 - there is nothing to check
        return Checked()

    async def accept_manual_use(self, request: OpenRequest) -> None:
        """Nothing: `check` never finds any."""

    async def start(self, request: OpenRequest, terms: LeaseTerms) -> "NullBrowser":
        return NullBrowser(request.grant.lease.profile_id, terms)

    async def close(self) -> None:
        """Nothing."""


class NullBrowser:
    """Takes a browser's place, without starting one. See `driver_port.RunningBrowser`."""

    def __init__(self, profile_id: str, terms: LeaseTerms) -> None:
        self._profile_id = profile_id
        self._terms = terms
        self._ends_at = min(terms.deadline, terms.kill_at)
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._report: BrowserReport | None = None
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._end_at_deadline()

    @property
    def endpoint(self) -> Endpoint:
        return NoPage(message=_MESSAGE)

    @property
    def info(self) -> DriverInfo:
        return _INFO

    @property
    def engine(self) -> int | None:
        return None

    @property
    def begun(self) -> bool:
        return True

    @property
    def pid(self) -> int | None:
        return None

    @property
    def relayed_bytes(self) -> int:
        return 0

    @property
    def over(self) -> bool:
        self._end_if_late()
        return self._report is not None

    def extend(self, deadline: float, kill_at: float) -> None:
        self._end_if_late()
        self._ends_at = min(deadline, kill_at)
        self._in_loop(self._end_at_deadline)

    def revoke(self, why: str) -> None:
        self._end(EndCause.REVOKED, why)

    async def hand_over(self, terms: LeaseTerms) -> None:
        if self.over:
            raise Fail(Reason.LEASE_LOST, "it has ended, there is nothing to hand over")
        self._terms = terms
        self.extend(terms.deadline, terms.kill_at)

    async def pause(self, why: str) -> None:
        """Nothing: there are no commands to pause."""

    def resume(self) -> None:
        """Nothing: there are no commands to resume."""

    async def add_client(self) -> DevToolsClient:
        raise ClientRefused("a profile of driver null has no browser")

    async def close_asked(self) -> None:
        """Wait for the end: there are no clients that could ask."""
        await self._ended.wait()

    async def ended(self, timeout: float) -> BrowserReport | None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)
        return self._report

    async def closing(self, timeout: float) -> None:
        """Nothing: Playwright does not use it."""

    async def stop(self, *, revoke: str | None = None, with_evidence: bool = False) -> BrowserReport | None:  # noqa: ARG002 - there is nothing to see
        self._end_if_late()
        self._end(EndCause.CLOSED if revoke is None else EndCause.REVOKED, revoke or "")
        return self._report

    def refusal(self) -> LaunchRefusal | None:
        return None

    def _end_at_deadline(self) -> None:
        """Set the timer for the deadline, again after each extension. Runs in the event loop."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.over:
            self._timer = self._loop.call_later(self._ends_at - boot_time(), self._end_at_deadline)

    def _end_if_late(self) -> None:
        """End it after the deadline. The timer may be late: it ignores suspend, and a blocked loop delays it."""
        if boot_time() >= self._ends_at:
            self._end(EndCause.DEADLINE, "")

    def _end(self, cause: EndCause, why: str) -> None:
        """End it with this cause, unless it has ended. May be called in any thread."""
        with self._lock:
            if self._report is None:
                self._report = BrowserReport(
                    profile_id=self._profile_id,
                    run_id=self._terms.run_id,
                    lease_id=self._terms.lease_id,
                    token=self._terms.token,
                    refused=None,
                    cause=cause,
                    stopped_by="itself",
                    exit_code=None,
                    signal=None,
                    proof=Proof(clauses={"processes_gone": True}),
                    untouched=True,
                    final_url=NOWHERE,
                    screenshot=None,
                    commands=(),
                    started_at=self._started_at,
                    ended_at=time.time(),
                    revoke_reason=why,
                )
        self._in_loop(self._set_ended)

    def _set_ended(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits there any more
            self._loop.call_soon_threadsafe(call)
