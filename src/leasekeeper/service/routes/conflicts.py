"""Which profiles and which pairs of tasks collide most, over HTTP: the report of `leasekeeper conflicts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from leasekeeper.core.tokens import OPERATIONS
from leasekeeper.runtime.conflict_report import count_conflicts
from leasekeeper.service.routes.records import WholeNumber
from leasekeeper.service.routing import Call, Parameter, Route

MAX_TOP: Final = 1_000
TOP: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConflicts:
    """How often jobs met a profile that was taken, why, and when last."""

    profile_id: str
    count: int
    causes: Mapping[str, int]
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConflicts:
    """How often one task waited for another."""

    blocked_task: str
    current_task: str
    count: int
    causes: Mapping[str, int]
    last_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictReport:
    """The most frequent first, from the newest `events` conflicts; `complete`: these are all."""

    events: int
    complete: bool
    profiles: Sequence[ProfileConflicts]
    pairs: Sequence[TaskConflicts]


async def report(call: Call) -> ConflictReport:
    """Count the conflicts in the event log."""
    store, top = call.service.store, call.query.get("top", TOP)
    found = await count_conflicts(store, (await store.check()).now)
    return ConflictReport(
        events=found.events,
        complete=found.complete,
        profiles=[
            ProfileConflicts(**each.keys, count=each.count, causes=each.causes, last_at=each.last_at)
            for each in found.profiles[:top]
        ],
        pairs=[
            TaskConflicts(**each.keys, count=each.count, causes=each.causes, last_at=each.last_at)
            for each in found.pairs[:top]
        ],
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/conflicts/report",
        summary="Which profiles, and which pairs of tasks, conflict most often.",
        handler=report,
        needs=OPERATIONS["find"],
        parameters=(Parameter("top", "maximum number of profiles, and of pairs", WholeNumber(1, MAX_TOP)),),
        answers=ConflictReport,
        tag="conflicts",
    ),
)
