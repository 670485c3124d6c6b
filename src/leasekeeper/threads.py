"""Blocking work of Leasekeeper's own, in threads beside the event loop.

Not in the loop's own threads: tasks use those, and may leave all of them busy for ever.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_AT_ONCE: Final = 16
_THREADS: Final = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="leasekeeper-thread")


async def run_in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """What the work returns or raises, done in a thread."""
    call = partial(contextvars.copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
