"""A stage for stories: a few clients on one store in this process, a clock that is moved by hand, and forced meetings.

What clients do here is logged as in a chaos run and judged by the same checker. Chance has no part in it: `Held` lets
one call stop between two of its statements until others went as far as they can, `Lost` breaks the wire of one commit.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import psycopg
import pytest

from leasekeeper.core.accounts import Account, Limit, Routing
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Timing
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import Profile, ReleasePolicy
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import LeasekeeperError
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Resolution, Store
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres.pipeline import Link
from leasekeeper.stores.postgres.transaction import PostgresTx
from leasekeeper.stores.redis.connections import Disconnected
from leasekeeper.stores.redis.connections import Link as RedisLink
from leasekeeper.stores.redis.scripts import COMMIT
from leasekeeper.stores.redis.transaction import RedisTx
from tests.chaos.arena import contents_in
from tests.chaos.checker import Call, Rules, check
from tests.chaos.client import DONE, granted, submitted

T = TypeVar("T")

START: Final = datetime(2031, 5, 6, tzinfo=UTC)
MOMENT: Final = 1e-6
LONGEST_WAIT: Final = 20.0
TIMING: Final = Timing()
FOUND: Final = LostFacts(final_url="https://shop.example/last", browser_dead=True)
REPORTED: Final = replace(FOUND, reported_by="keeper")
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@dataclass(slots=True)
class Stage:
    """One store, its clock, and all calls so far. Of two calls at one time the first is the earlier one."""

    url: str
    clients: dict[str, "Client"] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    now: datetime = START
    passed: float = 0.0
    moments: int = 0

    def __call__(self, _real: datetime) -> datetime:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.passed += seconds
        self.jump(seconds)

    def jump(self, seconds: float) -> None:
        """The store's clock is set. For everybody else it is as late as it was."""
        self.now += timedelta(seconds=seconds)

    def at(self) -> float:
        self.moments += 1
        return self.passed + self.moments * MOMENT

    async def client(self, who: str) -> "Client":
        """A client by name, each with a store of its own, as another process would have."""
        if who not in self.clients:
            self.clients[who] = Client(self, who, await open_store(self.url, clock=self, policy=Policy(timing=TIMING)))
        return self.clients[who]

    async def verdict(self, fleet: Fleet) -> list[str]:
        """What the checker has to say."""
        limits = {f"profile {name}": profile.max_active_runs for name, profile in fleet.profiles.items()}
        limits |= {f"pool {pool}": limit.max_leases for pool, limit in fleet.limits.items()}
        limits |= {f"key account:{name}": 1 for name in fleet.accounts}
        contents = await contents_in((await self.client("judge")).store)
        rules = Rules(stops_after=TIMING.holder_stops_after.total_seconds(), limits=limits)
        return check(self.calls, contents, rules)


@asynccontextmanager
async def a_stage(url: str, fleet: Fleet, specs: Sequence[JobSpec]) -> AsyncIterator[Stage]:
    """A stage on an empty store, with a fleet, and with jobs."""
    await migrate(url)
    stage = Stage(url)
    try:
        first = await stage.client("first")
        await first.store.apply(fleet, actor="test")
        for pool in {profile.pool for profile in fleet.profiles.values()}:
            said = WorkerReport(worker_id=WorkerId("w"), incarnation="w", pool=pool, tasks=("buy",))
            await first.store.report(said)
        if specs:
            await first.submit(*specs)
        yield stage
    finally:
        for client in stage.clients.values():
            await client.store.close()


def a_fleet(
    profiles: int = 1, *, routing: Routing = Routing.PROFILE, pool: str = "default", limit: int | None = None
) -> Fleet:
    """Profiles p1, p2, … of one account; `limit` limits their pool."""
    return Fleet(
        accounts={"shop": Account(account_id=AccountId("shop"), routing=routing)},
        profiles={
            f"p{n}": Profile(
                profile_id=ProfileId(f"p{n}"),
                account_id=AccountId("shop"),
                pool=pool,
                release_policy=ReleasePolicy.RECOVER,
            )
            for n in range(1, profiles + 1)
        },
        limits={} if limit is None else {pool: Limit(pool=pool, max_leases=limit)},
    )


def a_job(profile: str = "p1", **settings: Any) -> JobSpec:
    return JobSpec(task="buy", profile_id=ProfileId(profile), **settings)


@dataclass(slots=True)
class Client:
    """One client: what it calls and what it is answered goes to the stage's log."""

    stage: Stage
    who: str
    store: Store

    async def _call(
        self, op: str, args: Mapping[str, Any], call: Awaitable[T], reported: Callable[[T], Any]
    ) -> T | None:
        called = self.stage.at()
        answer = described = error = None
        try:
            answer = await call
        except LeasekeeperError as raised:
            error = type(raised).__name__
        else:
            described = reported(answer)
            error = "LeaseLost" if described is None else None
        self.stage.calls.append(Call(self.who, op, args, called, self.stage.at(), described, error))
        return answer

    async def submit(self, *specs: JobSpec) -> None:
        await self._call("submit", {}, self.store.submit(specs), submitted)

    async def claim(self, limit: int = 1, *, pool: str = "default") -> list[Grant]:
        request = ClaimRequest(
            worker_id=WorkerId(self.who), incarnation=self.who, tasks=("buy",), pool=pool, limit=limit
        )
        return await self._call("claim", {}, self.store.claim(request), granted) or []

    async def claim_one(self, *, pool: str = "default") -> Grant:
        (grant,) = await self.claim(pool=pool)
        return grant

    async def renew(self, grant: Grant) -> None:
        renewal = self.store.renew([Renewal(ref=grant.lease.ref)])
        await self._call("renew", _lease(grant), renewal, lambda answers: None if answers[0].refused else True)

    async def checkpoint(self, grant: Grant) -> None:
        step = self.store.checkpoint(grant.lease.ref, "dashboard", url="https://shop.example/")
        await self._call("checkpoint", _lease(grant), step, lambda _: True)

    async def settle(self, grant: Grant, reason: str | None = None) -> None:
        await self._call(
            "settle",
            _lease(grant),
            self.store.settle([Ending(ref=grant.lease.ref, reason=reason, facts=DONE)]),
            lambda answers: None if answers[0].refused else {"job_state": answers[0].job_state},
        )

    async def revoke(self, grant: Grant) -> None:
        decision = Decision(
            target=Target.LEASE, id=grant.lease.lease_id, action=Action.REVOKE, note="stop", actor=self.who
        )
        await self.store.decide(decision)

    async def expire(self) -> None:
        await self._call("expire", {}, self.store.expire(), lambda found: [lease.lease_id for lease in found])

    async def resolve(self, *grants: Grant) -> None:
        """Resolve these leases, or all that wait for it."""
        ids = [grant.lease.lease_id for grant in grants] or [lease.lease_id for lease in await self.store.unresolved()]
        lost = [Resolution(lease_id=lease_id, facts=FOUND) for lease_id in ids]
        await self._call("resolve", {}, self.store.resolve(lost), lambda done: [one.lease_id for one in done])

    async def sweep(self) -> None:
        await self.expire()
        await self.resolve()
        await self.store.promote()


def _lease(grant: Grant) -> dict[str, Any]:
    return {"profile": grant.lease.profile_id, "token": grant.lease.token, "job": grant.lease.job_id}


class Held:
    """The first transaction on a server that has run the query `after` stops there, with the locks it has by then."""

    def __init__(self, url: str, after: str) -> None:
        self._url, self._after = url, after
        self._arrived, self._released = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def reached(self, names: Sequence[str]) -> None:
        """Called in the store's threads, after each trip to the server."""
        if self._after not in names:
            return
        with self._lock:
            first = not self._arrived.is_set()
            self._arrived.set()
        if first:
            assert self._released.wait(LONGEST_WAIT), "nobody released the call that was held"

    async def while_held(self, held: Awaitable[object], others: Awaitable[object]) -> None:
        """Let the first call go up to its stop; let the others end, or wait for what it has locked; then let it go."""
        first = asyncio.ensure_future(held)
        await self._until(lambda: self._arrived.is_set() or first.done())
        second = asyncio.ensure_future(others)
        if self._url.startswith("redis"):  # where nobody ever waits for a lock
            await self._until(second.done)
        else:
            with psycopg.connect(self._url, autocommit=True) as connection:
                await self._until(lambda: second.done() or _somebody_waits(connection))
        self._released.set()
        await asyncio.gather(first, second)
        assert self._arrived.is_set(), f"no call came to {self._after}: the story does not fit the store any more"

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONGEST_WAIT):
            while not holds():  # noqa: ASYNC110 - what is waited for happens in threads and on a server
                await asyncio.sleep(0.005)  # waits: neither a thread nor a server tells when it came to a stop


def _somebody_waits(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(_WAITING).fetchone()
    return row is not None and row[0] > 0


@contextmanager
def a_held_call(url: str, *, after: str) -> Iterator[Held]:
    """Until the end of the block, the first transaction that has run the query stops there."""
    held = Held(url, after)
    kind: Any = RedisTx if url.startswith("redis") else PostgresTx
    real_read, real_clock = kind.read, kind.clock

    def read(tx: Any, *queries: tuple[str, Any]) -> Any:
        rows = real_read(tx, *queries)
        held.reached([name for name, _ in queries])
        return rows

    def clock(tx: Any, *queries: tuple[str, Any]) -> Any:
        answer = real_clock(tx, *queries)
        held.reached([name for name, _ in queries])
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "read", read)
        patch.setattr(kind, "clock", clock)
        yield held


@contextmanager
def a_lost_commit(*, arrives: bool) -> Iterator[None]:
    """The first commit in the block breaks its wire: when it was done (`arrives`), or before the server heard of it."""
    real = Link.run
    broken = threading.Event()

    def run(link: Link, calls: Sequence[Any]) -> Any:
        commits = any(statement.name == b"commit" for statement, _ in calls)
        if not commits or broken.is_set():
            return real(link, calls)
        broken.set()
        if arrives:
            real(link, calls)
        link.close()
        raise psycopg.OperationalError("the wire broke")

    real_call = RedisLink.call

    def call(link: RedisLink, commands: Sequence[Sequence[Any]]) -> Any:
        commits = any(COMMIT.hash in command[:2] for command in commands)
        if not commits or broken.is_set():
            return real_call(link, commands)
        broken.set()
        if arrives:
            real_call(link, commands)
        link.close()
        raise Disconnected("the wire broke")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "run", run)
        patch.setattr(RedisLink, "call", call)
        yield
    assert broken.is_set(), "no commit was sent"
