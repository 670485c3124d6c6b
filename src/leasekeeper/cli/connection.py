"""An open store for the time of one command. The only place of the command line that opens one.

asyncio and the stores are imported here, when a command really runs: `--help` must not pay for them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from leasekeeper.config import Config
    from leasekeeper.ports import Store

T = TypeVar("T")


def settings(url: str | None) -> "Config":
    """The settings in force; `--store` wins over environment and settings file."""
    from leasekeeper import config

    return config.load(store=url) if url is not None else config.load()


def with_store(
    url: str | None, work: "Callable[[Store], Awaitable[T]]", *, make: bool = False, strict_tasks: bool = False
) -> T:
    """Open the store, do the work, close it. Errors of the work are passed on.

    Only with `make` a missing SQLite file is created: a mistyped path must not look like an empty store. `strict_tasks`
    makes the store refuse tasks that no worker has offered, whatever the setting says.
    """
    import asyncio
    from dataclasses import replace

    from leasekeeper.stores import open_store

    config = settings(url)
    if not make:
        check_exists(config.store)
    policy = replace(config.policy, strict_tasks=strict_tasks or config.policy.strict_tasks)

    async def run() -> T:
        store = await open_store(config.store, policy=policy, token=config.token, ca=config.store_ca)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def missing(url: str) -> str | None:
    """The SQLite file of this store, if it does not exist yet."""
    from pathlib import Path

    from leasekeeper.stores import split
    from leasekeeper.stores.sqlite.schema import exists

    kind, place = split(url)
    return place if kind == "sqlite" and not exists(Path(place)) else None


def check_exists(url: str) -> None:
    from leasekeeper.errors import StoreMissing

    place = missing(url)
    if place is not None:
        raise StoreMissing(f"there is no store at {place}", location=place)
