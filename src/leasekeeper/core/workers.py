"""Workers as the store sees them: which tasks a process offers, and whether it still reports."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from leasekeeper.core.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that takes jobs. `worker_id` is a name people read; `incarnation` is who it is."""

    worker_id: WorkerId
    incarnation: str
    pool: str
    tasks: tuple[str, ...]
    concurrency: int = 1
    engine: int | None = None
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker says of itself when it starts, every so often, and when it stops."""

    worker_id: WorkerId
    incarnation: str
    pool: str
    tasks: tuple[str, ...]
    concurrency: int = 1
    engine: int | None = None
    stopping: bool = False


def reports(worker: Worker, now: datetime, ttl: timedelta) -> bool:
    """Whether the worker counts as there."""
    return worker.stopped_at is None and worker.heartbeat_at > now - ttl
