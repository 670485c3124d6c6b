"""The Store port on top of any SQL engine. Most methods are one operation: one transaction, one call of a thread."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeVar, assert_never

from leasekeeper.core.accounts import Proxy
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Change, Fleet
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Lease, LeaseRef, Refusal
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.proxies import ProxyReport
from leasekeeper.core.records import evolve, quick_init
from leasekeeper.core.schedules import Fired
from leasekeeper.core.settle import Browser, Ending, ban_of
from leasekeeper.core.why_facts import WhyFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import InputError, NotFound, Problem, ProfileBusy, StoreError
from leasekeeper.ports import (
    MAX_IN_BATCH,
    ClaimRequest,
    Decided,
    Grant,
    HandedOver,
    LeaseRequest,
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
    checks,
    claiming,
    configuring,
    deciding,
    endpoints,
    hand_over,
    heartbeats,
    notes,
    on_conflict,
    pausing,
    person_answers,
    proxy_health,
    pruning,
    reading,
    revoking,
    scheduling,
    sending,
    settling,
    snapshots,
    submitting,
    tokens,
)
from leasekeeper.stores.sql.access import AccessOperations
from leasekeeper.stores.sql.batching import Batcher
from leasekeeper.stores.sql.codec import clean
from leasekeeper.stores.sql.control import ControlOperations
from leasekeeper.stores.sql.engine import Context, Engine, Params, Tx
from leasekeeper.stores.sql.launcher_checks import LauncherCheckOperations
from leasekeeper.stores.sql.new_ids import new_id
from leasekeeper.stores.sql.outbox import OutboxOperations
from leasekeeper.stores.sql.repeated_calls import NOTHING, Naming
from leasekeeper.threads import run_in_thread
from leasekeeper.wire.jobs import fingerprint

T = TypeVar("T")

MAX_TOGETHER = 64
MAX_BRIEF = 8
MAX_BRIEF_BLOCKED = 32
MAX_PASSES = 64


# More jobs than this are fingerprinted in a thread.
FEW = 4


def _fingerprints(specs: Sequence[JobSpec]) -> list[str]:
    return [fingerprint(spec) for spec in specs]


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call: endings to settle, or a claim. `again`: the claim was postponed once. `thorough`: it met many lanes
    that cannot run, and continues. `naming`: it may be repeated."""

    endings: Sequence[Ending] = ()
    claim: ClaimRequest | None = None
    again: bool = False
    thorough: bool = False
    naming: Naming | None = None

    def rows(self, tx: Tx, settled: list[Settled], grants: list[Grant] | None) -> list[Params]:
        """The row that stores the answer, if the call may be repeated and changed something."""
        if self.naming is None or not (settled or grants):
            return []
        return [self.naming.row(tx, grants if self.claim is not None else settled)]


class _Answer(NamedTuple):
    """The result of one call. `grants` is None if the claim was postponed. `woken` is done when lanes that waited for
    account keys are ready. `unfinished`: the claim met the limit of lanes that cannot run."""

    settled: list[Settled]
    grants: list[Grant] | None
    woken: "asyncio.Future[int] | None"
    unfinished: bool


class _Changed(NamedTuple):
    """The result of one commit for several calls."""

    calls: Sequence[_Call]
    settled: list[Settled]
    freed: list[str]
    granted: list[list[Grant] | None]
    unfinished: bool

    def parts(self) -> Iterator[tuple[_Call, list[Settled], list[Grant] | None]]:
        """Each call with its results."""
        settled, granted = iter(self.settled), iter(self.granted)
        for call in self.calls:
            yield call, list(islice(settled, len(call.endings))), next(granted) if call.claim is not None else []


class SqlStore(AccessOperations, LauncherCheckOperations, ControlOperations, OutboxOperations):
    """A store on SQL. See ports.Store for what each operation guarantees."""

    def __init__(self, engine: Engine, policy: Policy, jitter: Callable[[], float]) -> None:
        self._engine = engine
        self._ctx = Context(policy=policy, new_id=new_id, jitter=jitter)
        self._calls: Batcher[_Call, _Changed, _Answer] = Batcher(
            self._send, self._answers, MAX_TOGETHER, self._give_back
        )

    async def check(self) -> StoreInfo:
        return await self._engine.info()

    async def close(self) -> None:
        await self._engine.close()

    async def apply(
        self, fleet: Fleet, *, actor: str, prune: bool = False, dry_run: bool = False, expected: str | None = None
    ) -> list[Change]:
        changes = await self._change(
            lambda tx: configuring.apply(
                tx, self._ctx, fleet, actor=actor, prune=prune, dry_run=dry_run, expected=expected
            )
        )
        self._engine.hint()
        return changes

    async def submit(self, specs: Sequence[JobSpec]) -> list[Submitted]:
        checks.check_batch(specs, "jobs")
        if not specs:
            return []
        checks.check_storable(
            "nothing was submitted", ((f"jobs[{n}].payload", spec.payload) for n, spec in enumerate(specs))
        )
        bodies = _fingerprints(specs) if len(specs) <= FEW else await run_in_thread(_fingerprints, specs)
        answers = await self._change(lambda tx: submitting.submit(tx, self._ctx, specs, bodies))
        self._engine.hint()
        return answers

    async def claim(self, request: ClaimRequest) -> list[Grant]:
        checks.check_claim(request)
        answer = await self._calls.put(_Call(claim=request, naming=self.naming))
        if answer.grants is None:
            if answer.woken is not None:
                await asyncio.shield(answer.woken)
            answer = await self._calls.put(_Call(claim=request, again=True, naming=self.naming))
        for _ in range(MAX_PASSES):
            if answer.grants or not answer.unfinished:
                break
            answer = await self._calls.put(_Call(claim=request, again=True, thorough=True, naming=self.naming))
        return answer.grants or []

    def _send(self, calls: Sequence["_Call"]) -> "asyncio.Future[_Changed]":
        """Start one commit for the settles and claims that this process makes at the same time."""
        endings = [ending for call in calls for ending in call.endings]
        claims = [(call.claim, call.again) for call in calls if call.claim is not None]
        requests = [request for request, _ in claims]
        few = len(endings) + sum(request.limit for request in requests) <= MAX_BRIEF
        brief = few and not any(call.thorough for call in calls)

        def operation(tx: Tx) -> _Changed:
            # After a ban, claims run in the next commit: this one blocks lanes that their read in advance would show.
            banned = any(ban_of(ending) is not None for ending in endings)
            if endings and requests and not banned:
                claiming.expect(tx, requests)
            settled, freed = settling.settle(tx, self._ctx, endings) if endings else ([], [])
            if endings and requests:
                tx.flush_writes()
            granted: list[list[Grant] | None] = [None] * len(requests)
            block_limit = claiming.BlockLimit(MAX_BRIEF_BLOCKED if brief else MAX_IN_BATCH)
            # Lanes that waited for a key become ready after this commit: a claim in it would skip them.
            now = [n for n, (_, again) in enumerate(claims) if not banned and (again or not freed)]
            asked = [requests[n] for n in now]
            for n, grants in zip(now, self._grant(tx, asked, block_limit, again=bool(settled)), strict=True):
                granted[n] = grants
            changed = _Changed(calls, settled, freed, granted, block_limit.unfinished)
            rows = [row for call, ended, grants in changed.parts() for row in call.rows(tx, ended, grants)]
            if rows:
                tx.write("put_answers", rows)
            return changed

        return self._engine.change(operation, brief=brief)

    def _grant(
        self, tx: Tx, requests: Sequence[ClaimRequest], block_limit: claiming.BlockLimit, *, again: bool
    ) -> list[list[Grant]]:
        """Grant what was asked for. With `again`, a claim that got too little reads once more: lanes that this commit
        settled may be ready."""
        granted = claiming.claim_all(tx, self._ctx, requests, block_limit) if requests else []
        short = [n for n, request in enumerate(requests) if len(granted[n]) < request.limit] if again else []
        if short:
            missing = [evolve(requests[n], limit=requests[n].limit - len(granted[n])) for n in short]
            for n, more in zip(short, claiming.claim_all(tx, self._ctx, missing, block_limit), strict=True):
                granted[n].extend(more)
        return granted

    def _answers(self, changed: "_Changed") -> list["_Answer"]:
        """The answer of each call. Wakes lanes or callers that waited for what was settled."""
        woken = None
        if changed.freed:
            woken = asyncio.ensure_future(self._wake(changed.freed))
        elif changed.settled:
            self._engine.hint()
        return [_Answer(settled, grants, woken, changed.unfinished) for _, settled, grants in changed.parts()]

    async def _give_back(self, answer: "_Answer") -> None:
        """Give back the leases of a cancelled caller: their jobs return to their places in the queue."""
        if answer.grants:
            await self.settle([Ending(ref=grant.lease.ref, not_started=True) for grant in answer.grants])

    async def acquire(self, request: LeaseRequest) -> Grant:
        checks.check_lease(request)
        granted = await self._change(
            lambda tx: claiming.acquire(tx, self._ctx, request),
            answer=lambda granted: NOTHING if isinstance(granted, ProfileBusy) else granted,
            brief=True,
        )
        if isinstance(granted, ProfileBusy):
            raise granted
        return granted

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        checks.check_batch(renewals, "renewals")
        if not renewals:
            return []
        return await self._engine.change(
            lambda tx: heartbeats.renew(tx, self._ctx, renewals), brief=len(renewals) <= MAX_BRIEF
        )

    async def checkpoint(self, ref: LeaseRef, step: str, *, url: str | None = None) -> None:
        step, url = clean(step), clean(url) if url else None
        await self._write_under_lease(ref, lambda tx: heartbeats.checkpoint(tx, self._ctx, ref, step, url))

    async def enter_section(self, ref: LeaseRef, name: str, *, idempotent: bool = False) -> None:
        await self._write_under_lease(
            ref, lambda tx: heartbeats.enter_section(tx, self._ctx, ref, clean(name), idempotent=idempotent)
        )

    async def leave_section(self, ref: LeaseRef, name: str) -> None:
        await self._write_under_lease(ref, lambda tx: heartbeats.leave_section(tx, self._ctx, ref, clean(name)))

    async def write_note(self, ref: LeaseRef, text: str, *, about: NoteAbout = NoteAbout.PROFILE) -> None:
        await self._write_under_lease(ref, lambda tx: notes.write_note(tx, self._ctx, ref, clean(text), about))

    async def _write_under_lease(self, ref: LeaseRef, operation: Callable[[Tx], Refusal | None]) -> None:
        """A write under a lease. Raises LeaseLost or LeaseExpired if it was refused."""
        why = await self._change(operation, answer=lambda why: why and NOTHING, brief=True)
        heartbeats.lost(ref, why)

    async def settle(self, endings: Sequence[Ending]) -> list[Settled]:
        checks.check_endings(endings)
        if not endings:
            return []
        answer = await self._calls.put(_Call(endings=_without_hand_over(endings), naming=self.naming))
        if answer.woken is not None:
            await asyncio.shield(answer.woken)
        return answer.settled

    async def hand_over(
        self, ending: Ending, request: ClaimRequest, *, among: Sequence[str] | None = None
    ) -> HandedOver | None:
        checks.check_endings([ending])
        tasks = request.tasks if among is None else among
        ending = evolve(ending, facts=evolve(ending.facts, browser=Browser.HANDED_OVER))
        try:
            handed, freed = await self._change(
                lambda tx: hand_over.hand_over(tx, self._ctx, ending, request, tasks), answer=itemgetter(0)
            )
        except hand_over.NobodyWaits:
            return None
        await self._wake(freed)
        return handed

    async def expire(self, limit: int = MAX_IN_BATCH, *, seen: datetime | None = None) -> list[Lease]:
        expired, freed = await self._change(
            lambda tx: settling.expire(tx, self._ctx, limit, seen), answer=lambda both: both[0] or NOTHING
        )
        if freed:
            await self._wake(freed)
        return expired

    async def pause_expiry(self, span: timedelta, jump: timedelta) -> None:
        await self._change(lambda tx: heartbeats.pause_expiry(tx, self._ctx, span, jump))

    async def resolve(self, resolutions: Sequence[Resolution]) -> list[Settled]:
        checks.check_batch(resolutions, "resolutions")
        found = ((f"resolutions[{n}].facts.evidence", each.facts.evidence) for n, each in enumerate(resolutions))
        checks.check_storable("nothing was resolved", found)
        if not resolutions:
            return []
        answers = await self._change(lambda tx: settling.resolve(tx, self._ctx, resolutions))
        self._engine.hint()
        return answers

    async def promote(self, limit: int = MAX_IN_BATCH) -> int:
        promoted = await self._engine.change(lambda tx: submitting.promote(tx, self._ctx, limit))
        if promoted < limit:
            left = limit - promoted
            promoted += await self._engine.change(lambda tx: on_conflict.apply_to_waiting(tx, self._ctx, left))
        if promoted:
            self._engine.hint()
        return promoted

    async def fire(self, limit: int = MAX_IN_BATCH) -> list[Fired]:
        if not 1 <= limit <= MAX_IN_BATCH:
            raise InputError("nothing was fired", [Problem("limit", f"must be 1 to {MAX_IN_BATCH}")])
        fired, more = list[Fired](), await self._engine.view(scheduling.any_due)
        while more and not fired:
            fired, more = await self._change(
                lambda tx: scheduling.fire(tx, self._ctx, limit), answer=lambda both: both[0] or NOTHING
            )
        if fired:
            self._engine.hint()
        return fired

    async def heal(self, limit: int = MAX_IN_BATCH) -> int:
        healed, last = 0, ""
        while True:
            free, more = await self._engine.view(partial(settling.free_parked_keys, after=last, limit=limit))
            healed += await self._wake(free) if free else 0
            if more is None:
                break
            last = more
        if await self._engine.view(pausing.any_over):
            healed += await self._engine.change(lambda tx: pausing.end_pauses(tx, self._ctx, limit))
            self._engine.hint()
        (tasks,) = await self._engine.view(lambda tx: tx.read(("tasks_that_wait", {"limit": limit})))
        for row in tasks:
            healed += await self._unblock(row["pool"], [row["task"]])
        if kept := await self._engine.view(lambda tx: snapshots.reserved_too_long(tx, self._ctx, limit)):
            healed += await self._engine.change(lambda tx: snapshots.open_up(tx, kept))
            self._engine.hint()
        return healed

    async def forget_snapshots(self, snapshot_ids: Sequence[str]) -> int:
        checks.check_batch(snapshot_ids, "snapshots")
        if not snapshot_ids:
            return 0
        return await self._change(lambda tx: snapshots.forget(tx, self._ctx, snapshot_ids))

    async def decide(self, decision: Decision) -> Decided:
        deciding.check(decision)
        decision = evolve(decision, note=clean(decision.note), actor=clean(decision.actor))
        match decision.target:
            case Target.PROFILE | Target.ACCOUNT if decision.action is Action.NOTE:
                operation = notes.decide_note
            case Target.PROFILE:
                operation = deciding.decide_profile
            case Target.JOB:
                operation = deciding.decide_job
            case Target.ACCOUNT:
                operation = deciding.decide_account
            case Target.WEBHOOK:
                operation = sending.replay
            case Target.TOKEN:
                operation = tokens.revoke
            case Target.ENDPOINT:
                operation = endpoints.decide
            case Target.PAUSE:
                operation = pausing.decide_pause
            case Target.SCHEDULE:
                operation = scheduling.decide_schedule
            case Target.PROXY:
                operation = proxy_health.ask_again
            case Target.LEASE:
                return await self._decide_lease(decision)
            case _:
                assert_never(decision.target)
        decided = await self._change(lambda tx: operation(tx, self._ctx, decision))
        self._engine.hint()
        return decided

    async def _decide_lease(self, decision: Decision) -> Decided:
        if decision.action is Action.ANSWER:
            return await self._change(lambda tx: person_answers.answer(tx, self._ctx, decision))
        lease = await self._change(
            lambda tx: revoking.revoke(tx, self._ctx, decision.id, decision.actor, decision.note),
            answer=lambda lease: NOTHING if lease is None else Decided(state=lease.status, version=0),
        )
        if lease is None:
            raise NotFound(f"there is no live lease {decision.id}", what="lease", id=decision.id)
        return Decided(state=lease.status, version=0)

    async def report(self, report: WorkerReport) -> None:
        await self._engine.change(lambda tx: deciding.report(tx, self._ctx, report))
        if report.tasks and not report.stopping:
            await self._unblock(report.pool, report.tasks)

    async def _unblock(self, pool: str, tasks: Sequence[str]) -> int:
        """Unblock jobs that waited for a worker which offers their task, one batch per commit. Returns how many."""
        freed = 0
        while True:
            moved = await self._engine.change(lambda tx: submitting.unblock(tx, self._ctx, pool, tasks, MAX_IN_BATCH))
            freed += moved
            self._engine.hint()
            if moved < MAX_IN_BATCH:
                return freed

    async def report_proxy(self, report: ProxyReport) -> Proxy | None:
        report = evolve(report, detail=clean(report.detail))
        proxy = await self._change(lambda tx: proxy_health.report_proxy(tx, self._ctx, report))
        self._engine.hint()
        return proxy

    async def record(self, event: Event) -> None:
        checks.check_storable("the event was not recorded", [("data", event.data)])
        await self._change(lambda tx: deciding.record(tx, self._ctx, event))

    async def get(self, kind: type[T], record_id: str) -> T:
        return await self._engine.view(lambda tx: reading.get(tx, self._ctx, kind, record_id))

    async def find(
        self,
        kind: type[T],
        where: Mapping[str, str] | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[T]:
        return await self._engine.view(lambda tx: reading.find(tx, self._ctx, kind, where or {}, after, limit))

    async def stats(self) -> Stats:
        return await self._engine.view(lambda tx: reading.stats(tx, self._ctx))

    async def why(self, *, job_id: str | None = None, profile_id: str | None = None) -> WhyFacts:
        if (job_id is None) == (profile_id is None):
            raise InputError("ask why about a job or about a profile", [Problem("", "give one of job_id, profile_id")])
        return await self._engine.view(lambda tx: reading.why(tx, self._ctx, job_id, profile_id))

    async def wait(self, pool: str, timeout: timedelta) -> None:  # noqa: ARG002 - the port's; any change wakes all
        await self._engine.wait(timeout)

    async def prune(self, retention: Retention, limit: int = MAX_IN_BATCH) -> int:
        return await self._engine.change(lambda tx: pruning.prune(tx, retention, limit))

    async def _wake(self, keys: Sequence[str]) -> int:
        """Unpark the lanes that waited for these keys, and notify callers that wait for work.

        It runs in its own commit, after the one that freed the keys: locking other profiles in that one could cause
        deadlocks. If it fails, the earlier commit is still valid, and `heal` finds those lanes.
        """
        woken = 0
        if keys:
            with suppress(StoreError):
                woken = await self._engine.change(lambda tx: settling.wake(tx, keys))
        self._engine.hint()
        return woken


def _without_hand_over(endings: Sequence[Ending]) -> list[Ending]:
    """The endings with `NOT_PROVEN` in place of `HANDED_OVER`: without a next run, the browser was left open."""
    return [
        evolve(ending, facts=evolve(ending.facts, browser=Browser.NOT_PROVEN))
        if ending.facts.browser is Browser.HANDED_OVER
        else ending
        for ending in endings
    ]
