"""The sessions of one worker: how tasks use what drivers opened. Owns the Playwright processes and the task threads."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from leasekeeper.core.browsers import Launch, NoPage
from leasekeeper.driver_port import RunningBrowser
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime.no_browser import NoBrowserSession
from leasekeeper.runtime.playwright_process import PlaywrightProcess, write_starter
from leasekeeper.runtime.task_browsers import AsyncSession, Session, SyncSession
from leasekeeper.runtime.task_threads import TaskThread
from leasekeeper.threads import run_in_thread


class Sessions:
    """Opens sessions on browsers and takes them back."""

    def __init__(self, data_dir: Path, redactor: Redactor) -> None:
        self._data_dir = data_dir
        self._redactor = redactor
        self._playwright = PlaywrightProcess(data_dir)
        self._threads: list[TaskThread] = []
        self._leaving: set[asyncio.Future[None]] = set()

    async def prepare(self) -> None:
        """Check that Playwright is there. Raises InputError that says how to install it."""
        await run_in_thread(write_starter, self._data_dir)

    async def open(self, browser: RunningBrowser, *, sync: bool) -> Session:
        """Open a session on the browser. If the Playwright process died before it started anything, it is replaced
        once.

        If this raises, the browser may have started: the caller must stop it.
        """
        session = self._session(browser, sync=sync)
        try:
            try:
                await session.open()
            except Exception:
                if browser.begun or not await self.playwright_is_dead():
                    raise
                await session.open()
        except BaseException:
            await self._take_back(session, failed=True)
            raise
        return session

    def _session(self, browser: RunningBrowser, *, sync: bool) -> Session:
        endpoint = browser.endpoint
        if isinstance(endpoint, NoPage):
            return NoBrowserSession(endpoint, self._thread() if sync else None, self._redactor)
        if isinstance(endpoint, Launch):
            if sync:
                return SyncSession(endpoint.options, self._thread(), self._redactor)
            return AsyncSession(endpoint.options, self._playwright, self._redactor)
        assert_never(endpoint)

    def _thread(self) -> TaskThread:
        return self._threads.pop() if self._threads else TaskThread(self._data_dir)

    async def playwright_is_dead(self) -> bool:
        """Whether the process of the async sessions has ended or does not answer. If so, the next launch gets
        another."""
        return await self._playwright.replace_if_dead()

    def shared_process(self, session: Session) -> int | None:
        """The Playwright process that this session shares with others, if it does."""
        return self._playwright.pid_of(session)

    async def retire_playwright(self, pid: int) -> bool:
        """Let new async sessions get another process; this one ends with its last session. Returns False if new
        sessions did not get this one."""
        return await self._playwright.retire(pid)

    def leave(self, session: Session, browser: RunningBrowser, timeout: float) -> "asyncio.Future[bool]":
        """Close the session in the background while its browser is stopped. Only `close` waits for that.

        The caller sets the result of the returned future, True if stopping the browser failed, or cancels it. After a
        failure, or if it is cancelled, the session's thread, if it has one, serves no other session.
        """
        failed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def leave() -> None:
            left = False
            with suppress(Exception):
                await browser.closing(timeout)
                await session.close()
                left = True
            await asyncio.wait({failed})
            await self._take_back(session, failed=not left or failed.cancelled() or failed.result())

        leaving = asyncio.ensure_future(leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return failed

    async def _take_back(self, session: Session, *, failed: bool) -> None:
        """Called when a session is over: its thread, if it had one and nothing failed, may serve another."""
        await self._playwright.release(session)
        thread: TaskThread | None = getattr(session, "thread", None)
        if thread is None:
            return
        if thread.stuck or thread.worn or failed:
            await run_in_thread(thread.close)
        else:
            self._threads.append(thread)

    async def close(self) -> None:
        """End every thread and every Playwright process, once all sessions are closed."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._playwright.stop()
        for thread in self._threads:
            await run_in_thread(thread.close)
