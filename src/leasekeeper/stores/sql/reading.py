"""Reads for people: one record, a page of records, counts, and the facts of `why`. They never delay writers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import Any, TypeVar, cast

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.decisions import Review
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.events import Event
from leasekeeper.core.ids import is_number
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.leases import Lease, RunRecord, lease_key
from leasekeeper.core.notes import MAX_SHOWN as MAX_NOTES
from leasekeeper.core.notes import Note
from leasekeeper.core.pauses import Pause, Scope, bearing_on
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.readiness import Block, Blocked, NoWorker, WaitFacts, shown_reason, waits_as
from leasekeeper.core.routing import routing_key
from leasekeeper.core.schedules import Schedule, ScheduleState, keys_of
from leasekeeper.core.secrets import Secret
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.core.tokens import ApiToken
from leasekeeper.core.why_facts import WhyFacts
from leasekeeper.core.workers import Worker, homes_served, serving
from leasekeeper.errors import InputError, NotFound, Problem
from leasekeeper.lists import LISTS, PREFIX, is_yes
from leasekeeper.ports import Page, Stats
from leasekeeper.stores.sql.codec import Row, decoder, from_us
from leasekeeper.stores.sql.engine import Context, Params, Tx
from leasekeeper.stores.sql.lanes import read_account, read_job, read_lane, read_lease, read_profile, read_proxy
from leasekeeper.stores.sql.pause_rows import active_pauses
from leasekeeper.stores.sql.schedule_rows import read_schedule
from leasekeeper.stores.sql.worker_rows import live_workers
from leasekeeper.wording import block_text

T = TypeVar("T")

LAST_CHARACTER = "\U0010ffff"
MAX_SHOWN = 3  # the newest webhooks of a job that `why` shows

# States whose filter is not a comparison with the stored state: lists show another one, or they have their own index.
_SHOWN_STATES = {"queued": "state_queued", "blocked": "state_blocked", "running": "state_running"}
# Every job has these events, so a scan finds them soon. All other types have an index.
_COMMON_EVENTS = {"job_submitted", "lease_granted", "run_settled", "checkpoint_saved", "job_due"}
# Boolean filters that have one piece for true and another for false: the filter's name, and the piece for false.
_OPPOSITES = {"live": "ended", "open": "decided", "trouble": "well", "saved": "unsaved", "discarded": "kept"}


@dataclass(frozen=True, slots=True)
class _Table:
    """How a kind of record is listed: the prefix of its statements, and the column that orders its pages."""

    prefix: str
    order: str


_TABLES: Mapping[type, _Table] = {
    Account: _Table("find_account", "account_id"),
    Profile: _Table("find_profile", "profile_id"),
    Lane: _Table("find_lane", "profile_id"),
    Proxy: _Table("find_proxy", "proxy_id"),
    Launcher: _Table("find_launcher", "launcher_id"),
    Limit: _Table("find_limit", "pool"),
    Job: _Table("find_job", "seq"),
    Lease: _Table("find_lease", "run_id"),
    RunRecord: _Table("find_lease", "run_id"),
    Event: _Table("find_event", "seq"),
    Review: _Table("find_review", "review_id"),
    Note: _Table("find_note", "note_id"),
    Snapshot: _Table("find_snapshot", "snapshot_id"),
    Worker: _Table("find_worker", "incarnation"),
    Delivery: _Table("find_delivery", "seq"),
    Endpoint: _Table("find_endpoint", "endpoint_id"),
    Pause: _Table("find_pause", "pause_id"),
    ApiToken: _Table("find_token", "token_id"),
    Secret: _Table("find_secret", "name"),
    Schedule: _Table("find_schedule", "schedule_id"),
    ScheduleState: _Table("find_schedule_state", "schedule_id"),
}


def find(tx: Tx, ctx: Context, kind: type[T], where: Mapping[str, str], after: str | None, limit: int) -> Page[T]:
    """One page of a list. Its statement is joined from named pieces of SQL."""
    spec = _TABLES[kind]
    LISTS[kind].check(where, limit)
    # One row more than asked for shows whether there is a next page. A list by prefix has no next page.
    params: dict[str, Any] = {"limit": limit if PREFIX in where else limit + 1}
    pieces = [spec.prefix]
    if kind is Event and "run_id" in where:
        # A deleted run may have left events: without its profile, all events are searched.
        (runs,) = tx.read(("profile_of_run", {"run_id": where["run_id"]}))
        if runs:
            params["run_profile"] = runs[0]["profile_id"]
            pieces.append("find_event__of_run")
    for name, value in where.items():
        pieces.append(_piece(spec, kind, name, value, params))
        if (narrower := _implied_filter(spec, name, value)) is not None:
            pieces.append(f"{spec.prefix}__{narrower}")
    if after is not None:
        params["after"] = _number(after, "after") if spec.order == "seq" else after
        pieces.append(f"{spec.prefix}__after")
    pieces.append(f"{spec.prefix}__order")
    read = cast(Callable[[Row], T], decoder(kind))
    if kind is Job:
        params |= _job_facts(tx, ctx)
        read = cast(Callable[[Row], T], shown_job)
    if kind is Schedule:
        read = cast(Callable[[Row], T], read_schedule)
    (rows,) = tx.read(("+".join(pieces), params))
    items = [read(row) for row in rows[:limit]]
    return Page(items=items, after=str(rows[limit - 1][spec.order]) if len(rows) > limit else None)


def _piece(spec: _Table, kind: type, name: str, value: str, params: dict[str, Any]) -> str:
    if name == "state" and spec.prefix == "find_job" and value in _SHOWN_STATES:
        return f"{spec.prefix}__{_SHOWN_STATES[value]}"
    if name == "lease_id":
        profile_id, token = lease_key(value) or ("", 0)
        params |= {"lease_profile": profile_id, "lease_token": token}
    elif name == "blocked_reason":
        facts = waits_as(value)
        params |= {name: value, "want_blocked_by": facts.lane_blocked_by or ""}
        params |= {
            "want_paused": _wanted(facts.paused),
            "want_full": _wanted(facts.full),
            "want_unserved": _wanted(facts.unserved),
            "want_away": _wanted(facts.away),
        }
    elif name == "schedule":
        params["schedule_from"], params["schedule_to"] = keys_of(value)
    elif name == "account_prefix":
        params |= {"account_from": value, "account_to": value + LAST_CHARACTER}
    elif name == "since":
        params[name] = _number(value, name)
    elif name == "label":
        params["label_name"], _, params["label_value"] = value.partition("=")
    elif name == PREFIX:
        return _prefix_piece(spec, kind, value, params)
    elif LISTS[kind].filter(name).kind is bool:
        params[name] = is_yes(value)
        return f"{spec.prefix}__{name if params[name] else _OPPOSITES.get(name, name)}"
    else:
        params[name] = value
    return f"{spec.prefix}__{name}"


def _prefix_piece(spec: _Table, kind: type, value: str, params: dict[str, Any]) -> str:
    """The piece for ids that begin with a text. Lease ids have no index: they are found by their profile and token."""
    begins, name = value, PREFIX
    if kind is Lease:
        begins, colon, token = value.partition(":")
        params |= {"token_prefix": f"{token}%", "of_profile": 1 if colon else 0}
        name = "lease_prefix"
    params |= {"prefix_from": begins, "prefix_to": begins + LAST_CHARACTER}
    return f"{spec.prefix}__{name}"


def _wanted(fact: bool | None) -> int:
    """The value that a filter wants for a fact: 0, 1, or -1 for both."""
    return -1 if fact is None else int(fact)


def _implied_filter(spec: _Table, name: str, value: str) -> str | None:
    """Another filter that is true for all records with this value, and that has an index. None if there is none."""
    match spec.prefix, name, value:
        case "find_job", "blocked_reason", _:
            return "state_blocked"
        case "find_event", "type", _ if value not in _COMMON_EVENTS:
            return "notable"
        case "find_lease", "status", "running" | "releasing":
            return "live"
        case "find_lease", "status", "expired" | "revoked":
            return "lost"
        case "find_lease", "result", "started":
            return "open"
        case "find_lease", "stop_reason", _:
            return "failed"
        case "find_lease", "result", "failed" | "blocked":
            return "failed"
        case "find_delivery", "state", "pending" | "exhausted":
            return "undelivered"
        case _:
            return None


def _number(text: str, name: str) -> int:
    if not is_number(text):
        raise InputError("the list cannot be made", [Problem(name, "must be a number that an earlier page gave")])
    return int(text)


def _job_facts(tx: Tx, ctx: Context) -> dict[str, Any]:
    """Parameters for the shown state of queued jobs: full and paused pools, tasks that no worker offers now, profiles
    whose last browser is newer than any worker's, and the homes that workers serve.

    A task that no worker ever offered is left out: its jobs are blocked, not queued.
    """
    now, (full, known) = tx.clock(("full_pools", {}), ("known_tasks", {}))
    pauses = active_pauses(tx, now)
    workers = serving(live_workers(tx, ctx, now), pauses)
    offered = _offered(workers)
    gone = {(row["pool"], row["task"]) for row in known} - offered.keys()
    newer = _newer(tx, offered)
    return {
        "full": [row["pool"] for row in full],
        "paused": [pause.name for pause in pauses if pause.scope is Scope.POOL],
        "all_paused": int(any(pause.scope is Scope.ALL for pause in pauses)),
        "gone": sorted(f"{pool}/{task}" for pool, task in gone),
        "newer": newer,
        "unserved": 1 if gone or newer else 0,
        "served": homes_served(workers),
    }


def _offered(workers: Sequence[Worker]) -> dict[tuple[str, str], float]:
    """The newest browser engine that these workers have for each pool and task (infinite if it is unknown)."""
    offered: dict[tuple[str, str], float] = {}
    for worker in workers:
        engine = inf if worker.engine is None else worker.engine
        for task in worker.tasks:
            offered[worker.pool, task] = max(engine, offered.get((worker.pool, task), 0))
    return offered


def _unwell(tx: Tx, ctx: Context, now: datetime, pool: str, task: str | None) -> tuple[Worker, ...]:
    """The live workers of a pool that offer the task (any, if None) and whose machine cannot run jobs now."""
    found = (worker for worker in live_workers(tx, ctx, now) if worker.unwell_reason is not None)
    return tuple(worker for worker in found if worker.pool == pool and (task is None or task in worker.tasks))


def _newer(tx: Tx, offered: Mapping[tuple[str, str], float]) -> list[str]:
    """Profiles whose next job cannot run because every worker that offers its task has a browser that is too old."""
    oldest = min(offered.values(), default=inf)
    if oldest == inf:
        return []
    (lanes,) = tx.read(("newer_lanes", {"engine": int(oldest)}))
    heads = {row["profile_id"]: (row["head_pool"], row["head_task"]) for row in lanes}
    return [row["profile_id"] for row in lanes if row["engine"] > offered.get(heads[row["profile_id"]], inf)]


def shown_job(row: Row) -> Job:
    """The job as lists show it: a queued job that cannot run now is shown as blocked, with the reason."""
    job = read_job(row)
    if job.state is not JobState.QUEUED or (reason := shown_reason(_wait_facts(row))) is None:
        return job
    engine, detail = row["newer_engine"], job.detail
    if reason == Blocked.NO_WORKER and engine is not None:
        block = Block(reason=Blocked.NO_WORKER, no_worker=NoWorker.BROWSER_TOO_OLD, engine=engine)
        detail = block_text(block, job)
    elif reason == Blocked.HOME:
        detail = block_text(Block(reason=Blocked.HOME, home=row["home"]), job)
    return replace(job, state=JobState.BLOCKED, blocked_reason=reason, detail=detail)


def _wait_facts(row: Row) -> WaitFacts:
    return WaitFacts(
        lane_blocked_by=row["blocked_by"],
        paused=bool(row["pool_paused"]),
        full=bool(row["pool_full"]),
        unserved=bool(row["no_worker"]),
        away=bool(row["away"]),
    )


def shown_jobs(tx: Tx, ctx: Context, ids: Sequence[str]) -> dict[str, Job]:
    """These jobs as lists show them, by id."""
    (rows,) = tx.read(("find_job+find_job__among", {"ids": list(ids), **_job_facts(tx, ctx)}))
    return {row["job_id"]: shown_job(row) for row in rows}


def get(tx: Tx, ctx: Context, kind: type[T], record_id: str) -> T:
    """One record by its id."""
    listing = LISTS[kind]
    if listing.key is None:
        raise InputError(f"{listing.what}s have no id to get them by")
    page = find(tx, ctx, kind, {listing.key: record_id}, None, 1)
    if not page.items:
        raise NotFound(f"there is no {listing.what} {record_id}", what=listing.what, id=record_id)
    return page.items[0]


def stats(tx: Tx, ctx: Context) -> Stats:
    """Current counts of jobs, profiles, leases, reviews and webhooks."""
    now, _ = tx.clock()
    facts = _job_facts(tx, ctx)
    jobs, waiting, profiles, leases, reviews, deliveries = tx.read(
        ("count_jobs", {}),
        ("count_waiting", facts),
        ("count_profiles", {}),
        ("count_leases", {}),
        ("count_reviews", {}),
        ("count_deliveries", {}),
    )
    by_state = {row["state"]: row["jobs"] for row in jobs if row["jobs"]}
    blocked: dict[str, int] = {}
    for row in waiting:
        reason = row["blocked_reason"] if row["state"] == "blocked" else shown_reason(_wait_facts(row))
        if reason is None:
            by_state["queued"] = by_state.get("queued", 0) + row["jobs"]
        else:
            blocked[reason] = blocked.get(reason, 0) + row["jobs"]
    if blocked:
        by_state["blocked"] = sum(blocked.values())
    return Stats(
        jobs=by_state,
        blocked=blocked,
        profiles={row["state"]: row["profiles"] for row in profiles},
        leases={row["pool"]: row["leases"] for row in leases},
        reviews=reviews[0]["reviews"],
        webhooks={row["state"]: row["deliveries"] for row in deliveries},
        webhooks_due_at=_pending(deliveries, "due_at"),
        webhooks_tried_at=_pending(deliveries, "tried_at"),
        now=now,
    )


def _pending(rows: Sequence[Row], name: str) -> datetime | None:
    """A time of the pending webhooks; None if there are none."""
    found = next((row[name] for row in rows if row["state"] == DeliveryState.PENDING), None)
    return None if found is None else from_us(found)


def why(tx: Tx, ctx: Context, job_id: str | None, profile_id: str | None) -> WhyFacts:
    """The facts about one job or profile, read from one snapshot."""
    job = get(tx, ctx, Job, job_id) if job_id is not None else None
    wanted = job.profile_id if job else profile_id
    about: Params = {"profile_id": wanted}
    now, (lanes, configs, runs, waiting, last, reviews) = tx.clock(
        ("lane_of", about),
        ("configs", {"ids": [wanted]}),
        ("open_runs", {"ids": [wanted]}),
        ("waiting_in", about),
        ("last_run", about),
        ("open_reviews_of", about),
    )
    if not lanes:
        raise NotFound(f"there is no profile {wanted}", what="profile", id=wanted)
    profile, account = read_profile(configs[0]), read_account(configs[0])
    lane = read_lane(lanes[0])
    leases = [read_lease(row) for row in runs]
    pool = job.pool if job else profile.pool
    key = routing_key(
        account.routing,
        account_id=account.account_id,
        profile_id=profile.profile_id,
        task=job.task if job else lane.head_task,
        shared=job.shared if job else lane.head_shared,
    )
    place = {"profile_id": wanted, "priority": job.priority if job else 0, "seq": job.seq if job else 0}
    ahead, holders, limits, taken, known, notes = tx.read(
        ("ahead_of", place),
        ("account_key_holders", {"accounts": [account.account_id]}),
        ("pool_limit", {"pool": pool}),
        ("pool_leases", {"pool": pool}),
        ("known_tasks", {}),
        ("notes_on", {**about, "account_id": account.account_id, "limit": MAX_NOTES}),
    )
    pending: Sequence[Row] = []
    counted: Sequence[Row] = []
    if job is not None and job.callback_url is not None:
        pending, counted = tx.read(
            ("deliveries_of", {"job_id": job.job_id, "limit": MAX_SHOWN}), ("count_deliveries", {})
        )
    ran = find(tx, ctx, RunRecord, {"run_id": job.run_id}, None, 1).items if job and job.run_id else []
    return WhyFacts(
        now=now,
        job=job,
        profile=profile,
        account=account,
        proxy=read_proxy(configs[0]) if configs[0]["x_proxy_id"] is not None else None,
        lane=lane,
        holders=tuple(lease for lease in leases if lease.ended_at is None),
        key_holders=tuple(
            read_lease(row) for row in holders if row["routing_key"] == key and row["profile_id"] != wanted
        ),
        unresolved=tuple(lease for lease in leases if lease.unresolved),
        ahead=ahead[0]["jobs"] if job else 0,
        waiting=waiting[0]["jobs"],
        limit=Limit(pool=pool, max_leases=limits[0]["max_leases"]) if limits else None,
        pool_leases=taken[0]["leases"],
        task_known=job is None or any((row["pool"], row["task"]) == (pool, job.task) for row in known),
        outdated=wanted in _job_facts(tx, ctx)["newer"],
        pauses=bearing_on(active_pauses(tx, now), pool, now),
        unwell=_unwell(tx, ctx, now, pool, job.task if job else None),
        last_run=decoder(RunRecord)(last[0]) if last else None,
        job_run=ran[0] if ran else None,
        next_job=None if job else _next_job(tx, ctx, lane),
        reviews=tuple(decoder(Review)(row) for row in reviews),
        notes=tuple(decoder(Note)(row) for row in notes),
        webhooks=tuple(decoder(Delivery)(row) for row in pending),
        webhooks_tried_at=_pending(counted, "tried_at"),
    )


def _next_job(tx: Tx, ctx: Context, lane: Lane) -> Job | None:
    if lane.head_job_id is not None:
        return get(tx, ctx, Job, lane.head_job_id)
    blocked = find(tx, ctx, Job, {"profile_id": lane.profile_id, "state": "blocked"}, None, 1).items
    return blocked[0] if blocked else None
