"""A profile under lock, with all that bears on it, and the few ways its lane may change.

Every operation takes the lanes it needs (sorted, so that no two wait for each other), works on `Work`, and saves
what changed. The lane's row is the one lock of its profile: state, queue and leases move only under it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.ids import JobId, LeaseId, ProfileId, RunId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, LeaseRef, Mode, refusal
from leasekeeper.core.profiles import Cause, Lane, Profile, ProfileState, check_transition
from leasekeeper.core.readiness import Blocked, can_share, lane_gate
from leasekeeper.stores.sql.codec import Row, decoder, encoder, reviser
from leasekeeper.stores.sql.engine import Params, Tx

read_job = decoder(Job)
read_lane = decoder(Lane)
_lane_to_change = decoder(Lane, writable=True)
read_lease = decoder(Lease)
read_profile = decoder(Profile)
read_account = decoder(Account, "a_")
read_proxy = decoder(Proxy, "x_")
_write_lane = encoder(Lane)

# What can change in a lease after it was granted.
_MOVING = (
    "heartbeat_at",
    "expires_at",
    "last_safe_step",
    "last_safe_at",
    "last_url",
    "open_section",
    "section_at",
    "status",
    "unresolved",
    "ended_at",
)
_revise_lease = reviser(Lease, _MOVING)

Configured = tuple[Profile, Account, Proxy | None]
Jobs = dict[RunId, Job]


@dataclass(slots=True)
class Work:
    """One locked profile: its lane as it will be, and the facts around it. `open` is live or unresolved."""

    lane: Lane
    profile: Profile
    account: Account
    proxy: Proxy | None
    open: list[Lease]
    stored: Row
    changed: bool = False

    def change(self, **fields: object) -> None:
        """Change the lane as it will be. It was read for this very piece of work: nobody else has it."""
        self.changed = True
        lane = self.lane
        for name, value in fields.items():
            setattr(lane, name, value)

    @property
    def live(self) -> list[Lease]:
        return [lease for lease in self.open if lease.ended_at is None]

    @property
    def unresolved(self) -> int:
        return sum(1 for lease in self.open if lease.unresolved)


def works_from(tx: Tx, lanes: Sequence[Row], runs: Iterable[Lease]) -> dict[ProfileId, Work]:
    """Working sets out of rows, in the order of the lanes. Call it after `clock`: configuration is kept by revision."""
    open_leases: dict[str, list[Lease]] = {}
    for lease in runs:
        open_leases.setdefault(lease.profile_id, []).append(lease)
    config = _configured(tx, [row["profile_id"] for row in lanes])
    works: dict[ProfileId, Work] = {}
    for row in lanes:
        lane = _lane_to_change(row)
        profile, account, proxy = config[lane.profile_id]
        works[lane.profile_id] = Work(
            lane=lane,
            profile=profile,
            account=account,
            proxy=proxy,
            open=open_leases.get(lane.profile_id, []),
            stored=row,
        )
    return works


def unknown(tx: Tx, ids: Sequence[str]) -> list[tuple[str, Params]]:
    """The query for the configuration of those that this process has not met yet: to send along with others."""
    missing = [i for i in ids if i not in tx.kept and i not in tx.fresh]
    return [("configs", {"ids": missing})] if missing else []


def remember(tx: Tx, configs: Iterable[Row]) -> None:
    """Keep configuration that was read, as of the revision that the clock told."""
    for row in configs:
        proxy = read_proxy(row) if row["x_proxy_id"] is not None else None
        tx.fresh[row["profile_id"]] = (tx.revision, (read_profile(row), read_account(row), proxy))


def _configured(tx: Tx, ids: Sequence[str]) -> dict[str, Configured]:
    """The configuration of these profiles: as remembered, where it was read at this very revision."""
    kept, fresh, revision = tx.kept, tx.fresh, tx.revision
    found = {i: kept[i][1] for i in ids if i in kept and kept[i][0] == revision}
    if fresh:
        found |= {i: fresh[i][1] for i in ids if i in fresh and fresh[i][0] == revision}
    if len(found) < len(ids):
        missing = [i for i in ids if i not in found]
        (rows,) = tx.read(("configs", {"ids": missing}))
        remember(tx, rows)
        found |= {i: fresh[i][1] for i in missing if i in fresh}
    return found


def lock(
    tx: Tx, ids: Iterable[str], *queries: tuple[str, Params], waiting: bool = True
) -> tuple[datetime, dict[ProfileId, Work], list[list[Row]]]:
    """Lock these profiles (all, or with waiting=False those that nobody holds) and read what bears on them.

    The facts are read after the locks are held: a snapshot from before would show another's old state.
    """
    wanted = {"ids": sorted(set(ids))}
    name = "lock_lanes" if waiting else "lock_lanes_free"
    now, (lanes, runs, *rest) = tx.clock((name, wanted), ("open_runs", wanted), *queries)
    return now, works_from(tx, lanes, map(read_lease, runs)), rest


def lock_runs(tx: Tx, lease_ids: Iterable[tuple[ProfileId, str]]) -> tuple[datetime, dict[ProfileId, Work], Jobs]:
    """Lock the profiles of these leases, and read them with their running jobs.

    Of leases that this process granted, only what can have changed since is read: the rest, and a job whose version is
    still the same, is as it remembers.
    """
    wanted = {"ids": sorted({profile_id for profile_id, _ in lease_ids})}
    full = (("open_runs", wanted), ("running_jobs", wanted))
    if all(lease_id in tx.held for _, lease_id in lease_ids):
        now, (lanes, rows) = tx.clock(("lock_lanes", wanted), ("moving_runs", wanted))
        if (remembered := _remembered(tx, rows)) is not None:
            runs, jobs = remembered
            return now, works_from(tx, lanes, runs), jobs
        open_runs, running = tx.read(*full)
    else:
        now, (lanes, open_runs, running) = tx.clock(("lock_lanes", wanted), *full)
    return now, works_from(tx, lanes, map(read_lease, open_runs)), {row["run_id"]: read_job(row) for row in running}


def _remembered(tx: Tx, rows: Sequence[Row]) -> tuple[list[Lease], Jobs] | None:
    """The leases of these rows and their jobs, or None if one of them is not as this process knew it."""
    runs: list[Lease] = []
    jobs: Jobs = {}
    for row in rows:
        lease, job = tx.held.get(row["lease_id"], (None, None))
        version = row["job_version"]
        if (
            lease is None
            or lease.run_id != row["run_id"]
            or (version is not None and (job is None or job.version != version))
        ):
            return None
        runs.append(_revise_lease(lease, row))
        if version is not None and job is not None:
            jobs[lease.run_id] = job
    return runs, jobs


def leases(tx: Tx, refs: Iterable[LeaseRef]) -> tuple[datetime, dict[LeaseId, Lease]]:
    """Lock the profiles of these leases, and read those that are live or unresolved."""
    wanted = {"ids": sorted({ref.profile_id for ref in refs})}
    now, (_, rows) = tx.clock(("lock_lanes", wanted), ("open_runs", wanted))
    return now, {row["lease_id"]: read_lease(row) for row in rows}


def refused(tx: Tx, lease: Lease | None, ref: LeaseRef, now: datetime) -> str | None:
    """Why a write under `ref` must be refused. A lease that is not open is looked up, to say how it ended."""
    if lease is None:
        (rows,) = tx.read(("run_by_token", {"profile_id": ref.profile_id, "token": ref.token}))
        lease = read_lease(rows[0]) if rows else None
    return refusal(lease, ref, now, lenient=tx.lenient)


def save(tx: Tx, works: Iterable[Work]) -> None:
    """Write the lanes that changed."""
    rows = []
    for work in works:
        if work.changed:
            row = _write_lane(work.lane)
            if not row.items() <= work.stored.items():
                row["version"] = _version(work, row)
                rows.append(row)
    if rows:
        tx.write("update_lanes", rows)


_decided_on = itemgetter("state", "state_reason", "state_at", "clean", "drain", "verdict")


def next_version(work: Work) -> int:
    """The version the lane will have: the next one if something changed that a person decides on. Jobs that come
    and go are no reason to look again."""
    return _version(work, _write_lane(work.lane))


def _version(work: Work, row: Row) -> int:
    version: int = work.stored["version"]
    return version + 1 if _decided_on(row) != _decided_on(work.stored) else version


def move(work: Work, state: ProfileState, cause: Cause, reason: str, now: datetime) -> None:
    """Change the profile's state, if the table of transitions has it."""
    if state is work.lane.state:
        return
    check_transition(work.lane.profile_id, work.lane.state, state, cause)
    work.change(state=state, state_reason=reason, state_at=now)


def gate_of(work: Work, *, shared: bool, even_paused: bool = False) -> Blocked | None:
    """What keeps a run of this mode out of the profile now. A person may go where an account's jobs may not."""
    lane, live = work.lane, work.live if work.open else []
    return lane_gate(
        state=lane.state,
        paused=work.account.paused and not even_paused,
        profile=work.profile,
        live=len(live),
        live_exclusive=len([1 for lease in live if not can_share(work.profile, shared=lease.shared)]) if live else 0,
        head_shared=shared,
        ending=bool(lane.verdict or lane.drain or (work.open and work.unresolved)),
    )


def refresh(work: Work, now: datetime) -> None:
    """Recompute what holds the lane. A lane that becomes ready starts to wait now."""
    lane = work.lane
    gate = gate_of(work, shared=lane.head_shared)
    waits_on = None if gate is not None else lane.waits_on
    hold = gate or (Blocked.PROFILE_LEASE if waits_on else None)
    if hold != lane.hold or waits_on != lane.waits_on:
        waiting_at = now if hold is None else lane.waiting_at
        work.change(hold=hold, waits_on=waits_on, waiting_at=waiting_at)


def unpark(work: Work) -> None:
    """Look again at a lane that waits for an account's key. It keeps its place: it has waited all along."""
    if work.lane.waits_on is not None:
        work.change(waits_on=None, hold=None)


def offer(work: Work, job: Job, now: datetime) -> None:
    """A job enters the lane: it is the head if the lane was empty, or if it is more urgent than the head."""
    lane = work.lane
    if lane.head_job_id is None or job.priority > lane.head_priority:
        _set_head(work, job, now if lane.head_job_id is None else lane.waiting_at)


class Head(NamedTuple):
    """What a lane keeps of the job at its head."""

    job_id: JobId
    pool: str
    task: str
    priority: int
    shared: bool


def heads_by_profile(rows: Iterable[Row]) -> Mapping[str, list[tuple[Head, Row]]]:
    """The first jobs of each lane, one or two, in their order, with the row of the very first."""
    grouped: dict[str, list[tuple[Head, Row]]] = {}
    for row in rows:
        first = Head(row["job_id"], row["pool"], row["task"], row["priority"], row["mode"] == Mode.SHARED)
        heads = grouped[row["profile_id"]] = [(first, row)]
        if row["next_job_id"] is not None:
            shared = row["next_mode"] == Mode.SHARED
            following = Head(row["next_job_id"], row["next_pool"], row["next_task"], row["next_priority"], shared)
            heads.append((following, row))
    return grouped


def next_head(work: Work, heads: Sequence[tuple[Head, Row]], gone: JobId, waiting_at: datetime) -> None:
    """The head left the lane: the next of `heads` (the first two of the lane) takes its place.

    A lane that gave a job starts to wait now; one whose head was put aside or cancelled has waited all along.
    """
    following = next((head for head, _ in heads if head.job_id != gone), None)
    if following is not None:
        _set_head(work, following, waiting_at)
    else:
        work.change(head_job_id=None, head_pool=None, head_task=None, head_priority=0, head_shared=False)


def _set_head(work: Work, job: Job | Head, waiting_at: datetime) -> None:
    unpark(work)
    work.change(
        head_job_id=job.job_id,
        head_pool=job.pool,
        head_task=job.task,
        head_priority=job.priority,
        head_shared=job.shared,
        waiting_at=waiting_at,
    )
