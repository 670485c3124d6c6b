"""The reference model: what a store must do, as plain Python over dictionaries, one call at a time.

Written from PRODUCT.md (sections 2 to 6 and 10) and the port's docstrings, not from a store. It knows no lanes, no
locks, no SQL and no cost. Where the text leaves a choice (which of two equal lanes comes first, how long the jitter
makes a delay) the model is given what the store chose and says whether it may.
"""

from collections.abc import Container, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.jobs import Backoff, JobSpec
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.profiles import Profile
from leasekeeper.core.settle import Browser, Ending, LostFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import (
    Conflict,
    IdempotencyConflict,
    IllegalTransition,
    InputError,
    LeaseExpired,
    LeaseLost,
    NotFound,
    ProfileBusy,
    UnknownProfile,
    VersionConflict,
)
from leasekeeper.ports import ClaimRequest, LeaseRequest
from tests.model.records import Choice, Held, Side, Work
from tests.model.tables import DEFAULT_RULE, FAILURES, FINAL, JOB_DECISIONS, PROFILE_DECISIONS, STRICTNESS, WAITS, Rule

TTL = timedelta(seconds=60)
MAX_LOSSES = 2
FREE_GIVE_BACKS = 3
WORKER_TTL = timedelta(seconds=90)
BACKOFF = Backoff()


def _end_of(side: Side) -> str:
    """Where a profile goes when its last lease ended and is explained."""
    if side.drain == "disabled":
        return side.drain
    return max((side.verdict, side.drain), key=[None, "review_required", "quarantined"].index) or "available"


class Model:
    """The whole store. Every method is one operation, at `now`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.accounts: dict[str, Account] = {}
        self.profiles: dict[str, Profile] = {}
        self.proxies: dict[str, Proxy] = {}
        self.limits: dict[str, Limit] = {}
        self.sides: dict[str, Side] = {}
        self.jobs: dict[str, Work] = {}
        self.leases: list[Held] = []
        self.keys: dict[str, Work] = {}
        self.known: set[tuple[str, str]] = set()
        self.workers: dict[str, tuple[WorkerReport, datetime]] = {}
        self.paused: set[str] = set()
        self.account_versions: dict[str, int] = {}
        self.expiry_resumes = now

    # Configuration

    def apply(self, fleet: Fleet) -> None:
        """Configuration only; jobs that were blocked by what changed move on."""
        known = [(profile, self.profiles[name]) for name, profile in fleet.profiles.items() if name in self.profiles]
        if any(new.disposable != old.disposable and self.live(old.profile_id) for new, old in known):
            raise Conflict("how runs share a profile changes while nobody holds it")
        self.proxies.update(fleet.proxies)
        for account_id, account in fleet.accounts.items():
            self.accounts[account_id] = account
            self.account_versions.setdefault(account_id, 1)
        for profile_id, profile in fleet.profiles.items():
            self.profiles[profile_id] = profile
            self.sides.setdefault(profile_id, Side(since=self.now))
        self.limits.update(fleet.limits)
        self._move_on()

    def report(self, said: WorkerReport) -> None:
        """A worker offers its tasks; jobs that waited for one of them move on."""
        if not said.stopping:
            self.known |= {(said.pool, task) for task in said.tasks}
        self.workers[said.incarnation] = (said, self.now)
        self._move_on()

    # Facts

    def live(self, profile: str) -> list[Held]:
        return [held for held in self.leases if held.profile == profile and held.ended is None]

    def unresolved(self, profile: str | None = None) -> list[Held]:
        return [held for held in self.leases if held.unresolved and profile in (None, held.profile)]

    def lane(self, profile: str) -> list[Work]:
        waiting = [job for job in self.jobs.values() if job.profile == profile and job.state == "queued"]
        return sorted(waiting, key=lambda job: job.order)

    def key(self, profile: str, task: str | None, shared: bool) -> str:
        account = self.profiles[profile].account_id
        match self.accounts[account].routing:
            case "profile":
                return f"profile:{profile}"
            case "account_task" if shared and task is not None:
                return f"account:{account}:task:{task}"
            case _:
                return f"account:{account}"

    def key_taken(self, key: str) -> bool:
        """Wider keys only: a profile's own key is what `joinable` answers for."""
        if not key.startswith("account:"):
            return False
        account = key.split(":")[1]
        whole = self.accounts[account].routing == "account"

        def counts(held: Held) -> bool:
            earlier = not held.key.startswith("account:") and key == f"account:{account}"
            return held.key == key or (held.account == account and (whole or earlier))

        return any(held.ended is None and counts(held) for held in self.leases)

    def room(self, pool: str) -> bool:
        limit = self.limits.get(pool)
        return limit is None or sum(held.pool == pool and held.ended is None for held in self.leases) < limit.max_leases

    def joinable(self, profile: str, shared: bool, *, apart_from: Work | None = None) -> bool:
        """Whether one more run of this mode may start in the profile now; or could, but for one job's own runs."""
        config, side = self.profiles[profile], self.sides[profile]
        live = [held for held in self.live(profile) if apart_from is None or held.job is not apart_from]
        lost = [held for held in self.unresolved(profile) if apart_from is None or held.job is not apart_from]
        if side.state == "available":
            return True
        if side.state != "leased" or side.verdict or side.drain or lost:
            return False
        all_share = config.disposable or (shared and all(held.shared for held in live))
        return all_share and len(live) < config.max_active_runs

    def lane_block(self, profile: str) -> str | None:
        """What holds the whole lane, as its jobs show it; limits that are shared with other profiles apart."""
        side, queue = self.sides[profile], self.lane(profile)
        if self.profiles[profile].account_id in self.paused:
            return "blocked_by_account_pause"
        if side.state == "review_required":
            return "blocked_by_review_required"
        if side.state in ("stale", "quarantined", "disabled"):
            return "blocked_by_profile_state"
        if not self.joinable(profile, bool(queue) and queue[0].shared):
            return "blocked_by_profile_lease"
        return None

    def job_blocks(self, job: Work) -> set[str]:
        """Everything about the job itself that stops it."""
        profile, spec = self.profiles[job.profile], job.spec
        proxy = self.proxies[profile.proxy_id] if profile.proxy_id else None
        found = set()
        if spec.risk_level == "review_required" and not job.approved:
            found.add("blocked_by_approval")
        if spec.proxy_id is not None and spec.proxy_id != profile.proxy_id:
            found.add("blocked_by_proxy_mismatch")
        if spec.expected_proxy_region is not None and spec.expected_proxy_region != (proxy and proxy.region):
            found.add("blocked_by_proxy_mismatch")
        if spec.expected_language is not None and spec.expected_language != profile.language:
            found.add("blocked_by_environment_mismatch")
        if spec.expected_timezone is not None and spec.expected_timezone != profile.timezone:
            found.add("blocked_by_environment_mismatch")
        if (job.pool, spec.task) not in self.known:
            found.add("blocked_by_no_worker")
        return found

    def offered(self, pool: str, task: str) -> bool:
        return any(
            said.pool == pool and task in said.tasks and not said.stopping and at > self.now - WORKER_TTL
            for said, at in self.workers.values()
        )

    def shown(self, job: Work, parked: bool) -> tuple[str, set[str]]:
        """The state that people see, and the reasons that may stand beside it.

        `parked`: the store says that the lane waits for an account's key. It may say so until somebody looks.
        """
        if job.state == "blocked":
            return "blocked", self.job_blocks(job)
        if job.state != "queued":
            return job.state, set()
        reason = self.lane_block(job.profile) or ("blocked_by_profile_lease" if parked else None)
        if reason is None and not self.room(job.pool):
            reason = "blocked_by_capacity"
        if reason is None and not self.offered(job.pool, job.spec.task):
            reason = "blocked_by_no_worker"
        return ("blocked", {reason}) if reason else ("queued", set())

    # Jobs come in

    def submit(self, specs: Sequence[JobSpec]) -> list[tuple[Work, bool, str | None]]:
        """All or none. Answers the job, whether it was handled already, and what a conflict led to."""
        if any(self._target(spec) not in self.profiles for spec in specs):
            raise UnknownProfile("no such profile")
        new: dict[str, JobSpec] = {}
        for spec in specs:
            self._check_spec(spec, new)
            if spec.idempotency_key is not None:
                new.setdefault(spec.idempotency_key, spec)
        answers: list[tuple[Work, bool, str | None]] = []
        for spec in specs:
            if spec.idempotency_key in self.keys:
                answers.append((self.keys[spec.idempotency_key], True, "blocked_by_duplicate_idempotency_key"))
                continue
            job = self._new_job(spec)
            answers.append((job, False, self._place(job, follow_conflict=True)))
        self._move_on()
        return answers

    def _check_spec(self, spec: JobSpec, new: dict[str, JobSpec]) -> None:
        profile = self.profiles[self._target(spec)]
        if spec.idempotency_key is not None:
            known = self.keys.get(spec.idempotency_key)
            first = known.spec if known else new.get(spec.idempotency_key)
            if first is not None:
                if replace(first, job_id=None) != replace(spec, job_id=None):
                    raise IdempotencyConflict("the key has another body")
                return
        if spec.release_policy and STRICTNESS[spec.release_policy] < STRICTNESS[profile.release_policy]:
            raise InputError("more lenient than the profile")

    def _target(self, spec: JobSpec) -> str:
        if spec.profile_id is not None:
            return spec.profile_id
        return next((p for p, profile in self.profiles.items() if profile.account_id == spec.account_id), "")

    def _new_job(self, spec: JobSpec) -> Work:
        profile = self.profiles[self._target(spec)]
        job = Work(
            job_id=spec.job_id or "",
            seq=len(self.jobs) + 1,
            spec=spec,
            account=profile.account_id,
            profile=profile.profile_id,
            pool=spec.pool or profile.pool,
            run_at=spec.run_at,
        )
        self.jobs[job.job_id] = job
        if spec.idempotency_key is not None:
            self.keys[spec.idempotency_key] = job
        return job

    def _place(self, job: Work, *, follow_conflict: bool) -> str | None:
        """Scheduled, blocked by itself, in conflict, or in its lane."""
        if job.run_at is not None and job.run_at > self.now:
            self._put(job, "scheduled")
            return None
        if self.job_blocks(job):
            self._put(job, "blocked")
            return None
        if not (follow_conflict and self._conflicts(job)):
            self._put(job, "queued")
            return None
        return self._follow(job)

    def _follow(self, job: Work) -> str:
        """What a job does that is in conflict."""
        match job.spec.on_conflict:
            case "reschedule":
                job.run_at = self.now + timedelta(seconds=job.spec.conflict_delay_seconds)
                self._put(job, "scheduled")
            case "skip":
                self._put(job, "skipped")
            case "review":
                self._put(job, "review")
            case _:
                self._put(job, "queued")
        return job.spec.on_conflict.value

    def _meet(self, profile: str) -> int:
        """Jobs that wait in the lane and do not want to wait for somebody else's lease. Those of people do."""
        found = [job for job in self.lane(profile) if job.spec.on_conflict != "wait" and not job.approved]
        met = [job for job in found if self._conflicts(job)]
        for job in met:
            self._follow(job)
        return len(met)

    def _conflicts(self, job: Work) -> bool:
        """Somebody else's lease, or what one left behind, is what keeps the job from running now."""
        open_here = [held for held in (*self.live(job.profile), *self.unresolved(job.profile)) if held.job is not job]
        taken = self.sides[job.profile].state in ("leased", "stale") and bool(open_here)
        if taken and not self.joinable(job.profile, job.shared, apart_from=job):
            return True
        key = self.key(job.profile, job.spec.task, job.shared)
        return key.startswith("account:") and any(
            held.key == key and held.ended is None and held.job is not job for held in self.leases
        )

    def _put(self, job: Work, state: str) -> None:
        job.state = state
        if job.spec.callback_url and (state in FINAL or state == "review"):
            job.reported[f"job.{state}"] += 1

    def _move_on(self) -> None:
        """After every operation: blocked jobs that nothing stops any more, and since when each lane could run."""
        for job in sorted(self.jobs.values(), key=lambda job: job.seq):
            if job.state == "blocked" and not self.job_blocks(job):
                self._place(job, follow_conflict=False)
        for profile, side in self.sides.items():
            ready = bool(self.lane(profile)) and self.lane_block(profile) is None
            if ready and not side.ready:
                side.since = self.now
            side.ready = ready

    def promote(self) -> int:
        """Scheduled jobs that are due go where they belong."""
        due = [job for job in self.jobs.values() if job.state == "scheduled" and job.run_at and job.run_at <= self.now]
        for job in due:
            self._place(job, follow_conflict=True)
        met = sum(self._meet(profile) for profile in self.profiles)
        self._move_on()
        return len(due) + met

    # Leases are granted

    def choices(self, request: ClaimRequest) -> dict[str, Choice]:
        """For each lane that may give a job to this worker now: which one."""
        found = {}
        for profile, side in self.sides.items():
            for job in self.lane(profile):
                if job.pool != request.pool or job.spec.task not in request.tasks:
                    break
                if self.job_blocks(job):
                    continue
                key = self.key(profile, job.spec.task, job.shared)
                free = self.joinable(profile, job.shared) and job.account not in self.paused
                if free and not self.key_taken(key) and self.room(job.pool):
                    found[profile] = Choice(job, key, (-job.spec.priority, side.since))
                break
        return found

    def grant(self, choice: Choice, worker: str) -> Held:
        """Give the job and its profile to the worker."""
        job = choice.job
        policies = (job.spec.release_policy or "recover", self.profiles[job.profile].release_policy)
        seconds = job.spec.lock_timeout_seconds
        held = self._lease(
            job.profile,
            job=job,
            worker=worker,
            key=choice.key,
            pool=job.pool,
            shared=job.shared,
            policy=max(policies, key=STRICTNESS.__getitem__),
            ttl=timedelta(seconds=seconds) if seconds else TTL,
        )
        job.state, job.lease = "running", held
        job.attempt += 1
        if self.lane(job.profile):
            self.sides[job.profile].since = self.now
        self._meet(job.profile)
        self._move_on()
        return held

    def acquire(self, request: LeaseRequest) -> Held:
        """One profile without a job, under the same limits."""
        if request.mode == "shared" and request.purpose == "inspect":
            raise InputError("who looks inside is alone")
        if request.profile_id not in self.profiles:
            raise NotFound("no such profile")
        profile = self.profiles[request.profile_id]
        shared = request.mode == "shared"
        key, side = self.key(profile.profile_id, None, shared), self.sides[profile.profile_id]
        looks_inside = request.purpose == "inspect" and side.state in ("review_required", "quarantined", "disabled")
        free = not self.unresolved(profile.profile_id) if looks_inside else self.joinable(profile.profile_id, shared)
        if (
            (profile.account_id in self.paused and request.purpose not in ("manual", "inspect"))
            or not free
            or self._somebody_waits_alone(profile.profile_id)
            or self.key_taken(key)
            or not self.room(profile.pool)
        ):
            raise ProfileBusy("cannot be leased")
        if looks_inside:
            side.drain, side.asked = side.state, side.state in WAITS
        held = self._lease(
            profile.profile_id,
            job=None,
            worker=request.worker_id,
            key=key,
            pool=profile.pool,
            shared=shared,
            policy=max((request.release_policy or "recover", profile.release_policy), key=STRICTNESS.__getitem__),
            ttl=request.ttl or TTL,
        )
        self._meet(profile.profile_id)
        self._move_on()
        return held

    def _somebody_waits_alone(self, profile: str) -> bool:
        """The next job of the lane waits for the sharers to drain: nobody joins them any more."""
        queue = self.lane(profile)
        waits = bool(queue) and not (queue[0].shared or self.profiles[profile].disposable)
        return waits and bool(self.live(profile))

    def _lease(
        self,
        profile: str,
        *,
        job: Work | None,
        worker: str,
        key: str,
        pool: str,
        shared: bool,
        policy: str,
        ttl: timedelta,
    ) -> Held:
        side = self.sides[profile]
        side.token += 1
        side.state = "leased"
        held = Held(
            profile=profile,
            token=side.token,
            account=self.profiles[profile].account_id,
            job=job,
            worker=worker,
            key=key,
            pool=pool,
            shared=shared,
            policy=str(policy),
            ttl=ttl,
            expires=self.now + ttl,
            proxy=self.profiles[profile].proxy_id,
        )
        self.leases.append(held)
        return held

    # Holders write

    def holder(self, ref: LeaseRef, *, ever: bool = False) -> Held | None:
        """The lease that may write under this reference, if it may; or might, but for the time."""
        for held in self.leases:
            mine = held.ref == (ref.lease_id, ref.profile_id, ref.token) and held.key == ref.routing_key
            in_time = ever or held.expires > self.now or self.expiry_pauses
            if mine and held.ended is None and held.status != "revoked" and in_time:
                return held
        return None

    @property
    def expiry_pauses(self) -> bool:
        return self.now < self.expiry_resumes

    def pause_expiry(self, span: timedelta, jump: timedelta) -> None:
        """The clock jumped: it cannot tell whose time is up, and everybody has one TTL from now.

        After a jump back an earlier pause lies in the future: it counts no more.
        """
        earlier = self.now if jump < timedelta(0) else self.expiry_resumes
        self.expiry_resumes = max(earlier, self.now + span)
        for held in self.leases:
            if held.ended is None:
                held.expires = self.now + held.ttl

    def renew(self, ref: LeaseRef, status: str) -> datetime | None:
        held = self.holder(ref)
        if held is None:
            return None
        held.expires = self.now + held.ttl
        held.status = "releasing" if "releasing" in (status, held.status) else "running"
        return held.expires

    def checkpoint(self, ref: LeaseRef, step: str, url: str | None) -> None:
        held = self._writer(ref)
        held.step, held.url, held.left = step, url or held.url, None

    def enter_section(self, ref: LeaseRef, name: str, *, idempotent: bool = False) -> None:
        held = self._writer(ref)
        if held.section is not None:
            raise Conflict("sections do not nest")
        if held.shared and not self.profiles[held.profile].disposable:
            raise Conflict("a change needs the profile alone")
        held.section, held.idempotent = name, idempotent

    def leave_section(self, ref: LeaseRef, name: str) -> None:
        held = self._writer(ref)
        if held.section != name:
            raise Conflict("another section is open, or none")
        held.left = held.left if held.idempotent else name
        held.section, held.idempotent = None, False

    def _writer(self, ref: LeaseRef) -> Held:
        held = self.holder(ref)
        if held is None:
            raise (LeaseExpired if self.holder(ref, ever=True) else LeaseLost)("not live")
        return held

    # Runs end

    def settle(self, ending: Ending) -> Held | None:
        """A holder reports its ending; None: it was refused. A retry's time is in `retry_window`."""
        held = self.holder(ending.ref)
        if held is None or (ending.not_started and held.section is None and not held.may_be_done):
            return held and self._give_back(held, ending)
        facts, reason = ending.facts, ending.reason
        if reason is None and (held.section is not None or ending.not_started):
            reason = "TASK_ERROR"
        if reason is None and not facts.evidence_saved:
            reason = "EVIDENCE_NOT_SAVED"
        rule = FAILURES.get(reason, self._registered(ending)) if reason else Rule(retry="", profile="available")
        held.ended, held.status = self.now, "released"
        verdict, held.unresolved = self._verdict(held, ending, rule)
        if held.job is not None:
            retry = "yes" if reason == "TASK_ERROR" and ending.retry else rule.retry
            self._end_job(held, reason, retry=retry, lost=rule.profile == "stale")
        self._end_profile(held.profile, verdict)
        self._move_on()
        return held

    def hand_over(self, ending: Ending, request: ClaimRequest) -> Choice | None:
        """What would be granted if this run ended and handed its browser over. None: the browser has to be closed."""
        held, facts = self.holder(ending.ref), ending.facts
        completed = ending.reason is None and facts.evidence_saved and not ending.not_started
        known = facts.final_url is not None and not facts.proxy_changed
        if held is None or held.shared or held.section is not None or not (completed and known):
            return None
        after = deepcopy(self)
        after.settle(replace(ending, facts=replace(facts, browser=Browser.CLOSED)))
        choice = after.choices(request).get(held.profile)
        return None if choice is None or choice.job.shared else choice

    def others_first(self, choice: Choice, request: ClaimRequest) -> bool:
        """Whether its lane's job may be kept from an open browser: its head must be put aside, or others are urgent."""
        own = choice.job
        if self.job_blocks(self.lane(own.profile)[0]):
            return True
        heads = [queue[0] for profile in self.profiles if profile != own.profile and (queue := self.lane(profile))]
        urgent = [head for head in heads if head.spec.priority > own.spec.priority]
        mine = [head for head in urgent if head.pool == request.pool and head.spec.task in request.tasks]
        return any(head.account == own.account for head in urgent) or any(not self.lane_block(h.profile) for h in mine)

    def more_urgent(self, choice: Choice, request: ClaimRequest, *, apart_from: Container[str]) -> list[str]:
        """Jobs that this worker could run now, and that come before the choice."""
        return [
            other.job.job_id
            for profile, other in self.choices(request).items()
            if profile not in apart_from and other.job.spec.priority > choice.job.spec.priority
        ]

    def _give_back(self, held: Held, ending: Ending) -> Held:
        """The run never started: the job takes its old place, with the attempts it had.

        What the reason says of the profile is as true as if it had.
        """
        rule = FAILURES.get(ending.reason, self._registered(ending)) if ending.reason else DEFAULT_RULE
        verdict = rule.profile if rule.profile in ("review_required", "quarantined") else None
        side, open_lane = self.sides[held.profile], self.lane_block(held.profile) is None
        held.ended, held.status = self.now, "released"
        if held.job is not None:
            held.job.attempt -= 1
            held.job.given_back += 1
            held.job.run_at = None
            self._put(held.job, "queued" if held.job.given_back <= FREE_GIVE_BACKS else "scheduled")
        self._end_profile(held.profile, verdict)
        side.ready |= open_lane
        self._move_on()
        return held

    def _registered(self, ending: Ending) -> Rule:
        own = ending.registered
        if own is None or own.reason != ending.reason:
            return DEFAULT_RULE
        return Rule(retry=str(own.retry), profile=str(own.profile))

    def _verdict(self, held: Held, ending: Ending, rule: Rule) -> tuple[str | None, bool]:
        """What stands against `available`, and whether the ending is left to be resolved."""
        facts = ending.facts
        unknown_url = facts.browser != "none" and facts.final_url is None
        if held.section is not None or rule.profile == "quarantined" or facts.proxy_changed or unknown_url:
            return "quarantined", False
        if not facts.evidence_saved or rule.profile == "review_required":
            return "review_required", False
        return None, rule.profile == "stale" or facts.browser not in ("none", "closed")

    def _end_job(self, held: Held, reason: str | None, *, retry: str, lost: bool) -> None:
        job = held.job
        if job is None:
            return
        job.losses += lost
        job.given_back = 0
        own = job.spec.retry.reasons if job.spec.retry else None
        may = reason in own if own is not None else retry == "yes"
        if reason is None:
            self._put(job, "completed")
        elif (lost and job.losses >= MAX_LOSSES) or held.may_be_done or not may:
            self._put(job, "review")
        elif job.attempt >= job.spec.max_attempts:
            self._put(job, "review" if lost else "dead")
        else:
            self._put(job, "scheduled")
            job.run_at = None

    def retry_window(self, job: Work) -> tuple[datetime, datetime]:
        """When a job that was just settled may be tried again: jitter takes away up to half of the delay."""
        backoff = (job.spec.retry and job.spec.retry.backoff) or BACKOFF
        times = job.given_back - FREE_GIVE_BACKS if job.given_back else job.attempt
        whole = min(backoff.first * backoff.factor ** (times - 1), backoff.max)
        return self.now + whole / 2, self.now + whole

    def _end_profile(self, profile: str, verdict: str | None) -> None:
        """A profile with sharers waits for the last one; then the worst of what is known of its endings counts."""
        side = self.sides[profile]
        if side.state not in ("leased", "stale"):
            return
        side.verdict = max((side.verdict, verdict), key=[None, "review_required", "quarantined"].index)
        if self.live(profile):
            return
        if self.unresolved(profile):
            side.state, side.clean = "stale", False
            return
        side.clean = side.verdict is None
        side.state = _end_of(side)
        side.verdict, side.drain, side.asked = None, None, False

    def expire(self) -> list[Held]:
        """Leases whose time is up. Nothing is freed but the routing key and the place in the pool."""
        over = [held for held in self.leases if held.ended is None and held.expires <= self.now]
        if self.expiry_pauses:
            return []
        for held in over:
            self._end_unexplained(held, "revoked" if held.status == "revoked" else "expired", held.expires)
        self._move_on()
        return over

    def _end_unexplained(self, held: Held, status: str, at: datetime) -> None:
        held.ended, held.status, held.unresolved = at, status, True
        side = self.sides[held.profile]
        if side.state == "leased" and not self.live(held.profile):
            side.state, side.clean = "stale", False

    def resolve(self, held: Held, facts: LostFacts) -> bool:
        """Decide an unexplained ending by its release policy and what was found out. False: not now.

        The first report about a lost run is kept whenever it comes, and counts if there is nothing newer.
        """
        if facts.reported_by and held.status in ("expired", "revoked") and held.ended is not None:
            held.report = held.report or facts
        if not held.unresolved:
            return False
        if facts == LostFacts():
            facts = held.report or facts
        verdict = self._resolution(held, facts)
        if verdict == "later":
            return False
        held.unresolved = False
        if held.job is not None and held.job.state == "running" and held.job.lease is held:
            self._end_job(held, "WORKER_LOST", retry="yes", lost=True)
        self._end_profile(held.profile, verdict)
        self._move_on()
        return True

    def _resolution(self, held: Held, facts: LostFacts) -> str | None:
        if held.section is not None or facts.proxy_changed:
            return "quarantined"
        if held.policy not in ("recover", "restore"):
            return {"quarantine": "quarantined", "review": "review_required"}[held.policy]
        if held.ended is not None and (self.expiry_pauses or self.now < held.ended + held.lock_delay):
            return "later"
        if held.policy == "restore":
            return "review_required"  # no fleet of a history has a profile store: there is nothing to go back to
        same = held.proxy == self.profiles[held.profile].proxy_id
        return None if held.step and facts.final_url is not None and facts.browser_dead and same else "review_required"

    # People decide

    def decide(self, decision: Decision) -> str:
        """The new state. Raises what the port says it raises."""
        match decision.target:
            case Target.PROFILE:
                state = self._decide_profile(decision)
            case Target.JOB:
                state = self._decide_job(decision)
            case Target.ACCOUNT:
                state = self._decide_account(decision)
            case Target.LEASE:
                state = self._revoke(decision)
            case _:
                raise AssertionError("the model knows which messages are owed, and not what becomes of them")
        self._move_on()
        return state

    def _decide_profile(self, decision: Decision) -> str:
        side = self.sides.get(decision.id)
        if side is None:
            raise NotFound("no such profile")
        if decision.version == 0:
            raise VersionConflict("no record has version 0")
        action, leased = decision.action.value, side.state == "leased"
        if leased and side.drain is not None and PROFILE_DECISIONS.get(("available", action)) == side.drain:
            side.asked = False
            return side.state
        after = PROFILE_DECISIONS.get((side.drain or "available" if leased else side.state, action))
        if after is None:
            raise IllegalTransition("not from here")
        if decision.action is Action.ENABLE and not side.clean:
            after = "review_required"
        if leased:
            side.drain, side.asked = None if after == "available" else after, False
            return side.state
        if after == "available" and self.unresolved(decision.id):
            raise IllegalTransition("an ending of it is not explained yet")
        side.state, side.verdict, side.drain, side.asked = after, None, None, False
        side.clean |= after == "available"
        return after

    def _decide_job(self, decision: Decision) -> str:
        job = self.jobs.get(decision.id)
        if job is None:
            raise NotFound("no such job")
        if decision.version == 0:
            raise VersionConflict("no record has version 0")
        if decision.action.value not in JOB_DECISIONS.get(job.state, ()):
            raise IllegalTransition("not in this state")
        match decision.action:
            case Action.CANCEL:
                self._put(job, "cancelled")
            case Action.DROP:
                job.dropped = True
            case Action.APPROVE:
                job.approved = True
            case _:
                job.approved, job.dropped, job.run_at, job.given_back = True, False, None, 0
                job.reopened += 1
                self._place(job, follow_conflict=False)
        self._move_on()
        return job.state

    def _decide_account(self, decision: Decision) -> str:
        if decision.id not in self.accounts:
            raise NotFound("no such account")
        if decision.version is not None and decision.version != self.account_versions[decision.id]:
            raise VersionConflict("not the version that was looked at")
        self.account_versions[decision.id] += 1
        if decision.action is Action.PAUSE:
            self.paused.add(decision.id)
            return "paused"
        self.paused.discard(decision.id)
        return "active"

    def _revoke(self, decision: Decision) -> str:
        held = next((held for held in self.leases if held.ref[0] == decision.id and held.ended is None), None)
        if held is None or held.status == "revoked":
            raise (Conflict if held else NotFound)("no such live lease")
        held.status = "revoked"
        return held.status
