"""Base of the engines of stores on a server: each operation runs in a thread that has its own connection.

Knows threads, but no server: a subclass runs the operations.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from leasekeeper.errors import StoreError
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.sql.batching import Threads
from leasekeeper.stores.sql.engine import Tx
from leasekeeper.stores.sql.notifications import Notifications

T = TypeVar("T")


class ThreadedEngine(ABC):
    """Writer threads, reader threads, and the notifications that wake waiting callers. `end_thread` runs last in each
    thread."""

    def __init__(
        self, name: str, notifications: Notifications, end_thread: Callable[[], None], *, writers: int, readers: int
    ) -> None:
        self._pid = os.getpid()
        self._writers = Threads(writers, f"leasekeeper-{name}-writer", end_thread)
        self._readers = Threads(readers, f"leasekeeper-{name}-reader", end_thread)
        self._notifications = notifications

    @abstractmethod
    def _check(self) -> object:
        """Connect once. Raises if this program cannot use the server or its schema."""

    @abstractmethod
    def _info(self) -> StoreInfo: ...

    @abstractmethod
    def _change(self, operation: Callable[[Tx], T]) -> T:
        """Run the operation until it commits."""

    @abstractmethod
    def _view(self, operation: Callable[[Tx], T]) -> T:
        """Run the operation on one snapshot of the store."""

    async def open(self) -> None:
        """Connect once. Raises if this program cannot use the server or its schema."""
        await self._run_in(self._readers, self._check)

    def change(self, operation: Callable[[Tx], T], *, brief: bool = False) -> "asyncio.Future[T]":  # noqa: ARG002 - the server may always keep the caller waiting
        return self._run_in(self._writers, lambda: self._change(operation))

    def view(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        return self._run_in(self._readers, lambda: self._view(operation))

    async def wait(self, timeout: timedelta) -> None:
        await self._notifications.wait(timeout)

    def hint(self) -> None:
        self._notifications.send()

    async def info(self) -> StoreInfo:
        return await self._run_in(self._readers, self._info)

    async def close(self) -> None:
        await asyncio.to_thread(self._notifications.close)
        for threads in (self._writers, self._readers):
            await asyncio.to_thread(threads.close)

    def _run_in(self, threads: Threads, work: Callable[[], T]) -> "asyncio.Future[T]":
        if os.getpid() != self._pid:
            raise StoreError("this store was opened before a fork; open it again in the child process")
        return threads.run(work)
