"""Which records each named read needs. Here: reads by key, with locks, and of whole tables. The others are in
`work_loads` and `fleet_loads`.

A load reads the records, then the statement runs on them (see `transaction`). A load may read more records than the
statement needs, never fewer. Counts that would need many records are taken from the sizes of indexes; such a load
returns the rows of the answer itself.
"""

from collections.abc import Callable, Mapping
from typing import Final

from leasekeeper.stores.redis.records import Load, Loader, Records, together, up_to
from leasekeeper.stores.sql.engine import Params

CHUNK: Final = 500

LOADERS: dict[str, Loader] = {}


def loads(*names: str) -> Callable[[Loader], Loader]:
    """Decorator: register a function as the loader of these statements."""

    def add(load: Loader) -> Loader:
        LOADERS.update(dict.fromkeys(names, load))
        return load

    return add


# Whole tables, and records by their keys.

_WHOLE: Final[Mapping[str, tuple[str, ...]]] = {
    "all_accounts": ("accounts",),
    "all_profiles": ("profiles",),
    "all_proxies": ("proxies",),
    "all_launchers": ("launchers",),
    "all_limits": ("limits",),
    "all_pauses": ("pauses",),
    "all_endpoints": ("endpoints",),
    "all_schedules": ("schedules",),
    "fleet_settings": ("fleet_settings",),
    "known_tasks": ("tasks",),
    "due_schedules": ("schedules", "schedule_states"),
}
_BY_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "jobs_by_id": ("jobs", "ids"),
    "accounts_among": ("accounts", "ids"),
    "pauses_among": ("pauses", "ids"),
    "retired_lanes_of": ("retired_lanes", "ids"),
    "retired_accounts_of": ("retired_accounts", "ids"),
    "lanes_there": ("lanes", "ids"),
    "secrets_by_name": ("secrets", "names"),
    "snapshots_by_id": ("snapshots", "ids"),
}
_BY_KEY: Final[Mapping[str, tuple[str, str]]] = {
    "one_proxy": ("proxies", "proxy_id"),
    "profile_of_run": ("runs", "run_id"),
    "pool_limit": ("limits", "pool"),
    "worker": ("workers", "incarnation"),
    "call_turn": ("call_turns", "key"),
    "lane_of": ("lanes", "profile_id"),
    "answer_of": ("answers", "slot"),
    "token_by_id": ("tokens", "token_id"),
}
_LOCKED: Final[Mapping[str, tuple[str, str]]] = {
    "lock_lanes": ("lanes", "ids"),
    "lock_accounts": ("accounts", "ids"),
    "lock_deliveries": ("deliveries", "ids"),
    "lock_tokens": ("tokens", "ids"),
    "lock_secrets": ("secrets", "names"),
    "lock_endpoints": ("endpoints", "ids"),
}
# After a conflict, the records that another transaction changed count as locked: the next try leaves them out.
_LOCKED_IF_FREE: Final[Mapping[str, str]] = {
    "lock_lanes_free": "lanes",
    "lock_accounts_free": "accounts",
    "lock_deliveries_free": "deliveries",
}


def _whole(tables: tuple[str, ...]) -> Loader:
    return lambda tx, _params: _without_answer(together(tx, *[tx.first(table, "all") for table in tables]))


def _without_answer(load: Load) -> Load:
    """The same load without its return value, so that the statement runs afterwards."""
    yield from load


def _keys(table: str, param: str) -> Loader:
    return lambda tx, params: _without_answer(tx.rows(table, params[param]))


def _key(table: str, param: str) -> Loader:
    return lambda tx, params: _without_answer(tx.rows(table, [params[param]]))


def _locks(table: str, param: str) -> Loader:
    return lambda tx, params: _without_answer(tx.lock(table, params[param]))


def _locks_free(name: str, table: str) -> Loader:
    def load(tx: Records, params: Params) -> Load:
        free = [key for key in params["ids"] if (table, key) not in tx.busy]
        yield from tx.lock(table, free)
        return tx.scratch.read(name, {**params, "ids": free})

    return load


for _name, _tables in _WHOLE.items():
    LOADERS[_name] = _whole(_tables)
for _name, _place in _BY_KEYS.items():
    LOADERS[_name] = _keys(*_place)
for _name, _place in _BY_KEY.items():
    LOADERS[_name] = _key(*_place)
for _name, _place in _LOCKED.items():
    LOADERS[_name] = _locks(*_place)
for _name, _table in _LOCKED_IF_FREE.items():
    LOADERS[_name] = _locks_free(_name, _table)


@loads("lock_fleet", "lock_fleet_free")
def _lock_fleet(tx: Records, _params: Params) -> Load:
    yield from tx.lock_name("fleet")


@loads("lock_all_lanes")
def _lock_all_lanes(tx: Records, _params: Params) -> Load:
    yield from tx.first("lanes", "all", lock=True)


@loads("lock_calls")
def _lock_calls(tx: Records, params: Params) -> Load:
    yield from tx.lock_name(f"call:{params['key']}")


@loads("lock_pool")
def _lock_pool(tx: Records, params: Params) -> Load:
    yield from tx.lock("limits", [params["pool"]])


@loads("lock_silent_workers")
def _lock_silent_workers(tx: Records, params: Params) -> Load:
    yield from tx.first("workers", "live", high=up_to(params["since"]), lock=True)
