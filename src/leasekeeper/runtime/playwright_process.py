"""Playwright processes: started when first needed, replaced when one has died or does not answer.

Each is put into a session of its own, so that Ctrl-C in a terminal asks the worker to stop and does not kill its
browsers.
"""

import asyncio
import logging
import os
import shlex
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leasekeeper.browsers.data_directory import check_data_dir, place_program
from leasekeeper.errors import InputError, NoPlaywright

_LOG = logging.getLogger(__name__)

STOP_SECONDS = 5.0
ANSWER_SECONDS = 5.0
NO_PLAYWRIGHT = "Playwright is not installed; install the extra leasekeeper[browser]"
_NODE = "PLAYWRIGHT_NODEJS_PATH"
_STARTER = "playwright"


def write_starter(data_dir: Path) -> Path | None:
    """Write a program that starts Playwright's node in a process session of its own. Returns its path, or None where
    the system has no `setsid`. Raises NoPlaywright, or InputError if the data folder cannot be written to."""
    try:
        import playwright
    except ImportError:
        raise NoPlaywright(NO_PLAYWRIGHT) from None
    node = starting.chosen_node()
    if node is None or Path(node) == data_dir.absolute() / "bin" / _STARTER:  # inherited: it would start itself
        node = str(Path(playwright.__file__).parent / "driver" / "node")
    setsid = shutil.which("setsid")
    if setsid is None or not os.access(node, os.X_OK):
        return None
    text = f'#!/bin/sh\nexec {shlex.quote(setsid)} {shlex.quote(node)} "$@"\n'
    try:
        check_data_dir(data_dir)
        return place_program(data_dir, _STARTER, text)
    except OSError as error:
        raise InputError(f"the data folder {data_dir} cannot be written to: {error.strerror}") from error


class _Starting:
    """Sets the environment variable that makes Playwright use the starter, only while Playwright processes are started:
    other programs that this process starts must not inherit it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: str | None = None

    def chosen_node(self) -> str | None:
        """The node that the environment names, also while the variable is set to the starter; None if it names none."""
        with self._lock:
            return (self._before if self._count else os.environ.get(_NODE)) or None

    @contextmanager
    def by(self, starter: Path | None) -> Iterator[None]:
        if starter is None:
            yield
            return
        with self._lock:
            if self._count == 0:
                self._before = os.environ.get(_NODE)
            self._count += 1
            os.environ[_NODE] = str(starter)
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    os.environ.pop(_NODE, None)
                    if self._before is not None:
                        os.environ[_NODE] = self._before


starting = _Starting()


class PlaywrightProcess:
    """The Playwright process that all `async def` tasks of a worker share."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._playwright: Any = None
        self._replaced: list[Any] = []
        self._users: dict[object, Any] = {}
        self._pids: dict[Any, int] = {}
        self.pid: int | None = None
        """The process that new users get; None if there is none, or if Playwright does not say."""
        self._starting = asyncio.Lock()

    async def get(self, user: object | None = None) -> Any:
        """Return Playwright; start its process if there is none. The process lives at least until `user` releases
        it."""
        async with self._starting:
            if self._playwright is None:
                try:
                    from playwright.async_api import async_playwright
                except ImportError:
                    raise NoPlaywright(NO_PLAYWRIGHT) from None
                with starting.by(write_starter(self._data_dir)):
                    manager = async_playwright()
                    self._playwright = await manager.start()
                    self.pid = _pid_of(manager)
                    if self.pid is not None:
                        self._pids[self._playwright] = self.pid
            if user is not None:
                self._users[user] = self._playwright
            return self._playwright

    def pid_of(self, user: object) -> int | None:
        """The pid of the process that this user got, also if it was replaced since; None if that is unknown."""
        return self._pids.get(self._users.get(user))

    async def retire(self, pid: int) -> bool:
        """Give this process to no new user: it ends with its last one. Returns False if new users did not get it
        anyway."""
        async with self._starting:
            if self.pid != pid:
                return False
            retired, self._playwright, self.pid = self._playwright, None, None
            self._replaced.append(retired)
        await self._stop_if_unused(retired)
        return True

    async def release(self, user: object) -> None:
        """Called when `user` no longer needs its process. A process that was replaced ends with its last user."""
        await self._stop_if_unused(self._users.pop(user, None))

    async def _stop_if_unused(self, playwright: Any) -> None:
        if playwright in self._replaced and playwright not in self._users.values():
            self._replaced.remove(playwright)
            self._pids.pop(playwright, None)
            await _stop(playwright)

    async def replace_if_dead(self) -> bool:
        """After a failed launch: replace the process if it does not answer. Returns whether it was replaced."""
        async with self._starting:
            playwright = self._playwright
            if playwright is None or await _answers(playwright):
                return False
            self._playwright, self.pid = None, None
            self._replaced.append(playwright)
            return True

    async def stop(self) -> None:
        """End the processes. Their browsers should be closed by now; keepers close those that are not."""
        async with self._starting:
            for playwright in (self._playwright, *self._replaced):
                if playwright is not None:
                    await _stop(playwright)
            self._playwright, self._replaced, self.pid = None, [], None
            self._pids.clear()


def _pid_of(manager: Any) -> int | None:
    """The pid of the process. Playwright keeps it private: None, with a warning, in a version that stores it
    elsewhere."""
    found = manager
    for name in ("_client", "_transport", "_proc", "pid"):
        found = getattr(found, name, None)
    if not isinstance(found, int):
        _LOG.warning("this version of Playwright does not say which process it runs in: its memory is not watched")
        return None
    return found


async def _stop(playwright: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(STOP_SECONDS):
            await playwright.stop()


async def round_trip(playwright: Any) -> None:
    """Make a request that needs no browser and wait for the answer. The process handles requests in order, so all
    earlier ones are done then."""
    await (await playwright.request.new_context()).dispose()


async def _answers(playwright: Any) -> bool:
    """Whether the process still answers."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await round_trip(playwright)
    except Exception:  # noqa: BLE001 - whatever it says, it is not an answer
        return False
    return True


class SyncPlaywrightProcess:
    """The Playwright process of one thread, for the sync API."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._playwright: Any = None
        self.pid: int | None = None

    def get(self) -> Any:
        if self._playwright is None:
            try:
                from playwright.sync_api import sync_playwright
            except ImportError:
                raise NoPlaywright(NO_PLAYWRIGHT) from None
            with starting.by(write_starter(self._data_dir)):
                manager = sync_playwright()
                self._playwright = manager.start()
                self.pid = _pid_of(manager)
        return self._playwright

    def stop(self) -> None:
        playwright, self._playwright, self.pid = self._playwright, None, None
        if playwright is not None:
            with suppress(Exception):
                playwright.stop()
