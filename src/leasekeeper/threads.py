"""Runs Leasekeeper's own blocking work in threads, and an event loop in a thread of its own.

Blocking work does not use the loop's default executor: tasks use that one, and may keep all its threads busy for ever.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as until_done
from functools import partial
from threading import Thread
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_AT_ONCE: Final = 16
_THREADS: Final = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="leasekeeper-thread")


async def run_in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread, in a copy of this context. Returns or raises what it does.

    Raises RuntimeError if no thread can be started; `work` is then never run.
    """
    return await asyncio.wrap_future(_submit(partial(contextvars.copy_context().run, work, *args, **kwargs)))


def _submit(call: Callable[[], T]) -> "Future[T]":
    """Queue the call. The pool queues it before it starts a thread: if that fails, a thread that is busy now would
    still run the call later, and nobody would get its result."""
    answer: Future[T] = Future()
    try:
        _THREADS.submit(_run, call, answer)
    except RuntimeError:
        if answer.cancel():  # else a thread of the pool has begun the call already
            raise
    return answer


def _run(call: Callable[[], T], answer: "Future[T]") -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        answer.set_exception(error)
        del answer  # or the error would keep itself alive: its traceback has this frame
    else:
        answer.set_result(result)


class LoopThread:
    """An event loop in a thread of its own: Playwright's sync API runs one in the caller's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="leasekeeper-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def call(self, work: Coroutine[Any, Any, T], *, uncancelled: bool = False) -> T:
        """Run `work` in the loop and return its result. Ctrl-C cancels it; with `uncancelled`, Ctrl-C takes effect once
        it has ended.
        """
        answer: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda task: _pass_on(task, answer))

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        try:
            return answer.result()
        except BaseException:
            if not answer.done():  # the caller was interrupted while it waited
                if not uncancelled:
                    self._loop.call_soon_threadsafe(cancel)
                until_done([answer])
            raise

    def close(self) -> None:
        """Stop the loop. Every call must have ended before."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _pass_on(task: "asyncio.Task[T]", answer: "Future[T]") -> None:
    if task.cancelled():
        answer.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
