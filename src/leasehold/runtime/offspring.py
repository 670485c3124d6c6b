"""What a task starts and leaves running: asyncio tasks that outlive it could act in the browser of the next run."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

Offspring = WeakSet["asyncio.Future[Any]"]

_KEPT: ContextVar[Offspring | None] = ContextVar("leasehold_offspring", default=None)


def keep_track(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the loop remembers which tasks were started from inside a run."""
    loop.set_task_factory(_new_task)


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]", **more: Any
) -> "asyncio.Future[Any]":
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **more)
    kept = _KEPT.get()
    if kept is not None:
        kept.add(task)
    return task


def begin() -> Offspring:
    """Called inside a run's own task: what it starts from here on is in the answer."""
    kept: Offspring = WeakSet()
    _KEPT.set(kept)
    return kept
