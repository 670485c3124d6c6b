"""The tie between a lease and its browser.

What the heartbeat learns reaches the keeper from the heartbeat's own thread, so that a task which blocks the event loop
neither loses its browser nor keeps it a moment too long.
"""

import asyncio
from contextlib import suppress

from leasekeeper.browsers.link import KeeperLink
from leasekeeper.core.leases import Lease
from leasekeeper.runtime.heartbeat import Heartbeat, Hold


class Lifeline:
    """One lease that is held, and the browser that lives by it once there is one."""

    def __init__(self, heartbeat: Heartbeat, lease: Lease, sent_at: float) -> None:
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._link: KeeperLink | None = None
        self.lost = asyncio.Event()
        self.hold: Hold = heartbeat.hold(lease, sent_at, self._on_lost, self._on_renewed)

    def tie(self, link: KeeperLink) -> None:
        """From now on the browser lives as long as the lease."""
        self._link = link
        link.extend(self.hold.deadline, self.hold.dead_by)
        if self.hold.lost is not None:
            link.fence(self.hold.lost)

    def untie(self) -> None:
        """The browser is about to pass to another lease: what becomes of this one must not reach it any more."""
        self._link = None

    def let_go(self) -> None:
        """The lease was settled, or is lost: it is not renewed any more."""
        self._link = None
        self._heartbeat.drop(self.hold)

    def _on_renewed(self, deadline: float, dead_by: float) -> None:
        link = self._link  # the worker's thread may untie it at any moment
        if link is not None:
            link.extend(deadline, dead_by)

    def _on_lost(self, why: str) -> None:
        link = self._link
        if link is not None:
            link.fence(why)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.lost.set)
