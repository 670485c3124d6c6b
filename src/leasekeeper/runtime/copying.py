"""Long copies in a thread, under a lease: they stop soon after it is lost, or after the caller was cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from leasekeeper.runtime.heartbeat import KeptLease
from leasekeeper.threads import run_in_thread

T = TypeVar("T")
OnBytes = Callable[[int], None]


class Interrupted(Exception):
    """The copy was stopped on the way."""


def ignore(_size: int) -> None:
    """Nobody waits for the progress."""


async def copy_under(kept: KeptLease, work: Callable[[OnBytes], T], on_bytes: OnBytes = ignore) -> T:
    """Run `work` in a thread; it calls what it is given with the size of each part. Raises LeaseLost.

    If the caller is cancelled, the work is stopped first.
    """
    stopped = threading.Event()

    def tick(size: int) -> None:
        if stopped.is_set():
            raise Interrupted
        kept.check()
        on_bytes(size)

    copying = asyncio.ensure_future(run_in_thread(work, tick))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait({copying})
        if not copying.cancelled():
            copying.exception()
        raise
