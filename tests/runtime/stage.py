"""What the runtime's tests stand on: a small fleet, times short enough to watch, and waiting for conditions.

A busy machine may let a process stand still for seconds: a lease that is to be kept must outlive that.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from leasekeeper.client import Client
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.core.workers import WorkerReport
from leasekeeper.stores.sqlite.write_block import writes_blocked
from tests.conformance.world import fleet, profile

T = TypeVar("T")

CALM: dict[str, float] = {"renew_every": 0.25}
"""Renewed often, lost late: for tests that do not wait for an expiry."""

TIMES: dict[str, float] = {
    "lease_ttl": 8.0,
    "renew_every": 0.25,
    "holder_stops_after": 6.5,
    "lock_delay": 0.1,
    "sweep_every": 0.05,
}
"""For tests that do."""

PATIENCE = 200.0


async def furnish(client: Client, **settings: Any) -> None:
    """One profile `p1`, and a worker that offers `visit`."""
    await client.store.apply(fleet(profile("p1", **settings)), actor="test")
    await client.store.report(
        WorkerReport(worker_id=WorkerId("w"), incarnation="w-1", pool="default", tasks=("visit",))
    )


async def state_of(client: Client, profile_id: str = "p1") -> ProfileState:
    return (await client.get(Lane, profile_id)).state


def stop(url: str, *pids: int) -> None:
    """SIGSTOP, in a moment in which nobody writes: stopped in a commit to SQLite, they would hold up everybody."""
    if url.startswith("sqlite:///"):
        with writes_blocked(Path(url.removeprefix("sqlite:///"))):
            _stop(pids)
    else:
        _stop(pids)


def _stop(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while not all(_stands_still(pid) for pid in pids):
        time.sleep(0.001)  # waits: the signal reaches one thread of a process after the other


def _stands_still(pid: int) -> bool:
    threads = [thread.read_text() for thread in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(line.rpartition(")")[2].split()[0] in "TtZX" for line in threads)


async def until(condition: Callable[[], Awaitable[T]], patience: float = PATIENCE) -> T:
    """The first answer that is true. Fails after a long while."""
    end = time.monotonic() + patience
    while not (answer := await condition()):
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.02)  # waits: for another process or thread, in small steps, until the condition holds
    return answer
