"""Where a store of the suite is, and how it is opened: directly, or behind a real server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import Any, TypeVar, cast

from leasekeeper.core.policy import Policy
from leasekeeper.ports import Page, Store
from leasekeeper.stores import open_store
from leasekeeper.stores.http import HttpStore
from tests.serving import Served, ServerThread

TOKEN = "lk_of_the_suite"  # noqa: S105 - known to the tests' own server alone
_NUMBERS = count(1)
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Place:
    """A store that is opened by its URL. `behind` is the URL of its database."""

    url: str
    token: str = ""

    @property
    def behind(self) -> str:
        return self.url

    async def open(self, policy: Policy, clock: Callable[[datetime], datetime]) -> Store:
        return await open_store(self.url, policy=policy, clock=clock)

    def on_engine(self, store: Store, work: Callable[[Any], Any]) -> Any:
        """Do something with the engine behind an open store; gives an awaitable."""
        return work(getattr(store, "_engine"))  # noqa: B009 - the port rightly has no such thing

    async def find(self, store: Store, kind: type[T], where: Mapping[str, str], after: str | None) -> Page[T]:
        """A page of records for the audit, which reads all of them at the end of every test."""
        return await store.find(kind, where, after=after, limit=1000)


class ServedStore(HttpStore):
    """A store over HTTP with a server's handle of its own, which is closed with it."""

    served: Served

    async def close(self) -> None:
        await super().close()
        self.served.close()


@dataclass(slots=True, kw_only=True)
class ServedPlace(Place):
    """A store behind a server. Whoever opens it gets a handle of the server's own too, as another server has."""

    server: ServerThread
    database: str
    path: str
    opened: list[Served] = field(default_factory=list)

    @classmethod
    def of(cls, server: ServerThread, database: str) -> "ServedPlace":
        path = f"/s/conformance-{next(_NUMBERS)}"
        return cls(url=server.url + path, token=TOKEN, server=server, database=database, path=path)

    @property
    def behind(self) -> str:
        return self.database

    async def open(self, policy: Policy, clock: Callable[[datetime], datetime]) -> Store:
        free = self.path if not self.server.serves(self.path) else f"{self.path}-{next(_NUMBERS)}"
        served = self.server.serve(self.database, policy=policy, clock=clock, path=free, token=TOKEN)
        store = ServedStore(served.url, TOKEN, replace(policy))
        store.served = served
        opened = cast(Store, store)
        await opened.check()
        return opened

    def on_engine(self, store: Store, work: Callable[[Any], Any]) -> Any:
        served = cast(ServedStore, store).served

        async def there() -> Any:
            return await work(getattr(served.store, "_engine"))  # noqa: B009 - the port rightly has no such thing

        async def here() -> Any:
            return served.run(there())

        return here()

    async def find(self, store: Store, kind: type[T], where: Mapping[str, str], after: str | None) -> Page[T]:
        """From the store behind the server: over HTTP this alone would take half of the time of a test."""
        served = cast(ServedStore, store).served
        return served.run(served.store.find(kind, where, after=after, limit=1000))  # type: ignore[no-any-return]  # as it runs anything
