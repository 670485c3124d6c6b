"""What brings work into the reference model and gives it to workers: configuration, jobs, claims and leases."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from leasekeeper.core.fleet import Fleet
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import Conflict, IdempotencyConflict, InputError, NotFound, ProfileBusy, UnknownProfile
from leasekeeper.ports import ClaimRequest, LeaseRequest
from tests.model.facts import Facts
from tests.model.records import Choice, Held, Side, Work
from tests.model.tables import FINAL, STRICTNESS, WAITS

TTL = timedelta(seconds=60)


class Queue(Facts):
    """Operations of those who bring work and of those who take it."""

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
