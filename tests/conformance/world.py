"""A small world around one store: a clock that only moves by hand, a fleet, and shortcuts for what tests do.

Knows the port and nothing of any store. `close` audits the whole history, so every test that uses a world
also tests that events replay to the state (see audit).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.alerts import Endpoint, NewEndpoint, secret_of
from leasekeeper.core.decisions import Action, Decision, Review, Target
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryRequest
from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Change, Fleet
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId, ScheduleId, WorkerId
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease, LeaseRef, Mode, RunRecord
from leasekeeper.core.notes import Note
from leasekeeper.core.pauses import Pause
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import Lane, Profile, ProfileState
from leasekeeper.core.schedules import Schedule, ScheduleState, Selection
from leasekeeper.core.secrets import SealedSecret, Secret
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.core.tokens import ApiToken, NewToken, Scope
from leasekeeper.core.workers import Worker, WorkerReport
from leasekeeper.ports import (
    ClaimRequest,
    Decided,
    Grant,
    LeaseRequest,
    Page,
    Resolution,
    Settled,
    Store,
)
from tests.conformance.places import Place

T = TypeVar("T")
Record = Account | Profile | Proxy | Limit | Schedule

START = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
KINDS: tuple[type[Any], ...] = (
    Account, Profile, Lane, Proxy, Limit, Job, Lease, RunRecord, Review, Worker, Delivery, ApiToken, Secret, Schedule,
    ScheduleState, Endpoint, Pause, Note, Snapshot,
)  # fmt: skip
URL = "https://site.test/done"
RESERVED = timedelta(seconds=60)
CLEAN = EndFacts(browser=Browser.CLOSED, final_url=URL)
# Workers of a world count as there for ever, unless a test is about that.
POLICY = Policy(worker_ttl=timedelta(days=3650))


@dataclass(slots=True)
class Clock:
    """The store's time: it stands still until somebody moves it."""

    now: datetime = START

    def __call__(self, _real: datetime) -> datetime:
        return self.now


def account(account_id: str = "shop", **settings: Any) -> Account:
    return Account(account_id=AccountId(account_id), **settings)


def proxy(proxy_id: str = "exit_us", **settings: Any) -> Proxy:
    return Proxy(**{"proxy_id": ProxyId(proxy_id), "server": "http://10.0.0.1:3128", "region": "US", **settings})


def profile(profile_id: str = "p1", account_id: str = "shop", **settings: Any) -> Profile:
    return Profile(profile_id=ProfileId(profile_id), account_id=AccountId(account_id), **settings)


def limit(pool: str, limit: int) -> Limit:
    return Limit(pool=pool, max_leases=limit)


def schedule(
    schedule_id: str = "nightly", cron: str = "0 * * * *", profile_id: str | None = "p1", **settings: Any
) -> Schedule:
    """A schedule of task `visit`; `job` settings come as `job={...}`, a selection as `labels`, `account_id`, `pool`."""
    chosen = {name: settings.pop(name) for name in ("labels", "account_id", "pool") if name in settings}
    select = Selection(**chosen) if chosen else Selection(profile_id=ProfileId(profile_id or ""))
    job = JobSpec(**{"task": "visit", **settings.pop("job", {})})
    return Schedule(schedule_id=ScheduleId(schedule_id), cron=cron, select=select, job=job, **settings)


def fleet(*records: Record) -> Fleet:
    """A fleet of these records, with a plain account for every profile that names another one."""
    accounts: dict[str, Account] = {}
    for record in records:
        if isinstance(record, Profile):
            accounts.setdefault(record.account_id, Account(account_id=record.account_id))
        if isinstance(record, Account):
            accounts[record.account_id] = record
    return Fleet(
        accounts=accounts,
        profiles={r.profile_id: r for r in records if isinstance(r, Profile)},
        proxies={r.proxy_id: r for r in records if isinstance(r, Proxy)},
        limits={r.pool: r for r in records if isinstance(r, Limit)},
        schedules={r.schedule_id: r for r in records if isinstance(r, Schedule)},
    )


def spec(profile_id: str | None = "p1", task: str = "visit", **settings: Any) -> JobSpec:
    """One job request; `shared=True` is short for the mode."""
    if settings.pop("shared", False):
        settings["mode"] = Mode.SHARED
    return JobSpec(task=task, profile_id=None if profile_id is None else ProfileId(profile_id), **settings)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@dataclass(slots=True)
class World:
    """One open store and its clock."""

    url: str
    store: Store
    clock: Clock
    policy: Policy
    place: Place
    incarnations: int = 0
    extra: list[Store] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return self.clock.now

    def advance(self, span: float | timedelta) -> None:
        """Move the store's time; a number is seconds, and may be negative."""
        self.clock.now += span if isinstance(span, timedelta) else seconds(span)

    async def reopen(self, policy: Policy | None = None) -> None:
        """Close the store and open it again, as another process would."""
        await self.store.close()
        self.policy = policy or self.policy
        self.store = await self.place.open(self.policy, self.clock)

    async def another(self) -> Store:
        """A second handle on the same store, closed with the world."""
        store = await self.place.open(self.policy, self.clock)
        self.extra.append(store)
        return store

    async def declare(self, *records: Record, prune: bool = False, dry_run: bool = False) -> list[Change]:
        return await self.store.apply(fleet(*records), actor="ann", prune=prune, dry_run=dry_run)

    async def offer(
        self, *tasks: str, pool: str = "default", worker_id: str = "w1", incarnation: str = "i1", **said: Any
    ) -> None:
        """A worker says which tasks it runs."""
        await self.store.report(
            WorkerReport(worker_id=WorkerId(worker_id), incarnation=incarnation, pool=pool, tasks=tasks, **said)
        )

    async def submit(self, *specs: JobSpec) -> list[Job]:
        return [answer.job for answer in await self.store.submit(specs)]

    async def add(self, profile_id: str | None = "p1", task: str = "visit", **settings: Any) -> Job:
        """Submit one job."""
        return (await self.submit(spec(profile_id, task, **settings)))[0]

    async def claim(
        self, limit: int = 1, *, tasks: tuple[str, ...] = ("visit",), worker_id: str = "w1", **request: Any
    ) -> list[Grant]:
        return await self.store.claim(
            ClaimRequest(
                worker_id=WorkerId(worker_id), incarnation=f"{worker_id}-1", tasks=tasks, limit=limit, **request
            )
        )

    async def take(self, **request: Any) -> Grant:
        """Claim exactly one job."""
        (grant,) = await self.claim(**request)
        return grant

    async def run(self, profile_id: str = "p1", **settings: Any) -> Grant:
        """Submit one job and claim it."""
        job = await self.add(profile_id, **settings)
        grant = await self.take(tasks=(job.task,), pool=job.pool)
        assert grant.job is not None
        assert grant.job.job_id == job.job_id
        return grant

    async def acquire(self, profile_id: str = "p1", **request: Any) -> Grant:
        settings: dict[str, Any] = {"worker_id": WorkerId("w1"), "incarnation": "w1-1", **request}
        return await self.store.acquire(LeaseRequest(profile_id=ProfileId(profile_id), **settings))

    async def finish(self, grant: Grant, reason: str | None = None, **ending: Any) -> Settled:
        """Settle one run; clean unless `facts` say otherwise."""
        (settled,) = await self.store.settle([end(grant.lease.ref, reason, **ending)])
        return settled

    async def lose(self, *grants: Grant) -> list[Lease]:
        """Let leases expire and be swept."""
        self.clock.now = max(self.clock.now, *(grant.lease.expires_at for grant in grants))
        swept = await self.store.expire()
        assert {lease.lease_id for lease in swept} >= {grant.lease.lease_id for grant in grants}
        return swept

    async def resolve(self, grant: Grant, **facts: Any) -> list[Settled]:
        found = Resolution(lease_id=grant.lease.lease_id, facts=LostFacts(**facts))
        return await self.store.resolve([found])

    async def owe(self, url: str, **settings: Any) -> Delivery:
        """A job that ends and owes this address a message."""
        job = await self.add(run_at=self.now + timedelta(days=365), callback_url=url, **settings)
        await self.decide_job(job, Action.CANCEL)
        (delivery,) = await self.all(Delivery, job_id=job.job_id)
        return delivery

    async def take_deliveries(self, limit: int = 100, each: int = 100, **which: Any) -> list[Delivery]:
        return list(
            (await self.store.take_deliveries(DeliveryRequest(limit=limit, each=each, **which), RESERVED)).items
        )

    async def send(self, url: str, status: int | None, **answer: Any) -> Delivery:
        """Owe a message, send it, and be answered so."""
        owed = await self.owe(url)
        (taken,) = [each for each in await self.take_deliveries() if each.delivery_id == owed.delivery_id]
        (changed,) = await self.store.settle_deliveries([answered(taken, status, **answer)])
        return changed

    async def token(self, token_id: str, **fields: Any) -> ApiToken:
        settings = {"name": "ci", "scopes": (Scope.READ,), "hash": "c0ffee", **fields}
        return await self.store.create_token(NewToken(token_id=token_id, **settings), actor="ann")

    async def secret(self, name: str, sealed: str = "c2VhbGVk", key_id: str = "k1", **more: Any) -> Secret:
        return await self.store.put_secret(SealedSecret(name=name, key_id=key_id, sealed=sealed), actor="ann", **more)

    async def endpoint(self, endpoint_id: str, *events: str) -> Endpoint:
        """Register a receiver of alerts."""
        new = NewEndpoint(endpoint_id=endpoint_id, url=f"https://{endpoint_id}.test/in", events=events or ("fleet.*",))
        sealed = SealedSecret(name=secret_of(endpoint_id), key_id="k1", sealed="c2VhbGVk")
        return await self.store.add_endpoint(new, sealed, actor="ann")

    async def decide(
        self,
        target: Target,
        record_id: str,
        action: Action,
        *,
        version: int | None = None,
        note: str = "looked at it",
        until: datetime | None = None,
        to: str | None = None,
    ) -> Decided:
        return await self.store.decide(
            Decision(
                target=target,
                id=record_id,
                action=action,
                note=note,
                actor="ann",
                version=version,
                until=until,
                to=to,
            )
        )

    async def pause(self, pause_id: str = "all", until: datetime | None = None) -> Decided:
        return await self.decide(Target.PAUSE, pause_id, Action.PAUSE, note="night", until=until)

    async def resume(self, pause_id: str = "all") -> Decided:
        return await self.decide(Target.PAUSE, pause_id, Action.RESUME)

    async def decide_profile(self, action: Action, profile_id: str = "p1", **more: Any) -> Decided:
        return await self.decide(Target.PROFILE, profile_id, action, **more)

    async def clear(self, profile_id: str = "p1") -> Decided:
        return await self.decide_profile(Action.CLEAR, profile_id)

    async def decide_job(self, job: Job, action: Action, **more: Any) -> Decided:
        return await self.decide(Target.JOB, job.job_id, action, **more)

    async def decide_account(self, action: Action, account_id: str = "shop", **more: Any) -> Decided:
        return await self.decide(Target.ACCOUNT, account_id, action, **more)

    async def revoke(self, grant: Grant, *, over: bool = True) -> Decided:
        """Take the lease away and, with `over`, let the time pass that its holder might still have believed in it."""
        decided = await self.decide(Target.LEASE, grant.lease.lease_id, Action.REVOKE)
        if over:
            self.clock.now = max(self.now, (await self.lease(grant)).expires_at)
            await self.store.expire()
        return decided

    async def lane(self, profile_id: str = "p1") -> Lane:
        return await self.store.get(Lane, profile_id)

    async def state(self, profile_id: str = "p1") -> ProfileState:
        return (await self.lane(profile_id)).state

    async def job(self, job: Job | Grant) -> Job:
        """The job as it is now."""
        of = job if isinstance(job, Job) else job.job
        assert of is not None
        return await self.store.get(Job, of.job_id)

    async def lease(self, grant: Grant) -> Lease:
        return await self.store.get(Lease, grant.lease.lease_id)

    async def run_of(self, grant: Grant) -> RunRecord:
        return await self.store.get(RunRecord, grant.lease.run_id)

    async def grant_of(self, lease: Lease) -> Grant:
        """A lease as its holder has it."""
        profile = await self.store.get(Profile, lease.profile_id)
        account = await self.store.get(Account, lease.account_id)
        return Grant(lease=lease, profile=profile, account=account)

    async def all(self, kind: type[T], **where: str) -> list[T]:
        """Every record that matches, page after page."""
        return await self.paged(kind, 1000, where)

    async def paged(self, kind: type[T], page: int, where: Mapping[str, str]) -> list[T]:
        return await every(lambda after: self.store.find(kind, where, after=after, limit=page))

    async def kept(self, kind: type[T]) -> list[T]:
        """Every record, as the store behind any server has it."""
        return await every(lambda after: self.place.find(self.store, kind, {}, after))

    async def events(self, **where: str) -> list[Event]:
        """Events that match, oldest first."""
        return sorted(await self.all(Event, **where), key=lambda event: event.seq)

    async def everything(self) -> Mapping[str, list[Any]]:
        """All records but the events: what a refused operation must not change."""
        return {kind.__name__: await self.all(kind) for kind in KINDS}


async def every(find: Callable[[str | None], Awaitable[Page[T]]]) -> list[T]:
    """The records of all pages."""
    page = await find(None)
    found = list(page.items)
    while page.after is not None:
        page = await find(page.after)
        found += page.items
    return found


def answered(delivery: Delivery, status: int | None, **more: Any) -> Attempt:
    """What a receiver made of a message that was taken."""
    return Attempt(
        delivery_id=delivery.delivery_id, number=delivery.attempts, status=status, answer=f"HTTP {status}", **more
    )


def end(ref: LeaseRef, reason: str | None = None, **ending: Any) -> Ending:
    return Ending(**{"ref": ref, "reason": reason, "facts": CLEAN, **ending})


class NewWorld(Protocol):
    """Opens a world with these records (one profile `p1` if none) and a worker that offers `visit`."""

    def __call__(self, *records: Record, policy: Policy = POLICY) -> AbstractAsyncContextManager[World]: ...


def new_world(where: Place | str, audit: Callable[[World], Any]) -> NewWorld:
    place = Place(url=where) if isinstance(where, str) else where

    @asynccontextmanager
    async def opened(*records: Record, policy: Policy = POLICY) -> AsyncIterator[World]:
        clock = Clock()
        world = World(place.url, await place.open(policy, clock), clock, policy, place)
        try:
            await world.declare(*(records or (profile(),)))
            await world.offer("visit")
            yield world
            await audit(world)
        finally:
            for store in (world.store, *world.extra):
                await store.close()

    return opened
