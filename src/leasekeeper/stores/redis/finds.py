"""Lists: each is read along an index that has its order, chunk by chunk until the page is full.

The pieces of `finds.sql` run on the records that were read. A filter without its own index is checked record by record,
as SQL would do without an index.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasekeeper.stores.redis.records import Load, Records, events, range_of, together
from leasekeeper.stores.redis.tables import FIELD_END, index_key, key_in, number
from leasekeeper.stores.sql.engine import Params

FIRST_CHUNK: Final = 100
MAX_CHUNK: Final = 2000

Way = tuple[str, Callable[[Params], tuple[object, ...]]]


@dataclass(frozen=True, slots=True)
class _List:
    """A list: its table, the column of its key, and the index of its order."""

    table: str
    column: str
    index: str = "all"
    newest_first: bool = False
    ordered_by: str = ""
    """The column that orders the index, if it is not the key."""
    ids: str = "all"
    ways: tuple[tuple[str, Way], ...] = ()
    """Filters with an index in the same order: the piece, the index and its values. The first one in use is read."""


def _by(*names: str) -> Callable[[Params], tuple[object, ...]]:
    return lambda params: tuple(params[name] for name in names)


def _const(*values: object) -> Callable[[Params], tuple[object, ...]]:
    return lambda _params: values


_LISTS: Final[Mapping[str, _List]] = {
    "find_account": _List("accounts", "account_id"),
    "find_profile": _List(
        "profiles",
        "profile_id",
        ways=(
            ("account_id", ("account", _by("account_id"))),
            ("pool", ("pool", _by("pool"))),
        ),
    ),
    "find_lane": _List("lanes", "profile_id", ways=(("state", ("state", _by("state"))),)),
    "find_proxy": _List("proxies", "proxy_id"),
    "find_launcher": _List("launchers", "launcher_id"),
    "find_limit": _List("limits", "pool"),
    "find_endpoint": _List("endpoints", "endpoint_id"),
    "find_pause": _List("pauses", "pause_id"),
    "find_secret": _List("secrets", "name"),
    "find_schedule": _List("schedules", "schedule_id"),
    "find_schedule_state": _List("schedules", "schedule_id"),
    "find_token": _List("tokens", "token_id", "created", newest_first=True, ordered_by="created_at"),
    "find_worker": _List("workers", "incarnation", "started", newest_first=True, ordered_by="started_at"),
    "find_job": _List(
        "jobs",
        "job_id",
        newest_first=True,
        ordered_by="seq",
        ids="ids",
        ways=(
            ("profile_id", ("profile", _by("profile_id"))),
            ("state", ("state", _by("state"))),
            ("state_running", ("state", _const("running"))),
            ("state_queued", ("waiting", _const())),
            ("state_blocked", ("waiting", _const())),
        ),
    ),
    "find_lease": _List(
        "runs",
        "run_id",
        newest_first=True,
        ways=(
            ("profile_id", ("profile", _by("profile_id"))),
            ("job_id", ("job", _by("job_id"))),
            ("failed", ("failed", _const())),
            ("lost", ("lost", _const())),
        ),
    ),
    "find_review": _List(
        "reviews",
        "review_id",
        newest_first=True,
        ways=(("profile_id", ("profile", _by("profile_id"))), ("open", ("undecided", _const()))),
    ),
    "find_note": _List(
        "notes",
        "note_id",
        newest_first=True,
        ways=(
            ("run_id", ("run", _by("run_id"))),
            ("job_id", ("job", _by("job_id"))),
            ("profile_id", ("profile", _by("profile_id"))),
            ("account_id", ("account", _by("account_id"))),
        ),
    ),
    "find_snapshot": _List(
        "snapshots",
        "snapshot_id",
        newest_first=True,
        ways=(
            ("profile_id", ("profile", _by("profile_id"))),
            ("discarded", ("discarded", _const())),
            ("account_id", ("account", _by("account_id"))),
        ),
    ),
    "find_delivery": _List(
        "deliveries",
        "delivery_id",
        newest_first=True,
        ordered_by="seq",
        ids="ids",
        ways=(
            ("job_id", ("job", _by("job_id"))),
            ("endpoint_id", ("endpoint", _by("endpoint_id"))),
            ("undelivered", ("undelivered", _const())),
        ),
    ),
    "find_event": _List(
        "events",
        "seq",
        newest_first=True,
        ways=(
            ("profile_id", ("profile_id", _by("profile_id"))),
            ("job_id", ("job_id", _by("job_id"))),
            ("notable", ("type", _by("type"))),
        ),
    ),
}


def find(tx: Records, pieces: Sequence[str], params: Params) -> Load:
    """The rows of one page."""
    name, *rest = pieces
    filters = [piece.removeprefix(f"{name}__") for piece in rest]
    spec = _LISTS[name]
    few = yield from _load_few(tx, name, spec, filters, params)
    if few is not None:
        yield from _load_joined(tx, name, few, params)
        return None
    return (yield from _walk(tx, pieces, spec, filters, params))


def _load_few(tx: Records, name: str, spec: _List, filters: Sequence[str], params: Params) -> Load:
    """Load the records of a filter that matches only a few. Returns their keys, or None if there is no such filter."""
    table = spec.table
    if name == "find_event":
        if "of_run" in filters:
            return (yield from _events_of_run(tx, params))
        return None
    if "among" in filters:
        keys = list(params["ids"])
        yield from tx.rows(table, keys)
        return keys
    if spec.column in filters:
        keys = [params[spec.column]]
        yield from tx.rows(table, keys)
        return keys
    if "prefix" in filters:
        low, high = (f"{FIELD_END}{params[end]}" for end in ("prefix_from", "prefix_to"))
        return (yield from tx.first(table, spec.ids, limit=params["limit"], low=f"[{low}", high=f"({high}"))
    if name == "find_job":
        return (yield from _few_jobs(tx, filters, params))
    if name == "find_lease":
        return (yield from _few_runs(tx, filters, params))
    if name == "find_lane" and ("account_id" in filters or "account_prefix" in filters):
        if "account_id" in filters:
            keys = yield from tx.first("profiles", "account", params["account_id"])
        else:
            low, high = f"[{params['account_from']}", f"({params['account_to']}"
            keys = yield from tx.first("profiles", "accounts", low=low, high=high)
        yield from tx.rows("lanes", keys)
        return keys
    return None


def _few_jobs(tx: Records, filters: Sequence[str], params: Params) -> Load:
    if "idempotency_key" in filters:
        yield from tx.by_unique("jobs", "key", [params["idempotency_key"]])
        return list(tx.loaded["jobs"])
    if "run_id" in filters:
        yield from tx.rows("runs", [params["run_id"]])
        keys = [key for key in tx.values("runs", [params["run_id"]], "job_id") if key]
        yield from tx.rows("jobs", keys)
        return keys
    if "schedule" in filters:
        low, high = f"[{params['schedule_from']}", f"({params['schedule_to']}"
        return (yield from tx.first("jobs", "scheduled_keys", low=low, high=high))
    return None


def _few_runs(tx: Records, filters: Sequence[str], params: Params) -> Load:
    if "lease_id" in filters:
        yield from tx.by_unique("runs", "lease", [f"{params['lease_profile']}\x1f{params['lease_token']}"])
        return list(tx.loaded["runs"])
    if "lease_prefix" in filters:
        low, high = f"[{params['prefix_from']}", f"({params['prefix_to']}"
        return (yield from tx.first("runs", "all_open", low=low, high=high))
    if "live" in filters or "open" in filters:
        return (yield from tx.first("runs", "all_open"))
    if "job_id" in filters:
        yield from tx.rows("jobs", [params["job_id"]])
        return (yield from tx.first("runs", "job", params["job_id"]))
    return None


def _events_of_run(tx: Records, params: Params) -> Load:
    run = params["run_id"]
    yield from tx.rows("runs", [run])
    jobs = [job for job in tx.values("runs", [run], "job_id") if job is not None]
    places = [index_key("events", "run", run), *[index_key("events", "job_id", job) for job in jobs]]
    found = yield [range_of(place, "-", "+", -1) for place in places]
    yield from events(tx, [member for members in found for member in members])
    return []


def _walk(tx: Records, pieces: Sequence[str], spec: _List, filters: Sequence[str], params: Params) -> Load:
    """Read along the index until the page is full or the index ends. Returns the rows of the page."""
    name, by = spec.index, tuple[object, ...]()
    if "dropped" in filters and params["dropped"]:
        name = "dropped"
    for piece, (index, values) in spec.ways if name == spec.index else ():
        if piece in filters:
            name, by = index, values(params)
            break
    place, text = index_key(spec.table, name, *by), "+".join(pieces)
    low, high = yield from _range_ends(tx, spec, filters, params)
    walked: set[Any] = set()
    size = FIRST_CHUNK
    while True:
        size = max(size, min(params["limit"], MAX_CHUNK))
        (members,) = yield [range_of(place, low, high, size, reverse=spec.newest_first)]
        if spec.table == "events":
            keys: list[Any] = [int(seq) for seq in (yield from events(tx, members))]
        else:
            keys = [key_in(member) for member in members]
            yield from tx.rows(spec.table, keys)
            yield from _load_joined(tx, pieces[0], keys, params)
        walked.update(keys)
        # The statement may also return records that were loaded before: its limit leaves room for them.
        loaded = len(tx.events_read) if spec.table == "events" else len(tx.loaded[spec.table])
        rows = tx.scratch.read(text, {**params, "limit": params["limit"] + loaded - len(walked)})
        found = [row for row in rows if row[spec.column] in walked][: params["limit"]]
        if len(members) < size or len(found) >= params["limit"]:
            return found
        if spec.newest_first:
            high = f"({members[-1]}"
        else:
            low = f"({members[-1]}"
        size = min(size * 2, MAX_CHUNK)


def _range_ends(tx: Records, spec: _List, filters: Sequence[str], params: Params) -> Load:
    """The range of the index to read: its low and high end."""
    low, high = "-", "+"
    if "since" in filters:
        low = f"({FIELD_END}{number(params['since'])}"
    if "after" in filters:
        after = params["after"]
        if spec.table == "events":
            end = f"({FIELD_END}{number(after)}"
        elif spec.ordered_by == "seq":
            end = f"({number(after)}"
        elif spec.ordered_by:
            yield from tx.rows(spec.table, [after])
            known = tx.values(spec.table, [after], spec.ordered_by)
            end = f"({number(known[0] if known else 0)}{FIELD_END}{after}"
        else:
            end = f"({FIELD_END}{after}"
        if spec.newest_first:
            high = end
        else:
            low = end
    return low, high


def _load_joined(tx: Records, name: str, keys: Sequence[str], params: Params) -> Load:
    """Load the records of other tables that the list's pieces join or test."""
    if name == "find_job":
        profiles = dict.fromkeys(tx.values("jobs", keys, "profile_id"))
        account = params.get("account_id")
        yield from together(
            tx,
            tx.rows("lanes", profiles),
            tx.rows("runs", tx.values("jobs", keys, "run_id")),
            *_of_account(tx, account, profiles),
        )
    elif name == "find_lease":
        profiles = dict.fromkeys(tx.values("runs", keys, "profile_id"))
        jobs = [params["job_id"]] if "job_id" in params else []
        yield from together(tx, tx.rows("jobs", jobs), *_of_account(tx, params.get("account_id"), profiles))
    elif name == "find_lane":
        yield from tx.rows("profiles", keys)
    elif name == "find_review" and "pool" in params:
        yield from tx.rows("profiles", {key: None for key in tx.values("reviews", keys, "profile_id") if key})
    elif name == "find_schedule_state":
        yield from tx.rows("schedule_states", keys)


def _of_account(tx: Records, account: object, profiles: Mapping[str, None]) -> list[Load]:
    """Loads that show whether these profiles belong to the account, or did until they were removed."""
    return [] if account is None else [tx.rows("profiles", profiles), tx.rows("retired_lanes", profiles)]
