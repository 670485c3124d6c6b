"""The tie between a lease and its browser.

What the heartbeat learns reaches the browser from the heartbeat's own thread, so that a task which blocks the event
loop neither loses its browser nor keeps it a moment too long.
"""

import asyncio
from contextlib import suppress

from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import RunningBrowser
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease


class LeaseGuard:
    """One lease that is kept, and the browser that lives by it once there is one."""

    def __init__(self, heartbeat: Heartbeat, lease: Lease, sent_at: float) -> None:
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._browser: RunningBrowser | None = None
        self.lost = asyncio.Event()
        self.kept: KeptLease = heartbeat.keep(lease, sent_at, self._on_lost, self._on_renewed)

    def attach(self, browser: RunningBrowser) -> None:
        """From now on the browser lives as long as the lease."""
        self._browser = browser
        browser.extend(self.kept.deadline, self.kept.dead_by)
        if self.kept.lost is not None:
            browser.revoke(self.kept.lost)

    def follow(self, lease: Lease, sent_at: float) -> "LeaseGuard":
        """A guard of the lease that comes after this one."""
        return LeaseGuard(self._heartbeat, lease, sent_at)

    def detach(self) -> None:
        """The browser is about to pass to another lease: what becomes of this one must not reach it any more."""
        self._browser = None

    def release(self) -> None:
        """The lease was settled, or is lost: it is not renewed any more."""
        self._browser = None
        self._heartbeat.drop(self.kept)

    def _on_renewed(self, deadline: float, dead_by: float) -> None:
        browser = self._browser  # the worker's thread may detach it at any moment
        if browser is not None:
            browser.extend(deadline, dead_by)

    def _on_lost(self, why: str) -> None:
        browser = self._browser
        if browser is not None:
            browser.revoke(why)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.lost.set)
