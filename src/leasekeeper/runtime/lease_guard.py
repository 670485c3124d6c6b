"""Ties a browser to its lease.

Renewals and the loss of the lease reach the browser from the heartbeat's own thread, so that a task which blocks the
event loop neither loses its browser nor keeps it too long.
"""

import asyncio
from contextlib import suppress

from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import RunningBrowser
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease


class LeaseGuard:
    """One lease that is renewed, and the browser that depends on it, once there is one."""

    def __init__(self, heartbeat: Heartbeat, lease: Lease, sent_at: float) -> None:
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._browser: RunningBrowser | None = None
        self.lost = asyncio.Event()
        self.kept: KeptLease = heartbeat.keep(lease, sent_at, self._on_lost, self._on_renewed)

    def attach(self, browser: RunningBrowser) -> None:
        """From now on renewals extend the browser's deadline, and the loss of the lease revokes it."""
        self._browser = browser
        browser.extend(self.kept.deadline, self.kept.dead_by)
        if self.kept.lost is not None:
            browser.revoke(self.kept.lost)

    def follow(self, lease: Lease, sent_at: float) -> "LeaseGuard":
        """A guard for the next lease, with the same heartbeat."""
        return LeaseGuard(self._heartbeat, lease, sent_at)

    def detach(self) -> None:
        """Untie the browser, before it passes to another lease: the end of this lease must not reach it."""
        self._browser = None

    def release(self) -> None:
        """Stop renewing: the lease was settled, or is lost."""
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
