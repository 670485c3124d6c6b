"""One client process of a chaos run: a worker, a sweeper or a submitter, on the store's port alone.

`python -m tests.chaos.client '<json of Orders>'`. Every call is logged before it is sent and after it is answered, in
a file of the client's own, with the clock that all processes share. A client may be killed or stopped at any moment.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import Backoff, JobSpec
from leasekeeper.core.leases import LeaseRef, Timing
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import Lane
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import LeasekeeperError, LeaseLost, StoreError
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Resolution, Store
from leasekeeper.stores import open_store

T = TypeVar("T")

TTL_SECONDS = 1.5
STOPS_AFTER_SECONDS = 1.0
POLICY = Policy(
    timing=Timing(
        ttl=timedelta(seconds=TTL_SECONDS),
        renew_every=timedelta(seconds=0.3),
        holder_stops_after=timedelta(seconds=STOPS_AFTER_SECONDS),
        lock_delay=timedelta(seconds=0.3),
    ),
    backoff=Backoff(first=timedelta(seconds=0.05), max=timedelta(seconds=0.2)),
)
DONE = EndFacts(browser=Browser.CLOSED, final_url="https://shop.example/end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one client is given when it starts."""

    who: str
    role: str
    url: str
    log: str
    seed: int
    pools: tuple[str, ...] = ("default",)
    tasks: tuple[str, ...] = ("buy",)
    specs: tuple[Mapping[str, Any], ...] = field(default=())
    begin: str = ""
    longest: float = 0.6

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Orders":
        values: dict[str, Any] = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


def boot_time() -> float:
    """Seconds on the one clock that all processes of a machine share, and that runs on while one is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Log:
    """The client's own record. Each line is one write, so a kill tears the last line at most."""

    def __init__(self, orders: Orders) -> None:
        self.who = orders.who
        self._file = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls = 0

    async def call(
        self,
        op: str,
        args: Mapping[str, Any],
        call: Awaitable[T],
        reported: Callable[[T], object],
    ) -> T:
        """Do one call, and keep what was asked and what came back. `reported` may name a refusal that is a value."""
        self._calls += 1
        n = self._calls
        self._write({"who": self.who, "n": n, "op": op, "at": boot_time(), "args": args})
        try:
            answer = await call
        except LeasekeeperError as error:
            self._write({"who": self.who, "n": n, "at": boot_time(), "error": type(error).__name__})
            raise
        described = reported(answer)
        if isinstance(described, Refused):
            self._write({"who": self.who, "n": n, "at": boot_time(), "error": "LeaseLost"})
        else:
            self._write({"who": self.who, "n": n, "at": boot_time(), "answer": described})
        return answer

    def _write(self, record: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(record) + "\n").encode())


class Refused:
    """A refusal that came as a value."""


@dataclass(slots=True)
class Holding:
    """A lease in use: when it was last renewed (sent, and acknowledged), and when its work is done."""

    grant: Grant
    renewed: float
    done_at: float

    @property
    def ref(self) -> LeaseRef:
        return self.grant.lease.ref

    @property
    def args(self) -> dict[str, Any]:
        lease = self.grant.lease
        return {"profile": lease.profile_id, "token": lease.token, "job": lease.job_id}


class Worker:
    """Claims, renews, checkpoints and settles, a few leases at a time, until it is stopped."""

    def __init__(self, store: Store, log: Log, orders: Orders) -> None:
        self.store, self.log, self.orders = store, log, orders
        self.random = random.Random(orders.seed)
        self.held: list[Holding] = []

    async def run(self, stopping: asyncio.Event) -> None:
        for pool in self.orders.pools:
            report = WorkerReport(
                worker_id=WorkerId(self.log.who), incarnation=self.log.who, pool=pool, tasks=self.orders.tasks
            )
            await until_it_works(partial(self.store.report, report))
        while self.held or not stopping.is_set():
            wanted = [self.claim()] if not stopping.is_set() and len(self.held) < 3 else []
            await asyncio.gather(*wanted, *map(self.tend, list(self.held)))
            await asyncio.sleep(self.random.uniform(0.005, 0.03))  # waits: the pace of a client

    async def tend(self, holding: Holding) -> None:
        """Do the next thing for one lease. If that goes unanswered, go on until the holder's own deadline."""
        try:
            await self.do_something(holding)
        except LeaseLost:
            over = True
        except StoreError:
            over = boot_time() > holding.renewed + STOPS_AFTER_SECONDS
        else:
            over = False
        if over and holding in self.held:
            self.held.remove(holding)

    async def claim(self) -> None:
        with suppress(StoreError):
            await self.ask_for_jobs()

    async def ask_for_jobs(self) -> None:
        request = ClaimRequest(
            worker_id=WorkerId(self.log.who),
            incarnation=self.log.who,
            tasks=self.orders.tasks,
            pool=self.random.choice(self.orders.pools),
            limit=self.random.randint(1, 3),
        )
        sent = boot_time()
        grants = await self.log.call("claim", {"limit": request.limit}, self.store.claim(request), granted)
        for grant in grants:
            takes = min(self.orders.longest, self.random.choice([0.0, 0.0, 0.05, 0.6]))
            self.held.append(Holding(grant, sent, boot_time() + takes))

    async def do_something(self, holding: Holding) -> None:
        """Settle, renew or checkpoint. A worker that was stopped too long finds out by being refused."""
        now = boot_time()
        if now >= holding.done_at:
            await self.settle(holding)
        elif now - holding.renewed > 0.25:
            await self.renew(holding)
        elif self.random.random() < 0.3:
            await self.log.call(
                "checkpoint",
                holding.args,
                self.store.checkpoint(holding.ref, "dashboard", url="https://shop.example/"),
                lambda _: True,
            )

    async def renew(self, holding: Holding) -> None:
        sent = boot_time()
        (renewed,) = await self.log.call(
            "renew",
            holding.args,
            self.store.renew([Renewal(ref=holding.ref)]),
            lambda answers: Refused() if answers[0].refused else True,
        )
        if renewed.refused:
            raise LeaseLost(renewed.refused)
        holding.renewed = sent

    async def settle(self, holding: Holding) -> None:
        reason, facts = self.random.choices(
            [
                (None, DONE),
                ("TIMEOUT", DONE),
                ("TASK_ERROR", EndFacts(final_url="https://shop.example/")),
                ("SECURITY_PROMPT", DONE),
            ],
            [16, 3, 1, 1],
        )[0]
        ending = Ending(ref=holding.ref, reason=reason, facts=facts)
        self.held.remove(holding)
        await self.log.call(
            "settle",
            {**holding.args, "reason": reason},
            self.store.settle([ending]),
            lambda answers: Refused() if answers[0].refused else {"job_state": answers[0].job_state},
        )


def granted(grants: list[Grant]) -> list[dict[str, Any]]:
    return [
        {
            "profile": grant.lease.profile_id,
            "token": grant.lease.token,
            "job": grant.lease.job_id,
            "shared": grant.lease.shared,
            "key": grant.lease.routing_key,
            "pool": grant.lease.pool,
        }
        for grant in grants
    ]


class Sweeper:
    """Expires, resolves, promotes and heals; and the person who clears every profile that waits for one."""

    def __init__(self, store: Store, log: Log, orders: Orders) -> None:
        self.store, self.log = store, log
        self.random = random.Random(orders.seed)

    async def run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            with suppress(StoreError):
                await self.sweep()
            await asyncio.sleep(self.random.uniform(0.02, 0.1))  # waits: the pace of a sweeper

    async def sweep(self) -> None:
        await self.log.call("expire", {}, self.store.expire(), lambda found: [lease.lease_id for lease in found])
        facts = LostFacts(final_url="https://shop.example/", browser_dead=True, reported_by="keeper")
        lost = [Resolution(lease_id=lease.lease_id, facts=facts) for lease in await self.store.unresolved()]
        if lost:
            await self.log.call("resolve", {}, self.store.resolve(lost), lambda done: [one.lease_id for one in done])
        await self.store.promote()
        await self.store.heal()
        for state in ("review_required", "quarantined"):
            for lane in (await self.store.find(Lane, {"state": state})).items:
                await self.clear(lane)

    async def clear(self, lane: Lane) -> None:
        decision = Decision(
            target=Target.PROFILE,
            id=lane.profile_id,
            action=Action.CLEAR,
            note="looked at it",
            actor=self.log.who,
            version=lane.version,
        )
        with suppress(LeasekeeperError):
            await self.store.decide(decision)


class Submitter:
    """Submits its list, a few at a time, each until it is acknowledged. All can begin at one moment, to collide."""

    def __init__(self, store: Store, log: Log, orders: Orders) -> None:
        self.store, self.log, self.orders = store, log, orders
        self.random = random.Random(orders.seed)

    async def run(self, stopping: asyncio.Event) -> None:
        waiting = list(self.orders.specs)
        if self.orders.begin:
            wait_for_the_others(Path(self.orders.begin))
        while waiting and not stopping.is_set():
            batch = [_spec(values) for values in waiting[: self.random.randint(1, 4)]]
            call = self.store.submit(batch)
            try:
                await self.log.call("submit", {"jobs": len(batch)}, call, submitted)
            except StoreError:
                if any(spec.idempotency_key is None for spec in batch):
                    del waiting[: len(batch)]  # it may be there: submitting it again could make a second one
                await asyncio.sleep(0.05)  # waits: a server that restarts tells nobody when it is back
                continue
            except LeasekeeperError:
                pass
            del waiting[: len(batch)]


def wait_for_the_others(begin: Path) -> None:
    """All submitters begin when this file appears."""
    while not begin.exists():
        time.sleep(0.002)  # waits: for the moment when they all begin


def _spec(values: Mapping[str, Any]) -> JobSpec:
    return JobSpec(**{**values, "profile_id": ProfileId(values["profile_id"])})


def submitted(answers: list[Any]) -> list[dict[str, Any]]:
    return [
        {"job": answer.job.job_id, "key": answer.job.idempotency_key, "already": answer.already_handled}
        for answer in answers
    ]


async def until_it_works(call: Callable[[], Awaitable[None]]) -> None:
    """A server may be restarting: ask again."""
    while True:
        try:
            return await call()
        except StoreError:
            await asyncio.sleep(0.1)  # waits: a server that restarts tells nobody when it is back


async def main(orders: Orders) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    store = await open_patiently(orders.url)
    try:
        log = Log(orders)
        match orders.role:
            case "worker":
                await Worker(store, log, orders).run(stopping)
            case "sweeper":
                await Sweeper(store, log, orders).run(stopping)
            case _:
                await Submitter(store, log, orders).run(stopping)
    finally:
        await store.close()


async def open_patiently(url: str) -> Store:
    while True:
        try:
            return await open_store(url, policy=POLICY)
        except StoreError:
            await asyncio.sleep(0.1)  # waits: a server that restarts tells nobody when it is back


if __name__ == "__main__":
    logging.getLogger("leasekeeper.store").setLevel(logging.ERROR)  # that a server was restarted is no news here
    asyncio.run(main(Orders.load(sys.argv[1])))
