"""Long copies in a thread, under a lease. They stop soon after the lease is lost or the caller is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from leasekeeper.runtime.heartbeat import KeptLease
from leasekeeper.threads import run_in_thread

T = TypeVar("T")
OnBytes = Callable[[int], None]


class Interrupted(Exception):
    """The copy was stopped before its end, because the caller was cancelled."""


def ignore(_size: int) -> None:
    """Report no progress."""


async def copy_under(kept: KeptLease, work: Callable[[OnBytes], T], on_bytes: OnBytes = ignore) -> T:
    """Run `work` in a thread and return its result. Raises LeaseLost.

    `work` must call its argument with the size of each part that it copied. A cancelled caller waits until it stops.
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
