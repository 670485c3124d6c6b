"""`leasekeeper schedules`: list, show, pause, resume, run.

Schedules are declared in the fleet file; here they are shown, paused and resumed. Next times are computed here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import decided_json, decision_command
from leasekeeper.cli.jobs import VIEW as JOBS
from leasekeeper.cli.options import actor, is_quiet, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, encoded, fields_of, print_ids, print_page
from leasekeeper.cli.record_ids import whole_ids
from leasekeeper.cli.table import Column, Screen, render_sheet, render_table
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.schedules import Schedule, ScheduleState, Selection, handled_until
from leasekeeper.errors import InputError
from leasekeeper.ports import Page

if TYPE_CHECKING:
    from leasekeeper.core.events import Event
    from leasekeeper.ports import Decided, Store

JOBS_SHOWN: Final = 5
MAX_ROUNDS: Final = 10_000
NOT_OF_A_TEMPLATE: Final = frozenset(
    {"account_id", "profile_id", "job_id", "attempt", "idempotency_key", "run_at", "created_at"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A schedule with its state. `next_at` in the past: no sweeper is running."""

    schedule: Schedule
    state: ScheduleState
    next_at: datetime | None


def line_of(schedule: Schedule, state: ScheduleState, now: datetime) -> Line:
    """The line of one schedule; one that is paused, or whose time zone is not known here, has no next time."""
    next_at = state.firing_at
    if next_at is None and not state.paused:
        next_at = next(iter(times_of(schedule, handled_until(state.last_at, schedule.since or now, now), 1)), None)
    return Line(schedule=schedule, state=state, next_at=next_at)


def times_of(schedule: Schedule, after: datetime, count: int) -> list[datetime]:
    """The next times, if this machine can compute them."""
    from leasekeeper.cron import next_times

    try:
        return next_times(schedule.cron, schedule.timezone, after, count)
    except InputError as error:
        click.echo(f"leasekeeper: schedule {schedule.schedule_id}: {error.message}", err=True)
        return []


def chosen(select: Selection) -> str:
    """Which profiles, in short."""
    if select.profile_id is not None:
        return select.profile_id
    parts = [f"account {select.account_id}"] if select.account_id else []
    parts += [f"pool {select.pool}"] if select.pool else []
    return ", ".join([*parts, *(f"{name}={value}" for name, value in select.labels.items())])


VIEW = View(
    kind=Line,
    plural="schedules",
    columns=(
        Column[Line]("SCHEDULE", "schedule.schedule_id"),
        Column[Line]("STATE", lambda line: "paused" if line.state.paused else "active", state=True),
        Column[Line]("CRON", "schedule.cron"),
        Column[Line]("ZONE", "schedule.timezone", spare=5),
        Column[Line]("NEXT", "next_at"),
        Column[Line]("LAST", "state.fired_at", spare=4),
        Column[Line]("TASK", "schedule.job.task", spare=2),
        Column[Line]("PROFILES", lambda line: chosen(line.schedule.select), spare=1),
        Column[Line]("PAUSED BECAUSE", "state.pause_note", spare=3, least=20),
    ),
    empty="declare them in fleet.yaml under schedules, then: leasekeeper apply fleet.yaml",
)

command = noun("schedules", "Schedules: jobs that are created at the times of a cron expression.")


@command.command("list")
@paging
@output
def list_schedules(store: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List schedules with their next time."""

    async def read(opened: "Store") -> tuple[Page[Line], datetime]:
        now = (await opened.check()).now
        page = await opened.find(Schedule, after=after, limit=limit)
        found = (await opened.find(ScheduleState, after=after, limit=limit)).items
        states = {state.schedule_id: state for state in found}
        lines = [line_of(each, states[each.schedule_id], now) for each in page.items if each.schedule_id in states]
        return Page(items=lines, after=page.after), now

    page, now = with_store(store, read)
    if is_quiet():
        print_ids(Schedule, [line.schedule for line in page.items])
        return
    if as_json:
        answer_json({"items": [document(line) for line in page.items], "after": page.after})
        return
    print_page(VIEW, page, now, narrowed=after is not None)


def document(line: Line, *, payload: bool = False) -> dict[str, object]:
    """A schedule for programs: its declaration and its state."""
    encode: Any = encoded
    return {
        **encode(line.schedule, payload=payload),
        "job": template(line.schedule.job, payload=payload),
        "state": "paused" if line.state.paused else "active",
        "next_at": encode(line.next_at),
        **{name: encode(getattr(line.state, name)) for name in ("fired_at", "pause_note", "run_at", "version")},
    }


def template(job: JobSpec, *, payload: bool) -> Mapping[str, object]:
    """The job as it was declared, without defaults."""
    from leasekeeper.wire.schedules import template_body

    return {name: value for name, value in template_body(job).items() if payload or name != "payload"}


@command.command("show")
@click.argument("schedule_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("schedule"))
@click.option("--times", metavar="N", type=click.IntRange(1, 100), default=5, show_default=True, help="How many times.")
@click.option("--payload", is_flag=True, help="Show the payload too.")
@output
def show_schedules(schedule_ids: tuple[str, ...], times: int, payload: bool, store: str | None, as_json: bool) -> None:
    """Show schedules with their next times and newest jobs."""

    async def read(opened: "Store") -> "tuple[list[tuple[Line, Sequence[Job]]], datetime]":
        now = (await opened.check()).now
        found = []
        for whole in await whole_ids(opened, Schedule, schedule_ids):
            line = line_of(await opened.get(Schedule, whole), await opened.get(ScheduleState, whole), now)
            found.append((line, (await opened.find(Job, {"schedule": whole}, limit=JOBS_SHOWN)).items))
        return found, now

    found, now = with_store(store, read)
    if as_json:
        shown = [
            {
                **document(line, payload=payload),
                "next_times": encoded(times_of(line.schedule, now, times)),
                "jobs": encoded(jobs),
            }
            for line, jobs in found
        ]
        answer_json(shown[0] if len(schedule_ids) == 1 else {"items": shown})
        return
    for number, (line, jobs) in enumerate(found):
        if number:
            click.echo()
        _print_schedule(line, jobs, now, times, payload=payload)


def _print_schedule(line: Line, jobs: Sequence[Job], now: datetime, times: int, *, payload: bool) -> None:
    screen = Screen.now()
    upcoming = times_of(line.schedule, now, times)
    hidden = frozenset() if payload else frozenset({"payload"})
    declared = fields_of(line.schedule, frozenset({"schedule_id", "job", "select", "since"}))
    sheets = (
        ("now", _now(line, now)),
        ("next times", [(str(number), _local(line.schedule, at)) for number, at in enumerate(upcoming, 1)]),
        ("declared", [*declared, ("profiles", chosen(line.schedule.select)), ("since", line.schedule.since)]),
        ("job", fields_of(line.schedule.job, NOT_OF_A_TEMPLATE | hidden)),
    )
    for title, fields in sheets:
        click.echo(screen.title(title))
        click.echo("\n".join(render_sheet(fields, now, screen)))
    if jobs:
        click.echo(screen.title("newest jobs"))
        click.echo("\n".join(render_table(JOBS.columns, jobs, now, screen)))


def _now(line: Line, now: datetime) -> list[tuple[str, object]]:
    state = line.state
    late = line.next_at is not None and line.next_at <= now
    return [
        ("schedule id", line.schedule.schedule_id),
        ("state", "paused" if state.paused else "active"),
        ("paused because", state.pause_note),
        ("next", line.next_at),
        ("overdue", "start 'leasekeeper up', or run 'leasekeeper sweep' once" if late else None),
        ("last", state.fired_at),
        ("runs now for", state.run_by),
        ("version", state.version),
    ]


def _local(schedule: Schedule, at: datetime) -> str:
    from leasekeeper.cron import zone_of

    return at.astimezone(zone_of(schedule.timezone)).isoformat(sep=" ", timespec="minutes")


command.add_command(
    decision_command(Target.SCHEDULE, Action.PAUSE, "Pause a schedule: it creates no jobs. Those that it created stay.")
)
command.add_command(
    decision_command(Target.SCHEDULE, Action.RESUME, "Resume a paused schedule. Times that it missed are skipped.")
)


@command.command("run")
@click.argument("schedule_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("schedule"))
@note
@actor
@output
def run_schedule(schedule_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Create the jobs of schedules now, besides their times. Also of paused ones; on_overlap applies."""

    async def run(opened: "Store") -> "list[tuple[Decision, Decided, int, int]]":
        done = []
        for schedule_id in await whole_ids(opened, Schedule, schedule_ids):
            decision = Decision(target=Target.SCHEDULE, id=schedule_id, action=Action.RUN, note=note, actor=by)
            done.append((decision, *await _run(opened, decision)))
        return done

    done = with_store(store, run)
    if as_json:
        items = [{**decided_json(each, decided), "jobs": jobs, "skipped": n} for each, decided, jobs, n in done]
        answer_json(items[0] if len(schedule_ids) == 1 else {"items": items})
        return
    for decision, _, jobs, skipped in done:
        left_out = f", {skipped:,} left out: the previous job there has not ended" if skipped else ""
        click.echo(f"schedule {decision.id} made {jobs:,} job{'s' if jobs != 1 else ''}{left_out}")


async def _run(store: "Store", decision: Decision) -> "tuple[Decided, int, int]":
    """Decide, wait until the jobs are created, by this process or another, and count them from the log."""
    import asyncio

    decided = await store.decide(decision)
    asked = (await store.get(ScheduleState, decision.id)).run_at
    for _ in range(MAX_ROUNDS):
        if asked is None or (await store.get(ScheduleState, decision.id)).run_at != asked:
            break
        if not await store.fire():
            await asyncio.sleep(0.05)  # waits: another process fires, or applies a fleet
    return decided, *await _count(store, decision)


async def _count(store: "Store", decision: Decision) -> tuple[int, int]:
    """Jobs and skipped profiles of the run that was asked for."""
    from leasekeeper.core.events import Event, EventType

    asked = await _newest(store, Event, EventType.SCHEDULE_RUN, decision.id)
    jobs = skipped = 0
    after: str | None = None
    while asked is not None:
        where = {"type": EventType.SCHEDULE_FIRED.value, "since": str(asked.seq)}
        page = await store.find(Event, where, after=after, limit=1_000)
        mine = [e for e in page.items if (e.data["schedule_id"], e.data["at"]) == (decision.id, asked.data["at"])]
        jobs += sum(int(str(event.data["jobs"])) for event in mine)
        skipped += sum(int(str(event.data["skipped"])) for event in mine)
        after = page.after
        if after is None:
            break
    return jobs, skipped


async def _newest(store: "Store", kind: "type[Event]", what: str, schedule_id: str) -> "Event | None":
    page = await store.find(kind, {"type": what}, limit=100)
    return next((event for event in page.items if event.data["schedule_id"] == schedule_id), None)
