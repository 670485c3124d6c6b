"""Workers as the store sees them: which tasks a process offers, whether it still reports, what a report changes, and
which workers take jobs now."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.pauses import Pause, Scope


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
    """Whether the worker is live: it has not stopped, and its last heartbeat is less than `ttl` old."""
    return worker.stopped_at is None and worker.heartbeat_at > now - ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What was known of a worker process before it reported again."""

    unwell_reason: str | None = None
    unwell_since: datetime | None = None
    silent_since: datetime | None = None


def reported(said: WorkerReport, before: Earlier | None, now: datetime) -> Worker:
    """The worker after a report; `before` is None at its first one. It is unwell since it first said so."""
    since = before.unwell_since if before is not None else None
    return Worker(
        worker_id=said.worker_id,
        incarnation=said.incarnation,
        pool=said.pool,
        tasks=said.tasks,
        concurrency=said.concurrency,
        engine=said.engine,
        version=said.version,
        machine=said.machine,
        started_at=now,
        heartbeat_at=now,
        stopped_at=now if said.stopping else None,
        unwell_reason=said.unwell_reason,
        unwell_since=(since or now) if said.unwell_reason is not None else None,
    )


def news_in(
    said: WorkerReport, before: Earlier | None, now: datetime
) -> Iterator[tuple[EventType, Mapping[str, object]]]:
    """The events to write for a report, with their data: the machine became unwell or well again, the worker is back
    after a silence, it has started, it stops. Most reports need none."""
    place: Mapping[str, object] = {"incarnation": said.incarnation, "pool": said.pool}
    earlier = before or Earlier()
    if (said.unwell_reason is None) != (earlier.unwell_reason is None):
        health = EventType.WORKER_WELL if said.unwell_reason is None else EventType.WORKER_UNWELL
        yield health, {"incarnation": said.incarnation, "reason": said.unwell_reason}
    if earlier.silent_since is not None:
        silent = (now - earlier.silent_since).total_seconds()
        yield EventType.WORKER_RETURNED, {**place, "silent_seconds": silent}
    if said.stopping:
        yield EventType.WORKER_STOPPED, place
    elif before is None:
        yield EventType.WORKER_STARTED, place


def serving(live: Iterable[Worker], pauses: Iterable[Pause]) -> list[Worker]:
    """The live workers that take jobs now: not paused by a person, and on a machine that can run jobs. `pauses` are
    those in force."""
    paused = {pause.name for pause in pauses if pause.scope is Scope.WORKER}
    return [worker for worker in live if worker.unwell_reason is None and worker.worker_id not in paused]


def homes_served(workers: Iterable[Worker]) -> list[str]:
    """The tasks that these workers offer, each as `pool/task@machine`. A worker that names no machine is left out."""
    return sorted(
        {f"{each.pool}/{task}@{each.machine}" for each in workers if each.machine is not None for task in each.tasks}
    )
