"""What a history may call: each call is made in the model and in a real store, and the two answers are compared."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import JobId, LeaseId, ProfileId, WorkerId
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import LeasekeeperError
from leasekeeper.ports import ClaimRequest, Grant, Resolution, Settled, Store
from tests.model.audit import Audit
from tests.model.records import Held, Work
from tests.model.reference import Model

T = TypeVar("T")
R = TypeVar("R")
START = datetime(2030, 1, 1, tzinfo=UTC)
TICK = timedelta(milliseconds=1)
MAX_PUT_ASIDE = 64


class Clock:
    """The store's time, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self, _real: datetime) -> datetime:
        return self.now


class Calls(RuleBasedStateMachine):
    """Calls of both, and what their answers must have in common. `store` must be empty; it stays open between
    histories."""

    def __init__(self, store: Store, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.store, self.clock, self.loop = store, clock, loop
        clock.now = START
        self.model = Model(START)
        self.audit = Audit(store, self.model)
        self.refs: dict[tuple[str, int], LeaseRef] = {}
        self.forgotten: set[tuple[str, int]] = set()
        self.submitted = 0

    def run(self, call: Awaitable[T]) -> T:
        return self.loop.run_until_complete(_answer(call))

    def both(self, real: Callable[[], Awaitable[T]], model: Callable[[], object]) -> T | None:
        """Do it in both. They answer, or they raise the same error, and then nothing happened."""
        expected = _outcome(model)
        answer = _outcome(lambda: self.run(real()))
        failed = isinstance(answer, LeasekeeperError)
        same = type(answer) is type(expected) if failed else not isinstance(expected, LeasekeeperError)
        assert same, f"the store says {answer!r}, the model says {expected!r}"
        return None if isinstance(answer, LeasekeeperError) else answer

    def step(self) -> None:
        """After each rule: a little time passes, and everything is compared."""
        self.run(self.audit.compare())
        self.move(TICK)

    def move(self, by: timedelta) -> None:
        self.clock.now += by
        self.model.now = self.clock.now

    # Who and what a rule is about

    def pick_lease(self, index: int, *, any_of_all: bool) -> Held | None:
        """A lease that some worker believes to hold; or any that ever was, for late writes."""
        known = [held for held in self.model.leases if any_of_all or self.is_in_use(held)]
        return known[-1 - index % len(known)] if known else None

    def is_in_use(self, held: Held) -> bool:
        return held.ended is None and (held.profile, held.token) not in self.forgotten

    def ref(self, held: Held) -> LeaseRef:
        return self.refs[held.profile, held.token]

    def learn(self, grants: Sequence[Grant], *, lost: bool) -> None:
        for grant in grants:
            key = (str(grant.lease.profile_id), int(grant.lease.token))
            self.refs[key] = grant.lease.ref
            if lost:
                self.forgotten.add(key)

    # Calls and their answers

    def _report(self, worker: str, pool: str, tasks: tuple[str, ...], *, stopping: bool) -> None:
        report = WorkerReport(worker_id=WorkerId(worker), incarnation=worker, pool=pool, tasks=tasks, stopping=stopping)
        self.both(lambda: self.store.report(report), lambda: self.model.report(report))

    def _submit(self, specs: list[JobSpec]) -> None:
        """The history's jobs get names, and times that count from now."""
        elapsed = self.clock.now - START
        named = []
        for spec in specs:
            self.submitted += 1
            run_at = spec.run_at + elapsed if spec.run_at else None
            named.append(replace(spec, job_id=JobId(f"j{self.submitted}"), run_at=run_at))
        expected: list[tuple[Work, bool, str | None]] = []
        answers = self.both(lambda: self.store.submit(named), lambda: expected.extend(self.model.submit(named)))
        for answer, (job, handled, decision) in zip(answers or (), expected, strict=True):
            assert (answer.job.job_id, answer.already_handled, answer.decision) == (job.job_id, handled, decision)
            listed = self.run(self.store.get(Job, answer.job.job_id))  # which the next comparison judges by the model
            assert (answer.job.state, answer.job.blocked_reason) == (listed.state, listed.blocked_reason)

    def _claim(self, request: ClaimRequest, *, lost: bool) -> None:
        grants = self.run(self.store.claim(request))
        aside = self.run(self.audit.put_aside())
        self._check_claim(request, grants, aside)
        self.learn(grants, lost=lost)
        self.run(self.audit.limits(grants))

    def _settle_and_claim(self, endings: list[Ending], requests: list[ClaimRequest]) -> None:
        settled, *claimed = self.run(self._together(endings, requests))
        self._check_endings(endings, settled)
        aside = self.run(self.audit.put_aside())
        grants = [grant for answer in claimed for grant in answer]
        limit = sum(request.limit for request in requests)
        self._check_claim(replace(requests[0], limit=limit), grants, aside, ordered=False)
        self.learn(grants, lost=False)
        self.step()

    async def _together(self, endings: list[Ending], requests: list[ClaimRequest]) -> list[Any]:
        return await asyncio.gather(self.store.settle(endings), *map(self.store.claim, requests))

    def _check_claim(self, request: ClaimRequest, grants: list[Grant], aside: int, *, ordered: bool = True) -> None:
        """The granted jobs are those that the order asks for; equal places may go either way.

        A lane that waits for an account's key may be passed over until somebody looks (`heal`). Beside an ending
        (not `ordered`) it need not be: the ending may have woken it.
        """
        assert len(grants) <= request.limit
        left = {str(grant.job.job_id): grant for grant in grants if grant.job is not None}
        assert len(left) == len(grants)
        served: set[str] = set()
        while left:
            choices = self.model.choices(request)
            first = {p: c for p, c in choices.items() if p not in served and p not in self.audit.parked}
            best = min((c.place for c in first.values()), default=None)
            ready = [c for c in first.values() if c.place == best] if ordered else []
            ready = ready or list(choices.values())
            chosen = next((c for c in ready if c.job.job_id in left), None)
            chosen = chosen or next((c for p, c in choices.items() if p in served and c.job.job_id in left), None)
            assert chosen is not None, f"granted {sorted(left)}, but next is one of {[c.job.job_id for c in ready]}"
            held = self.model.grant(chosen, request.worker_id)
            served.add(held.profile)
            self._check_grant(left.pop(chosen.job.job_id), held)
        missed = [p for p in self.model.choices(request) if p not in served and p not in self.audit.parked]
        assert len(grants) == request.limit or not missed or aside >= MAX_PUT_ASIDE, f"nothing from {missed}"

    def _check_grant(self, grant: Grant, held: Held) -> None:
        lease = grant.lease
        assert (lease.lease_id, lease.profile_id, lease.token) == held.ref
        assert (lease.routing_key, lease.pool, lease.shared) == (held.key, held.pool, held.shared)
        assert (lease.expires_at, lease.release_policy) == (held.expires, held.policy)
        assert grant.profile == self.model.profiles[held.profile]
        if grant.job is not None and held.job is not None:
            assert (grant.job.state, grant.job.attempt) == ("running", held.job.attempt)

    def _write(self, ref: LeaseRef, writes: list[str]) -> None:
        model, store = self.model, self.store
        for write in writes:
            what, _, name = write.partition(" ")
            url = "https://shop.example/" if what == "place" else None
            match what:
                case "enter":
                    again = name == "sync"
                    self.both(
                        partial(store.enter_section, ref, name, idempotent=again),
                        partial(model.enter_section, ref, name, idempotent=again),
                    )
                case "leave":
                    self.both(partial(store.leave_section, ref, name), partial(model.leave_section, ref, name))
                case _:
                    self.both(partial(store.checkpoint, ref, what, url=url), partial(model.checkpoint, ref, what, url))
            self.step()

    def _settle(self, endings: list[Ending]) -> None:
        self._check_endings(endings, self.run(self.store.settle(endings)))

    def _check_endings(self, endings: list[Ending], answers: Sequence[Settled]) -> None:
        for ending, answer in zip(endings, answers, strict=True):
            held = self.model.settle(ending)
            assert (answer.refused is None) == (held is not None), (answer, ending)
            if held is not None:
                self._check_settled(answer.job_state, answer.profile_state, held)

    def _check_settled(self, job_state: str | None, profile_state: str | None, held: Held) -> None:
        assert profile_state == self.model.sides[held.profile].state
        if held.job is not None and job_state is not None:
            assert job_state == held.job.state
            self.run(self.audit.learn_retry(held.job))

    def _next_job(self, held: Held, task: str) -> JobSpec:
        """A job that the open browser could take on; `urgent` is one of the same account elsewhere, if there is one."""
        others = [p for p, config in self.model.profiles.items() if config.account_id == held.account]
        if task == "urgent":
            return JobSpec(task="buy", profile_id=ProfileId(others[-1]), priority=7)
        return JobSpec(task=task, profile_id=ProfileId(held.profile), pool=held.pool)

    def _promote(self) -> None:
        promoted = self.run(self.store.promote())
        assert promoted == self.model.promote()

    def _expire(self) -> None:
        expired = {str(lease.lease_id) for lease in self.run(self.store.expire())}
        assert expired == {held.ref[0] for held in self.model.expire()}

    def _resolve(self, picks: list[int], facts: LostFacts) -> None:
        waiting = self.run(self.store.unresolved())
        assert {str(lease.lease_id) for lease in waiting} == {held.ref[0] for held in self.model.unresolved()}
        leases = list({held.ref[0]: held for index in picks if (held := self._lost(index)) is not None}.values())
        answers = self.run(
            self.store.resolve([Resolution(lease_id=LeaseId(held.ref[0]), facts=facts) for held in leases])
        )
        by_lease = {str(answer.lease_id): answer for answer in answers}
        for held in leases:
            resolved = self.model.resolve(held, facts)
            assert resolved == (held.ref[0] in by_lease)
            if resolved:
                self._check_settled(by_lease[held.ref[0]].job_state, by_lease[held.ref[0]].profile_state, held)

    def _lost(self, index: int) -> Held | None:
        """Mostly a lease that waits for its resolution; sometimes one that does not."""
        waiting = self.model.unresolved()
        if waiting and index < 6:
            return waiting[index % len(waiting)]
        return self.pick_lease(index, any_of_all=True)

    def _decide(self, target: Target, record_id: str, action: Action, version: str | None) -> None:
        number = {"right": self.run(self.audit.version(target, record_id)), "wrong": 0}.get(version or "")
        decision = Decision(target=target, id=record_id, action=action, note="because", actor="ann", version=number)
        expected: list[str] = []
        decided = self.both(lambda: self.store.decide(decision), lambda: expected.append(self.model.decide(decision)))
        if decided is not None:
            assert expected == [decided.state] or (expected == ["queued"] and decided.state == "queued")
            if target in (Target.PROFILE, Target.JOB, Target.ACCOUNT):
                assert decided.version == self.run(self.audit.version(target, record_id))


def _outcome(call: Callable[[], R]) -> R | LeasekeeperError:
    try:
        return call()
    except LeasekeeperError as error:
        return error


async def _answer(call: Awaitable[T]) -> T:
    return await call
