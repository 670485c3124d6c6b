"""Creates the jobs of due schedules: a limited number per commit, each job exactly once.

The progress of a schedule is written in the commit that writes its jobs. One process fires at a time
(`lock_fleet_free`). When a commit reaches its limit, the next one continues. `core.schedules` decides which times count
and what happens when jobs overlap.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from leasekeeper import cron
from leasekeeper.core.decisions import Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.jobs import JobState
from leasekeeper.core.placing import new_job
from leasekeeper.core.records import evolve
from leasekeeper.core.schedules import (
    MAX_CAUGHT_UP,
    Fired,
    Schedule,
    ScheduleState,
    Skipped,
    handled_until,
    job_key,
    job_of,
    plan,
    schedule_decided,
    shown_time,
    why_skipped,
)
from leasekeeper.errors import InputError, NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.codec import Row, load, to_us
from leasekeeper.stores.sql.deciding import check_version
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import Work, lock
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.schedule_rows import read_schedule, read_state, write_state
from leasekeeper.stores.sql.submitting import Placer, write_job
from leasekeeper.wire.jobs import fingerprint

PAGE: Final = 1_000
MAX_SCANNED: Final = 20_000  # profiles that one commit reads, whether they are selected or not
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)


def any_due(tx: Tx) -> bool:
    """Whether a schedule is due. Takes no lock."""
    now, _ = tx.clock()
    return bool(tx.read(("due_schedules", {"now": to_us(now), "limit": 1}))[0])


def fire(tx: Tx, ctx: Context, limit: int) -> tuple[list[Fired], bool]:
    """Create up to `limit` jobs of due schedules. Returns what was fired, and whether more may be due.

    Does nothing if another process fires schedules or applies a fleet now.
    """
    now, (free,) = tx.clock(("lock_fleet_free", {}))
    if not free:
        return [], False
    (rows,) = tx.read(("due_schedules", {"now": to_us(now), "limit": limit}))
    round_ = _Round(tx, ctx, now, limit)
    for row in rows:
        if not round_.has_room:
            break
        round_.take(row)
    return round_.save(), len(rows) == limit


@dataclass(slots=True)
class _Firing:
    """One time of one schedule, and what this commit does for it."""

    schedule: Schedule
    at: datetime
    by_hand: bool
    profiles: list[ProfileId]
    done: bool = False
    made: int = 0
    skipped: int = 0

    @property
    def schedule_id(self) -> str:
        return self.schedule.schedule_id


class _Round:
    """One commit: collects schedules until it reaches its limit, then creates all their jobs together."""

    def __init__(self, tx: Tx, ctx: Context, now: datetime, limit: int) -> None:
        self._tx = tx
        self._ctx = ctx
        self._now = now
        self._room = limit
        self._scan = MAX_SCANNED
        self._log = Log(ctx, now)
        self._firings: list[_Firing] = []
        self._states: list[ScheduleState] = []
        self._faults: list[Fired] = []

    @property
    def has_room(self) -> bool:
        return self._room > 0 and self._scan > 0

    def take(self, row: Row) -> None:
        """Decide what this commit does for one due schedule, given by its row."""
        stored = state = read_state(row)
        try:
            schedule = read_schedule(row)
            if state.run_at is not None:
                firing, after = self._select(schedule, state.run_at, state.run_after, by_hand=True)
                done = {"run_at": None, "run_after": "", "run_by": "", "fired_at": state.run_at}
                state = evolve(state, **(done if firing.done else {"run_after": after}))
            if not state.paused:
                state = self._take_times(schedule, state)
        except InputError as error:
            self._faults.append(Fired(schedule_id=state.schedule_id, fault=error.message))
        if state != stored:
            self._states.append(state)

    def _take_times(self, schedule: Schedule, state: ScheduleState) -> ScheduleState:
        since = schedule.since or self._now
        if state.firing_at is not None:
            state = self._continue_firing(schedule, state)
        if state.firing_at is None:
            begin = handled_until(state.last_at, since, self._now)
            due = cron.times_between(schedule.cron, schedule.timezone, begin, self._now, MAX_CAUGHT_UP + 1)
            planned = plan(schedule.catch_up, due, self._now, self._ctx.policy.schedule_grace)
            if planned.missed:
                self._log_missed(schedule, planned.missed)
            state = evolve(state, last_at=planned.missed[-1] if planned.missed else begin)
            for at in planned.times:
                if not self.has_room:
                    break
                state = self._continue_firing(schedule, evolve(state, firing_at=at, firing_after=""))
                if state.firing_at is not None:
                    break
        upcoming = state.firing_at or cron.next_time(schedule.cron, schedule.timezone, state.last_at) or _NEVER
        return evolve(state, next_at=upcoming, since=since)

    def _continue_firing(self, schedule: Schedule, state: ScheduleState) -> ScheduleState:
        """Select more profiles for the time that is being fired, within the limit."""
        if state.firing_at is None or not self.has_room:
            return state
        firing, after = self._select(schedule, state.firing_at, state.firing_after, by_hand=False)
        if firing.done:
            return evolve(state, last_at=state.firing_at, fired_at=state.firing_at, firing_at=None, firing_after="")
        return evolve(state, firing_after=after)

    def _select(self, schedule: Schedule, at: datetime, after: str, *, by_hand: bool) -> tuple[_Firing, str]:
        """Select the next profiles of a time, within the limit. Returns them, and the last profile that was read."""
        firing = _Firing(schedule=schedule, at=at, by_hand=by_hand, profiles=[])
        self._firings.append(firing)
        select = schedule.select
        if select.profile_id is not None:
            firing.profiles.append(select.profile_id)
            firing.done = True
            self._room -= 1
            return firing, ""
        where = {"account_id": select.account_id, "pool": select.pool, "limit": PAGE}
        while self.has_room and not firing.done:
            (rows,) = self._tx.read(("profiles_selected", {**where, "after": after}))
            self._scan -= len(rows)
            firing.done = len(rows) < PAGE
            for row in rows:
                if self._room <= 0:
                    firing.done = False
                    break
                after = row["profile_id"]
                if select.has(load(row["labels"]), row["tier"]):
                    firing.profiles.append(row["profile_id"])
                    self._room -= 1
        return firing, after

    def _log_missed(self, schedule: Schedule, missed: tuple[datetime, ...]) -> None:
        self._log.event(
            EventType.SCHEDULE_MISSED,
            data={
                "schedule_id": schedule.schedule_id,
                "first": shown_time(missed[0]),
                "last": shown_time(missed[-1]),
                "times": len(missed),
                "catch_up": schedule.catch_up.value,
            },
        )

    def save(self) -> list[Fired]:
        """Write the jobs, the events and the progress of each schedule."""
        if any(firing.profiles for firing in self._firings):
            _make_jobs(self._tx, self._ctx, self._firings, self._log)
        for firing in self._firings:
            self._log.event(
                EventType.SCHEDULE_FIRED,
                data={
                    "schedule_id": firing.schedule_id,
                    "at": shown_time(firing.at),
                    "jobs": firing.made,
                    "skipped": firing.skipped,
                    "done": firing.done,
                },
            )
        if self._states:
            self._tx.write("put_schedule_states", [write_state(state) for state in self._states])
        self._log.save(self._tx)
        fired = [
            Fired(schedule_id=f.schedule.schedule_id, at=f.at, made=f.made, skipped=f.skipped, done=f.done)
            for f in self._firings
        ]
        return fired + self._faults


def _make_jobs(tx: Tx, ctx: Context, firings: list[_Firing], log: Log) -> None:
    """Create the jobs of all firings, under the locks of their lanes. A job whose key exists was created before."""
    places = [(firing, profile_id) for firing in firings for profile_id in firing.profiles]
    keys = [job_key(firing.schedule_id, firing.at, profile_id) for firing, profile_id in places]
    now, works, (known, used, last) = lock(
        tx,
        {profile_id for _, profile_id in places},
        ("known_tasks", {}),
        ("jobs_by_key", {"keys": keys}),
        ("last_jobs_of_schedules", {"places": [_place(*each) for each in places]}),
    )
    made_before = {row["idempotency_key"] for row in used}
    previous = {row["place"]: JobState(row["state"]) for row in last}
    placer = Placer(tx, ctx, now, works, known)
    rows: list[dict[str, Any]] = []
    newest: dict[str, str] = {}
    for (firing, profile_id), key in zip(places, keys, strict=True):
        place = _place(firing, profile_id)
        work = works.get(profile_id)
        if work is None or key in made_before:
            continue
        if (why := why_skipped(firing.schedule.on_overlap, previous.get(place))) is not None:
            firing.skipped += 1
            _log_skipped(log, firing, work, why)
            continue
        spec = job_of(firing.schedule, firing.at, profile_id, by_hand=firing.by_hand)
        job, _ = placer.enter(new_job(spec, work, fresh_id=ctx.new_id(), now=now), work, EventType.JOB_SUBMITTED)
        row = write_job(job)
        del row["seq"]
        rows.append({**row, "body_hash": fingerprint(spec)})
        firing.made += 1
        previous[place], newest[place] = job.state, job.job_id
    if rows:
        tx.write("insert_jobs", rows)
        tx.write("put_schedule_jobs", [{"place": place, "job_id": job_id} for place, job_id in newest.items()])
    placer.save()


def _place(firing: _Firing, profile_id: str) -> str:
    return f"{firing.schedule_id}:{profile_id}"


def _log_skipped(log: Log, firing: _Firing, work: Work, why: Skipped) -> None:
    data = {"schedule_id": firing.schedule_id, "at": shown_time(firing.at), "why": why.value}
    log.event(EventType.SCHEDULE_SKIPPED, lane=work.lane, data=data)


def decide_schedule(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Pause, resume, or run a schedule now, as a person decided. Times during a pause are not fired later."""
    now, (_, rows) = tx.clock(("lock_fleet", {}), ("one_schedule", {"schedule_id": decision.id}))
    if not rows:
        raise NotFound(f"there is no schedule {decision.id}", what="schedule", id=decision.id)
    state = read_state(rows[0])
    check_version("schedule", decision, state.version)
    decided = schedule_decided(state, decision, now)
    tx.write("put_schedule_states", [write_state(decided.state)])
    data: dict[str, object] = {"schedule_id": decision.id, "note": decision.note}
    if decided.at is not None:
        data["at"] = shown_time(decided.at)
    log = Log(ctx, now)
    log.event(decided.event, actor=decision.actor, data=data)
    log.save(tx)
    return Decided(state="paused" if decided.state.paused else "active", version=decided.state.version)
