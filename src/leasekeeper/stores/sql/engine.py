"""What a dialect must bring: transactions made of named reads and writes.

Reads of one call travel together and see one another's locks; writes wait until the next read or the commit
and then go out in order. The statements live in `.sql` files; names are all that Python knows of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.policy import Policy
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.sql.codec import Row

T = TypeVar("T")
Params = Mapping[str, Any]
MAX_CACHED = 20_000
# The name of the constraint that refuses an answer to a call that was answered before.
ANSWERS_IN_ORDER = "answers_in_order"


class AnsweredBefore(Exception):
    """The transaction repeats a call whose answer is kept: it was rolled back. Never leaves the store."""


class Memory:
    """What a process remembers from one transaction to the next. None of it counts unless a read under lock says that
    it is still so; when there is too much of it, it is forgotten."""

    __slots__ = ("cached", "cached_leases", "new_ones")

    def __init__(self) -> None:
        self.new_ones = True  # whether the profiles that come are mostly ones that are not in `cached`
        self.cached: dict[str, tuple[int, Any]] = {}
        self.cached_leases: dict[str, tuple[Lease, Job | None]] = {}

    def forget(self) -> None:
        """Remember nothing: the store may not be what it was."""
        self.cached.clear()
        self.cached_leases.clear()

    def committed(self, tx: "Tx") -> None:
        """Keep what a transaction that has committed read and granted."""
        if len(self.cached) + len(tx.fresh) > MAX_CACHED:
            self.cached.clear()
        if len(self.cached_leases) + len(tx.granted) > MAX_CACHED:
            self.cached_leases.clear()
        self.cached.update(tx.fresh)
        self.cached_leases.update(tx.granted)


class Tx(Protocol):
    """One transaction. It commits when the function that got it returns, and rolls back when it raises.

    As of the last `clock`: `revision` counts changes of the configuration, `lenient` says that expiry pauses. `cached`
    is this process's cache of the configuration, each entry with the revision that it was read at. What this
    transaction read goes to `fresh`, and into the cache once it has committed: a change that is rolled back must not
    be remembered. In the same way `cached_leases` has the leases that this process granted, by id, each with its job;
    `granted` is what this transaction adds to it.
    """

    revision: int
    lenient: bool
    cached: dict[str, tuple[int, Any]]
    fresh: dict[str, tuple[int, Any]]
    cached_leases: dict[str, tuple[Lease, Job | None]]
    granted: dict[str, tuple[Lease, Job | None]]

    @property
    def doubtful_up_to(self) -> int:
        """Tokens up to this one may have been granted and forgotten, by a server that lost writes; 0: none."""
        ...

    @property
    def incomplete_up_to(self) -> int:
        """Of leases up to this token a server may have lost writes: sections, steps, an ending; 0: of none."""
        ...

    def read(self, *queries: tuple[str, Params]) -> list[list[Row]]:
        """Run the named queries in order, after all pending writes; one answer each."""
        ...

    def clock(self, *queries: tuple[str, Params]) -> tuple[datetime, list[list[Row]]]:
        """The same, with the store's time: as of now, or at least from after the last lock that was taken."""
        ...

    def expect(self, query: tuple[str, Params]) -> None:
        """This query will come later, and does not depend on what is written before it: it may be sent along."""
        ...

    def write(self, name: str, rows: Sequence[Params]) -> None:
        """Apply the named statement to each row. Sent later, in order; never with an empty list."""
        ...

    def flush_writes(self) -> None:
        """Pending writes may go out now: there is more to think about before the next read."""
        ...


class TxState:
    """What a transaction of every dialect keeps of a `Tx`. A server that may lose writes says so by its own tokens."""

    __slots__ = ("_clock", "_now", "cached", "cached_leases", "fresh", "granted", "lenient", "revision")

    def __init__(self, clock: Callable[[datetime], datetime], memory: Memory) -> None:
        self._clock = clock
        self._now: datetime | None = None
        self.cached, self.cached_leases = memory.cached, memory.cached_leases
        self.fresh: dict[str, tuple[int, Any]] = {}
        self.granted: dict[str, tuple[Lease, Job | None]] = {}
        self.revision = 0
        self.lenient = False

    @property
    def doubtful_up_to(self) -> int:
        return 0

    @property
    def incomplete_up_to(self) -> int:
        return 0


class Engine(Protocol):
    """Connections and threads of one dialect."""

    def change(self, operation: Callable[[Tx], T], *, brief: bool = False) -> "asyncio.Future[T]":
        """Run the operation in a write transaction, again if it lost a race, and never twice if it committed.

        Raises AnsweredBefore if it writes the answer to a call that has one.

        A brief one is about a few rows: it may be done before this returns, where that is quicker than a hop.
        """
        ...

    def view(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        """Run a read-only operation on one consistent snapshot, off the writers' path."""
        ...

    async def wait(self, timeout: timedelta) -> None:
        """Return when anything may have changed, at the latest after the timeout."""
        ...

    def hint(self) -> None:
        """Somebody may have work now: wake those who wait, soon and at most so often."""
        ...

    async def info(self) -> StoreInfo: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What operations need besides the transaction: the rules' bounds, fresh ids, and chance."""

    policy: Policy
    new_id: Callable[[], str]
    jitter: Callable[[], float]
