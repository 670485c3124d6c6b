"""Memory budgets: one per run or session, for its browser, and one for the Playwright process that they share.

One watcher for all browsers of an opener, which measures while there is any. A run above its budget ends alone; a
Playwright process above its own serves no new run.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasekeeper.driver_port import RunningBrowser
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.sessions import Sessions
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
# A run above its budget still gets its evidence taken; above this many times the budget its browser ends at once.
REVOKE_FACTOR: Final = 2
_MB: Final = 1_000_000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, eq=False)
class Budget:
    """One run's. `exceeded` is set once; `used` is what was measured then."""

    browser: RunningBrowser
    limit: int
    used: int = 0
    exceeded: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def message(self) -> str:
        return (
            f"the browser's processes used {self.used / _MB:.0f} MB of memory, the limit for a run is "
            f"{self.limit / _MB:.0f} MB (LEASEKEEPER_RUN_MEMORY_MB)"
        )

    def measured(self, used: int) -> None:
        if used > self.limit and not self.exceeded.is_set():
            self.used = used
            self.exceeded.set()
        if used > self.limit * REVOKE_FACTOR and not self.browser.over:
            self.browser.revoke(f"{used / _MB:.0f} MB of memory in use: more than {REVOKE_FACTOR} times the limit")


class MemoryWatch:
    """Measures every few seconds. A limit of None is no limit."""

    def __init__(self, sessions: Sessions, *, run_bytes: int | None, playwright_bytes: int | None) -> None:
        self._sessions = sessions
        self._run_bytes = run_bytes
        self._playwright_bytes = playwright_bytes
        self._budgets: set[Budget] = set()
        self._measuring: asyncio.Future[None] | None = None

    @contextmanager
    def watch(self, browser: RunningBrowser) -> Iterator[Budget]:
        """While inside, the browser's memory counts for one run."""
        budget = Budget(browser, self._run_bytes or 0)
        self._budgets.add(budget)
        if self._measuring is None and (self._run_bytes or self._playwright_bytes) is not None:
            self._measuring = asyncio.ensure_future(self._measure_often())
        try:
            yield budget
        finally:
            self._budgets.discard(budget)
            if self._measuring is not None and not self._budgets:
                self._measuring.cancel()
                self._measuring = None

    async def _measure_often(self) -> None:
        trouble, what = FailureLog(), "memory could not be measured"
        while True:
            try:
                await self.check()
                trouble.over(what)
            except Exception as error:  # noqa: BLE001 - nobody else would measure
                trouble.again(what, error)
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Measure once. A browser that a person has taken from a run counts for both."""
        watched: list[tuple[int, Budget]] = []
        if self._run_bytes is not None:
            watched = [(pid, budget) for budget in self._budgets if (pid := budget.browser.pid) is not None]
        limits = {pid: budget.limit for pid, budget in watched}
        playwright = self._sessions.playwright_pid if self._playwright_bytes is not None else None
        if playwright is not None:
            limits[playwright] = self._playwright_bytes or 0
        if not limits:
            return
        used = await run_in_thread(memory_of_sessions, limits)
        for pid, budget in watched:
            if budget in self._budgets:
                budget.measured(used[pid])
        if playwright is not None and used[playwright] > (self._playwright_bytes or 0):
            await self._retire(playwright, used[playwright])

    async def _retire(self, pid: int, used: int) -> None:
        if await self._sessions.retire_playwright(pid):
            _LOG.warning(
                "the Playwright process %d uses %.0f MB of memory, the limit is %.0f MB "
                "(LEASEKEEPER_PLAYWRIGHT_MEMORY_MB): new runs get another, it ends when its runs have ended",
                pid,
                used / _MB,
                (self._playwright_bytes or 0) / _MB,
            )


def memory_of_sessions(limits: dict[int, int]) -> dict[int, int]:
    """Bytes in use by each of these sessions of processes, known by their leaders. Reads /proc once for all.

    The sum of what is resident counts shared pages several times, but is cheap: only where it exceeds the limit,
    shared pages are counted by their shares.
    """
    members: dict[int, list[tuple[int, int]]] = {leader: [] for leader in limits}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(f"{entry.path}/stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) in members:
                    members[int(fields[3])].append((int(entry.name), int(fields[21]) * _PAGE))
    used = {}
    for leader, found in members.items():
        used[leader] = sum(resident for _, resident in found)
        if used[leader] > limits[leader]:
            used[leader] = sum(min(resident, _share(pid, resident)) for pid, resident in found)
    return used


def _share(pid: int, resident: int) -> int:
    """A process's share of memory; of one that may not be read, all but the files that it has mapped."""
    files: tuple[tuple[str, Callable[[str], bool]], ...] = (
        ("smaps_rollup", lambda line: line.startswith("Pss:")),
        ("status", lambda line: line.startswith(("RssAnon:", "RssShmem:"))),
    )
    for name, counts in files:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/{name}").read_text(errors="replace").splitlines()
            if found := [int(line.split()[1]) * 1024 for line in lines if counts(line)]:
                return sum(found)
    return resident if Path(f"/proc/{pid}").exists() else 0
