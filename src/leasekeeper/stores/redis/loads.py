"""The loader of every named read, and of every list: who runs a statement asks here which records it may meet."""

from collections.abc import Iterable

from leasekeeper.stores.redis import fleet_loads, work_loads
from leasekeeper.stores.redis.finds import find
from leasekeeper.stores.redis.loaders import LOADERS
from leasekeeper.stores.redis.records import Loader

__all__ = ["fleet_loads", "loader_of", "names", "work_loads"]


def loader_of(name: str) -> Loader:
    """The loader of a statement; lists are put together of pieces, and have one for all."""
    if name.startswith("find_"):
        return lambda tx, params: find(tx, name.split("+"), params)
    return LOADERS[name]


def names() -> Iterable[str]:
    """The statements that can be loaded for, lists aside."""
    return LOADERS.keys()
