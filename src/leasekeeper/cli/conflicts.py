"""`leasekeeper conflicts`: which profiles and which pairs of tasks collide most.

Read from the `profile_lock_conflict` events, newest first, up to a named number of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.table import Column, Screen, render_table
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.errors import NotFound
from leasekeeper.lists import MAX_IN_PAGE

if TYPE_CHECKING:
    from leasekeeper.ports import Store

MAX_EVENTS: Final = 10_000
MAX_JOBS_LOOKED_UP: Final = 1_000
UNKNOWN_TASK: Final = "(unknown)"
NO_JOB: Final = "(no job)"


@dataclass(slots=True)
class Tally:
    """One profile or one pair of tasks: how often, why, and when last."""

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
    def told_causes(self) -> str:
        return ", ".join(f"{cause} {count}" for cause, count in self.causes.most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Collisions by profile and by pair of tasks, most frequent first."""

    events: int
    complete: bool
    profiles: Sequence[Tally]
    pairs: Sequence[Tally]
    now: datetime


@click.command("conflicts")
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Lines of each table.",
)
@output
def command(top: int, store: str | None, as_json: bool) -> None:
    """Report which profiles, and which pairs of tasks, conflict most often."""
    report = with_store(store, count_conflicts)
    if as_json:
        answer_json(
            {
                "events": report.events,
                "complete": report.complete,
                "profiles": [_json(tally) for tally in report.profiles[:top]],
                "pairs": [_json(tally) for tally in report.pairs[:top]],
            }
        )
        return
    for line in lay_out(report, top, Screen.now()):
        click.echo(line)


async def count_conflicts(store: "Store") -> Report:
    """Read the conflicts and count them."""
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
    now = (await store.check()).now
    return Report(events=len(events), complete=complete, profiles=_limit(profiles), pairs=_limit(pairs), now=now)


async def _conflicts(store: "Store") -> tuple[list[Event], bool]:
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


async def _tasks(store: "Store", events: Iterable[Event]) -> dict[str, str]:
    """The tasks of jobs that events name without their task: of those that still exist, up to a limit."""
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


def _limit(tallies: Mapping[str, Tally]) -> list[Tally]:
    return sorted(tallies.values(), key=lambda tally: (-tally.count, tally.name))


def _json(tally: Tally) -> dict[str, object]:
    last_at = encoded(tally.last_at)
    return {**tally.keys, "count": tally.count, "causes": dict(tally.causes), "last_at": last_at}


def lay_out(report: Report, top: int, screen: Screen) -> list[str]:
    """Two tables, or the good news."""
    if not report.events:
        return ["no conflicts: nobody wanted a profile that another run had"]
    lines = []
    for title, tallies in (("PROFILE", report.profiles), ("TASKS", report.pairs)):
        columns = (
            Column[Tally](title, "name", spare=1),
            Column[Tally]("CONFLICTS", "count"),
            Column[Tally]("LAST", "last_at", spare=3),
            Column[Tally]("CAUSES", "told_causes", spare=2, least=20),
        )
        lines += [*render_table(columns, tallies[:top], report.now, screen), ""]
    scope = "" if report.complete else f"the newest {report.events:,} "
    return [*lines, screen.dim(f"from {scope or f'{report.events:,} '}conflicts")]
