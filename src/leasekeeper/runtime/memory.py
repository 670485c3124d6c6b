"""Memory limits: one per run or session, for its browser and its own Playwright process if it has one; and one per
Playwright process that async tasks share.

One watcher measures all browsers of an opener, while any is open. A run above its limit is ended alone. A shared
Playwright process above its limit gets no new runs; at twice the limit, the run during which its browser sent the most
is ended.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasekeeper.driver_port import RunningBrowser
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.sessions import Sessions
from leasekeeper.runtime.task_browsers import Session
from leasekeeper.runtime.task_threads import TaskThread
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
# A run above its limit is ended with evidence; above this many times the limit its browser is ended at once. A shared
# Playwright process above this many times its own limit would soon crash, with all its runs: node has a memory limit,
# too.
REVOKE_FACTOR: Final = 2
# After a run was ended for a shared process, another one is ended only if the process has grown by this fraction (1/4)
# of its limit since.
_GROWN: Final = 4
# A plain task's own Playwright process serves no other run above this fraction (1/2) of a run's limit.
_WORN: Final = 2
_MB: Final = 1_000_000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, eq=False)
class Budget:
    """The memory limit of one run. `exceeded` is set at most once; then `used` (bytes), or `used_by` (a message), says
    why."""

    browser: RunningBrowser
    limit: int
    session: Session | None = None
    used: int = 0
    used_by: str = ""
    exceeded: asyncio.Event = field(default_factory=asyncio.Event)
    _relayed_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._relayed_before = self.browser.relayed_bytes

    @property
    def relayed_bytes(self) -> int:
        """About how many bytes the browser has sent during this run. Earlier runs of a warm browser do not count."""
        return self.browser.relayed_bytes - self._relayed_before

    @property
    def message(self) -> str:
        if self.used_by:
            return self.used_by
        own = " and of the task's own Playwright" if _own_thread(self.session) is not None else ""
        return (
            f"the processes of the browser{own} used {self.used / _MB:.0f} MB of memory, the limit for a run is "
            f"{self.limit / _MB:.0f} MB (LEASEKEEPER_RUN_MEMORY_MB)"
        )

    @property
    def processes(self) -> tuple[int, ...]:
        """The process sessions that count for this run alone, each by the pid of its leader."""
        own = _own_thread(self.session)
        found = (self.browser.pid, own.playwright.pid if own is not None else None)
        return tuple(pid for pid in found if pid is not None)

    def measured(self, used: int) -> None:
        if used > self.limit and not self.exceeded.is_set():
            self.used = used
            self.exceeded.set()
        if used > self.limit * REVOKE_FACTOR and not self.browser.over:
            self.browser.revoke(f"{used / _MB:.0f} MB of memory in use: more than {REVOKE_FACTOR} times the limit")

    def end(self, why: str) -> None:
        """End this run's browser at once, because of the Playwright process that it shares. `why` is the message."""
        if not self.exceeded.is_set():
            self.used_by = why
            self.exceeded.set()
        self.browser.revoke(why)


def _own_thread(session: Session | None) -> TaskThread | None:
    """The thread of a plain task, which has a Playwright process of its own."""
    return getattr(session, "thread", None)


class MemoryWatch:
    """Measures memory every few seconds while a browser is watched. A limit of None means no limit."""

    def __init__(self, sessions: Sessions, *, run_bytes: int | None, playwright_bytes: int | None) -> None:
        self._sessions = sessions
        self._run_bytes = run_bytes
        self._playwright_bytes = playwright_bytes
        self._budgets: set[Budget] = set()
        self._ended: dict[int, tuple[Budget, int]] = {}
        self._measuring: asyncio.Future[None] | None = None

    @contextmanager
    def watch(self, browser: RunningBrowser, session: Session | None = None) -> Iterator[Budget]:
        """While the block runs, the memory of the browser, and of the session's own Playwright process, counts for one
        run."""
        budget = Budget(browser, self._run_bytes or 0, session)
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
        """Measure once. A browser that a person took over counts for both runs."""
        watched = [(each, each.processes) for each in self._budgets] if self._run_bytes is not None else []
        shared = self._shared_processes() if self._playwright_bytes is not None else {}
        limits = {pids: budget.limit for budget, pids in watched if pids}
        limits |= {(pid,): self._playwright_bytes or 0 for pid in shared}
        if not limits:
            return
        used = await run_in_thread(memory_of_sessions, limits)
        for budget, pids in watched:
            own = _own_thread(budget.session)
            if own is not None and used.get(own.playwright.pid or 0, 0) > budget.limit // _WORN:
                own.worn = True
            if budget in self._budgets:
                budget.measured(sum(used[pid] for pid in pids))
        for pid, budgets in shared.items():
            await self._judge_shared(pid, used[pid], budgets)

    def _shared_processes(self) -> dict[int, list[Budget]]:
        """The Playwright processes that runs share, by pid, with the budgets of those runs. Processes that get no new
        runs are included."""
        found: dict[int, list[Budget]] = {}
        for budget in self._budgets:
            pid = self._sessions.shared_process(budget.session) if budget.session is not None else None
            if pid is not None:
                found.setdefault(pid, []).append(budget)
        self._ended = {pid: ended for pid, ended in self._ended.items() if pid in found}
        return found

    async def _judge_shared(self, pid: int, used: int, budgets: list[Budget]) -> None:
        limit = self._playwright_bytes or 0
        if used > limit and await self._sessions.retire_playwright(pid):
            _LOG.warning(
                "the Playwright process %d uses %.0f MB of memory, the limit is %.0f MB "
                "(LEASEKEEPER_PLAYWRIGHT_MEMORY_MB): new runs get another, it ends when its runs have ended",
                pid,
                used / _MB,
                limit / _MB,
            )
        if used <= limit * REVOKE_FACTOR:
            return
        # The memory that a run used is freed only some time after the run's end.
        last, then = self._ended.get(pid, (None, 0))
        running = [each for each in budgets if each in self._budgets and not each.exceeded.is_set()]
        if not running or last in self._budgets or (last is not None and used < then + limit // _GROWN):
            return
        most = max(running, key=lambda each: each.relayed_bytes)
        if most.relayed_bytes == 0:
            return  # no browser has sent enough to be the cause
        self._ended[pid] = most, used
        why = (
            f"the Playwright process of the async tasks used {used / _MB:.0f} MB of memory, more than {REVOKE_FACTOR} "
            f"times its limit of {limit / _MB:.0f} MB (LEASEKEEPER_PLAYWRIGHT_MEMORY_MB), and this run's browser sent "
            f"the most: about {most.relayed_bytes / _MB:.0f} MB"
        )
        for each in running:
            if each.browser is most.browser:  # if a person took the browser over, two runs have it
                each.end(why)


def memory_of_sessions(limits: Mapping[tuple[int, ...], int]) -> dict[int, int]:
    """The memory in bytes that each process session uses, by the pid of its leader. `limits`: groups of leaders, and
    the limit that each group shares. Reads /proc once for all.

    The sum of resident memory counts shared pages several times, but is cheap: only where it exceeds the limit, the
    proportional share of each process is read.
    """
    members: dict[int, list[tuple[int, int]]] = {leader: [] for group in limits for leader in group}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                fields = Path(f"{entry.path}/stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) in members:
                    members[int(fields[3])].append((int(entry.name), int(fields[21]) * _PAGE))
    used = {leader: sum(resident for _, resident in found) for leader, found in members.items()}
    for group, limit in limits.items():
        if sum(used[leader] for leader in group) > limit:
            for leader in group:
                used[leader] = sum(min(resident, _share(pid, resident)) for pid, resident in members[leader])
    return used


def _share(pid: int, resident: int) -> int:
    """A process's proportional share of memory. If that may not be read: its memory without mapped files. 0 if it has
    ended."""
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
