"""Rows of schedules: their configuration, which `apply` writes, and their state, which `apply` does not change unless
the schedule is removed."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime

from leasekeeper.core.fleet import Change, ChangeKind, Fleet
from leasekeeper.core.schedules import CatchUp, OnOverlap, Schedule, ScheduleState, Selection
from leasekeeper.stores.sql.codec import Row, decoder, dump, encoder, from_us, load, to_us
from leasekeeper.stores.sql.engine import Tx
from leasekeeper.wire.schedules import template_body, template_from

_read_state = decoder(ScheduleState, "t_")
write_state = encoder(ScheduleState)
# A change of one of these fields restarts the schedule: times before the change are no longer due.
_TIMES = frozenset({"cron", "timezone"})


def read_schedule(row: Row) -> Schedule:
    """A schedule from its row."""
    return Schedule(
        schedule_id=row["schedule_id"],
        cron=row["cron"],
        timezone=row["timezone"],
        jitter_seconds=row["jitter_seconds"],
        select=Selection(**load(row["profiles"])),
        on_overlap=OnOverlap(row["on_overlap"]),
        catch_up=CatchUp(row["catch_up"]),
        job=template_from(load(row["job"])),
        since=from_us(row["since"]),
    )


def read_state(row: Row) -> ScheduleState:
    """The state of a schedule from a joined row; the initial state if none is stored yet."""
    if row["t_schedule_id"] is None:
        return ScheduleState(schedule_id=row["schedule_id"], last_at=from_us(row["since"]))
    return _read_state(row)


def write_schedules(tx: Tx, current: Fleet, fleet: Fleet, changes: Iterable[Change]) -> None:
    """Write the schedules that differ. A removed schedule loses its state, but not a person's pause: if it is declared
    again, it is still paused.
    """
    mine = [change for change in changes if change.what == "schedule"]
    if not mine:
        return
    now, _ = tx.clock()
    put = [_row(fleet.schedules[c.id], _since(c, current, now)) for c in mine if c.kind is not ChangeKind.REMOVE]
    if put:
        tx.write("put_schedules", put)
    gone = [{"id": c.id} for c in mine if c.kind is ChangeKind.REMOVE]
    if gone:
        for name in ("delete_schedule", "delete_schedule_state", "stop_schedule_state", "delete_schedule_jobs"):
            tx.write(name, gone)


def _since(change: Change, current: Fleet, now: datetime) -> datetime:
    before = current.schedules.get(change.id)
    if before is None or before.since is None or not _TIMES.isdisjoint(change.fields):
        return now
    return before.since


def _row(schedule: Schedule, since: datetime) -> dict[str, object]:
    chosen = {name: value for name, value in asdict(schedule.select).items() if value}
    return {
        "schedule_id": schedule.schedule_id,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "jitter_seconds": schedule.jitter_seconds,
        "profiles": dump(chosen),
        "on_overlap": schedule.on_overlap.value,
        "catch_up": schedule.catch_up.value,
        "job": dump(template_body(schedule.job)),
        "since": to_us(since),
    }
