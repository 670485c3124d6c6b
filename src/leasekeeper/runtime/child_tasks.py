"""Finds what a task left running: asyncio tasks, timers, callbacks and threads that outlive it could act in the browser
of the next run. The browser is handed over only if it is certain that none of them is left.
"""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, Final
from weakref import WeakSet

# Names of threads that belong to no task: our own, and those of the loop, whose work is tracked by its futures.
_NOT_OF_TASKS: Final = ("leasekeeper", "asyncio_", "waitpid-", "Dummy-", "MainThread")


class TaskLeft(Exception):
    """The task raised SystemExit or KeyboardInterrupt. That ends its run, not the worker."""


class ChildTasks:
    """What was started from inside one run and may still be running."""

    def __init__(self) -> None:
        self.started: WeakSet[asyncio.Future[Any]] = WeakSet()
        self._threads = frozenset(threading.enumerate())

    def left_running(self, loop: asyncio.AbstractEventLoop) -> str | None:
        """The kind of thing that may still be running; None if nothing is."""
        if any(not future.done() for future in self.started):
            return "a task or a call in a thread"
        handles = _scheduled(loop)
        if handles is None:
            return "an event loop that does not say what is scheduled"
        if any(not handle.cancelled() and _run_of(handle) is self for handle in handles):
            return "a timer or a callback"
        return self.thread_left()

    def thread_left(self) -> str | None:
        """The name of a thread that did not exist when the run began, else None. A thread of another run counts too."""
        new = [each for each in threading.enumerate() if each not in self._threads]
        return next((f"thread {each.name}" for each in new if not each.name.startswith(_NOT_OF_TASKS)), None)


_RUN: ContextVar[ChildTasks | None] = ContextVar("leasekeeper_run", default=None)


def _scheduled(loop: asyncio.AbstractEventLoop) -> list[asyncio.Handle] | None:
    """The loop's timers, ready callbacks and callbacks of sockets. None if the loop is not asyncio's own."""
    timers, ready, selector = (getattr(loop, name, None) for name in ("_scheduled", "_ready", "_selector"))
    if timers is None or ready is None or selector is None:
        return None
    sockets = selector.get_map() or {}
    of_sockets = [each for key in sockets.values() if isinstance(key.data, tuple) for each in key.data]
    return [*timers, *ready, *(each for each in of_sockets if isinstance(each, asyncio.Handle))]


def _run_of(handle: asyncio.Handle) -> ChildTasks | None:
    context: Context | None = getattr(handle, "_context", None)
    return context.get(_RUN) if context is not None else None


def keep_track(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the loop records which tasks, and which calls in threads, were started from inside a run."""
    loop.set_task_factory(_new_task)
    run_in_executor = loop.run_in_executor

    def tracked(*arguments: Any, **named: Any) -> "asyncio.Future[Any]":
        future = run_in_executor(*arguments, **named)
        run = _RUN.get()
        if run is not None:
            run.started.add(future)
        return future

    loop.run_in_executor = tracked  # type: ignore[assignment, method-assign] # one loop, and only what is started in a run


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]", **more: Any
) -> "asyncio.Future[Any]":
    run = _RUN.get()
    if run is None:
        return asyncio.Task(coro, loop=loop, **more)
    task: asyncio.Task[Any] = asyncio.Task(_contained(coro), loop=loop, **more)
    run.started.add(task)
    return task


async def _contained(coro: Any) -> object:
    """Raise TaskLeft for exceptions that asyncio would let out of its loop: they would end the whole worker."""
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise TaskLeft(f"the task ended with {type(error).__name__}({error})") from error


def begin() -> ChildTasks:
    """Call this inside a run's own task. The result tracks what the task starts from here on."""
    run = ChildTasks()
    _RUN.set(run)
    return run
