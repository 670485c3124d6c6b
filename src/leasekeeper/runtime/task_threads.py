"""The threads that plain `def` tasks run in. A thread runs one task at a time, and then serves another."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from leasekeeper.runtime import log_fields, tracing
from leasekeeper.runtime.child_tasks import TaskLeft
from leasekeeper.runtime.playwright_process import SyncPlaywrightProcess

T = TypeVar("T")

JOIN_SECONDS = 15.0


class TaskThread:
    """A thread with a Playwright process of its own, started when first needed: the sync API allows no other way."""

    def __init__(self, data_dir: Path) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.playwright = SyncPlaywrightProcess(data_dir)
        self._thread = threading.Thread(target=self._main, name="leasekeeper-sync-task", daemon=True)
        self._thread.start()
        self.stuck = False
        self.worn = False
        """Its Playwright process uses too much memory to serve another session."""

    async def call(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Run `work` in the thread and return its result, or raise its error. If it does not return in time, this
        raises TimeoutError: the thread is stuck, and is not used again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def resolve(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        def answer(result: Any, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits there any more
                loop.call_soon_threadsafe(resolve, result, error)

        take_over, take_trace = log_fields.inherit(), tracing.inherit()

        def do() -> None:
            take_over()
            take_trace()
            try:
                result = work()
            except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError) as error:
                answer(None, TaskLeft(f"the task ended with {type(error).__name__}({error})"))
            except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
                answer(None, error)
            else:
                answer(result, None)

        self._calls.put(do)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except (TimeoutError, asyncio.CancelledError):
            self.stuck = self.stuck or not future.done() or future.cancelled()
            raise

    def close(self) -> None:
        """End the thread and its Playwright process after its current call. A stuck thread is not waited for: it is a
        daemon."""
        self._calls.put(None)
        if not self.stuck:
            self._thread.join(JOIN_SECONDS)

    def _main(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
        self.playwright.stop()
