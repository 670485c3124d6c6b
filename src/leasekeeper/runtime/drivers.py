"""Playwright's driver processes: started when first needed, replaced when one has died or does not answer.

The driver is put into a session of its own, so that Ctrl-C in a terminal asks the worker to stop and does not take its
browsers away under it.
"""

import asyncio
import os
import shlex
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leasekeeper.errors import InputError

STOP_SECONDS = 5.0
ANSWER_SECONDS = 5.0
_NODE = "PLAYWRIGHT_NODEJS_PATH"


class NoPlaywright(InputError):
    """Playwright is not installed."""

    code = "NO_PLAYWRIGHT"

    def __init__(self) -> None:
        super().__init__("Playwright is not installed; run: pip install 'leasekeeper[browser]'")


def write_starter(data_dir: Path) -> Path | None:
    """A small program that starts Playwright's driver in a session of its own; None where the system has no way."""
    try:
        import playwright
    except ImportError:
        raise NoPlaywright from None
    node = os.environ.get(_NODE) or str(Path(playwright.__file__).parent / "driver" / "node")
    setsid = shutil.which("setsid")
    if setsid is None or not os.access(node, os.X_OK):
        return None
    starter = data_dir.absolute() / "bin" / "driver"
    starter.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = starter.with_name(f".driver-{os.getpid()}")
    part.write_text(f'#!/bin/sh\nexec {shlex.quote(setsid)} {shlex.quote(node)} "$@"\n', encoding="utf-8")
    part.chmod(0o700)
    part.replace(starter)
    return starter


class _Starting:
    """While drivers are started, Playwright is told by its environment variable to use the starter, and not longer:
    programs that this process starts must not inherit it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: str | None = None

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


_starting = _Starting()


class Driver:
    """The driver that all `async def` tasks of a worker share."""

    def __init__(self) -> None:
        self.starter: Path | None = None
        self._playwright: Any = None
        self._replaced: list[Any] = []
        self._starting = asyncio.Lock()

    async def get(self) -> Any:
        """The driver, started if there is none."""
        async with self._starting:
            if self._playwright is None:
                try:
                    from playwright.async_api import async_playwright
                except ImportError:
                    raise NoPlaywright from None
                with _starting.by(self.starter):
                    self._playwright = await async_playwright().start()
            return self._playwright

    async def replace_if_dead(self) -> bool:
        """After a launch that failed: put a driver that does not answer aside. Says whether it was."""
        async with self._starting:
            playwright = self._playwright
            if playwright is None or await _answers(playwright):
                return False
            self._playwright = None
            self._replaced.append(playwright)
            return True

    async def stop(self) -> None:
        """End the drivers. Their browsers should be closed by now; those that are not, their keepers close."""
        async with self._starting:
            for playwright in (self._playwright, *self._replaced):
                if playwright is not None:
                    with suppress(Exception):
                        async with asyncio.timeout(STOP_SECONDS):
                            await playwright.stop()
            self._playwright, self._replaced = None, []


async def _answers(playwright: Any) -> bool:
    """Whether the driver's process still answers a question that needs no browser."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await (await playwright.request.new_context()).dispose()
    except Exception:  # noqa: BLE001 - whatever it says, it is not an answer
        return False
    return True


class SyncDriver:
    """A driver of one thread, for the sync API."""

    def __init__(self, starter: Path | None) -> None:
        self._starter = starter
        self._playwright: Any = None

    def get(self) -> Any:
        if self._playwright is None:
            try:
                from playwright.sync_api import sync_playwright
            except ImportError:
                raise NoPlaywright from None
            with _starting.by(self._starter):
                self._playwright = sync_playwright().start()
        return self._playwright

    def stop(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with suppress(Exception):
                playwright.stop()
