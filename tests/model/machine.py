"""The machine: one random history, driven into the model and into a real store, compared after each step.

Workers crash by being forgotten, answers are lost by being thrown away, clocks move when the history says so. What
a person, a worker or a sweeper could do at any moment is a rule; what must hold at every moment is in `audit`.
"""

from dataclasses import replace
from datetime import timedelta

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

from leasekeeper.core.decisions import ACTIONS, BAN_ACTIONS, Action, Target
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import ProfileId, Token, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import LeaseStatus, Mode, Purpose
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.settle import Browser, Ending, LostFacts
from leasekeeper.ports import ClaimRequest, LeaseRequest, Renewal
from tests.model import histories
from tests.model.calls import Calls
from tests.model.records import Held

NOT_MODELLED = (Target.WEBHOOK, Target.TOKEN, Target.SCHEDULE, Target.PROXY, Target.ENDPOINT, Target.PAUSE)


class Machine(Calls):
    """Rules for everything that may happen."""

    # Configuration, and time

    @initialize(fleet=histories.fleets(), specs=st.lists(histories.specs(), min_size=3, max_size=8))
    def begin(self, fleet: Fleet, specs: list[JobSpec]) -> None:
        self.both(lambda: self.store.apply(fleet, actor="test"), lambda: self.model.apply(fleet))
        for worker, pool in zip(histories.WORKERS, histories.POOLS, strict=False):
            self._report(worker, pool, histories.TASKS, stopping=False)
        for spec in specs:
            self._submit([spec])
        self.step()

    @rule(
        seconds=st.sampled_from([0.5, 5, 15, 20, 45, 61, 100, 400, 4000]),
        swept=st.booleans(),
        facts=histories.lost_facts(),
    )
    def time_passes(self, seconds: float, swept: bool, facts: LostFacts) -> None:
        """A little, a lot, or a jump; mostly a sweeper is there to notice."""
        self.move(timedelta(seconds=seconds))
        self.step()
        if swept:
            self._expire()
            self._resolve(list(range(6)), facts)
            self._promote()
            self.step()

    @rule(jump=st.sampled_from([-20, -3, 30, 1000]), span=st.sampled_from([60, 10]))
    def the_clock_jumps(self, jump: int, span: int) -> None:
        """And a sweeper has noticed. Backwards only as far as no job that came due is due later again."""
        after = self.clock.now + timedelta(seconds=jump)
        if any(job.run_at and job.run_at > after for job in self.model.jobs.values() if job.state != "scheduled"):
            return
        self.move(timedelta(seconds=jump))
        self.run(self.store.pause_expiry(timedelta(seconds=span), timedelta(seconds=jump)))
        self.model.pause_expiry(timedelta(seconds=span), timedelta(seconds=jump))
        self.step()

    @rule(change=histories.changes(), alone=st.booleans())
    def the_fleet_changes(self, change: histories.FleetChange, alone: bool) -> None:
        """One setting is edited. The file may hold the whole fleet, or only the record that changed."""
        model = self.model
        fleet = histories.changed(
            Fleet(accounts=model.accounts, profiles=model.profiles, proxies=model.proxies, limits=model.limits), change
        )
        if not alone:
            fleet = Fleet(
                accounts={**model.accounts, **fleet.accounts},
                profiles={**model.profiles, **fleet.profiles},
                proxies={**model.proxies, **fleet.proxies},
                limits={**model.limits, **fleet.limits},
            )
        self.both(lambda: self.store.apply(fleet, actor="test"), lambda: model.apply(fleet))
        self.step()

    @rule(
        worker=st.sampled_from(histories.WORKERS),
        pool=st.sampled_from(histories.POOLS),
        tasks=histories.task_sets(),
        stopping=st.sampled_from([False, False, False, True]),
    )
    def a_worker_reports(self, worker: str, pool: str, tasks: tuple[str, ...], stopping: bool) -> None:
        self._report(worker, pool, tasks, stopping=stopping)
        self.step()

    # Jobs

    @rule(specs=st.lists(histories.specs(), min_size=1, max_size=3), lost=st.booleans())
    def jobs_are_submitted(self, specs: list[JobSpec], lost: bool) -> None:
        """If the answer is lost, those with a key are submitted again."""
        self._submit(specs)
        keyed = [spec for spec in specs if spec.idempotency_key is not None]
        if lost and keyed:
            self.step()
            self._submit(keyed)
        self.step()

    @rule(specs=st.lists(histories.plain_specs(), min_size=1, max_size=4))
    def plain_jobs_are_submitted(self, specs: list[JobSpec]) -> None:
        self._submit(specs)
        self.step()

    # Leases

    @rule(
        worker=st.sampled_from(histories.WORKERS),
        pool=st.sampled_from(["default", "default", "vendor"]),
        tasks=histories.task_sets(),
        limit=st.integers(1, 4),
        lost=st.sampled_from([False, False, False, True]),
    )
    def a_worker_claims(self, worker: str, pool: str, tasks: tuple[str, ...], limit: int, lost: bool) -> None:
        """If the answer is lost the worker knows of no lease, and nobody renews them."""
        request = ClaimRequest(worker_id=WorkerId(worker), incarnation=worker, tasks=tasks, pool=pool, limit=limit)
        self._claim(request, lost=lost)
        self.step()

    @rule(limit=st.integers(1, 2))
    def every_worker_claims(self, limit: int) -> None:
        for worker, pool in (("w1", "default"), ("w2", "vendor"), ("w3", "default")):
            tasks = histories.TASKS
            request = ClaimRequest(worker_id=WorkerId(worker), incarnation=worker, tasks=tasks, pool=pool, limit=limit)
            self._claim(request, lost=False)
            self.step()

    @rule(rounds=st.integers(1, 4))
    def work_goes_on(self, rounds: int) -> None:
        """An ordinary day: whoever holds a lease completes, and everybody asks for more."""
        for _ in range(rounds):
            self.every_worker_claims(limit=1)
            held = [held for held in self.model.leases if self.is_in_use(held)]
            self._settle([replace(histories.DONE, ref=self.ref(one)) for one in held])
            self.step()

    @rule(
        picks=st.lists(st.tuples(st.integers(0, 3), histories.endings()), min_size=1, max_size=2),
        pool=st.sampled_from(["default", "default", "vendor"]),
        limit=st.integers(1, 2),
        twice=st.booleans(),
    )
    def a_worker_settles_and_claims_at_once(
        self, picks: list[tuple[int, Ending]], pool: str, limit: int, twice: bool
    ) -> None:
        """Calls of one process that are under way together: as if the endings had come first, then the claims.

        Which of them came first is nobody's promise, so the order of what was granted is not looked at.
        """
        chosen = [(self.pick_lease(index, any_of_all=False), ending) for index, ending in picks]
        endings = [replace(ending, ref=self.ref(held)) for held, ending in chosen if held is not None]
        request = ClaimRequest(
            worker_id=WorkerId("w1"), incarnation="w1", tasks=histories.TASKS, pool=pool, limit=limit
        )
        self._settle_and_claim(endings, [request] * (1 + twice))

    @rule(pick=st.integers(0, 3), ending=histories.endings(), limit=st.integers(1, 2))
    def sharers_come_and_go(self, pick: int, ending: Ending, limit: int) -> None:
        """One of several sharers ends, however it does, at the moment when the next one comes."""
        shared = [p for p, config in self.model.profiles.items() if config.max_active_runs > 1]
        if not shared:
            return
        profile = self.model.profiles[shared[pick % len(shared)]]
        spec = JobSpec(task="read", profile_id=profile.profile_id, mode=Mode.SHARED, priority=9)
        self._submit([spec] * 3)
        self.step()
        request = ClaimRequest(
            worker_id=WorkerId("w1"), incarnation="w1", tasks=("read",), pool=profile.pool, limit=limit
        )
        self._claim(request, lost=False)
        self.step()
        held = [held for held in self.model.live(profile.profile_id) if self.is_in_use(held)]
        self._settle_and_claim([replace(ending, ref=self.ref(held[-1]))] if held else [], [request])

    @rule(
        worker=st.sampled_from(histories.WORKERS),
        profile=st.sampled_from(histories.PROFILES),
        mode=st.sampled_from(Mode),
        purpose=st.sampled_from([Purpose.API, Purpose.API, Purpose.MANUAL, Purpose.INSPECT, Purpose.INSPECT]),
        policy=st.sampled_from([None, None, *ReleasePolicy]),
        seconds=st.sampled_from([None, None, 10, 600]),
        lost=st.sampled_from([False, False, True]),
    )
    def a_profile_is_leased_without_a_job(
        self,
        worker: str,
        profile: str,
        mode: Mode,
        purpose: Purpose,
        policy: ReleasePolicy | None,
        seconds: int | None,
        lost: bool,
    ) -> None:
        request = LeaseRequest(
            profile_id=ProfileId(profile),
            worker_id=WorkerId(worker),
            incarnation=worker,
            mode=mode,
            purpose=purpose,
            release_policy=policy,
            ttl=timedelta(seconds=seconds) if seconds else None,
        )
        expected: list[Held] = []
        grant = self.both(lambda: self.store.acquire(request), lambda: expected.append(self.model.acquire(request)))
        if grant is not None:
            self._check_grant(grant, expected[0])
            self.learn([grant], lost=lost)
            self.run(self.audit.limits([grant]))
        self.step()

    @rule(worker=st.sampled_from(histories.WORKERS))
    def a_worker_crashes(self, worker: str) -> None:
        self.forgotten |= {(held.profile, held.token) for held in self.model.leases if held.worker == worker}
        self.step()

    @rule(
        picks=st.lists(st.integers(0, 7), min_size=1, max_size=3),
        late=st.sampled_from([False, False, False, True]),
        status=st.sampled_from([LeaseStatus.RUNNING, LeaseStatus.RUNNING, LeaseStatus.RELEASING]),
    )
    def leases_are_renewed(self, picks: list[int], late: bool, status: LeaseStatus) -> None:
        leases = [held for index in picks if (held := self.pick_lease(index, any_of_all=late)) is not None]
        answers = self.run(self.store.renew([Renewal(ref=self.ref(held), status=status) for held in leases]))
        for held, answer in zip(leases, answers, strict=True):
            expires = self.model.renew(self.ref(held), status)
            assert (answer.expires_at, answer.refused is None) == (expires, expires is not None)
        self.step()

    @rule(
        pick=st.integers(0, 7),
        late=st.sampled_from([False, False, False, True]),
        writes=histories.writes(),
    )
    def a_holder_works(self, pick: int, late: bool, writes: list[str]) -> None:
        """Safe steps, with and without a URL, and mutating sections, in any order."""
        held = self.pick_lease(pick, any_of_all=late)
        if held is not None:
            self._write(self.ref(held), writes)

    @rule(
        picks=st.lists(st.tuples(st.integers(0, 7), histories.endings()), min_size=1, max_size=2),
        late=st.sampled_from([False, False, False, True]),
        lost=st.booleans(),
    )
    def runs_are_settled(self, picks: list[tuple[int, Ending]], late: bool, lost: bool) -> None:
        """If the answer is lost, the worker says the same again: that must be refused and change nothing."""
        chosen = [(self.pick_lease(index, any_of_all=late), ending) for index, ending in picks]
        endings = [replace(ending, ref=self.ref(held)) for held, ending in chosen if held is not None]
        self._settle(endings)
        if lost:
            self.step()
            self._settle(endings)
        self.step()

    @rule(picks=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
    def runs_complete(self, picks: list[int]) -> None:
        chosen = [held for index in picks if (held := self.pick_lease(index, any_of_all=False)) is not None]
        self._settle([replace(histories.DONE, ref=self.ref(held)) for held in chosen])
        self.step()

    @rule(
        pick=st.integers(0, 7),
        ending=st.one_of(st.just(histories.DONE), st.just(histories.DONE), histories.endings()),
        waiting=st.lists(st.sampled_from([*histories.TASKS, "buy", "urgent"]), max_size=2),
        tasks=histories.task_sets(),
    )
    def a_browser_is_handed_over(self, pick: int, ending: Ending, waiting: list[str], tasks: tuple[str, ...]) -> None:
        """The run ends and the next of its profile begins, or nothing happens at all."""
        if self.pick_lease(pick, any_of_all=False) is None:
            self.every_worker_claims(limit=1)
        held = self.pick_lease(pick, any_of_all=False)
        if held is None:
            return
        self._submit([self._next_job(held, task) for task in waiting])
        self.step()
        ending = replace(ending, ref=self.ref(held))
        request = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1", tasks=tasks, pool=held.pool)
        choice, live = self.model.hand_over(ending, request), self.model.holder(ending.ref) is not None
        handed = self.run(self.store.hand_over(ending, request))
        if handed is None:
            assert choice is None or self.model.others_first(choice, request), f"{choice.job.job_id} was not granted"
        elif handed.grant is None:
            assert not live
            assert handed.settled.refused is not None
        else:
            assert choice is not None, "this browser must not go on"
            assert not self.model.more_urgent(choice, request, apart_from=self.audit.parked)
            closed = replace(ending, facts=replace(ending.facts, browser=Browser.CLOSED))
            self._check_endings([closed], [handed.settled])
            (choice,) = [c for p, c in self.model.choices(request).items() if p == held.profile]
            self._check_grant(handed.grant, self.model.grant(choice, request.worker_id))
            self.learn([handed.grant], lost=False)
            self.run(self.audit.limits([handed.grant]))
        self.step()

    @rule(
        pick=st.integers(0, 7),
        wrong=st.sampled_from(["token", "lease_id", "profile_id", "routing_key"]),
        ending=histories.endings(),
        write=st.sampled_from(["renew", "checkpoint", "enter", "settle"]),
    )
    def a_reference_is_wrong(self, pick: int, wrong: str, ending: Ending, write: str) -> None:
        """One field of the reference is that of another lease: nothing may be written."""
        held, other = self.pick_lease(pick, any_of_all=False), self.pick_lease(pick + 1, any_of_all=True)
        if held is None or other is None:
            return
        ref, foreign = self.ref(held), self.ref(other)
        match wrong:
            case "token":
                ref = replace(ref, token=Token(ref.token + 1))
            case "lease_id":
                ref = replace(ref, lease_id=foreign.lease_id)
            case "profile_id":
                ref = replace(ref, profile_id=foreign.profile_id)
            case _:
                ref = replace(ref, routing_key=foreign.routing_key)
        if ref == self.ref(held):
            return
        match write:
            case "renew":
                (answer,) = self.run(self.store.renew([Renewal(ref=ref)]))
                assert answer.refused is not None
                assert answer.expires_at is None
            case "checkpoint":
                self.both(
                    lambda: self.store.checkpoint(ref, "wrong"), lambda: self.model.checkpoint(ref, "wrong", None)
                )
            case "enter":
                self.both(lambda: self.store.enter_section(ref, "x"), lambda: self.model.enter_section(ref, "x"))
            case _:
                (settled,) = self.run(self.store.settle([replace(ending, ref=ref)]))
                assert settled.refused is not None
        self.step()

    # Sweeps

    @rule(pick=st.integers(0, 7), writes=histories.writes(), facts=histories.lost_facts())
    def a_worker_is_lost(self, pick: int, writes: list[str], facts: LostFacts) -> None:
        """The usual story from the last words of a worker to the end of the lock-delay."""
        held = self.pick_lease(pick, any_of_all=False)
        if held is None:
            return
        self._write(self.ref(held), writes)
        self.move(held.ttl)
        self._expire()
        self.step()
        self._resolve(list(range(6)), facts)
        self.move(held.lock_delay)
        self._resolve(list(range(6)), facts)
        self.step()

    @rule(
        expire=st.booleans(),
        picks=st.lists(st.integers(0, 7), max_size=3, unique=True),
        facts=histories.lost_facts(),
        promote=st.booleans(),
    )
    def a_sweeper_looks(self, expire: bool, picks: list[int], facts: LostFacts, promote: bool) -> None:
        """Any part of a sweep: sweepers crash too."""
        if expire:
            self._expire()
            self.step()
        self._resolve(picks, facts)
        self.step()
        if promote:
            self._promote()
            self.step()

    @rule()
    def lost_wake_ups_are_healed(self) -> None:
        """When healing finds nothing more, a lane waits for an account's key only if somebody holds it."""
        for _ in range(len(self.model.profiles) + 1):
            if not self.run(self.store.heal()):
                break
        self.step()
        for profile, key in self.audit.parked.items():
            assert self.model.key_taken(key), f"{profile} waits for {key}, which nobody holds"

    # People

    @rule(
        about=st.sampled_from([target for target in Target if target not in NOT_MODELLED]),
        pick=st.integers(0, 15),
        action=st.integers(0, 4),
        version=st.sampled_from([None, None, "right", "wrong"]),
    )
    def a_person_decides(self, about: Target, pick: int, action: int, version: str | None) -> None:
        """Any decision about any record, sensible or not."""
        ids = {
            Target.PROFILE: list(self.model.profiles),
            Target.JOB: [*reversed(self.model.jobs), "nobody"],
            Target.ACCOUNT: list(self.model.accounts),
            Target.LEASE: [*(held.ref[0] for held in reversed(self.model.leases)), "nobody:1"],
        }[about]
        unknown = (*BAN_ACTIONS, Action.NOTE, Action.ANSWER)
        actions = [each for each in ACTIONS[about] if each not in unknown]
        self._decide(about, ids[pick % len(ids)], actions[action % len(actions)], version)
        self.step()

    @rule(pick=st.integers(0, 3))
    def a_person_is_faster_than_the_sweeper(self, pick: int) -> None:
        """A profile that went stale is taken out, put back and cleared before anybody resolved it."""
        stale = [profile for profile, side in self.model.sides.items() if side.state == "stale"]
        for action in (Action.DISABLE, Action.ENABLE, Action.CLEAR) if stale else ():
            self._decide(Target.PROFILE, stale[pick % len(stale)], action, "right")
            self.step()

    @rule()
    def a_person_cleans_up(self) -> None:
        """Whatever waits for a person gets the friendly answer, so that histories go on."""
        for account in sorted(self.model.paused):
            self._decide(Target.ACCOUNT, account, Action.RESUME, None)
        for profile, side in self.model.sides.items():
            if side.state in ("quarantined", "review_required"):
                self._decide(Target.PROFILE, profile, Action.CLEAR, "right")
            elif side.state == "disabled":
                self._decide(Target.PROFILE, profile, Action.ENABLE, "right")
        for job in self.model.jobs.values():
            if job.state == "review":
                self._decide(Target.JOB, job.job_id, Action.REQUEUE, "right")
        self.step()

    @rule(
        action=st.sampled_from([Action.RETRY, Action.DROP, Action.APPROVE, Action.REQUEUE, Action.CANCEL]),
        pick=st.integers(0, 7),
    )
    def a_person_decides_about_a_job_that_waits(self, action: Action, pick: int) -> None:
        waiting = {"retry": "dead", "drop": "dead", "approve": "blocked", "requeue": "review"}.get(action, "queued")
        jobs = [job for job in self.model.jobs.values() if job.state == waiting]
        if jobs:
            self._decide(Target.JOB, jobs[pick % len(jobs)].job_id, action, "right")
        self.step()
