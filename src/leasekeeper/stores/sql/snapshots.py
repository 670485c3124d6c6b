"""Snapshots in the tables: inserted with the ending that names them, discarded by retention, restored, deleted.

`core.snapshots` and `core.homes` decide which is the newest, where the newest directory is, and which are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from leasekeeper.core.events import EventType
from leasekeeper.core.homes import ANYONE, directory_after, directory_restored, opened_up, snapshot_of
from leasekeeper.core.ids import ProfileId, SnapshotId, Token
from leasekeeper.core.leases import Lease
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import Ending
from leasekeeper.core.snapshots import Snapshot, known_good, repeated, split_by_place, to_restore, too_large, unwanted
from leasekeeper.core.workers import homes_served, serving
from leasekeeper.stores.sql.codec import clean, decoder, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import Work, lock, save
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.pause_rows import active_pauses
from leasekeeper.stores.sql.worker_rows import live_workers

read_snapshot = decoder(Snapshot)
_write_snapshot = encoder(Snapshot)
MAX_PROBLEM: Final = 1_000
_TEXTS: Final = ("place", "sha256", "contents_hash")


def keep_directory(tx: Tx, ctx: Context, log: Log, work: Work, lease: Lease, ending: Ending) -> None:
    """Store what an ending reports about the profile's directory: its snapshot, its home and its size."""
    lane, profile, ending = work.lane, work.profile, _cleaned(ending)
    size_before = lane.size_bytes
    snapshot = snapshot_of(profile, lease, ending, SnapshotId(ctx.new_id()), log.now) if ending.snapshot else None
    changes = directory_after(lane, profile, lease, ending)
    if not changes and snapshot is None:
        return
    work.change(changes)
    if snapshot is not None:
        tx.write("insert_snapshots", [_write_snapshot(snapshot)])
        log.event(EventType.SNAPSHOT_SAVED, lease=lease, data=_data(snapshot))
        _discard(tx, work, log)
    elif "saved" in changes and not lane.saved and lane.unsaved_reason:
        log.event(EventType.PROFILE_NOT_SAVED, lease=lease, data={"home": lane.home, "reason": lane.unsaved_reason})
    if too_large(profile.max_size_mb, lane.size_bytes) and not too_large(profile.max_size_mb, size_before):
        data = {"size_bytes": lane.size_bytes, "max_size_mb": profile.max_size_mb}
        log.event(EventType.PROFILE_TOO_LARGE, lease=lease, data=data)


def _cleaned(ending: Ending) -> Ending:
    """The ending with text that can be stored: error texts come from libraries and servers."""
    report, new = ending.directory, ending.snapshot
    if report is not None and (problem := clean(report.problem)[:MAX_PROBLEM]) != report.problem:
        ending = evolve(ending, directory=evolve(report, problem=problem))
    if new is not None and (texts := {name: clean(getattr(new, name)) for name in _TEXTS}) != {
        name: getattr(new, name) for name in _TEXTS
    }:
        ending = evolve(ending, snapshot=evolve(new, **texts))
    return ending


def _data(snapshot: Snapshot) -> dict[str, object]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "token": snapshot.token,
        "size_bytes": snapshot.size_bytes,
        "packed_bytes": snapshot.packed_bytes,
        "verdict": snapshot.verdict.value,
        "clean": snapshot.clean,
    }


def _discard(tx: Tx, work: Work, log: Log) -> None:
    """Mark the snapshots beyond retention as discarded. If another snapshot uses the same object, the record is deleted
    at once."""
    snapshots = snapshots_of(tx, work.profile.profile_id)
    gone = unwanted(snapshots, keep=work.profile.keep_snapshots, newest=work.lane.snapshot, now=log.now)
    if not gone:
        return
    going = {each.snapshot_id for each in gone}
    kept = [each for each in snapshots if each.snapshot_id not in going and each.discarded_at is None]
    alone, shared = split_by_place(gone, kept)
    if alone:
        at = to_us(log.now)
        tx.write("discard_snapshots", [{"snapshot_id": each.snapshot_id, "discarded_at": at} for each in alone])
    if shared:
        _delete(tx, log, shared)


def _delete(tx: Tx, log: Log, snapshots: Sequence[Snapshot]) -> None:
    tx.write("delete_snapshots", [{"snapshot_id": each.snapshot_id} for each in snapshots])
    for each in snapshots:
        log.event(
            EventType.SNAPSHOT_DELETED,
            account_id=each.account_id,
            profile_id=each.profile_id,
            data={"snapshot_id": each.snapshot_id, "token": each.token},
        )


def snapshots_of(tx: Tx, profile_id: str) -> list[Snapshot]:
    """All snapshots of one profile, by token."""
    (rows,) = tx.read(("snapshots_among", {"ids": [profile_id]}))
    return [read_snapshot(row) for row in rows]


def newest_of(tx: Tx, works: Iterable[Work]) -> Mapping[ProfileId, Snapshot]:
    """The newest snapshots of these profiles. Reads nothing if no profile has one."""
    ids = [work.lane.profile_id for work in works if work.lane.snapshot is not None]
    return newest_among(tx, ids) if ids else {}


def newest_among(tx: Tx, ids: Sequence[str]) -> Mapping[ProfileId, Snapshot]:
    (rows,) = tx.read(("newest_snapshots", {"ids": list(ids)}))
    return {each.profile_id: each for each in map(read_snapshot, rows)}


def good_for(tx: Tx, work: Work, lease: Lease) -> Token | None:
    """The token of the snapshot that the profile of a lost lease can be restored to. None if there is none, or while
    other leases of the profile are open: the last one decides."""
    if work.lane.snapshot is None or any(each.token != lease.token for each in work.open):
        return None
    good = known_good(snapshots_of(tx, work.profile.profile_id))
    return good.token if good is not None else None


def restore(tx: Tx, ctx: Context, log: Log, work: Work, token: Token | None, actor: str = "") -> None:
    """Make a snapshot the newest state of its profile again, under the next token."""
    snapshot = to_restore(work.profile.profile_id, snapshots_of(tx, work.profile.profile_id), token)
    copy = repeated(snapshot, SnapshotId(ctx.new_id()), Token(work.lane.token + 1), log.now)
    tx.write("insert_snapshots", [_write_snapshot(copy)])
    before = work.lane.home
    work.change(directory_restored(work.lane, copy))
    log.event(
        EventType.PROFILE_RESTORED,
        lane=work.lane,
        actor=actor,
        data={
            "token": copy.token,
            "restored_from": snapshot.token,
            "verdict": snapshot.verdict.value,
            "home_before": before,
        },
    )


def forget(tx: Tx, ctx: Context, snapshot_ids: Sequence[str]) -> int:
    """Delete the records of snapshots whose objects were deleted, if they are discarded. Returns how many."""
    now, (rows,) = tx.clock(("snapshots_by_id", {"ids": sorted(set(snapshot_ids))}))
    found = [each for each in map(read_snapshot, rows) if each.discarded_at is not None]
    if found:
        log = Log(ctx, now)
        _delete(tx, log, found)
        log.save(tx)
    return len(found)


def reserved_too_long(tx: Tx, ctx: Context, limit: int) -> list[str]:
    """Profiles whose jobs have waited long enough for the machine that the profile is reserved for, or for which that
    machine has no worker."""
    now, _ = tx.clock()
    served = homes_served(serving(live_workers(tx, ctx, now), active_pauses(tx, now)))
    latest = to_us(now - ctx.policy.home_wait)
    (lanes,) = tx.read(("lanes_reserved_too_long", {"latest": latest, "served": served, "limit": limit}))
    return [row["profile_id"] for row in lanes]


def open_up(tx: Tx, profiles: Sequence[str]) -> int:
    """Let any machine run the jobs of these profiles, if their newest state is still a snapshot. Returns how many."""
    _, works, _ = lock(tx, profiles, waiting=False)
    found = [work for work in works.values() if work.lane.saved and work.lane.reserved_for != ANYONE]
    for work in found:
        work.change(opened_up())
    save(tx, found)
    return len(found)
