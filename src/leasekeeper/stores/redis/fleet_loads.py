"""Which records the reads of the fleet, webhooks, notes, retention and counts need."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from leasekeeper.core.deliveries import DeliveryState
from leasekeeper.core.jobs import JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.stores.redis.loaders import CHUNK, loads
from leasekeeper.stores.redis.records import Load, Records, events, range_of, together, up_to
from leasekeeper.stores.redis.scripts import DISTINCT, GROUPS
from leasekeeper.stores.redis.tables import FIELD_END, PREFIX, TABLES, WAITING_GROUP, index_key, key_in, number, unpack
from leasekeeper.stores.redis.work_loads import load_run_by_token
from leasekeeper.stores.sql.engine import Params

_COUNTED: Final = [state.value for state in JobState if state.value not in ("queued", "blocked", "dead")]

# The fleet.


@loads("profiles_of_proxy")
def _profiles_of_proxy(tx: Records, params: Params) -> Load:
    yield from tx.first("profiles", "proxy", params["proxy_id"])


@loads("pool_known")
def _pool_known(tx: Records, params: Params) -> Load:
    yield from together(
        tx,
        tx.first("profiles", "pool", params["name"], limit=1),
        tx.rows("limits", [params["name"]]),
        tx.first("tasks", "all"),
    )


@loads("worker_known")
def _worker_known(tx: Records, params: Params) -> Load:
    yield from tx.first("workers", "worker", params["name"], limit=1)


@loads("live_workers")
def _live_workers(tx: Records, params: Params) -> Load:
    yield from tx.first("workers", "live", low=f"[{number(params['since'] + 1)}")


@loads("profiles_selected")
def _profiles_selected(tx: Records, params: Params) -> Load:
    name, by = ("account", params["account_id"]) if params["account_id"] is not None else ("pool", params["pool"])
    if by is None:
        name, by = "all", None
    after = f"({FIELD_END}{params['after']}"
    while True:
        place = index_key("profiles", name) if by is None else index_key("profiles", name, by)
        (members,) = yield [range_of(place, after, "+", CHUNK)]
        yield from tx.rows("profiles", map(key_in, members))
        rows = tx.scratch.read("profiles_selected", params)
        if len(members) < CHUNK or len(rows) >= params["limit"]:
            last = key_in(members[-1]) if members else ""
            return [row for row in rows if row["profile_id"] <= last]
        after = f"({members[-1]}"


@loads("one_schedule")
def _one_schedule(tx: Records, params: Params) -> Load:
    wanted = [params["schedule_id"]]
    yield from together(tx, tx.rows("schedules", wanted), tx.rows("schedule_states", wanted))


@loads("secrets_of_lease")
def _secrets_of_lease(tx: Records, params: Params) -> Load:
    yield from load_run_by_token(tx, params)
    key = tx.aliases["runs"].get((params["profile_id"], params["token"]))
    proxies = tx.values("runs", [key] if key else [], "proxy_id")
    yield from tx.rows("proxies", proxies)
    named = [each for each in tx.values("proxies", proxies, "credentials") if (each or "").startswith("secret:")]
    yield from tx.rows("secrets", [each.removeprefix("secret:") for each in named])


@loads("job_of_lease")
def _job_of_lease(tx: Records, params: Params) -> Load:
    yield from load_run_by_token(tx, params)
    key = tx.aliases["runs"].get((params["profile_id"], params["token"]))
    yield from tx.rows("jobs", tx.values("runs", [key] if key else [], "job_id"))


@loads("proxies_with_credentials")
def _proxies_with_credentials(tx: Records, params: Params) -> Load:
    yield from tx.first("proxies", "credentials", params["credentials"], limit=params["limit"])


# Webhooks.


@loads("due_deliveries_of")
def _due_deliveries_of(tx: Records, params: Params) -> Load:
    yield from tx.first("deliveries", "due", params["host"], limit=params["limit"], high=up_to(params["now"]))


@loads("due_deliveries")
def _due_deliveries(tx: Records, params: Params) -> Load:
    """Load the first due messages of each host, or all due ones if the request is not for all kinds."""
    (hosts,) = yield [
        ("EVALSHA", DISTINCT.hash, 1, index_key("deliveries", "hosts"), params["after"], params["hosts"])
    ]  # fmt: skip
    all_kinds = params["callbacks"] and params["endpoints"]
    limit = params["each"] if all_kinds else None
    high = up_to(params["now"])
    yield from together(
        tx,
        *[tx.first("deliveries", "due", host, limit=limit, high=high) for host in hosts],
        *[tx.first("deliveries", "due", host, limit=1) for host in hosts],
    )


@loads("deliveries_of")
def _deliveries_of(tx: Records, params: Params) -> Load:
    yield from tx.first("deliveries", "job", params["job_id"])


@loads("count_deliveries")
def _count_deliveries(tx: Records, _params: Params) -> Load:
    all_of_them, pending = yield from together(
        tx, tx.count("deliveries", "undelivered"), tx.count("deliveries", "hosts")
    )
    due, tried = yield [
        range_of(index_key("deliveries", "next"), "-", "+", 1),
        range_of(index_key("deliveries", "tried"), "-", "+", 1, reverse=True),
    ]
    counted = {DeliveryState.PENDING: pending, DeliveryState.EXHAUSTED: all_of_them - pending}
    times = {"due_at": _first_number(due), "tried_at": _first_number(tried)}
    return [{"state": state.value, "deliveries": count, **times} for state, count in counted.items() if count]


def _first_number(members: Sequence[str]) -> int | None:
    """The number that the first of these members is ordered by; None if there is none."""
    return int(members[0].partition(FIELD_END)[0]) if members else None


# Retention.


@loads("finished_jobs")
def _finished_jobs(tx: Records, params: Params) -> Load:
    """Load old finished jobs until enough of them have no unresolved run."""
    yield from tx.first("runs", "unresolved")
    after = "-"
    while True:
        (members,) = yield [range_of(index_key("jobs", "finished"), after, f"({number(params['before'])}", CHUNK)]
        keys = [key_in(member) for member in members]
        yield from tx.rows("jobs", keys)
        rows = tx.scratch.read("finished_jobs", params)
        if len(members) < CHUNK or len(rows) >= params["limit"]:
            return rows
        after = f"({members[-1]}"


@loads("old_runs")
def _old_runs(tx: Records, params: Params) -> Load:
    yield from tx.first("runs", "without_job", limit=params["limit"] * 2, high=f"({number(params['before'])}")


@loads("old_deliveries")
def _old_deliveries(tx: Records, params: Params) -> Load:
    yield from tx.first("deliveries", "ended", limit=params["limit"], high=f"({number(params['before'])}")


@loads("old_answers")
def _old_answers(tx: Records, params: Params) -> Load:
    yield from tx.first("answers", "at", limit=params["limit"], high=f"({number(params['cutoff'])}")


@loads("first_events_from")
def _first_events_from(tx: Records, params: Params) -> Load:
    low = f"[{FIELD_END}{number(params['seq'])}"
    (members,) = yield [range_of(index_key("events", "all"), low, "+", 1)]
    yield from events(tx, members)


@loads("last_event")
def _last_event(tx: Records, _params: Params) -> Load:
    (members,) = yield [range_of(index_key("events", "all"), "-", "+", 1, reverse=True)]
    yield from events(tx, members)


@loads("old_events")
def _old_events(tx: Records, params: Params) -> Load:
    """Load old events, the oldest first, with the newest event of the same profile and job: an event with a current
    state is not deleted."""
    yield from _last_event(tx, params)
    after = "-"
    while True:
        high = f"({FIELD_END}{number(params['before'])}"
        (members,) = yield [range_of(index_key("events", "all"), after, high, CHUNK)]
        seqs = yield from events(tx, members)
        columns = tx.scratch.columns["events"]
        rows = [dict(zip(columns, tx.events_read[int(seq)], strict=True)) for seq in seqs if int(seq) in tx.events_read]
        profiles = dict.fromkeys(row["profile_id"] for row in rows if row["profile_id"])
        jobs = dict.fromkeys(row["job_id"] for row in rows if row["job_id"])
        names = [*(f"profile:{key}" for key in profiles), *(f"job:{key}" for key in jobs)]
        if names:
            (newest,) = yield [("HMGET", f"{PREFIX}events:newest", *names)]
            yield from together(
                tx,
                events(tx, [FIELD_END + seq for seq in newest if seq]),
                tx.rows("lanes", profiles),
                tx.rows("jobs", jobs),
            )
        old = tx.scratch.read("old_events", params)
        if len(members) < CHUNK or len(old) >= params["limit"]:
            return old
        after = f"({members[-1]}"


# Counts.


@loads("count_jobs")
def _count_jobs(tx: Records, _params: Params) -> Load:
    counts = yield from together(tx, *[tx.count("jobs", "state", state) for state in _COUNTED])
    dead, dropped = yield from together(tx, tx.count("jobs", "state", "dead"), tx.count("jobs", "dropped"))
    found = dict(zip(_COUNTED, counts, strict=True)) | {"dead": dead - dropped, "dropped": dropped}
    return [{"state": state, "jobs": count} for state, count in found.items() if count]


@loads("count_waiting")
def _count_waiting(tx: Records, params: Params) -> Load:
    """Count by groups: all jobs of a lane with the same task and state are one group. The reads are not compared at the
    end, so the counts may be of slightly different moments."""
    counted = Counter[_Waiting]()
    lanes: dict[str, list[Any]] = {}
    places, after = [tx.scratch.columns["lanes"].index(name) for name in ("blocked_by", "saved", "home")], ""
    while True:
        (flat,) = yield [("EVALSHA", GROUPS.hash, 1, index_key("jobs", "groups"), after, CHUNK)]
        names = [name.split(FIELD_END)[: len(WAITING_GROUP)] for name in flat[::2]]
        missing = [profile for profile in dict.fromkeys(name[-1] for name in names) if profile not in lanes]
        if missing:
            (found,) = yield [("HMGET", TABLES["lanes"].hash, *missing)]
            rows = ((key, unpack(packed)[1]) for key, packed in zip(missing, found, strict=True) if packed)
            lanes.update((key, [values[place] for place in places]) for key, values in rows)
        for name, jobs in zip(names, flat[1::2], strict=True):
            if (lane := lanes.get(name[-1])) is not None:
                counted[_waiting(params, lane, *name)] += int(jobs)
        if len(names) < CHUNK:
            return [{**group._asdict(), "jobs": jobs} for group, jobs in counted.items()]
        after = flat[-2]


class _Waiting(NamedTuple):
    """A row of `count_waiting`, without its count."""

    state: str
    blocked_reason: str | None
    blocked_by: str | None
    pool_paused: bool
    pool_full: bool
    no_worker: bool
    away: bool


def _waiting(params: Params, lane: list[Any], state: str, reason: str, pool: str, task: str, profile: str) -> _Waiting:
    blocked_by, saved, home = lane
    offer = f"{pool}/{task}"
    return _Waiting(
        state=state,
        blocked_reason=reason or None,
        blocked_by=blocked_by,
        pool_paused=bool(params["all_paused"]) or pool in params["paused"],
        pool_full=pool in params["full"],
        no_worker=offer in params["gone"] or profile in params["newer"],
        away=not (saved or home == "" or f"{offer}@{home}" in params["served"]),
    )


@loads("count_profiles")
def _count_profiles(tx: Records, _params: Params) -> Load:
    counts = yield from together(tx, *[tx.count("lanes", "state", state.value) for state in ProfileState])
    return [
        {"state": state.value, "profiles": count} for state, count in zip(ProfileState, counts, strict=True) if count
    ]


@loads("count_leases")
def _count_leases(_tx: Records, _params: Params) -> Load:
    leases: dict[str, int] = {}
    after = ""
    while True:
        (flat,) = yield [("EVALSHA", GROUPS.hash, 1, index_key("runs", "pools"), after, CHUNK)]
        leases.update((name.split(FIELD_END)[0], int(count)) for name, count in zip(flat[::2], flat[1::2], strict=True))
        if len(flat) < CHUNK * 2:
            return [{"pool": pool, "leases": count} for pool, count in leases.items()]
        after = flat[-2]


@loads("count_reviews")
def _count_reviews(tx: Records, _params: Params) -> Load:
    count = yield from tx.count("reviews", "undecided")
    return [{"reviews": count}]


# Notes.


@loads("notes_on")
def _notes_on(tx: Records, params: Params) -> Load:
    subjects = [(about, params[f"{about}_id"]) for about in ("profile", "account")]
    yield from together(tx, *[tx.first("notes", "subject", *subject) for subject in subjects])


@loads("notes_beyond")
def _notes_beyond(tx: Records, params: Params) -> Load:
    yield from tx.first("notes", "subject", params["about"], params["subject"])


@loads("notes_of_run")
def _notes_of_run(tx: Records, params: Params) -> Load:
    yield from tx.first("notes", "run", params["run_id"])
