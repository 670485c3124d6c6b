"""What a task starts and leaves running: asyncio tasks that outlive it could act in the browser of the next run."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

Offspring = WeakSet["asyncio.Future[Any]"]


class TaskLeft(Exception):
    """The task ended in a way that is meant to end a program or a loop. It ends its run, and nothing else."""


_KEPT: ContextVar[Offspring | None] = ContextVar("leasekeeper_offspring", default=None)


def keep_track(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the loop remembers which tasks were started from inside a run."""
    loop.set_task_factory(_new_task)


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: "Coroutine[Any, Any, Any] | Generator[Any, None, Any]", **more: Any
) -> "asyncio.Future[Any]":
    kept = _KEPT.get()
    if kept is None:
        return asyncio.Task(coro, loop=loop, **more)
    task: asyncio.Task[Any] = asyncio.Task(_contained(coro), loop=loop, **more)
    kept.add(task)
    return task


async def _contained(coro: Any) -> object:
    """asyncio would let these out of its loop, and the whole worker would end."""
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise TaskLeft(f"the task ended with {type(error).__name__}({error})") from error


def begin() -> Offspring:
    """Called inside a run's own task: what it starts from here on is in the answer."""
    kept: Offspring = WeakSet()
    _KEPT.set(kept)
    return kept
