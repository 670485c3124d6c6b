"""The Store port on top of any SQL engine: each method is one operation, one transaction, one thread hop."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple, TypeVar, assert_never

from leasekeeper.aside import aside
from leasekeeper.core.decisions import Decision, Target
from leasekeeper.core.deliveries import Attempt, Delivery
from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Change, Fleet
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Lease, LeaseRef
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.records import quick_init
from leasekeeper.core.settle import Browser, Ending
from leasekeeper.core.why import WhyFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import InputError, NotFound, Problem, StoreError
from leasekeeper.ports import (
    MOST_IN_BATCH,
    ClaimRequest,
    Decided,
    Grant,
    HandedOver,
    LeaseRequest,
    Look,
    Page,
    Renewal,
    Renewed,
    Resolution,
    Settled,
    Stats,
    StoreInfo,
    Submitted,
)
from leasekeeper.stores.sql import (
    claiming,
    configuring,
    deciding,
    handing,
    holding,
    pruning,
    reading,
    sending,
    settling,
    submitting,
)
from leasekeeper.stores.sql.codec import check_structure, clean, evolve
from leasekeeper.stores.sql.engine import Context, Engine, Tx
from leasekeeper.stores.sql.lanes import read_lease
from leasekeeper.stores.sql.threads import Batcher
from leasekeeper.wire.jobs import fingerprint

T = TypeVar("T")

MOST_TOGETHER = 64
MOST_BRIEF = 8
SHORTEST_TTL = timedelta(seconds=1)  # as of the setting lease_ttl: a shorter one cannot be renewed in time
LONGEST_TTL = timedelta(days=30)


# More jobs than these are fingerprinted aside of the event loop.
FEW = 4


def _bodies(specs: Sequence[JobSpec]) -> list[str]:
    return [fingerprint(spec) for spec in specs]


class Ids:
    """UUIDs of version 7: random, but in the order they were made, so that newest-first lists need no other key.

    Within a millisecond a counter of 12 bits keeps the order; one that runs over borrows from the next millisecond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        chance = int.from_bytes(os.urandom(9))
        fresh = (time.time_ns() // 1_000_000) << 12 | chance >> 64
        with self._lock:
            order = self._last = max(fresh, self._last + 1)
        low = 0b10 << 62 | (chance & 0x3FFF_FFFF_FFFF_FFFF)
        text = f"{(order >> 12) << 80 | 0x7 << 76 | (order & 0xFFF) << 64 | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


new_id = Ids()


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One call of a worker: endings to settle, or a claim, or both. `again`: the claim was put off once."""

    endings: Sequence[Ending] = ()
    claim: ClaimRequest | None = None
    again: bool = False


class _Turned(NamedTuple):
    """What came of one call, and what is done for others after it. No `grants`: the claim was put off until then."""

    settled: list[Settled]
    grants: list[Grant] | None
    woken: "asyncio.Future[int] | None"


class _Changed(NamedTuple):
    """What one commit did for several calls."""

    turns: Sequence[_Turn]
    settled: list[Settled]
    freed: list[str]
    granted: list[list[Grant] | None]


class SqlStore:
    """A store on SQL. See ports.Store for what each operation guarantees."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine = engine
        self._ctx = Context(policy=policy, new_id=new_id, jitter=random.random)
        self._turns: Batcher[_Turn, _Changed, _Turned] = Batcher(
            self._send, self._turned, MOST_TOGETHER, self._give_back
        )

    async def check(self) -> StoreInfo:
        return await self._engine.info()

    async def close(self) -> None:
        await self._engine.close()

    async def apply(self, fleet: Fleet, *, actor: str, prune: bool = False, dry_run: bool = False) -> list[Change]:
        changes = await self._engine.change(
            lambda tx: configuring.apply(tx, self._ctx, fleet, actor=actor, prune=prune, dry_run=dry_run)
        )
        self._engine.hint()
        return changes

    async def submit(self, specs: Sequence[JobSpec]) -> list[Submitted]:
        _check_batch(specs, "jobs")
        if not specs:
            return []
        bodies = _bodies(specs) if len(specs) <= FEW else await aside(_bodies, specs)
        answers = await self._engine.change(lambda tx: submitting.submit(tx, self._ctx, specs, bodies))
        self._engine.hint()
        return answers

    async def claim(self, request: ClaimRequest) -> list[Grant]:
        _check_claim(request)
        turned = await self._turns.put(_Turn(claim=request))
        if turned.grants is None and turned.woken is not None:
            await asyncio.shield(turned.woken)
        return await self._claimed(turned, request)

    async def turn(self, endings: Sequence[Ending], request: ClaimRequest) -> tuple[list[Settled], list[Grant]]:
        _check_endings(endings)
        _check_claim(request)
        turned = await self._turns.put(_Turn(endings=_closed_or_not(endings), claim=request))
        if turned.woken is not None:
            try:
                await asyncio.shield(turned.woken)
            except asyncio.CancelledError:
                await self._give_back(turned)
                raise
        grants: list[Grant] = []
        with suppress(StoreError):  # what was settled is settled: who gets nothing asks again
            grants = await self._claimed(turned, request)
        return turned.settled, grants

    async def _claimed(self, turned: _Turned, request: ClaimRequest) -> list[Grant]:
        """What a call was granted. A claim that was put off is made now."""
        if turned.grants is None:
            turned = await self._turns.put(_Turn(claim=request, again=True))
        return turned.grants or []

    def _send(self, turns: Sequence["_Turn"]) -> "asyncio.Future[_Changed]":
        """What a process settles and claims at one moment shares a commit: a busy worker's usual turn is one."""
        endings = [ending for turn in turns for ending in turn.endings]
        claims = [(turn.claim, turn.again) for turn in turns if turn.claim is not None]
        requests = [request for request, _ in claims]

        def operation(tx: Tx) -> _Changed:
            if endings and requests:
                claiming.expect(tx, requests)
            settled, freed = settling.settle(tx, self._ctx, endings) if endings else ([], [])
            if endings and requests:
                tx.hand_on()
            granted: list[list[Grant] | None] = [None] * len(requests)
            # Lanes that waited for a key are woken after this commit: a claim in it would pass them over.
            now = [n for n, (_, again) in enumerate(claims) if again or not freed]
            for n, grants in zip(now, self._grant(tx, [requests[n] for n in now], bool(settled)), strict=True):
                granted[n] = grants
            return _Changed(turns, settled, freed, granted)

        brief = len(endings) + sum(request.most for request in requests) <= MOST_BRIEF
        return self._engine.change(operation, brief=brief)

    def _grant(self, tx: Tx, requests: Sequence[ClaimRequest], settled: bool) -> list[list[Grant]]:
        granted = claiming.claim_all(tx, self._ctx, requests) if requests else []
        if settled:
            self._claim_more(tx, requests, granted)
        return granted

    def _turned(self, changed: "_Changed") -> list["_Turned"]:
        """Everybody's part of a commit. Those who settled wake whom they made room for."""
        woken = None
        if changed.freed:
            woken = asyncio.ensure_future(self._wake(changed.freed))
        elif changed.settled:
            self._engine.hint()
        settled, granted = iter(changed.settled), iter(changed.granted)
        return [
            _Turned(
                settled=list(islice(settled, len(turn.endings))),
                grants=next(granted) if turn.claim is not None else [],
                woken=woken,
            )
            for turn in changed.turns
        ]

    async def _give_back(self, turned: "_Turned") -> None:
        """The caller is gone, and does not know what it was granted: its jobs take their places again."""
        if turned.grants:
            await self.settle([Ending(ref=grant.lease.ref, not_started=True) for grant in turned.grants])

    def _claim_more(self, tx: Tx, requests: Sequence[ClaimRequest], granted: Sequence[list[Grant]]) -> None:
        """Whoever got less than they asked for looks again: what was settled a moment ago may be ready now."""
        short = [n for n, request in enumerate(requests) if len(granted[n]) < request.most]
        if not short:
            return
        missing = [evolve(requests[n], most=requests[n].most - len(granted[n])) for n in short]
        for n, more in zip(short, claiming.claim_all(tx, self._ctx, missing), strict=True):
            granted[n].extend(more)

    async def acquire(self, request: LeaseRequest) -> Grant:
        if request.ttl is not None and not SHORTEST_TTL <= request.ttl <= LONGEST_TTL:
            bounds = f"must be from {SHORTEST_TTL.total_seconds():g} s to {LONGEST_TTL.days} days"
            raise InputError("nothing was leased", [Problem("ttl", bounds)])
        return await self._engine.change(lambda tx: claiming.acquire(tx, self._ctx, request), brief=True)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        _check_batch(renewals, "renewals")
        if not renewals:
            return []
        return await self._engine.change(
            lambda tx: holding.renew(tx, self._ctx, renewals), brief=len(renewals) <= MOST_BRIEF
        )

    async def checkpoint(self, ref: LeaseRef, step: str, *, url: str | None = None) -> None:
        step, url = clean(step), clean(url) if url else None
        why = await self._engine.change(lambda tx: holding.checkpoint(tx, self._ctx, ref, step, url), brief=True)
        holding.lost(ref, why)

    async def enter_section(self, ref: LeaseRef, name: str) -> None:
        why = await self._engine.change(lambda tx: holding.enter_section(tx, self._ctx, ref, clean(name)), brief=True)
        holding.lost(ref, why)

    async def leave_section(self, ref: LeaseRef, name: str) -> None:
        why = await self._engine.change(lambda tx: holding.leave_section(tx, self._ctx, ref, clean(name)), brief=True)
        holding.lost(ref, why)

    async def settle(self, endings: Sequence[Ending]) -> list[Settled]:
        _check_endings(endings)
        if not endings:
            return []
        turned = await self._turns.put(_Turn(endings=_closed_or_not(endings)))
        if turned.woken is not None:
            await asyncio.shield(turned.woken)
        return turned.settled

    async def hand_over(
        self, ending: Ending, request: ClaimRequest, *, among: Sequence[str] | None = None
    ) -> HandedOver | None:
        _check_endings([ending])
        tasks = request.tasks if among is None else among
        ending = evolve(ending, facts=evolve(ending.facts, browser=Browser.HANDED_OVER))
        try:
            handed, freed = await self._engine.change(
                lambda tx: handing.hand_over(tx, self._ctx, ending, request, tasks)
            )
        except handing.NobodyWaits:
            return None
        await self._wake(freed)
        return handed

    async def expire(self, most: int = MOST_IN_BATCH, *, seen: datetime | None = None) -> list[Lease]:
        expired, freed = await self._engine.change(lambda tx: settling.expire(tx, self._ctx, most, seen))
        if freed:
            await self._wake(freed)
        return expired

    async def pause_expiry(self, span: timedelta, jump: timedelta) -> None:
        await self._engine.change(lambda tx: holding.pause_expiry(tx, self._ctx, span, jump))

    async def unresolved(self, most: int = MOST_IN_BATCH) -> list[Lease]:
        rows = await self._engine.view(lambda tx: tx.read(("unresolved_runs", {"most": most}))[0])
        return [read_lease(row) for row in rows]

    async def resolve(self, resolutions: Sequence[Resolution]) -> list[Settled]:
        _check_batch(resolutions, "resolutions")
        if not resolutions:
            return []
        answers = await self._engine.change(lambda tx: settling.resolve(tx, self._ctx, resolutions))
        self._engine.hint()
        return answers

    async def promote(self, most: int = MOST_IN_BATCH) -> int:
        promoted = await self._engine.change(lambda tx: submitting.promote(tx, self._ctx, most))
        if promoted:
            self._engine.hint()
        return promoted

    async def heal(self, most: int = MOST_IN_BATCH) -> int:
        keys, tasks = await self._engine.view(
            lambda tx: tx.read(("parked_keys", {"most": most}), ("tasks_that_wait", {"most": most}))
        )
        healed = await self._wake([row["waits_on"] for row in keys]) if keys else 0
        for row in tasks:
            healed += await self._unblock(row["pool"], [row["task"]])
        return healed

    async def decide(self, decision: Decision) -> Decided:
        deciding.check(decision)
        decision = evolve(decision, note=clean(decision.note), actor=clean(decision.actor))
        match decision.target:
            case Target.PROFILE:
                operation = deciding.decide_profile
            case Target.JOB:
                operation = deciding.decide_job
            case Target.ACCOUNT:
                operation = deciding.decide_account
            case Target.WEBHOOK:
                operation = sending.replay
            case Target.LEASE:
                return await self._revoke(decision)
            case _:
                assert_never(decision.target)
        decided = await self._engine.change(lambda tx: operation(tx, self._ctx, decision))
        self._engine.hint()
        return decided

    async def _revoke(self, decision: Decision) -> Decided:
        lease = await self._engine.change(
            lambda tx: settling.revoke(tx, self._ctx, decision.id, decision.actor, decision.note)
        )
        if lease is None:
            raise NotFound(f"there is no live lease {decision.id}; see 'leasekeeper leases'")
        return Decided(state=lease.status, version=0)

    async def take_deliveries(self, look: Look, hold: timedelta, *, after: str = "") -> Page[Delivery]:
        if not 1 <= look.most <= MOST_IN_BATCH or look.each < 1:
            raise InputError(f"one takes 1 to {MOST_IN_BATCH} webhooks, at least 1 of each host")
        ids, more = await self._engine.view(lambda tx: sending.due(tx, after, look))
        taken = await self._engine.change(lambda tx: sending.take(tx, self._ctx, ids, hold)) if ids else []
        return Page(items=taken, after=more)

    async def settle_deliveries(self, attempts: Sequence[Attempt]) -> list[Delivery]:
        _check_batch(attempts, "attempts")
        if not attempts:
            return []
        return await self._engine.change(lambda tx: sending.settle(tx, self._ctx, attempts))

    async def report(self, report: WorkerReport) -> None:
        await self._engine.change(lambda tx: deciding.report(tx, self._ctx, report))
        if report.tasks and not report.stopping:
            await self._unblock(report.pool, report.tasks)

    async def _unblock(self, pool: str, tasks: Sequence[str]) -> int:
        """Jobs that waited for a worker to offer their task move on, a batch at a time."""
        freed = 0
        while True:
            moved = await self._engine.change(lambda tx: submitting.unblock(tx, self._ctx, pool, tasks, MOST_IN_BATCH))
            freed += moved
            self._engine.hint()
            if moved < MOST_IN_BATCH:
                return freed

    async def record(self, event: Event) -> None:
        await self._engine.change(lambda tx: deciding.record(tx, event))

    async def get(self, kind: type[T], record_id: str) -> T:
        return await self._engine.view(lambda tx: reading.get(tx, self._ctx, kind, record_id))

    async def find(
        self,
        kind: type[T],
        where: Mapping[str, str] | None = None,
        *,
        after: str | None = None,
        most: int = 100,
    ) -> Page[T]:
        return await self._engine.view(lambda tx: reading.find(tx, self._ctx, kind, where or {}, after, most))

    async def stats(self) -> Stats:
        return await self._engine.view(lambda tx: reading.stats(tx, self._ctx))

    async def why(self, *, job_id: str | None = None, profile_id: str | None = None) -> WhyFacts:
        if (job_id is None) == (profile_id is None):
            raise InputError("ask why about a job or about a profile", [Problem("", "give one of job_id, profile_id")])
        return await self._engine.view(lambda tx: reading.why(tx, self._ctx, job_id, profile_id))

    async def wait(self, pool: str, timeout: timedelta) -> None:  # noqa: ARG002 - the port's; any change wakes all
        await self._engine.wait(timeout)

    async def prune(self, retention: Retention, most: int = MOST_IN_BATCH) -> int:
        return await self._engine.change(lambda tx: pruning.prune(tx, retention, most))

    async def _wake(self, keys: Sequence[str]) -> int:
        """Ready the lanes that waited for these keys, and tell whoever waits for work.

        In a commit of its own, after the one that freed the keys: taking other profiles' locks inside that one
        could make two of them wait for each other. If it fails, what was committed before still stands, and
        `heal` finds those lanes.
        """
        woken = 0
        if keys:
            with suppress(StoreError):
                woken = await self._engine.change(lambda tx: settling.wake(tx, keys))
        self._engine.hint()
        return woken


def _check_batch(items: Sequence[object], what: str) -> None:
    if len(items) > MOST_IN_BATCH:
        raise InputError("nothing was done", [Problem(what, f"at most {MOST_IN_BATCH} in one call, got {len(items)}")])


def _check_claim(request: ClaimRequest) -> None:
    if not 1 <= request.most <= MOST_IN_BATCH or not request.tasks:
        raise InputError(f"a claim asks for 1 to {MOST_IN_BATCH} jobs of at least one task")


def _closed_or_not(endings: Sequence[Ending]) -> list[Ending]:
    """Only `hand_over` hands a browser over: without a next run it was left open."""
    return [
        evolve(ending, facts=evolve(ending.facts, browser=Browser.NOT_PROVEN))
        if ending.facts.browser is Browser.HANDED_OVER
        else ending
        for ending in endings
    ]


def _check_endings(endings: Sequence[Ending]) -> None:
    """What cannot be kept is refused before it shares a commit with others."""
    _check_batch(endings, "endings")
    problems = []
    for index, ending in enumerate(endings):
        for name in ("output", "evidence", "actual", "timings"):
            try:
                check_structure(getattr(ending, name))
            except (TypeError, ValueError, RecursionError) as error:
                problems.append(Problem(f"endings[{index}].{name}", f"cannot be kept as JSON: {error}"))
    if problems:
        raise InputError("nothing was settled", problems)
