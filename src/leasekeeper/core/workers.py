"""Workers as the store sees them: which tasks a process offers, and whether it still reports."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from leasekeeper.core.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that takes jobs. `worker_id` is a name people read; `incarnation` is who it is.

    `engine` is the major version of its browser, `version` that of its Leasekeeper, `machine` the name that its data
    directory keeps (see `core.homes`).
    `unwell_reason`: why its machine cannot run any job now (see `core.machine`); it claims none meanwhile.
    `silent_since`: when a sweep noticed that it no longer reports, though it did not say that it stops.
    """

    worker_id: WorkerId
    incarnation: str
    pool: str
    tasks: tuple[str, ...]
    concurrency: int = 1
    engine: int | None = None
    version: str | None = None
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None = None
    unwell_reason: str | None = None
    unwell_since: datetime | None = None
    silent_since: datetime | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says of itself when it starts, every so often, and when it stops."""

    worker_id: WorkerId
    incarnation: str
    pool: str
    tasks: tuple[str, ...]
    concurrency: int = 1
    engine: int | None = None
    version: str | None = None
    stopping: bool = False
    unwell_reason: str | None = None
    machine: str | None = None


def reports(worker: Worker, now: datetime, ttl: timedelta) -> bool:
    """Whether the worker counts as there."""
    return worker.stopped_at is None and worker.heartbeat_at > now - ttl
