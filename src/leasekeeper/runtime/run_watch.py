"""Watches for what ends a task early: its limit of time or memory, a lost lease, a dead browser, a stop. The time limit
is paused while the task waits for a person, or a person has its browser.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from leasekeeper.core.browsers import BrowserReport, EndCause
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.live_runs import LiveRun
from leasekeeper.runtime.memory import Budget
from leasekeeper.runtime.opening import Opened
from leasekeeper.runtime.run_state import RunState
from leasekeeper.runtime.shutdown import Shutdown

# A task that is past its time limit and blocks the event loop loses its lease this much later.
BLOCKED_SECONDS: Final = 15.0
Report = Callable[[Opened], Awaitable[BrowserReport | None]]


class RunWatch:
    """Watches one task, from its start until `end`."""

    def __init__(
        self, current: RunState, opened: Opened, stop: Shutdown, budget: Budget, live: LiveRun, limit: timedelta | None
    ) -> None:
        self._current = current
        self._opened = opened
        self._stop = stop
        self._budget = budget
        self._live = live
        self._seconds = limit.total_seconds() if limit else None
        self._since = boot_time()
        self._paused_at: float | None = None
        self._watchers: dict[asyncio.Future[Any], str] = {}
        self.renew()

    def renew(self) -> None:
        """Start watching, or continue under another lease."""
        self._cancel()
        self._watchers = {
            asyncio.ensure_future(self._current.guard.lost.wait()): "lost",
            asyncio.ensure_future(self._opened.browser.ended(1e9)): "gone",
            asyncio.ensure_future(self._stop.now.wait()): "stop",
            asyncio.ensure_future(self._budget.exceeded.wait()): "memory",
            asyncio.ensure_future(self._live.asked.wait()): "taken",
            asyncio.ensure_future(self._live.asks_changed.wait()): "asks",
        }

    def pause(self, *, paused: bool) -> None:
        """Pause or resume the task's time limit."""
        now = boot_time()
        if paused and self._paused_at is None:
            self._paused_at = now
        elif not paused and self._paused_at is not None:
            self._since += now - self._paused_at
            self._paused_at = None

    async def until(self, work: "asyncio.Future[object]", report: Report) -> set[str]:
        """Wait until the task ends, or something ends it early. Returns what was seen, by the names in `renew`; nothing
        if the task ended or its time limit is over. A task that closed its browser itself may go on."""
        kept = self._current.guard.kept
        pending = {work, *self._watchers}
        while True:
            self.pause(paused=self._live.asks is not None)
            deadline = None if self._seconds is None or self._paused_at is not None else self._since + self._seconds
            kept.stop_at = None if deadline is None else deadline + BLOCKED_SECONDS
            left = None if deadline is None else max(0.0, deadline - boot_time())
            done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            seen = {self._watchers[each] for each in done if each in self._watchers}
            if seen == {"asks"} and work not in done:
                self._live.asks_changed.clear()
                self.renew()
                pending = {work, *self._watchers}
                continue
            if seen != {"gone"} or work in done:
                return seen - {"asks"}
            ended = await report(self._opened)
            if ended is None or ended.cause is not EndCause.CLOSED:
                await asyncio.wait({work}, timeout=1.0)
                return seen
            pending -= done

    def end(self) -> None:
        """Stop watching: the task has ended."""
        self._current.guard.kept.stop_at = None
        self._cancel()

    def _cancel(self) -> None:
        for future in self._watchers:
            future.cancel()
