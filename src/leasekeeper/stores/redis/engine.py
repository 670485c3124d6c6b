"""Connections and threads of the Redis store.

A few threads, each with its own connection and scratch database. An operation reads and decides without locks, and
commits with one script. If a record that it has read changed meanwhile, it is run again. If the response to a commit is
lost, the server is asked whether it was made; if not, it is barred, so that it cannot be made later.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar

from leasekeeper.errors import StoreError, StoreNotWritable, StoreUnavailable
from leasekeeper.ports import StoreInfo
from leasekeeper.stores.redis import records, schema
from leasekeeper.stores.redis.connections import (
    DEFAULT_GRACE,
    DEFAULT_TIMEOUT,
    Disconnected,
    Link,
    ScriptUnknown,
    check_durable,
    check_version,
)
from leasekeeper.stores.redis.notifications import RedisNotifications
from leasekeeper.stores.redis.scripts import BAR, COMMIT, VALID
from leasekeeper.stores.redis.tables import PREFIX, TABLES
from leasekeeper.stores.redis.transaction import RedisTx
from leasekeeper.stores.redis.urls import location
from leasekeeper.stores.sql.engine import Memory, Tx
from leasekeeper.stores.sql.threaded_engine import ThreadedEngine
from leasekeeper.stores.sqlite.scratch import NEWEST, Scratch

T = TypeVar("T")

WRITERS: Final = 4
READERS: Final = 2
MAX_CONFLICTS: Final = 60
MAX_VIEWS: Final = 8
MAX_DISCONNECTS: Final = 1
COMMIT_LOOKUP_SECONDS: Final = 30.0
# After more conflicts than this, an operation waits a random time, up to the longest, before it reads again.
EAGER_CONFLICTS: Final = 2
LONGEST_PAUSE_SECONDS: Final = 0.05
# After this many conflicts, others wait for the operation: several times as long as it took, within these bounds.
CONFLICTS_BEFORE_TURN: Final = 6
SHORTEST_TURN_SECONDS: Final = 0.5
LONGEST_TURN_SECONDS: Final = 8.0
TURN: Final = f"{PREFIX}turn"


class _Conflict(Exception):
    """A record that the operation has read was changed: nothing was written. `records` are the changed ones."""

    def __init__(self, records: frozenset[tuple[str, str]]) -> None:
        super().__init__()
        self.records = records


class _OtherTurn(Exception):
    """Another operation, which had too many conflicts, goes first: nothing was written."""


class RedisEngine(ThreadedEngine):
    """Operations of Redis. See `ThreadedEngine`."""

    def __init__(
        self,
        url: str,
        clock: Callable[[datetime], datetime] = lambda real: real,
        timeout: timedelta = DEFAULT_TIMEOUT,
        grace: timedelta = DEFAULT_GRACE,
    ) -> None:
        self._url, self._clock, self._timeout, self._grace = url, clock, timeout, grace
        self._claimer = uuid.uuid4().hex
        self._local = threading.local()
        self._memory = Memory()
        self._process = ""
        notifications = RedisNotifications(url, timeout)
        super().__init__("redis", notifications, self._end_thread, writers=WRITERS, readers=READERS)

    def _check(self) -> None:
        check_version(int(self._link().schema or 0), self._url)

    def _info(self) -> StoreInfo:
        for attempt in range(2):
            try:
                return schema.info(self._link(), self._url, self._clock)
            except Disconnected:
                self._drop_link()
                if attempt:
                    raise
        raise StoreError("unreachable")

    def _link(self) -> Link:
        """This thread's connection, opened at first use and after the last one broke."""
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            # A server that lost its last writes may reuse a revision: what was cached by revision is not valid.
            self._memory.forget()
            link = Link(self._url, self._timeout, self._grace, self._claimer)
            self._check_process(link)
            self._local.link = link
        return link

    def _check_process(self, link: Link) -> None:
        """Check the durability of a server that was restarted or took over: its settings may be different."""
        if link.process == self._process:
            return
        try:
            check_durable(link, self._url)
        except BaseException:
            link.close()
            raise
        self._process = link.process

    def _scratch(self) -> Scratch:
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch()
        return scratch

    def _drop_link(self) -> None:
        link: Link | None = getattr(self._local, "link", None)
        self._local.link = None
        if link is not None:
            link.close()

    def _end_thread(self) -> None:
        link: Link | None = getattr(self._local, "link", None)
        if link is not None and link.commits:
            with suppress(StoreError):
                link.call([("HDEL", f"{PREFIX}commits", link.slot)])
        self._drop_link()
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is not None:
            scratch.close()

    def _change(self, operation: Callable[[Tx], T]) -> T:
        """Run the operation until it commits. Run again only if nothing was written; never after a commit."""
        conflicts = disconnects = 0
        busy: frozenset[tuple[str, str]] = frozenset()
        until = time.monotonic() + COMMIT_LOOKUP_SECONDS
        while True:
            began = time.monotonic()
            committing: list[tuple[str, int]] = []
            answer: list[T] = []
            tx = RedisTx(self._link(), self._scratch(), self._clock, self._memory, writes=True, busy=busy)
            try:
                answer.append(self._decided(operation, tx))
                self._commit(tx, committing)
                self._memory.committed(tx)
                return answer[0]
            except _Conflict as conflict:
                conflicts += 1
                busy = conflict.records
                if conflicts > MAX_CONFLICTS:
                    raise StoreError(f"gave up after {MAX_CONFLICTS} conflicts with other changes; try again") from None
                if conflicts >= CONFLICTS_BEFORE_TURN:
                    _take_turn(tx, time.monotonic() - began)
                elif conflicts > EAGER_CONFLICTS:
                    time.sleep(random.random() * min(LONGEST_PAUSE_SECONDS, 0.001 * 2**conflicts))  # noqa: S311 - waits: for others to finish, by chance
            except _OtherTurn:
                if time.monotonic() > until:
                    raise StoreUnavailable("others kept Redis busy for too long; try again") from None
                time.sleep(random.random() * LONGEST_PAUSE_SECONDS)  # noqa: S311 - waits: for the other to finish, by chance
            except (Disconnected, ScriptUnknown) as error:
                self._drop_link()
                if committing and isinstance(error, Disconnected) and self._committed(*committing[-1]):
                    return answer[0]
                disconnects += 1
                if disconnects > MAX_DISCONNECTS:
                    raise
            except BaseException as error:
                self._abandon(tx, error)
                raise
            finally:
                self._scratch().roll_back()

    def _abandon(self, tx: RedisTx, error: BaseException) -> None:
        """Release the lanes and the turn of an operation that failed, so that others need not wait."""
        with suppress(StoreError):
            _release(tx)
            _end_turn(tx)
        if isinstance(error, StoreNotWritable):
            self._drop_link()  # the next one may lead to another server, if sentinels know one

    def _decided(self, operation: Callable[[Tx], T], tx: RedisTx) -> T:
        """Run the operation and return its result. If it raises although its reads are outdated, raises _Conflict
        instead, so that it is run again."""
        try:
            return operation(tx)
        except (StoreUnavailable, ScriptUnknown):
            raise
        except Exception:
            if not self._is_valid(tx):
                _release(tx)
                raise _Conflict(frozenset()) from None
            raise

    def _commit(self, tx: RedisTx, committing: list[tuple[str, int]]) -> None:
        arguments = tx.commit_arguments()
        if arguments is None:
            _release(tx)
            if not self._is_valid(tx):
                raise _Conflict(frozenset())
            _end_turn(tx)
            return
        link = tx.link
        link.commits += 1
        committing.append((link.slot, link.commits))
        first = (PREFIX, NEWEST, link.slot, link.commits)
        (answer,) = link.call([COMMIT.call((f"{PREFIX}revision",), (*first, *arguments))])
        if answer[0] == "conflict":
            compared = tx.compared()
            raise _Conflict(frozenset(compared[int(each[1:]) - 1] for each in answer[1:] if each[0] == "r"))
        if answer[0] == "turn":
            raise _OtherTurn
        if answer[0] == "schema":
            (found,) = link.call([("GET", f"{PREFIX}schema")])
            link.check_schema(found)
        if answer[0]:
            raise StoreUnavailable(f"Redis at {location(self._url)} did not make a commit ({answer[0]}); try again")
        link.has_turn = False

    def _committed(self, slot: str, commit: int) -> bool:
        """Whether a commit was made whose response was lost. If not, it is barred. Retries until the server answers."""
        until = time.monotonic() + COMMIT_LOOKUP_SECONDS
        while True:
            try:
                (made,) = self._link().call([BAR.call((f"{PREFIX}commits",), (PREFIX, slot, commit))])
                return bool(made)
            except StoreUnavailable as error:
                self._drop_link()
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        "the connection broke during a commit and the server does not respond; check, then repeat it"
                    ) from error
            time.sleep(0.1)  # waits: for the server, which tells nobody that it is back

    def _view(self, operation: Callable[[Tx], T]) -> T:
        """Run the operation until everything that it read was valid at the same moment. After the maximum number of
        tries, under heavy load, the last result is returned without that guarantee."""
        disconnects = 0
        for attempt in range(MAX_VIEWS + MAX_DISCONNECTS):
            try:
                tx = RedisTx(self._link(), self._scratch(), self._clock, self._memory, writes=False)
                tx.clock()
                try:
                    result = operation(tx)
                except Exception:
                    if attempt < MAX_VIEWS - 1 and not self._is_valid(tx):
                        continue
                    raise
                if attempt >= MAX_VIEWS - 1 or self._is_valid(tx):
                    return result
            except (Disconnected, ScriptUnknown):
                self._drop_link()
                disconnects += 1
                if disconnects > MAX_DISCONNECTS:
                    raise
            finally:
                self._scratch().roll_back()
        raise StoreError("unreachable")

    @staticmethod
    def _is_valid(tx: RedisTx) -> bool:
        """Whether no record changed since it was read. Checked in parts, because one script for many records would
        block others. The parts may run at different times: a record that is unchanged now was unchanged at the last
        read, too."""
        compared = [(TABLES[table].hash, key, tx.loaded[table][key][0]) for table, key in tx.compared()]
        parts = [compared[n : n + records.AT_ONCE] for n in range(0, len(compared), records.AT_ONCE)]
        asked = [VALID.call((f"{PREFIX}revision",), [each for record in part for each in record]) for part in parts]
        return all(tx.link.call(asked))


def _take_turn(tx: RedisTx, took: float) -> None:
    """Take the turn, unless another has it: others wait until this operation has committed, or the turn expires."""
    seconds = min(LONGEST_TURN_SECONDS, max(SHORTEST_TURN_SECONDS, took * 4))
    with suppress(StoreError):
        _, owner = tx.link.call([("SET", TURN, tx.link.slot, "NX", "PX", int(seconds * 1000)), ("GET", TURN)])
        tx.link.has_turn = owner == tx.link.slot


def _release(tx: RedisTx) -> None:
    """Let other claimers choose the lanes that this transaction chose and did not take."""
    if tx.chosen:
        tx.link.call([("HDEL", f"{PREFIX}chosen", *tx.chosen)])


def _end_turn(tx: RedisTx) -> None:
    """Give the turn back, if this connection has it."""
    if tx.link.has_turn:
        tx.link.has_turn = False
        tx.link.call([("DEL", TURN)])
