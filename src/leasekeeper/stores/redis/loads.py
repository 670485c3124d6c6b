"""The loader of every named read and every list: it loads the records that the statement needs."""

from collections.abc import Iterable

from leasekeeper.stores.redis import fleet_loads, work_loads
from leasekeeper.stores.redis.finds import find
from leasekeeper.stores.redis.loaders import LOADERS
from leasekeeper.stores.redis.records import Loader

__all__ = ["fleet_loads", "loader_of", "names", "work_loads"]


def loader_of(name: str) -> Loader:
    """The loader of a statement. All lists, which are joined from pieces, share one loader."""
    if name.startswith("find_"):
        return lambda tx, params: find(tx, name.split("+"), params)
    return LOADERS[name]


def names() -> Iterable[str]:
    """The statements that have a loader, without lists."""
    return LOADERS.keys()
