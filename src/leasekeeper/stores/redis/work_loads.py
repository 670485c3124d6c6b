"""Which records the reads of lanes, jobs, runs, reviews and snapshots need."""

from typing import Final

from leasekeeper.core.fleet import STORE
from leasekeeper.stores.redis.loaders import CHUNK, loads
from leasekeeper.stores.redis.records import Load, Records, range_of, together, up_to
from leasekeeper.stores.redis.scripts import DISTINCT, READY
from leasekeeper.stores.redis.tables import FIELD_END, KEY_SEPARATOR, PREFIX, first_highest, index_key, key_in, number
from leasekeeper.stores.sql.engine import Params

# How long other claimers skip lanes that a claimer has chosen and not committed yet.
CHOSEN_MS: Final = 1000

# Claims.


@loads("lock_ready")
def _lock_ready(tx: Records, params: Params) -> Load:
    """Load and lock the first ready lanes of each task and home. This transaction has loaded lanes that it changed."""
    if tx.link.grants_paused():
        return []
    indexes = [
        index_key("lanes", "ready", params["pool"], task, home) for task in params["tasks"] for home in params["homes"]
    ]
    taken = [key for table, key in tx.busy if table == "lanes"] + list(tx.touched["lanes"])
    engine = "" if params["engine"] is None else params["engine"]
    pauses = ["all", f"pool:{params['pool']}", f"worker:{params['worker']}"]

    def lanes() -> Load:
        (found,) = yield [
            ("EVALSHA", READY.hash, len(indexes) + 1, f"{PREFIX}lanes", *indexes,
             PREFIX, tx.link.claimer, params["limit"], engine, CHOSEN_MS, *taken)
        ]  # fmt: skip
        keys = found[::2]
        tx.keep("lanes", keys, found[1::2])
        tx.chosen += keys
        yield from tx.lock("lanes", keys)
        return keys

    keys, *_ = yield from together(tx, lanes(), tx.rows("limits", [params["pool"]]), tx.rows("pauses", pauses))
    rows = tx.scratch.read("lock_ready", {**params, "limit": params["limit"] + len(tx.loaded["lanes"])})
    # A ready lane is usable if it was chosen above, or if this transaction changed it.
    usable = set(keys).union(tx.touched["lanes"])
    return [row for row in rows if row["profile_id"] in usable][: params["limit"]]


@loads("heads")
def _heads(tx: Records, params: Params) -> Load:
    wanted = params["ids"]
    yield from together(
        tx,
        tx.rows("lanes", wanted),
        *[tx.first("jobs", "lane", profile, limit=2) for profile in wanted],
        *[tx.first("jobs", "on_conflict", profile, limit=2) for profile in wanted],
    )


@loads("open_runs")
def _open_runs(tx: Records, params: Params) -> Load:
    yield from together(tx, *[tx.first("runs", "open", profile) for profile in params["ids"]])


@loads("moving_runs", "running_jobs")
def _running_jobs(tx: Records, params: Params) -> Load:
    found = yield from together(tx, *[tx.first("runs", "open", profile) for profile in params["ids"]])
    keys = [key for keys in found for key in keys]
    yield from tx.rows("jobs", tx.values("runs", [*keys, *tx.touched["runs"]], "job_id"))


@loads("configs")
def _configs(tx: Records, params: Params) -> Load:
    wanted = params["ids"]
    yield from together(tx, tx.rows("profiles", wanted), tx.rows("fleet_settings", [STORE]))
    yield from together(
        tx,
        tx.rows("accounts", tx.values("profiles", wanted, "account_id")),
        tx.rows("proxies", tx.values("profiles", wanted, "proxy_id")),
    )


@loads("account_keys", "account_key_holders")
def _account_keys(tx: Records, params: Params) -> Load:
    """Load the open runs of all profiles of these accounts: a profile may have moved to the account during its run."""
    accounts = params["accounts"]
    answers = yield from together(
        tx, tx.rows("accounts", accounts), *[tx.first("profiles", "account", account) for account in accounts]
    )
    profiles = [key for keys in answers[1:] for key in keys]
    yield from together(tx, *[tx.first("runs", "open", profile) for profile in profiles])


@loads("pool_leases")
def _pool_leases(tx: Records, params: Params) -> Load:
    count = yield from tx.count("runs", "pool", params["pool"])
    return [{"leases": count}]


@loads("full_pools")
def _full_pools(tx: Records, _params: Params) -> Load:
    yield from tx.first("limits", "all")
    limits = [row for key in tx.loaded["limits"] if (row := tx.current("limits", key)) is not None]
    counts = yield from together(tx, *[tx.count("runs", "pool", row["pool"]) for row in limits])
    return [{"pool": row["pool"]} for row, count in zip(limits, counts, strict=True) if count >= row["max_leases"]]


@loads("on_conflict_jobs")
def _on_conflict_jobs(tx: Records, params: Params) -> Load:
    yield from tx.first("jobs", "on_conflict", params["profile_id"], limit=params["limit"])


@loads("on_conflict_lanes")
def _on_conflict_lanes(tx: Records, params: Params) -> Load:
    """Load profiles with jobs whose `on_conflict` is not `wait`, page by page, with the runs that have the profile or
    its account's key."""
    after = params["after"]
    while True:
        (profiles,) = yield [
            ("EVALSHA", DISTINCT.hash, 1, index_key("jobs", "all_on_conflict"), after, max(params["limit"], CHUNK))
        ]
        yield from together(
            tx,
            tx.rows("profiles", profiles),
            *[tx.first("jobs", "on_conflict", profile, limit=1) for profile in profiles],
            *[tx.first("runs", "open", profile) for profile in profiles],
        )
        accounts = dict.fromkeys(tx.values("profiles", profiles, "account_id"))
        yield from together(tx, *[tx.first("runs", "account", account) for account in accounts])
        if not profiles:
            return None
        after = profiles[-1]
        seen = [row for row in tx.scratch.read("on_conflict_lanes", params) if row["profile_id"] <= after]
        if len(seen) >= params["limit"]:
            return seen


# Jobs.


@loads("jobs_by_key")
def _jobs_by_key(tx: Records, params: Params) -> Load:
    yield from tx.by_unique("jobs", "key", params["keys"])


@loads("profiles_among")
def _profiles_among(tx: Records, params: Params) -> Load:
    yield from together(
        tx,
        tx.rows("profiles", params["profiles"]),
        *[tx.first("profiles", "account", account) for account in params["accounts"]],
    )


@loads("due_jobs")
def _due_jobs(tx: Records, params: Params) -> Load:
    yield from tx.first("jobs", "due", limit=params["limit"], high=up_to(params["now"]))


@loads("due_jobs_of")
def _due_jobs_of(tx: Records, params: Params) -> Load:
    """Load due jobs until enough are of these lanes: the index has the due jobs of all lanes in one order."""
    wanted, after = set(params["ids"]), "-"
    while True:
        (members,) = yield [range_of(index_key("jobs", "due"), after, up_to(params["now"]), CHUNK)]
        keys = [key_in(member) for member in members]
        yield from tx.rows("jobs", keys)
        rows = tx.scratch.read("due_jobs_of", params)
        if len(members) < CHUNK or len(rows) >= params["limit"]:
            return [row for row in rows if row["profile_id"] in wanted]
        after = f"({members[-1]}"


@loads("jobs_without_worker")
def _jobs_without_worker(tx: Records, params: Params) -> Load:
    limit = params["limit"]
    yield from together(
        tx, *[tx.first("jobs", "without_worker", params["pool"], task, limit=limit) for task in params["tasks"]]
    )


@loads("jobs_without_worker_of", "blocked_jobs")
def _blocked_jobs(tx: Records, params: Params) -> Load:
    yield from together(tx, *[tx.first("jobs", "blocked", profile) for profile in params["ids"]])


@loads("profiles_with_open_jobs")
def _profiles_with_open_jobs(tx: Records, params: Params) -> Load:
    yield from together(tx, *[tx.first("jobs", "open", profile, limit=1) for profile in params["ids"]])


@loads("tasks_that_wait")
def _tasks_that_wait(tx: Records, _params: Params) -> Load:
    yield from tx.first("tasks", "all")
    known = [key.split(KEY_SEPARATOR) for key in tx.loaded["tasks"]]
    yield from together(tx, *[tx.first("jobs", "without_worker", pool, task, limit=1) for pool, task in known])


@loads("ahead_of")
def _ahead_of(_tx: Records, params: Params) -> Load:
    end = f"({first_highest(params['priority'])}{number(params['seq'])}"
    (count,) = yield [("ZLEXCOUNT", index_key("jobs", "lane", params["profile_id"]), "-", end)]
    return [{"jobs": min(int(count), 10_000)}]


@loads("waiting_in")
def _waiting_in(tx: Records, params: Params) -> Load:
    queued, blocked = yield from together(
        tx, tx.count("jobs", "lane", params["profile_id"]), tx.count("jobs", "blocked", params["profile_id"])
    )
    return [{"jobs": queued + blocked}]


@loads("last_jobs_of_schedules")
def _last_jobs_of_schedules(tx: Records, params: Params) -> Load:
    yield from tx.rows("schedule_jobs", params["places"])
    yield from tx.rows("jobs", tx.values("schedule_jobs", params["places"], "job_id"))


# Runs, lanes, reviews.


@loads("run_by_token")
def load_run_by_token(tx: Records, params: Params) -> Load:
    yield from tx.by_unique("runs", "lease", [f"{params['profile_id']}{KEY_SEPARATOR}{params['token']}"])


@loads("expired_runs")
def _expired_runs(tx: Records, params: Params) -> Load:
    yield from tx.first("runs", "live", limit=params["limit"], high=up_to(params["now"]))


@loads("unresolved_runs")
def _unresolved_runs(tx: Records, params: Params) -> Load:
    yield from tx.first("runs", "unresolved", limit=params["limit"], high=up_to(params["now"]))


@loads("last_run")
def _last_run(tx: Records, params: Params) -> Load:
    (members,) = yield [range_of(index_key("runs", "tokens", params["profile_id"]), "-", "+", 1, reverse=True)]
    yield from tx.rows("runs", map(key_in, members))


@loads("parked_keys")
def _parked_keys(_tx: Records, params: Params) -> Load:
    (found,) = yield [
        ("EVALSHA", DISTINCT.hash, 1, index_key("lanes", "parked"), params["after"], params["limit"])
    ]  # fmt: skip
    return [{"waits_on": key} for key in found]


@loads("parked_lanes")
def _parked_lanes(tx: Records, params: Params) -> Load:
    ranges = [(f"[{key}{FIELD_END}", f"({key}\x01") for key in params["keys"]]
    yield from together(tx, *[tx.first("lanes", "parked", low=low, high=high) for low, high in ranges])


@loads("rested_profiles")
def _rested_profiles(tx: Records, params: Params) -> Load:
    after = f"({number(params['since'])}{FIELD_END}{params['after']}"
    while True:
        (members,) = yield [range_of(index_key("lanes", "rested"), after, "+", CHUNK)]
        keys = [key_in(member) for member in members]
        yield from together(tx, tx.rows("lanes", keys), tx.rows("profiles", keys))
        rows = tx.scratch.read("rested_profiles", params)
        if len(members) < CHUNK or len(rows) >= params["limit"]:
            return rows
        after = f"({members[-1]}"


@loads("count_by_blocked_by")
def _count_by_blocked_by(tx: Records, params: Params) -> Load:
    keys = yield from tx.first("profiles", "pool", params["pool"])
    yield from tx.rows("lanes", keys)


@loads("newer_lanes")
def _newer_lanes(tx: Records, params: Params) -> Load:
    yield from tx.first("lanes", "engine", low=f"[{number(params['engine'] + 1)}")


@loads("open_reviews_of")
def _open_reviews_of(tx: Records, params: Params) -> Load:
    yield from tx.first("reviews", "open", params["profile_id"])


@loads("open_reviews_about")
def _open_reviews_about(tx: Records, params: Params) -> Load:
    ranges = [(f"[{subject}{FIELD_END}", f"({subject}\x01") for subject in params["subjects"]]
    yield from together(tx, *[tx.first("reviews", "subject", low=low, high=high) for low, high in ranges])


# Snapshots.


@loads("snapshots_among")
def _snapshots_among(tx: Records, params: Params) -> Load:
    yield from together(tx, *[tx.first("snapshots", "profile", profile) for profile in params["ids"]])


@loads("newest_snapshots")
def _newest_snapshots(tx: Records, params: Params) -> Load:
    wanted = params["ids"]
    yield from tx.rows("lanes", wanted)
    lanes = [row for key in wanted if (row := tx.current("lanes", key)) is not None]
    names = [f"{row['profile_id']}{KEY_SEPARATOR}{row['snapshot']}" for row in lanes if row["snapshot"] is not None]
    yield from tx.by_unique("snapshots", "token", names)


@loads("lanes_reserved_too_long")
def _lanes_reserved_too_long(tx: Records, params: Params) -> Load:
    after = "-"
    while True:
        (members,) = yield [range_of(index_key("lanes", "reserved"), after, "+", CHUNK)]
        yield from tx.rows("lanes", map(key_in, members))
        rows = tx.scratch.read("lanes_reserved_too_long", params)
        if len(members) < CHUNK or len(rows) >= params["limit"]:
            return rows
        after = f"({members[-1]}"
