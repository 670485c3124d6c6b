"""Puts jobs into lanes: when they are submitted, become due, or are no longer blocked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from leasekeeper.core.accounts import Routing
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.jobs import Job, JobSpec, JobState
from leasekeeper.core.lanes import may_be_older_than_head, offered
from leasekeeper.core.leases import Lease
from leasekeeper.core.placing import NOTHING, Faults, all_faults, check_policy, new_job, place, profile_for
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.records import evolve
from leasekeeper.core.routing import is_account_key
from leasekeeper.errors import IdempotencyConflict, InputError, Problem, UnknownProfile, UnknownTask
from leasekeeper.ports import Submitted
from leasekeeper.stores.sql.codec import Row, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import Work, find_heads, lock, read_job, read_lease, refresh, save
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.reading import shown_jobs
from leasekeeper.wording import block_text

JOB_CHANGES = [
    "seq",
    "profile_id",
    "state",
    "blocked_reason",
    "detail",
    "attempt",
    "losses",
    "given_back",
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


def submit(tx: Tx, ctx: Context, specs: Sequence[JobSpec], bodies: Sequence[str]) -> list[Submitted]:
    """Accept all jobs or none. Idempotency keys are checked under the lanes' locks. If two transactions use one key in
    different lanes, one of them fails at the unique index and is run again.

    `bodies` are the fingerprints of the specs. The caller computes them: that may take long, and others wait for the
    locks.
    """
    keys = [spec.idempotency_key for spec in specs if spec.idempotency_key is not None]
    names = [spec.job_id for spec in specs if spec.job_id is not None]
    faults: Faults = []
    targets = _resolve(tx, specs, keys, faults)
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
    wrong = {index for index, _ in faults}
    for index, (spec, body, profile_id) in enumerate(zip(specs, bodies, targets, strict=True)):
        if index in wrong:
            continue
        with _collected(faults, index):
            handled = _already_handled(spec, body, first, index)
            if handled is not None:
                placer.log.event(EventType.JOB_ALREADY_HANDLED, job=handled, data={"reason": Blocked.DUPLICATE.value})
                answers.append(
                    Submitted(job=handled, already_handled=True, decision=Blocked.DUPLICATE, asked_id=spec.job_id)
                )
                continue
            work = _work_of(works, profile_id, index)
            job = new_job(spec, work, fresh_id=ctx.new_id(), now=now)
            if job.job_id in existing:
                fault = Problem(
                    f"jobs[{index}].job_id", f"{job.job_id} exists already; leave it out to get a fresh one"
                )
                raise InputError(NOTHING, [fault])
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
    if faults:
        raise all_faults(faults)
    if new_rows:
        tx.write("insert_jobs", new_rows)
    placer.save()
    return _as_shown(tx, ctx, now, answers)


@contextmanager
def _collected(faults: Faults, index: int) -> Iterator[None]:
    """Collect the error of one job, to be raised together with those of the others."""
    try:
        yield
    except (InputError, IdempotencyConflict) as fault:
        faults.append((index, fault))


def _work_of(works: Mapping[ProfileId, Work], profile_id: ProfileId | None, index: int) -> Work:
    work = works.get(profile_id) if profile_id is not None else None
    if work is None:
        fault = Problem(f"jobs[{index}].profile_id", f"profile {profile_id} was removed from the fleet just now")
        raise UnknownProfile(NOTHING, [fault], profile_id=profile_id)
    return work


def _as_shown(tx: Tx, ctx: Context, now: datetime, answers: Sequence[Submitted]) -> list[Submitted]:
    """The answers with the state that lists show: a queued job that cannot run now is blocked, which is logged.

    The event has no job state: the job stays queued in its lane, and starts without another event when it can.
    """
    queued = sorted({answer.job.job_id for answer in answers if answer.job.state is JobState.QUEUED})
    shown = shown_jobs(tx, ctx, queued) if queued else {}
    log = Log(ctx, now)
    for answer in answers:
        job = shown.get(answer.job.job_id, answer.job)
        if job.state is JobState.BLOCKED and job.job_id in shown and not answer.already_handled:
            log.event(EventType.JOB_BLOCKED, job=job, data={"task": job.task, "reason": job.blocked_reason})
    log.save(tx)
    return [replace(answer, job=shown.get(answer.job.job_id, answer.job)) for answer in answers]


def _already_handled(spec: JobSpec, body: str, first: Mapping[str, tuple[str, Job]], index: int) -> Job | None:
    if spec.idempotency_key is None or spec.idempotency_key not in first:
        return None
    known_body, job = first[spec.idempotency_key]
    if known_body != body:
        fault = Problem(
            f"jobs[{index}].idempotency_key",
            f"{spec.idempotency_key!r} belongs to job {job.job_id}, which has another body; "
            "use a new key for a different job",
        )
        raise IdempotencyConflict(NOTHING, [fault], job_id=job.job_id, idempotency_key=spec.idempotency_key)
    return job


def _resolve(tx: Tx, specs: Sequence[JobSpec], keys: Sequence[str], faults: Faults) -> list[ProfileId | None]:
    """The profile of each job. None if no profile fits, which is added to `faults`; also None if the job's idempotency
    key is known: it was accepted before, and its account may have changed since.
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
    found: list[ProfileId | None] = [None] * len(specs)
    for index, spec in enumerate(specs):
        if spec.idempotency_key not in handled:
            with _collected(faults, index):
                found[index] = profile_for(spec, index, accounts=known_accounts, owner=owner, of_account=of_account)
    return found


def _check_spec(ctx: Context, job: Job, work: Work, task_known: bool, index: int) -> None:
    if ctx.policy.strict_tasks and not task_known:
        fault = f"no worker of pool {job.pool} has ever offered task {job.task} (strict_tasks is on)"
        raise UnknownTask(NOTHING, [Problem(f"jobs[{index}].task", fault)], task=job.task, pool=job.pool)
    check_policy(job, work, index)


def read_key_holders(tx: Tx, works: Iterable[Work]) -> dict[str, Lease]:
    """The live leases that hold account keys of the accounts of these profiles, by key."""
    accounts = sorted({work.account.account_id for work in works if work.account.routing is not Routing.PROFILE})
    if not accounts:
        return {}
    (rows,) = tx.read(("account_key_holders", {"accounts": accounts}))
    return {row["routing_key"]: read_lease(row) for row in rows if is_account_key(row["routing_key"])}


class Placer:
    """Places jobs by `core.placing`: scheduled, blocked, decided by `on_conflict`, or queued in their lane."""

    def __init__(
        self, tx: Tx, ctx: Context, now: datetime, works: Mapping[ProfileId, Work], known_tasks: Iterable[Row]
    ) -> None:
        self.log = Log(ctx, now)
        self._tx = tx
        self._ctx = ctx
        self._now = now
        self._works = works
        self._known = {(row["pool"], row["task"]) for row in known_tasks}
        self._key_holders = read_key_holders(tx, works.values())
        self._touched: dict[ProfileId, Work] = {}
        self._unsure: set[ProfileId] = set()

    def known(self, job: Job) -> bool:
        return (job.pool, job.task) in self._known

    def enter(self, job: Job, work: Work, event: EventType, *, follow_conflict: bool = True) -> tuple[Job, str | None]:
        """Place one job and log it. Returns the placed job, and what was decided if its profile is taken."""
        placement = place(
            job,
            work,
            task_known=self.known(job),
            key_holders=self._key_holders,
            follow_conflict=follow_conflict,
            now=self._now,
            long_run=self._ctx.policy.long_run,
        )
        placed, block, conflict = placement.job, placement.block, placement.conflict
        if block is not None:
            placed = evolve(placed, detail=block_text(block, placed))
        said = {"reason": block.reason.value} if block else {}
        self.log.event(event, job=placed, job_state=placed.state, data={"task": placed.task, **said})
        if block is not None and block.reason is Blocked.APPROVAL:
            self.log.review_approval(placed)
        if placement.holder is not None and conflict is not None:
            self.log.conflict(placed, placement.holder, conflict)
        if placed.state is JobState.QUEUED:
            self._into_lane(placed, work)
        return placed, conflict.decision if conflict else None

    def _into_lane(self, job: Job, work: Work) -> None:
        work.change(offered(work.lane, job, self._now))
        self._touched[work.lane.profile_id] = work
        if may_be_older_than_head(work.lane, job):
            self._unsure.add(work.lane.profile_id)

    def save(self) -> None:
        """Write lanes, events, reviews and pending webhooks. Call it after the jobs were written."""
        if self._unsure:
            find_heads(self._tx, self._works, self._unsure)
        for work in self._touched.values():
            refresh(work, self._now)
        save(self._tx, self._touched.values())
        self.log.save(self._tx)


def promote(tx: Tx, ctx: Context, limit: int) -> int:
    """Put due scheduled jobs into their lanes. Lanes that another transaction has locked are left for the next call."""
    now, _ = tx.clock()
    (due,) = tx.read(("due_jobs", {"now": to_us(now), "limit": limit}))
    return _enter_all(tx, ctx, [row["profile_id"] for row in due], "due_jobs_of", {"limit": limit}, EventType.JOB_DUE)


def unblock(tx: Tx, ctx: Context, pool: str, tasks: Sequence[str], limit: int) -> int:
    """Unblock up to `limit` jobs that waited for a worker which offers their task. Returns how many."""
    wanted = {"pool": pool, "tasks": list(tasks), "limit": limit}
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
    """Lock the lanes, read their jobs again under the lock, and place each. Returns how many were placed."""
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
