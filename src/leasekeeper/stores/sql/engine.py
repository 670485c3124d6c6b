"""The interface of a dialect: transactions made of named reads and writes.

Reads of one call are sent together, and later ones see the locks of earlier ones. Writes wait until the next read or
the commit and are then sent in order. The statements are in `.sql` files; Python code knows only their names.
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
# The constraint that is violated when a call that has an answer gets another one.
ANSWERS_IN_ORDER = "answers_in_order"


class AnsweredBefore(Exception):
    """The transaction repeats a call that has a stored answer: it was rolled back. Never leaves the store."""


class Memory:
    """The cache of a process, shared by its transactions. An entry is used only if a read under lock shows that it is
    still valid. A cache that is full is cleared."""

    __slots__ = ("cached", "cached_leases", "new_ones")

    def __init__(self) -> None:
        self.new_ones = True  # whether recent claims met profiles that were not in `cached`
        self.cached: dict[str, tuple[int, Any]] = {}
        self.cached_leases: dict[str, tuple[Lease, Job | None]] = {}

    def forget(self) -> None:
        """Clear the cache: the store may have lost writes."""
        self.cached.clear()
        self.cached_leases.clear()

    def committed(self, tx: "Tx") -> None:
        """Add what a committed transaction has read and granted."""
        if len(self.cached) + len(tx.fresh) > MAX_CACHED:
            self.cached.clear()
        if len(self.cached_leases) + len(tx.granted) > MAX_CACHED:
            self.cached_leases.clear()
        self.cached.update(tx.fresh)
        self.cached_leases.update(tx.granted)


class Tx(Protocol):
    """One transaction. It commits when the function that got it returns, and rolls back when it raises.

    As of the last `clock`: `revision` counts changes of the configuration, `lenient` is true while expiry is paused.
    `cached` is this process's cache of the configuration, each entry with the revision it was read at. Configuration
    that this transaction reads is added to `fresh`, and to the cache only when it commits: a change that is rolled back
    must not be cached. In the same way `cached_leases` has the leases that this process granted, by id, each with its
    job, and `granted` has those of this transaction.
    """

    revision: int
    lenient: bool
    cached: dict[str, tuple[int, Any]]
    fresh: dict[str, tuple[int, Any]]
    cached_leases: dict[str, tuple[Lease, Job | None]]
    granted: dict[str, tuple[Lease, Job | None]]

    @property
    def doubtful_up_to(self) -> int:
        """Tokens up to this one may have been granted and then lost, by a server that lost writes; 0: none."""
        ...

    @property
    def incomplete_up_to(self) -> int:
        """Leases up to this token may lack writes that a server lost: sections, steps, an ending; 0: none."""
        ...

    def read(self, *queries: tuple[str, Params]) -> list[list[Row]]:
        """Run the named queries in order, after all pending writes. Returns the rows of each."""
        ...

    def clock(self, *queries: tuple[str, Params]) -> tuple[datetime, list[list[Row]]]:
        """Like `read`, and returns the store's time too: now, or a moment after the last lock was taken."""
        ...

    def expect(self, query: tuple[str, Params]) -> None:
        """Announce a query that comes later and does not depend on earlier writes: it may be sent in advance."""
        ...

    def write(self, name: str, rows: Sequence[Params]) -> None:
        """Apply the named statement to each row. Writes are sent later, in order. `rows` must not be empty."""
        ...

    def flush_writes(self) -> None:
        """Allow pending writes to be sent now, because the next read comes only after other work."""
        ...


class TxState:
    """The state that a `Tx` has in every dialect. A dialect whose server may lose writes overrides the two tokens."""

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
        """Run the operation in a write transaction. It is run again after a conflict, and never after a commit.

        Raises AnsweredBefore if it writes the answer to a call that has one. A `brief` operation writes a few rows: it
        may run in the caller's thread where that is quicker, and then the future is done.
        """
        ...

    def view(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        """Run a read-only operation on one consistent snapshot, without delaying writers."""
        ...

    async def wait(self, timeout: timedelta) -> None:
        """Return when the store may have changed, or after the timeout."""
        ...

    def hint(self) -> None:
        """Wake the callers of `wait`, because there may be work. Wake-ups are sent soon, and not too often."""
        ...

    async def info(self) -> StoreInfo: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What operations need besides the transaction: the policy, new ids, and random numbers from 0 up to 1."""

    policy: Policy
    new_id: Callable[[], str]
    jitter: Callable[[], float]
