"""Counts which profiles and which pairs of tasks collide most, from the newest `profile_lock_conflict` events. For the
command line, the API and the pages.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, TypeVar

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.errors import NotFound
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Page

T = TypeVar("T")

MAX_EVENTS: Final = 10_000
MAX_JOBS_LOOKED_UP: Final = 1_000
UNKNOWN_TASK: Final = "(unknown)"
NO_JOB: Final = "(no job)"


@dataclass(slots=True)
class Tally:
    """The conflicts of one profile or one pair of tasks: how many, their causes, and when the last one was."""

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    last_at: datetime | None = None

    def add(self, event: Event) -> None:
        self.count += 1
        self.causes[str(event.data.get("cause", "unknown"))] += 1
        self.last_at = max(self.last_at, event.at) if self.last_at else event.at

    @property
    def causes_text(self) -> str:
        return ", ".join(f"{cause} {count}" for cause, count in self.causes.most_common())

    @property
    def main_cause(self) -> str:
        return self.causes.most_common(1)[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Conflicts by profile and by pair of tasks, most frequent first. `complete` is False if older ones exist."""

    events: int
    times: Sequence[datetime]
    complete: bool
    profiles: Sequence[Tally]
    pairs: Sequence[Tally]
    now: datetime


class Reads(Protocol):
    """A store, or a reader that sees a part of it."""

    async def get(self, kind: type[T], record_id: str) -> T: ...

    async def find(
        self, kind: type[T], where: Mapping[str, str] | None = None, *, after: str | None = None, limit: int = 100
    ) -> Page[T]: ...


async def count_conflicts(store: Reads, now: datetime) -> Report:
    """Read the newest conflicts, at most MAX_EVENTS, and count them."""
    events, complete = await _conflicts(store)
    tasks = await _tasks(store, events)
    profiles: dict[str, Tally] = {}
    pairs: dict[str, Tally] = {}
    for event in events:
        profile = str(event.profile_id)
        profiles.setdefault(profile, Tally(profile, {"profile_id": profile})).add(event)
        blocked, current = (_task(event, role, tasks) for role in ("blocked", "current"))
        pair = f"{blocked} waits for {current}"
        pairs.setdefault(pair, Tally(pair, {"blocked_task": blocked, "current_task": current})).add(event)
    return Report(
        events=len(events),
        times=[event.at for event in events],
        complete=complete,
        profiles=_most_frequent_first(profiles),
        pairs=_most_frequent_first(pairs),
        now=now,
    )


async def _conflicts(store: Reads) -> tuple[list[Event], bool]:
    """The newest conflicts, and whether these are all."""
    events: list[Event] = []
    after = None
    while len(events) < MAX_EVENTS:
        where = {"type": str(EventType.PROFILE_LOCK_CONFLICT)}
        page = await store.find(Event, where, after=after, limit=MAX_IN_PAGE)
        events += page.items
        after = page.after
        if after is None:
            return events, True
    return events, False


async def _tasks(store: Reads, events: Iterable[Event]) -> dict[str, str]:
    """Job id → task, for jobs whose task is not in the event: those that still exist, at most MAX_JOBS_LOOKED_UP."""
    wanted = dict.fromkeys(
        str(event.data[f"{role}_job_id"])
        for event in events
        for role in ("blocked", "current")
        if event.data.get(f"{role}_job_id") and not event.data.get(f"{role}_task")
    )
    tasks: dict[str, str] = {}
    for job_id in list(wanted)[:MAX_JOBS_LOOKED_UP]:
        try:
            tasks[job_id] = (await store.get(Job, job_id)).task
        except NotFound:
            continue
    return tasks


def _task(event: Event, role: str, tasks: Mapping[str, str]) -> str:
    job_id = event.data.get(f"{role}_job_id")
    if not job_id:
        return NO_JOB
    return str(event.data.get(f"{role}_task") or tasks.get(str(job_id), UNKNOWN_TASK))


def _most_frequent_first(tallies: Mapping[str, Tally]) -> list[Tally]:
    return sorted(tallies.values(), key=lambda tally: (-tally.count, tally.name))
