"""Jobs on their way into a lane: submitted, due, or free of what blocked them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from leasekeeper.core.conflicts import decide_conflict
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import AccountId, JobId, ProfileId
from leasekeeper.core.jobs import FINAL, Job, JobSpec, JobState
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.readiness import Blocked, can_share, job_gate, lane_gate
from leasekeeper.core.routing import is_account_key, routing_key
from leasekeeper.errors import (
    AmbiguousProfile,
    IdempotencyConflict,
    InputError,
    Problem,
    UnknownAccount,
    UnknownProfile,
    UnknownTask,
)
from leasekeeper.ports import Submitted
from leasekeeper.stores.sql.codec import Row, encoder, evolve, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import (
    Work,
    heads_by_profile,
    lock,
    next_head,
    offer,
    read_job,
    read_lease,
    refresh,
    save,
)
from leasekeeper.stores.sql.log import Log

JOB_CHANGES = [
    "seq",
    "profile_id",
    "state",
    "blocked_reason",
    "detail",
    "attempt",
    "losses",
    "approved",
    "dropped",
    "run_id",
    "stop_reason",
    "run_at",
    "finished_at",
    "version",
]
write_job = encoder(Job)
change_job = encoder(Job, tuple(JOB_CHANGES))
_POLICY_STRICTNESS = list(ReleasePolicy)
_SPEC_FIELDS = tuple(
    f.name
    for f in fields(JobSpec)
    if f.name not in {"job_id", "account_id", "profile_id", "pool", "created_at", "attempt"}
)


def submit(tx: Tx, ctx: Context, specs: Sequence[JobSpec], bodies: Sequence[str]) -> list[Submitted]:
    """Accept all or none. Keys are looked up under the lanes' locks; two lanes racing for one key collide there.

    `bodies` are the fingerprints of the specs: of large ones they take long, and here others wait for the locks.
    """
    keys = [spec.idempotency_key for spec in specs if spec.idempotency_key is not None]
    names = [spec.job_id for spec in specs if spec.job_id is not None]
    targets = _resolve(tx, specs, keys)
    now, works, (known, used, taken) = lock(
        tx,
        [target for target in targets if target is not None],
        ("known_tasks", {}),
        ("jobs_by_key", {"keys": keys}),
        ("jobs_by_id", {"ids": names}),
    )
    placer = Placer(tx, ctx, now, works, known)
    first = {row["idempotency_key"]: (row["body_hash"], read_job(row)) for row in used}
    existing = {row["job_id"] for row in taken}
    answers: list[Submitted] = []
    new_rows = []
    for index, (spec, body, profile_id) in enumerate(zip(specs, bodies, targets, strict=True)):
        handled = _already_handled(spec, body, first, index)
        if handled is not None:
            placer.log.event(EventType.JOB_ALREADY_HANDLED, job=handled, data={"reason": Blocked.DUPLICATE.value})
            answers.append(Submitted(job=handled, already_handled=True, decision=Blocked.DUPLICATE))
            continue
        work = works.get(profile_id) if profile_id is not None else None
        if work is None:
            raise UnknownProfile(
                f"jobs[{index}].profile_id: profile {profile_id} was removed from the fleet just now. "
                "Nothing was submitted"
            )
        job = _new_job(ctx, spec, work, now)
        if job.job_id in existing:
            raise InputError(
                "nothing was submitted",
                [
                    Problem(
                        f"jobs[{index}].job_id",
                        f"{job.job_id} exists already; leave it out to get a fresh one",
                    )
                ],
            )
        _check_spec(ctx, job, work, placer.known(job), index)
        existing.add(job.job_id)
        placed, decision = placer.enter(job, work, EventType.JOB_SUBMITTED)
        if spec.idempotency_key is not None:
            first[spec.idempotency_key] = (body, placed)
        row = write_job(placed)
        del row["seq"]
        row["body_hash"] = body
        new_rows.append(row)
        answers.append(Submitted(job=placed, decision=decision))
    if new_rows:
        tx.write("insert_jobs", new_rows)
    placer.save()
    return answers


def _already_handled(spec: JobSpec, body: str, first: Mapping[str, tuple[str, Job]], index: int) -> Job | None:
    if spec.idempotency_key is None or spec.idempotency_key not in first:
        return None
    known_body, job = first[spec.idempotency_key]
    if known_body != body:
        raise IdempotencyConflict(
            f"jobs[{index}]: idempotency key {spec.idempotency_key!r} belongs to job {job.job_id}, which has "
            "another body; use a new key for a different job. Nothing was submitted"
        )
    return job


def _resolve(tx: Tx, specs: Sequence[JobSpec], keys: Sequence[str]) -> list[ProfileId | None]:
    """The profile of each job, or an error that says what exists.

    None for a job whose key is known: it was accepted once, whatever its account looks like today.
    """
    by_account = sorted({spec.account_id for spec in specs if spec.account_id is not None})
    by_profile = sorted({spec.profile_id for spec in specs if spec.profile_id is not None})
    accounts, rows, used = tx.read(
        ("accounts_among", {"ids": by_account}),
        ("profiles_among", {"profiles": by_profile, "accounts": by_account}),
        ("jobs_by_key", {"keys": list(keys)}),
    )
    handled = {row["idempotency_key"] for row in used}
    known_accounts = {row["account_id"] for row in accounts}
    owner = {row["profile_id"]: row["account_id"] for row in rows}
    of_account: dict[str, list[str]] = {}
    for profile_id, account_id in owner.items():
        of_account.setdefault(account_id, []).append(profile_id)
    return [
        None if spec.idempotency_key in handled else _target(spec, index, known_accounts, owner, of_account)
        for index, spec in enumerate(specs)
    ]


def _target(
    spec: JobSpec,
    index: int,
    accounts: set[str],
    owner: Mapping[str, str],
    of_account: Mapping[str, list[str]],
) -> ProfileId:
    if spec.account_id is not None and spec.account_id not in accounts:
        raise UnknownAccount(
            f"jobs[{index}].account_id: there is no account {spec.account_id}; declare it in fleet.yaml and run "
            "'leasekeeper apply', or see 'leasekeeper accounts'. Nothing was submitted"
        )
    if spec.account_id is None and spec.profile_id is None:
        raise InputError("nothing was submitted", [Problem(f"jobs[{index}]", "needs an account_id or a profile_id")])
    mine = sorted(of_account.get(spec.account_id or "", []))
    if spec.profile_id is not None:
        if spec.profile_id not in owner:
            hint = (
                f"account {spec.account_id} has: {', '.join(mine[:5]) or 'none'}"
                if spec.account_id
                else "see 'leasekeeper profiles'"
            )
            raise UnknownProfile(
                f"jobs[{index}].profile_id: there is no profile {spec.profile_id}; {hint}. Nothing was submitted"
            )
        if spec.account_id is not None and owner[spec.profile_id] != spec.account_id:
            raise UnknownProfile(
                f"jobs[{index}].profile_id: profile {spec.profile_id} belongs to account {owner[spec.profile_id]}, "
                f"not {spec.account_id}. Nothing was submitted"
            )
        return spec.profile_id
    if not mine:
        raise UnknownProfile(
            f"jobs[{index}].account_id: account {spec.account_id} has no profile; declare one in fleet.yaml. "
            "Nothing was submitted"
        )
    if len(mine) > 1:
        raise AmbiguousProfile(
            f"jobs[{index}].profile_id: account {spec.account_id} has {len(mine)} profiles, say which: "
            f"{', '.join(mine[:5])}{' …' if len(mine) > 5 else ''}. Nothing was submitted"
        )
    return ProfileId(mine[0])


def _new_job(ctx: Context, spec: JobSpec, work: Work, now: datetime) -> Job:
    values = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    return Job(
        job_id=spec.job_id or JobId(ctx.new_id()),
        account_id=AccountId(work.lane.account_id),
        profile_id=work.lane.profile_id,
        pool=spec.pool or work.profile.pool,
        created_at=spec.created_at or now,
        **values,
    )


def _check_spec(ctx: Context, job: Job, work: Work, task_known: bool, index: int) -> None:
    if ctx.policy.strict_tasks and not task_known:
        raise UnknownTask(
            f"jobs[{index}].task: no worker of pool {job.pool} has ever offered task {job.task} (strict_tasks is on). "
            "Nothing was submitted"
        )
    if job.release_policy is not None:
        own = ReleasePolicy(job.release_policy)
        if _POLICY_STRICTNESS.index(own) < _POLICY_STRICTNESS.index(work.profile.release_policy):
            raise InputError(
                "nothing was submitted",
                [
                    Problem(
                        f"jobs[{index}].release_policy",
                        f"{own} is more lenient than {work.profile.release_policy} of profile {job.profile_id}; "
                        "a job may only make it stricter",
                    )
                ],
            )


class Placer:
    """Puts jobs where they belong: scheduled, blocked by themselves, in conflict, or in their lane."""

    def __init__(
        self, tx: Tx, ctx: Context, now: datetime, works: Mapping[ProfileId, Work], known_tasks: Iterable[Row]
    ) -> None:
        self.log = Log(ctx, now)
        self._tx = tx
        self._ctx = ctx
        self._now = now
        self._works = works
        self._known = {(row["pool"], row["task"]) for row in known_tasks}
        self._key_holders = self._read_key_holders()
        self._touched: dict[ProfileId, Work] = {}
        self._unsure: set[ProfileId] = set()

    def known(self, job: Job) -> bool:
        return (job.pool, job.task) in self._known

    def _read_key_holders(self) -> dict[str, Lease]:
        accounts = sorted({w.account.account_id for w in self._works.values() if w.account.routing != "profile"})
        if not accounts:
            return {}
        (rows,) = self._tx.read(("account_key_holders", {"accounts": accounts}))
        return {row["routing_key"]: read_lease(row) for row in rows}

    def enter(self, job: Job, work: Work, event: EventType, *, follow_conflict: bool = True) -> tuple[Job, str | None]:
        """Place one job and log it. Returns it as it now is, and what was decided if its profile was taken."""
        if job.run_at is not None and job.run_at > self._now and job.state is not JobState.BLOCKED:
            placed = evolve(job, state=JobState.SCHEDULED)
            self._log(event, placed)
            return placed, None
        block = job_gate(job, work.profile, work.proxy, self.known(job))
        if block is not None:
            placed = evolve(job, state=JobState.BLOCKED, blocked_reason=block.reason, detail=block.detail)
            self._log(event, placed, {"reason": block.reason.value})
            if block.reason is Blocked.APPROVAL:
                self.log.review_job(placed, "approval", f"task {job.task} waits for approval before it runs")
            return placed, None
        placed = evolve(job, state=JobState.QUEUED, blocked_reason=None, detail="")
        holder = self._holder(placed, work) if follow_conflict else None
        if holder is None:
            self._log(event, placed)
            self._into_lane(placed, work)
            return placed, None
        return self._conflict(placed, work, holder, event)

    def _log(self, event: EventType, job: Job, data: Mapping[str, object] | None = None) -> None:
        self.log.event(event, job=job, job_state=job.state, data={"task": job.task, **(data or {})})

    def _into_lane(self, job: Job, work: Work) -> None:
        offer(work, job, self._now)
        self._touched[work.lane.profile_id] = work
        lane = work.lane
        if job.seq and job.priority == lane.head_priority and job.job_id != lane.head_job_id:
            self._unsure.add(lane.profile_id)

    def _holder(self, job: Job, work: Work) -> Lease | None:
        """The lease that keeps this job from running now, if that is what keeps it."""
        if work.lane.state in (ProfileState.LEASED, ProfileState.STALE) and work.open:
            live = work.live
            gate = lane_gate(
                state=work.lane.state,
                paused=False,
                profile=work.profile,
                live=len(live),
                live_exclusive=sum(1 for lease in live if not can_share(work.profile, shared=lease.shared)),
                head_shared=job.shared,
                ending=bool(work.lane.verdict or work.lane.drain or work.unresolved),
            )
            if gate is not None:
                return work.open[0]
        key = routing_key(
            work.account.routing,
            account_id=job.account_id,
            profile_id=job.profile_id,
            task=job.task,
            shared=job.shared,
        )
        return self._key_holders.get(key) if is_account_key(key) else None

    def _conflict(self, job: Job, work: Work, holder: Lease, event: EventType) -> tuple[Job, str]:
        decided = decide_conflict(job, holder, holder.priority, self._now, self._ctx.policy.long_run)
        placed = evolve(
            job,
            state=decided.state,
            run_at=decided.run_at or job.run_at,
            finished_at=self._now if decided.state in FINAL else None,
            stop_reason=None,
            detail="" if decided.state is JobState.QUEUED else f"profile was taken by run {holder.run_id}",
        )
        self._log(event, placed)
        self.log.event(
            EventType.PROFILE_LOCK_CONFLICT,
            job=placed,
            run_id=holder.run_id,
            worker_id=holder.worker_id,
            data={
                "profile_id": job.profile_id,
                "blocked_job_id": job.job_id,
                "blocked_task": job.task,
                "current_job_id": holder.job_id,
                "current_run_id": holder.run_id,
                "current_worker_id": holder.worker_id,
                "current_profile_id": holder.profile_id,
                "decision": decided.decision,
                "next_check_seconds": decided.next_check_seconds,
                "cause": decided.cause.value,
            },
        )
        if placed.state is JobState.QUEUED:
            self._into_lane(placed, work)
        if placed.state is JobState.REVIEW:
            self.log.review_job(placed, "profile_lock_conflict", f"its profile was taken ({decided.cause})")
        self.log.owe(placed)
        return placed, decided.decision

    def save(self) -> None:
        """Write lanes, events, reviews and owed webhooks. The jobs themselves must have been written before."""
        self._find_heads()
        for work in self._touched.values():
            refresh(work, self._now)
        save(self._tx, self._touched.values())
        self.log.save(self._tx)

    def _find_heads(self) -> None:
        """A job that comes back may be older than the head of its lane: then it goes first, as it always did."""
        if not self._unsure:
            return
        (rows,) = self._tx.read(("heads", {"ids": sorted(self._unsure)}))
        for profile_id, heads in heads_by_profile(rows).items():
            work = self._works[ProfileId(profile_id)]
            if heads[0][0].job_id != work.lane.head_job_id:
                next_head(work, heads, JobId(""), work.lane.waiting_at)


def promote(tx: Tx, ctx: Context, most: int) -> int:
    """Scheduled jobs that are due enter their lanes. Lanes that somebody holds are left for the next time."""
    now, (due,) = tx.clock()[0], [[]]
    (due,) = tx.read(("due_jobs", {"now": to_us(now), "most": most}))
    return _enter_all(tx, ctx, [row["profile_id"] for row in due], "due_jobs_of", {"most": most}, EventType.JOB_DUE)


def unblock(tx: Tx, ctx: Context, pool: str, tasks: Sequence[str], most: int) -> int:
    """Jobs that waited for a worker to offer their task move on."""
    wanted = {"pool": pool, "tasks": list(tasks), "most": most}
    (rows,) = tx.read(("jobs_without_worker", wanted))
    return _enter_all(
        tx,
        ctx,
        [row["profile_id"] for row in rows],
        "jobs_without_worker_of",
        wanted,
        EventType.JOB_UNBLOCKED,
    )


def _enter_all(
    tx: Tx, ctx: Context, profiles: Sequence[str], query: str, params: Mapping[str, object], event: EventType
) -> int:
    """Lock the lanes, read their jobs again under the lock, and place each."""
    if not profiles:
        return 0
    now, works, (known,) = lock(tx, profiles, ("known_tasks", {}), waiting=False)
    (rows,) = tx.read((query, {**params, "ids": list(works), "now": to_us(now)}))
    placer = Placer(tx, ctx, now, works, known)
    changed = []
    for row in rows:
        job = read_job(row)
        placed, _ = placer.enter(
            evolve(job, version=job.version + 1),
            works[job.profile_id],
            event,
            follow_conflict=event is EventType.JOB_DUE,
        )
        changed.append(change_job(placed))
    if changed:
        tx.write("update_jobs", changed)
    placer.save()
    return len(changed)
