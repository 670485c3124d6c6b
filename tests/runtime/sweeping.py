"""A process that fires schedules: `python -m tests.runtime.sweeping URL NOW LIMIT [die]`, until it is killed.

NOW is what the store's clock shows to it, for ever. With `die` it kills itself when everything is written and nothing
committed.
"""

import asyncio
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from leasekeeper.core.policy import Policy
from leasekeeper.stores import open_store
from leasekeeper.stores.sql import scheduling

ROOT = Path(__file__).resolve().parents[2]


def start(url: str, now: datetime, limit: int, *more: str) -> subprocess.Popen[bytes]:
    """Start one such process."""
    return subprocess.Popen([sys.executable, "-m", __name__, url, now.isoformat(), str(limit), *more], cwd=ROOT)


async def sweep(url: str, now: datetime, limit: int, *, die: bool) -> None:
    store: Any = await open_store(url, policy=Policy(), clock=lambda _real: now)

    def fire_and_die(tx: Any) -> None:
        fired, _ = scheduling.fire(tx, store._ctx, limit)
        assert sum(one.made for one in fired) == limit
        tx.read(("all_schedules", {}))  # whatever waits to be sent is sent before this
        os.kill(os.getpid(), signal.SIGKILL)

    while True:
        if die:
            await store._engine.change(fire_and_die)
        await store.fire(limit)


if __name__ == "__main__":
    asyncio.run(sweep(sys.argv[1], datetime.fromisoformat(sys.argv[2]), int(sys.argv[3]), die="die" in sys.argv[4:]))
