"""How long calls of the store take, for the metrics: those of this server, and of the worker beside it."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, cast

from leasekeeper.core.calls import Request
from leasekeeper.ports import Store
from leasekeeper.service.metric_table import MEASURED

Called = Callable[[str, float], None]


class TimedStore:
    """A store whose calls are timed. All other attributes are the store's own."""

    def __init__(self, store: Store, called: Called) -> None:
        self._store = store
        self._called = called

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        return partial(self._time, name, operation) if name in MEASURED else operation

    def once(self, request: Request) -> Store:
        return timed(self._store.once(request), self._called)

    async def _time(self, name: str, operation: Any, /, *given: Any, **named: Any) -> Any:
        """A failed call is not counted: its duration says nothing about the store."""
        began = perf_counter()
        value = await operation(*given, **named)
        self._called(name, perf_counter() - began)
        return value


def timed(store: Store, called: Called) -> Store:
    """The store, with `called` called after each measured operation, in the thread that made the call."""
    return cast(Store, TimedStore(store, called))
