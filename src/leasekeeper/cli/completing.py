"""What Tab completes: ids from the store, with a short description for shells that show one.

A person waits for it: a store that is missing, down, of another version or slow completes nothing, and nothing is ever
printed or written because of it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from leasekeeper.cli.config_option import TOKEN_VARIABLE, VARIABLE

if TYPE_CHECKING:
    from leasekeeper.ports import Store

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MAX_SECONDS: Final = 1.0
SECONDS: Final = "_LEASEKEEPER_COMPLETE_SECONDS"  # replaces that limit, for slow machines
MAX_OFFERED: Final = 100
# The field of a filter or an option → what it names.
NAMED_BY: Final = {
    "profile_id": "profile",
    "account_id": "account",
    "proxy_id": "proxy",
    "job_id": "job",
    "run_id": "run",
    "worker_id": "worker",
    "schedule": "schedule",
    "task": "task",
    "pool": "pool",
    "endpoint_id": "endpoint",
}


def ids(what: str, **where: str) -> Complete:
    """A completion of the ids of such records; only of those that match the filters."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return offered(ctx, what, where, incomplete)

    return complete


def offered(ctx: click.Context, what: str, where: "dict[str, str]", incomplete: str) -> list[CompletionItem]:
    """The ids that begin with this text. On any error: none."""
    from leasekeeper.cli.connection import with_store

    with suppress(Exception):
        for variable in (VARIABLE, TOKEN_VARIABLE):
            if ctx.meta.get(variable):
                os.environ[variable] = ctx.meta[variable]
        url = ctx.params.get("store") or ctx.find_root().params.get("store")
        if _is_current(url):
            return with_store(url, lambda store: _read(store, what, where, incomplete))
    return []


def _is_current(url: str | None) -> bool:
    """Whether the store has this program's schema: opening an older SQLite file would migrate it."""
    from pathlib import Path

    from leasekeeper.cli.connection import settings
    from leasekeeper.stores import split

    kind, place = split(settings(url).store)
    if kind != "sqlite":
        return True
    from leasekeeper.stores.sqlite.inspect import inspect_file

    info = inspect_file(Path(place))
    return info.schema == info.newest_schema


async def _read(store: "Store", what: str, where: "dict[str, str]", incomplete: str) -> list[CompletionItem]:
    from leasekeeper.core.workers import Worker
    from leasekeeper.lists import LISTS, MAX_IN_PAGE, PREFIX

    if what in ("task", "pool", "worker"):
        workers = (await store.find(Worker, limit=MAX_IN_PAGE)).items
        return _items(_of_workers(what, workers), incomplete)
    kind = _kinds()[what]
    narrowed = {**where, PREFIX: incomplete} if incomplete else where
    records: Sequence[object] = (await store.find(kind, narrowed, limit=MAX_OFFERED)).items
    key = LISTS[kind].key or ""
    return _items({str(getattr(record, key)): _about(record) for record in records}, incomplete)


def _kinds() -> dict[str, type]:
    """The kinds of records whose ids are found by their beginning, by the name on the command line."""
    from leasekeeper.core.profiles import Profile
    from leasekeeper.core.schedules import Schedule
    from leasekeeper.lists import LISTS, PREFIX

    # Describe a profile or schedule by its state, not by its configuration.
    return {each.what: kind for kind, each in LISTS.items() if PREFIX in each.names and kind not in (Profile, Schedule)}


def _of_workers(what: str, workers: "Iterable[Any]") -> dict[str, str]:
    """Names that only workers have. Workers that report come first; of each name the newest counts."""
    if what == "worker":
        return {worker.worker_id: f"pool {worker.pool}" for worker in reversed(list(workers))}
    if what == "pool":
        return {worker.pool: "" for worker in workers}
    return {task: f"pool {worker.pool}" for worker in workers for task in worker.tasks}


def _about(record: object) -> str:
    """A short description of a record: its state, and what it is about."""
    from leasekeeper.lists import LISTS

    fields = ("state", "result", "status", "reason", "task", "profile_id", "worker_id", "name")
    own = LISTS[type(record)].key
    said = [str(value) for name in fields if name != own and (value := getattr(record, name, None))]
    if getattr(record, "paused", False):
        said.insert(0, "paused")
    return " ".join(said)


def _items(found: "dict[str, str]", incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=text or None) for name, text in found.items() if name.startswith(incomplete)]


def complete_for_shell(run: Callable[[], object]) -> NoReturn:
    """Answer a shell that asks for completions: within `MAX_SECONDS` and without output on stderr, or not at all."""
    import threading

    late = threading.Timer(float(os.environ.get(SECONDS, MAX_SECONDS)), os._exit, (0,))
    late.daemon = True
    late.start()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    with suppress(BaseException):
        run()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)
