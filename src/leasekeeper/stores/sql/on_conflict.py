"""Applies `on_conflict` to queued jobs whose profile another run has, unless it is `wait`.

The commit of a grant applies it to the first few jobs of the lane, a sweep to all of them. Lanes without such jobs cost
nothing: a partial index has only these jobs.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from leasekeeper.core.conflicts import MAX_MET, follows_conflict
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.lanes import next_head
from leasekeeper.core.leases import Lease
from leasekeeper.core.placing import conflict_of
from leasekeeper.core.records import evolve
from leasekeeper.stores.sql.codec import Row
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import Work, heads_by_profile, lock, read_job, refresh, save
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.submitting import change_job, read_key_holders

PAGE: Final = 200  # lanes that a sweep reads in one commit


def apply_to_granted(tx: Tx, ctx: Context, log: Log, works: Iterable[Work]) -> None:
    """Apply it to the first jobs of these lanes, whose profiles were just leased. Call it after the changed jobs were
    written, and before the lanes are saved."""
    lanes = {work.lane.profile_id: work for work in works}
    if lanes:
        _apply(tx, ctx, log, lanes, {}, _waiting(tx, lanes, MAX_MET))


def apply_to_waiting(tx: Tx, ctx: Context, limit: int) -> int:
    """Apply it to at most `limit` jobs, of all lanes whose profile or account key another run has. Returns how many it
    changed.

    Lanes that another transaction has locked are left for the next sweep.
    """
    met, after = 0, ""
    while met < limit:
        (rows,) = tx.read(("on_conflict_lanes", {"after": after, "limit": PAGE}))
        if not rows:
            break
        after = rows[-1]["profile_id"]
        now, works, _ = lock(tx, [row["profile_id"] for row in rows], waiting=False)
        log = Log(ctx, now)
        waiting = _waiting(tx, works, limit - met)[: limit - met]
        met += _apply(tx, ctx, log, works, read_key_holders(tx, works.values()), waiting)
        save(tx, works.values())
        log.save(tx)
        if len(rows) < PAGE:
            break
    return met


def _waiting(tx: Tx, works: Iterable[ProfileId], each: int) -> list[Row]:
    """The first jobs of each lane whose `on_conflict` is not `wait`."""
    wanted = [("on_conflict_jobs", {"profile_id": profile_id, "limit": each}) for profile_id in works]
    return [row for rows in tx.read(*wanted) for row in rows] if wanted else []


def _apply(
    tx: Tx,
    ctx: Context,
    log: Log,
    works: Mapping[ProfileId, Work],
    key_holders: Mapping[str, Lease],
    waiting: Iterable[Row],
) -> int:
    """Apply `on_conflict` to those of the jobs that are in conflict, and log it. Returns how many."""
    changed = []
    headless = set()
    for job in map(read_job, waiting):
        work = works[job.profile_id]
        if not follows_conflict(job):
            continue
        met = conflict_of(job, work, key_holders, log.now, ctx.policy.long_run)
        if met is None or met.holder is None or met.conflict is None:
            continue
        placed = evolve(met.job, version=job.version + 1)
        changed.append(change_job(placed))
        log.conflict(placed, met.holder, met.conflict, job_state=placed.state)
        if work.lane.head_job_id == job.job_id:
            headless.add(job.profile_id)
    if changed:
        tx.write("update_jobs", changed)
    if headless:
        _find_heads(tx, works, headless, log.now)
    return len(changed)


def _find_heads(tx: Tx, works: Mapping[ProfileId, Work], ids: Iterable[ProfileId], now: datetime) -> None:
    """Read the first jobs of lanes whose first job was removed. The lanes keep their waiting time."""
    wanted = sorted(ids)
    (rows,) = tx.read(("heads", {"ids": wanted}))
    found = heads_by_profile(rows)
    for profile_id in wanted:
        work = works[profile_id]
        heads, _ = found.get(profile_id, ([], {}))
        work.change(next_head(work.lane, heads, None, work.lane.waiting_at))
        refresh(work, now)
