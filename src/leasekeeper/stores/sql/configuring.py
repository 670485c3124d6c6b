"""Applies a fleet: writes the configuration that differs, creates lanes for new profiles, and unblocks lanes and jobs
whose problem was fixed."""

from collections.abc import Iterable, Mapping, Sequence

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core import homes
from leasekeeper.core.accounts import Account, Limit, Proxy, RetiredAccount, declared_again
from leasekeeper.core.events import EventType
from leasekeeper.core.fleet import (
    STORE,
    Change,
    ChangeKind,
    Fleet,
    affected,
    check_fleet,
    check_unchanged,
    diff,
    merged,
    moves_snapshots,
)
from leasekeeper.core.lanes import RetiredLane, new_lane, unparked
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Lane, Profile, ProfileState, said_of_state
from leasekeeper.core.proxies import well
from leasekeeper.core.readiness import job_gate
from leasekeeper.core.records import evolve
from leasekeeper.errors import Conflict
from leasekeeper.stores.sql.codec import decoder, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import lock, read_job, read_profile, refresh, save
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.proxy_health import close_reviews
from leasekeeper.stores.sql.schedule_rows import read_schedule, write_schedules
from leasekeeper.stores.sql.submitting import Placer, change_job
from leasekeeper.wording import block_text

_write_account, _write_profile = encoder(Account), encoder(Profile)
_write_proxy, _write_limit, _write_lane = encoder(Proxy), encoder(Limit), encoder(Lane)
_write_launcher = encoder(Launcher)
_read_retired, _read_retired_account = decoder(RetiredLane), decoder(RetiredAccount)

# The writes that remove a record, in order: records that refer to others are removed first.
_REMOVALS = {
    "profile": ("retire_lanes", "delete_lane", "delete_profile"),
    "account": ("retire_accounts", "delete_account"),
    "proxy": ("delete_proxy",),
    "launcher": ("delete_launcher",),
    STORE: ("delete_fleet_setting",),
}


def read_fleet(tx: Tx) -> Fleet:
    """The fleet in force."""
    accounts, profiles, proxies, launchers, limits, schedules, settings = tx.read(
        ("all_accounts", {}),
        ("all_profiles", {}),
        ("all_proxies", {}),
        ("all_launchers", {}),
        ("all_limits", {}),
        ("all_schedules", {}),
        ("fleet_settings", {}),
    )
    return Fleet(
        accounts={row["account_id"]: decoder(Account)(row) for row in accounts},
        profiles={row["profile_id"]: read_profile(row) for row in profiles},
        proxies={row["proxy_id"]: decoder(Proxy)(row) for row in proxies},
        launchers={row["launcher_id"]: decoder(Launcher)(row) for row in launchers},
        limits={row["pool"]: decoder(Limit)(row) for row in limits},
        schedules={row["schedule_id"]: read_schedule(row) for row in schedules},
        profile_store=next((row["value"] for row in settings if row["name"] == STORE), None),
    )


def apply(
    tx: Tx, ctx: Context, fleet: Fleet, *, actor: str, prune: bool, dry_run: bool, expected: str | None
) -> list[Change]:
    """Check the fleet, compare it with the current one, write the changes and return them. One apply runs at a time."""
    tx.read(("lock_fleet", {}))
    current = read_fleet(tx)
    check_unchanged(current, expected)
    (retired,) = tx.read(
        ("retired_lanes_of", {"ids": [name for name in fleet.profiles if name not in current.profiles]})
    )
    check_fleet(current, fleet, prune=prune, retired={row["profile_id"]: row["account_id"] for row in retired})
    changes = diff(current, fleet, prune=prune)
    if dry_run or not changes:
        return changes
    removed = [c.id for c in changes if c.kind is ChangeKind.REMOVE and c.what == "profile"]
    if removed:
        _check_removable(tx, removed)
        _close_reviews(tx, removed, actor)
    disposable_changed = [
        c.id
        for c in changes
        if (c.kind, c.what) == (ChangeKind.CHANGE, "profile")
        and current.profiles[c.id].disposable != fleet.profiles[c.id].disposable
    ]
    if disposable_changed:
        _check_not_leased(tx, disposable_changed)
    tx.write("count_change", [{"changes": 1}])
    added = _write(tx, fleet, changes)
    _close_proxy_reviews(tx, changes, actor)
    concerned = affected(current, merged(current, fleet, prune=prune), changes)
    if concerned:
        _reconsider(tx, ctx, concerned, store_changed=any(map(moves_snapshots, changes)))
    _write_limits(tx, fleet, changes)
    write_schedules(tx, current, fleet, changes)
    return _log(tx, ctx, added, changes, actor)


def _check_removable(tx: Tx, profiles: Sequence[str]) -> None:
    ids = {"ids": sorted(profiles)}
    _, busy, waiting = tx.read(("lock_lanes", ids), ("open_runs", ids), ("profiles_with_open_jobs", ids))
    in_use = sorted({row["profile_id"] for row in busy} | {row["profile_id"] for row in waiting})
    if in_use:
        raise Conflict(
            f"these profiles are leased or have open jobs and cannot be removed: {', '.join(in_use[:10])}; "
            "cancel or finish their jobs first. Nothing was applied",
            cause=ConflictReason.PROFILE_IN_USE,
            profile_ids=tuple(in_use),
        )


def _check_not_leased(tx: Tx, profiles: Sequence[str]) -> None:
    """Raise Conflict if one of these profiles is leased. `disposable` decides whether runs share a profile by copies of
    its directory, so it must not change during a run."""
    ids = {"ids": sorted(profiles)}
    _, runs = tx.read(("lock_lanes", ids), ("open_runs", ids))
    leased = sorted({row["profile_id"] for row in runs if row["ended_at"] is None})
    if leased:
        raise Conflict(
            f"these profiles are leased, and `disposable` says how runs share them: {', '.join(leased[:10])}; apply it "
            "when their runs have ended (pause their accounts, so that no others begin). Nothing was applied",
            cause=ConflictReason.PROFILE_IN_USE,
            profile_ids=tuple(leased),
        )


def _write(tx: Tx, fleet: Fleet, changes: Iterable[Change]) -> list[Lane]:
    """Write the changes, but for limits and schedules. Returns the lanes of the profiles that were added."""
    new = [c.id for c in changes if c.kind is ChangeKind.ADD and c.what == "profile"]
    accounts = [c.id for c in changes if c.kind is ChangeKind.ADD and c.what == "account"]
    now, (retired, removed) = tx.clock(("retired_lanes_of", {"ids": new}), ("retired_accounts_of", {"ids": accounts}))
    paused = {row["account_id"]: _read_retired_account(row) for row in removed}
    before = {row["profile_id"]: _read_retired(row) for row in retired}
    lanes = [new_lane(fleet.profiles[profile_id], before.get(profile_id), now) for profile_id in new]
    put: dict[str, list[dict[str, object]]] = {}
    gone: dict[str, list[dict[str, object]]] = {}
    for change in changes:
        if change.what in ("limit", "schedule"):
            continue
        if change.kind is ChangeKind.REMOVE:
            for name in _REMOVALS[change.what]:
                gone.setdefault(name, []).append({"id": STORE if change.what == STORE else change.id})
            continue
        name, row = _put_row(fleet, change, paused)
        put.setdefault(name, []).append(row)
    for name in ("put_fleet_settings", "put_proxies", "put_launchers", "put_accounts", "put_profiles"):
        if name in put:
            tx.write(name, put[name])
    if lanes:
        tx.write("insert_lanes", [_write_lane(lane) for lane in lanes])
    for name in (name for names in _REMOVALS.values() for name in names if name in gone):
        tx.write(name, gone[name])
    return lanes


def _put_row(fleet: Fleet, change: Change, paused: Mapping[str, RetiredAccount]) -> tuple[str, dict[str, object]]:
    """The statement and the row that write one record which was added or changed."""
    match change.what:
        case "account":
            return "put_accounts", _write_account(declared_again(fleet.accounts[change.id], paused.get(change.id)))
        case "proxy":
            return "put_proxies", _write_proxy(well(fleet.proxies[change.id]))
        case "launcher":
            return "put_launchers", _write_launcher(fleet.launchers[change.id])
        case "profile":
            return "put_profiles", _write_profile(fleet.profiles[change.id])
        case _:
            return "put_fleet_settings", {"name": STORE, "value": fleet.profile_store}


def _write_limits(tx: Tx, fleet: Fleet, changes: Iterable[Change]) -> None:
    """Write limits after lanes, as a claim locks them: the other order could deadlock."""
    limits = [change for change in changes if change.what == "limit"]
    put = [_write_limit(fleet.limits[c.id]) for c in limits if c.kind is not ChangeKind.REMOVE]
    gone = [{"id": c.id} for c in limits if c.kind is ChangeKind.REMOVE]
    if put:
        tx.write("put_limits", put)
    if gone:
        tx.write("delete_limit", gone)


def _close_proxy_reviews(tx: Tx, changes: Iterable[Change], actor: str) -> None:
    """Close the reviews of changed or removed proxies: a changed proxy counts as working until a check fails."""
    anew = [c.id for c in changes if c.what == "proxy" and c.kind is not ChangeKind.ADD]
    if anew:
        now, _ = tx.clock()
        close_reviews(tx, anew, "the proxy was declared anew, or removed", to_us(now), actor)


def _close_reviews(tx: Tx, removed: Sequence[str], actor: str) -> None:
    """Close the open reviews of removed profiles, as nobody can decide about them any more."""
    now, _ = tx.clock()
    closed = {"target": "profile", "decision": "disable", "note": "the profile was removed from the fleet"}
    tx.write(
        "close_reviews",
        [{**closed, "subject": profile_id, "actor": actor, "decided_at": to_us(now)} for profile_id in removed],
    )


def _reconsider(tx: Tx, ctx: Context, profiles: Sequence[str], *, store_changed: bool) -> None:
    """Compute again what blocks these lanes, and check their blocked jobs again."""
    now, works, (known, rows) = lock(tx, profiles, ("known_tasks", {}), ("blocked_jobs", {"ids": list(profiles)}))
    placer = Placer(tx, ctx, now, works, known)
    changed = []
    for row in rows:
        job, work = read_job(row), works[row["profile_id"]]
        block = job_gate(job, work.profile, work.proxy, placer.known(job))
        if block is not None and (block.reason, block_text(block, job)) == (job.blocked_reason, job.detail):
            continue
        placed, _ = placer.enter(
            evolve(job, version=job.version + 1),
            work,
            EventType.JOB_UNBLOCKED,
            follow_conflict=False,
        )
        changed.append(change_job(placed))
    for work in works.values():
        work.change(unparked(work.lane))
        work.change({"tier": work.profile.tier})
        if store_changed:
            work.change(homes.store_changed(work.lane))
        refresh(work, now)
    save(tx, works.values())
    if changed:
        tx.write("update_jobs", changed)
    placer.save()


def _log(tx: Tx, ctx: Context, added: Iterable[Lane], changes: list[Change], actor: str) -> list[Change]:
    now, _ = tx.clock()
    log = Log(ctx, now)
    for lane in added:
        log.event(EventType.PROFILE_ADDED, lane=lane, actor=actor, profile_state=lane.state, data=said_of_state(lane))
        if lane.state in (ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED):
            log.review_profile(lane, None, lane.state.value, lane.state_reason)
    counts: dict[str, int] = {}
    for change in changes:
        counts[f"{change.what}_{change.kind}"] = counts.get(f"{change.what}_{change.kind}", 0) + 1
    log.event(EventType.FLEET_APPLIED, actor=actor, data=counts)
    log.save(tx)
    return changes
