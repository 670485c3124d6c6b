"""Which records each named write changes: its table, and a load that reads them and returns their keys."""

from collections.abc import Mapping
from typing import Any, Final

from leasekeeper.stores.redis.records import Load, Records, Rows, WriteLoader, together
from leasekeeper.stores.redis.tables import KEY_SEPARATOR, TABLES, number

_KEYED: Final[Mapping[str, tuple[str, str]]] = {
    "update_lanes": ("lanes", "profile_id"),
    "put_workers": ("workers", "incarnation"),
    "silence_workers": ("workers", "incarnation"),
    "put_accounts": ("accounts", "account_id"),
    "put_proxies": ("proxies", "proxy_id"),
    "put_launchers": ("launchers", "launcher_id"),
    "put_profiles": ("profiles", "profile_id"),
    "put_limits": ("limits", "pool"),
    "pause_accounts": ("accounts", "account_id"),
    "delete_limit": ("limits", "id"),
    "delete_account": ("accounts", "id"),
    "delete_launcher": ("launchers", "id"),
    "put_call_turns": ("call_turns", "key"),
    "delete_proxy": ("proxies", "id"),
    "delete_profile": ("profiles", "id"),
    "delete_lane": ("lanes", "id"),
    "insert_lanes": ("lanes", "profile_id"),
    "put_answers": ("answers", "slot"),
    "prune_answers": ("answers", "slot"),
    "insert_tokens": ("tokens", "token_id"),
    "revoke_tokens": ("tokens", "token_id"),
    "use_tokens": ("tokens", "token_id"),
    "put_secrets": ("secrets", "name"),
    "delete_secret": ("secrets", "id"),
    "put_endpoints": ("endpoints", "endpoint_id"),
    "delete_endpoint": ("endpoints", "id"),
    "put_pauses": ("pauses", "pause_id"),
    "delete_pauses": ("pauses", "pause_id"),
    "put_schedules": ("schedules", "schedule_id"),
    "put_schedule_states": ("schedule_states", "schedule_id"),
    "put_schedule_jobs": ("schedule_jobs", "place"),
    "delete_schedule": ("schedules", "id"),
    "delete_schedule_state": ("schedule_states", "id"),
    "delete_notes": ("notes", "note_id"),
    "discard_snapshots": ("snapshots", "snapshot_id"),
    "delete_snapshots": ("snapshots", "snapshot_id"),
    "put_fleet_settings": ("fleet_settings", "name"),
    "delete_fleet_setting": ("fleet_settings", "id"),
    "stop_schedule_state": ("schedule_states", "id"),
}
_INSERTED: Final[Mapping[str, tuple[str, str]]] = {
    "insert_jobs": ("jobs", "job_id"),
    "insert_runs": ("runs", "run_id"),
    "insert_notes": ("notes", "note_id"),
    "insert_snapshots": ("snapshots", "snapshot_id"),
    "insert_deliveries": ("deliveries", "delivery_id"),
}
# Writes that name a record by other columns than its key; the record was read before in the same transaction.
_ALIASED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "update_jobs": ("jobs", ("seq",)),
    "prioritize_jobs": ("jobs", ("seq",)),
    "prune_jobs": ("jobs", ("seq",)),
    "end_runs": ("runs", ("profile_id", "token")),
    "renew_runs": ("runs", ("profile_id", "token")),
    "step_runs": ("runs", ("profile_id", "token")),
    "resolve_runs": ("runs", ("profile_id", "token")),
    "ask_again": ("runs", ("profile_id", "token")),
    "keep_reports": ("runs", ("profile_id", "token")),
    "prune_runs": ("runs", ("profile_id", "token")),
    "update_deliveries": ("deliveries", ("seq",)),
    "prune_deliveries": ("deliveries", ("seq",)),
}


def _keyed(table: str, column: str) -> WriteLoader:
    def load(tx: Records, rows: Rows) -> Load:
        keys = [row[column] for row in rows]
        yield from tx.rows(table, keys)
        return keys

    return load


def _inserted(table: str, column: str) -> WriteLoader:
    def load(tx: Records, rows: Rows) -> Load:
        keys = [row[column] for row in rows]
        for key in keys:
            tx.assume_new(table, key)
        if table == "runs":
            tx.aliases["runs"].update(((row["profile_id"], row["token"]), row["run_id"]) for row in rows)
        return keys
        yield []

    return load


def _aliased(table: str, columns: tuple[str, ...]) -> WriteLoader:
    def load(tx: Records, rows: Rows) -> Load:
        known = tx.aliases[table]
        names = [tuple(row[column] for column in columns) for row in rows]
        if table == "runs" and (missing := [name for name in names if name not in known]):
            yield from tx.by_unique("runs", "lease", [f"{name[0]}{KEY_SEPARATOR}{name[1]}" for name in missing])
        return [known[name] for name in names if name in known]

    return load


def _tasks(tx: Records, rows: Rows) -> Load:
    keys = [TABLES["tasks"].key_of(row) for row in rows]
    yield from tx.rows("tasks", keys)
    return keys


def _fleet(tx: Records, _rows: Rows) -> Load:
    yield from tx.rows("fleet_lock", ["1"])
    return ["1"]


def _about(rows: Rows) -> list[str]:
    return [f"{row['target']}{KEY_SEPARATOR}{row['subject']}" for row in rows]


def _insert_reviews(tx: Records, rows: Rows) -> Load:
    """A new review for each row, unless its subject has an open one."""
    yield from tx.by_unique("reviews", "about", _about(rows))
    keys = [row["review_id"] for row in rows]
    for key in keys:
        tx.assume_new("reviews", key)
    return keys


def _close_reviews(tx: Records, rows: Rows) -> Load:
    yield from tx.by_unique("reviews", "about", _about(rows))
    return list(tx.loaded["reviews"])


def _live_runs(tx: Records, _rows: Rows) -> Load:
    keys = yield from tx.first("runs", "live")
    return [*keys, *tx.touched["runs"]]


def _late_deliveries(tx: Records, rows: Rows) -> Load:
    latest = min(row["latest"] for row in rows)
    keys = yield from tx.first("deliveries", "next", low=f"[{number(latest + 1)}")
    return [*keys, *tx.touched["deliveries"]]


def _retire(source: str, target: str) -> WriteLoader:
    def load(tx: Records, rows: Rows) -> Load:
        keys = [row["id"] for row in rows]
        yield from together(tx, tx.rows(source, keys), tx.rows(target, keys))
        return keys

    return load


def _runs_of_jobs(tx: Records, rows: Rows) -> Load:
    found = yield from together(tx, *[tx.first("runs", "job", row["job_id"]) for row in rows])
    return [key for keys in found for key in keys]


def _reviews_of_jobs(tx: Records, rows: Rows) -> Load:
    profiles = dict.fromkeys(row["profile_id"] for row in rows)
    found = yield from together(tx, *[tx.first("reviews", "profile", profile) for profile in profiles])
    return [key for keys in found for key in keys]


def _schedule_jobs(tx: Records, rows: Rows) -> Load:
    ranges = [(f"[\0{row['id']}:", f"(\0{row['id']};") for row in rows]
    found = yield from together(tx, *[tx.first("schedule_jobs", "all", low=low, high=high) for low, high in ranges])
    return [key for keys in found for key in keys]


def _events(tx: Records, rows: Rows) -> Load:
    tx.events_gone += [row["seq"] for row in rows]
    return []
    yield []


def _all() -> dict[str, tuple[str, WriteLoader]]:
    found: dict[str, tuple[str, Any]] = {}
    for name, (table, column) in _KEYED.items():
        found[name] = (table, _keyed(table, column))
    for name, (table, column) in _INSERTED.items():
        found[name] = (table, _inserted(table, column))
    for name, (table, columns) in _ALIASED.items():
        found[name] = (table, _aliased(table, columns))
    return found


WRITES: Final[Mapping[str, tuple[str, WriteLoader]]] = {
    **_all(),
    "insert_tasks": ("tasks", _tasks),
    "count_change": ("fleet_lock", _fleet),
    "pause_expiry": ("fleet_lock", _fleet),
    "insert_reviews": ("reviews", _insert_reviews),
    "close_reviews": ("reviews", _close_reviews),
    "restart_expiry": ("runs", _live_runs),
    "hasten_deliveries": ("deliveries", _late_deliveries),
    "retire_accounts": ("retired_accounts", _retire("accounts", "retired_accounts")),
    "retire_lanes": ("retired_lanes", _retire("lanes", "retired_lanes")),
    "prune_job_runs": ("runs", _runs_of_jobs),
    "prune_job_reviews": ("reviews", _reviews_of_jobs),
    "delete_schedule_jobs": ("schedule_jobs", _schedule_jobs),
    "prune_events": ("events", _events),
}
