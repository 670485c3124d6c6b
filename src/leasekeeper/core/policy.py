"""The durations and limits that rules depend on, in one value. `leasekeeper.config` reads them."""

from dataclasses import dataclass
from datetime import timedelta

from leasekeeper.core.jobs import Backoff
from leasekeeper.core.leases import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The durations that a store decides by. One per fleet: every process should use the same.

    `store_timeout` is part of no rule: a server without a response for so long counts as gone.
    """

    timing: Timing = Timing()
    backoff: Backoff = Backoff()
    long_run: timedelta = timedelta(minutes=10)
    worker_ttl: timedelta = timedelta(seconds=90)
    strict_tasks: bool = False
    store_timeout: timedelta = timedelta(seconds=15)
    schedule_grace: timedelta = timedelta(minutes=5)
    home_wait: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished jobs (with their runs) and events are kept. None keeps them for ever."""

    jobs: timedelta | None = timedelta(days=30)
    events: timedelta | None = timedelta(days=90)
