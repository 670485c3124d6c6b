"""The sweeper's task for schedules: make the jobs of those that are due. The store decides which are due."""

from typing import Final

from leasekeeper.errors import InputError
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.sweep_log import log_fired

MAX_BATCHES: Final = 20


async def fire_due(store: Store, trouble: FailureLog) -> int:
    """Make jobs until nothing is due, within a limit: the rest waits for the next sweep. Returns how many were made."""
    made = 0
    for _ in range(MAX_BATCHES):
        fired = await store.fire()
        made += sum(one.made for one in fired)
        log_fired(fired)
        faults = [one for one in fired if one.fault is not None]
        for one in faults:
            trouble.again(f"schedule {one.schedule_id} makes no jobs", InputError(one.fault or ""))
        if len(faults) == len(fired):
            break
    return made
