"""Locked profiles with all facts that decide about them. How a lane may change is decided in `core.lanes`.

Every operation locks the lanes it needs (sorted by id, so that two operations do not deadlock), changes `Work`, and
saves it. The lane's row is the lock of its profile: state, queue and leases change only under it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.homes import unsaved_on
from leasekeeper.core.ids import LeaseId, ProfileId, RunId
from leasekeeper.core.jobs import Job
from leasekeeper.core.lanes import DECIDED_ON, Changes, Head, LaneFacts, next_head, refreshed
from leasekeeper.core.leases import MOVING, Lease, LeaseRef, Mode, Refusal, refusal
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.ports import Grant
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

_revise_lease = reviser(Lease, MOVING)

Configured = tuple[Profile, Account, Proxy | None, str | None]
Jobs = dict[RunId, Job]


@dataclass(slots=True)
class Work(LaneFacts):
    """One locked profile: its lane, which the operation changes, and its facts. `stored` is the lane's row as read."""

    stored: Row
    changed: bool = False

    def change(self, changes: Changes) -> None:
        """Set these fields of the lane in place. No one else uses this lane object."""
        if changes:
            self.changed = True
            lane = self.lane
            for name, value in changes.items():
                setattr(lane, name, value)


def works_from(tx: Tx, lanes: Sequence[Row], runs: Iterable[Lease]) -> dict[ProfileId, Work]:
    """`Work` made from rows, in the order of the lanes. Call it after `clock`: configuration is cached by revision."""
    open_leases: dict[str, list[Lease]] = {}
    for lease in runs:
        open_leases.setdefault(lease.profile_id, []).append(lease)
    config = _configured(tx, [row["profile_id"] for row in lanes])
    works: dict[ProfileId, Work] = {}
    for row in lanes:
        lane = _lane_to_change(row)
        profile, account, proxy, profile_store = config[lane.profile_id]
        works[lane.profile_id] = Work(
            lane=lane,
            profile=profile,
            account=account,
            proxy=proxy,
            open=open_leases.get(lane.profile_id, []),
            profile_store=profile_store,
            stored=row,
        )
    return works


def unknown(tx: Tx, ids: Sequence[str]) -> list[tuple[str, Params]]:
    """The query for the configuration of those profiles that are not in the cache, to be sent with other queries."""
    missing = [i for i in ids if i not in tx.cached and i not in tx.fresh]
    return [("configs", {"ids": missing})] if missing else []


def remember(tx: Tx, configs: Iterable[Row]) -> None:
    """Cache configuration that was read, with the revision that was read by `clock`."""
    for row in configs:
        proxy = read_proxy(row) if row["x_proxy_id"] is not None else None
        tx.fresh[row["profile_id"]] = (
            tx.revision,
            (read_profile(row), read_account(row), proxy, row["profile_store"]),
        )


def _configured(tx: Tx, ids: Sequence[str]) -> dict[str, Configured]:
    """The configuration of these profiles, from the cache if it was read at the current revision."""
    kept, fresh, revision = tx.cached, tx.fresh, tx.revision
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
    """Lock these profiles and read the facts about them. With waiting=False, profiles that others have locked are left
    out.

    The facts are read after the locks were taken: an earlier snapshot could show an old state.
    """
    wanted = {"ids": sorted(set(ids))}
    name = "lock_lanes" if waiting else "lock_lanes_free"
    now, (lanes, runs, *rest) = tx.clock((name, wanted), ("open_runs", wanted), *queries)
    return now, works_from(tx, lanes, map(read_lease, runs)), rest


def lock_runs(
    tx: Tx, lease_ids: Iterable[tuple[ProfileId, str]], also: Sequence[str] = ()
) -> tuple[datetime, dict[ProfileId, Work], Jobs]:
    """Lock the profiles of these leases, and the profiles `also`. Returns them with their running jobs.

    If this process granted the leases, only the fields that can have changed are read. The others come from the cache,
    and so do jobs whose version is still the same.
    """
    wanted = {"ids": sorted({profile_id for profile_id, _ in lease_ids}.union(also))}
    full = (("open_runs", wanted), ("running_jobs", wanted))
    if all(lease_id in tx.cached_leases for _, lease_id in lease_ids):
        now, (lanes, rows) = tx.clock(("lock_lanes", wanted), ("moving_runs", wanted))
        if (remembered := _remembered(tx, rows)) is not None:
            runs, jobs = remembered
            return now, works_from(tx, lanes, runs), jobs
        open_runs, running = tx.read(*full)
    else:
        now, (lanes, open_runs, running) = tx.clock(("lock_lanes", wanted), *full)
    return now, works_from(tx, lanes, map(read_lease, open_runs)), {row["run_id"]: read_job(row) for row in running}


def _remembered(tx: Tx, rows: Sequence[Row]) -> tuple[list[Lease], Jobs] | None:
    """The leases of these rows and their jobs, from the cache. None if one of them is not cached or has changed."""
    runs: list[Lease] = []
    jobs: Jobs = {}
    for row in rows:
        lease, job = tx.cached_leases.get(row["lease_id"], (None, None))
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
    """Lock the profiles of these leases. Returns all leases of these profiles that are live or unresolved."""
    wanted = {"ids": sorted({ref.profile_id for ref in refs})}
    now, (_, rows) = tx.clock(("lock_lanes", wanted), ("open_runs", wanted))
    return now, {row["lease_id"]: read_lease(row) for row in rows}


def refused(tx: Tx, lease: Lease | None, ref: LeaseRef, now: datetime) -> Refusal | None:
    """Why a write under `ref` must be refused, or None. If `lease` is None it is read here, to say how it ended."""
    return refusal(lease or writer_of(tx, ref), ref, now, lenient=tx.lenient)


def writer_of(tx: Tx, ref: LeaseRef) -> Lease | None:
    """The lease with the token of `ref`, also if it has ended. None if there is none."""
    (rows,) = tx.read(("run_by_token", {"profile_id": ref.profile_id, "token": ref.token}))
    return read_lease(rows[0]) if rows else None


def grant_of(facts: LaneFacts, lease: Lease, job: Job | None, newest: Snapshot | None) -> Grant:
    """The grant of a lease, as its holder gets it. `newest` is the newest snapshot of the profile."""
    return Grant(
        lease=lease,
        profile=facts.profile,
        account=facts.account,
        proxy=facts.proxy,
        job=job,
        engine=facts.lane.engine,
        newest=newest,
        unsaved_on=unsaved_on(facts.lane),
        profile_store=facts.profile_store,
    )


def save(tx: Tx, works: Iterable[Work]) -> None:
    """Write the lanes that changed."""
    rows = []
    for work in works:
        if work.changed:
            row = _write_lane(work.lane)
            if not row.items() <= work.stored.items():
                row["version"] = _version(work, row)
                row["revision"] = work.stored["revision"] + 1
                rows.append(row)
    if rows:
        tx.write("update_lanes", rows)


_decided_on = itemgetter(*DECIDED_ON)


def next_version(work: Work) -> int:
    """The version that the lane will be saved with: the next one if a field changed that people decide on. Changes of
    its queue alone do not count."""
    return _version(work, _write_lane(work.lane))


def _version(work: Work, row: Row) -> int:
    version: int = work.stored["version"]
    return version + 1 if _decided_on(row) != _decided_on(work.stored) else version


def refresh(work: Work, now: datetime) -> None:
    """Compute again what blocks the lane."""
    work.change(refreshed(work, now))


def heads_by_profile(rows: Iterable[Row]) -> Mapping[str, tuple[list[Head], Row]]:
    """The first one or two jobs of each lane, in their order, with the row of the first."""
    grouped: dict[str, tuple[list[Head], Row]] = {}
    for row in rows:
        heads = [Head(row["job_id"], row["pool"], row["task"], row["priority"], row["mode"] == Mode.SHARED)]
        if row["next_job_id"] is not None:
            shared = row["next_mode"] == Mode.SHARED
            heads.append(Head(row["next_job_id"], row["next_pool"], row["next_task"], row["next_priority"], shared))
        grouped[row["profile_id"]] = (heads, row)
    return grouped


def find_heads(tx: Tx, works: Mapping[ProfileId, Work], ids: Iterable[str]) -> None:
    """Read the first job of these lanes again: a job that was given back may be older than the current first one."""
    (rows,) = tx.read(("heads", {"ids": sorted(ids)}))
    for profile_id, (heads, _) in heads_by_profile(rows).items():
        work = works[ProfileId(profile_id)]
        if heads[0].job_id != work.lane.head_job_id:
            work.change(next_head(work.lane, heads, None, work.lane.waiting_at))
