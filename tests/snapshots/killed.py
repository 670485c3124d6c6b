"""A process that brings or saves a profile and kills itself at a step: `python -m tests.snapshots.killed STEP …`."""

import asyncio
import importlib
import inspect
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasekeeper.core.settle import Ending
from tests.snapshots.two_machines import CLOSED, reopened, use

# Where the process dies: the function, whether before or after the call, and at which call.
STEPS: dict[str, tuple[str, str, str, int]] = {
    "first_byte_of_download": ("leasekeeper.snapshots.profile_store", "_create", "after", 1),
    "downloaded": ("leasekeeper.runtime.profile_checkout", "_unpack", "before", 1),
    "half_unpacked": ("leasekeeper.snapshots.packing", "write_file", "after", 3),
    "unpacked": ("leasekeeper.runtime.profile_checkout", "swap", "before", 1),
    "before_exchange": ("leasekeeper.snapshots.directory_swap", "_exchange", "before", 1),
    "after_exchange": ("leasekeeper.snapshots.directory_swap", "_exchange", "after", 1),
    "swapped": ("leasekeeper.runtime.profile_checkout", "swap", "after", 1),
    "half_packed": ("leasekeeper.snapshots.packing", "_add", "after", 2),
    "packed": ("leasekeeper.runtime.saving", "_pack", "after", 1),
    "half_uploaded": ("leasekeeper.snapshots.folder", "_copy", "after", 1),
    "uploaded": ("leasekeeper.snapshots.folder", "_flush", "after", 1),
    "remembered": ("leasekeeper.runtime.saving", "_remember", "after", 1),
}

# Where only a whole worker with a bucket comes.
WORKER_STEPS: dict[str, tuple[str, str, str, int]] = {
    "put": ("leasekeeper.evidence.s3", "S3Evidence.put", "after", 1),
    "read_back": ("leasekeeper.snapshots.profile_store", "ProfileStore._put", "after", 1),
    "settling": ("leasekeeper.runtime.run_settling", "settle_with_retries", "before", 1),
    "settled": ("leasekeeper.runtime.run_settling", "settle_with_retries", "after", 1),
}


def die_at(step: str) -> None:
    """From now on this process kills itself there."""
    module, name, when, count = {**STEPS, **WORKER_STEPS}[step]
    owner, _, name = name.rpartition(".")
    place = getattr(importlib.import_module(module), owner) if owner else importlib.import_module(module)
    original: Callable[..., Any] = getattr(place, name)
    calls = 0

    def die(at: str) -> None:
        if when == at and calls == count:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        die("before")
        answer = original(*arguments, **named)
        die("after")
        return answer

    async def watched_async(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        die("before")
        answer = await original(*arguments, **named)
        die("after")
        return answer

    setattr(place, name, watched_async if inspect.iscoroutinefunction(original) else watched)


async def main(step: str, stage: dict[str, Any]) -> None:
    async with reopened(stage) as (at, name):
        machine = at.machine(name)
        grant, kept = await at.lease(machine)
        die_at(step)
        await machine.snapshots.bring(grant, kept)
        use(machine.directory(), grant, "written by the one that is killed")
        await machine.snapshots.saved(Ending(ref=grant.lease.ref, facts=CLOSED, engine=150), grant, kept)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], pickle.loads(Path(sys.argv[2]).read_bytes())))  # noqa: S301 - the test wrote it
