"""People's decisions: about a profile, a job, an account or a lease; and what workers say of themselves."""

from datetime import datetime

from leasekeeper.core.decisions import ACTIONS, Action, Decision, Target, check_job_action, profile_after
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.profiles import Cause, ProfileState
from leasekeeper.core.workers import Worker, WorkerReport
from leasekeeper.errors import IllegalTransition, InputError, NotFound, Problem, VersionConflict
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.codec import encoder, evolve, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import (
    Work,
    heads_by_profile,
    lock,
    move,
    next_head,
    next_version,
    read_job,
    refresh,
    save,
)
from leasekeeper.stores.sql.log import Log, write_event
from leasekeeper.stores.sql.submitting import Placer, change_job

_write_worker = encoder(Worker)


def check(decision: Decision) -> None:
    """A decision needs a note and a name, and an action that its record has."""
    problems = [
        Problem(name, "must not be empty: a decision is kept with who made it and why")
        for name, value in (("note", decision.note), ("actor", decision.actor))
        if not value.strip()
    ]
    allowed = ACTIONS[decision.target]
    if decision.action not in allowed:
        has = ", ".join(action.value for action in allowed)
        problems.append(Problem("action", f"a {decision.target} has no {decision.action}; it has: {has}"))
    if problems:
        raise InputError("the decision is not complete", problems)


def decide_profile(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Clear, quarantine, review, disable or enable one profile. Its jobs are not touched: the lane holds them."""
    now, works, _ = lock(tx, [decision.id])
    work = next(iter(works.values()), None)
    if work is None:
        raise NotFound(f"there is no profile {decision.id}; see 'leasekeeper profiles'")
    _check_version("profile", decision, work.lane.version)
    log = Log(ctx, now)
    before = work.lane.state
    takes_back = decision.action is Action.ENABLE and work.lane.drain
    if before is ProfileState.LEASED and (decision.action is Action.DISABLE or takes_back):
        work.change(drain=not takes_back)
    else:
        after = profile_after(decision.id, before, decision.action, clean=work.lane.clean)
        if work.unresolved and after is ProfileState.AVAILABLE:
            raise IllegalTransition(
                f"profile {decision.id}: a lease of it ended without an explanation and is not resolved yet; "
                "the next sweep does it, then decide"
            )
        move(work, after, Cause.DECIDED, f"{decision.action} by {decision.actor}: {decision.note}", now)
        clean = work.lane.clean or after is ProfileState.AVAILABLE
        work.change(clean=clean, drain=False, verdict=None, verdict_reason="")
        if decision.action is Action.CLEAR and _about_empty_directory(tx, decision.id):
            work.change(engine=None)  # a person vouches for the directory that is there, and for its empty session
        _close_review(tx, decision, now)
        if after in (ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED):
            log.review_profile(work.lane, None, decision.action.value, work.lane.state_reason)
    refresh(work, now)
    log.event(
        EventType.PROFILE_DECIDED,
        lane=work.lane,
        actor=decision.actor,
        profile_state=work.lane.state,
        data={
            "action": decision.action.value,
            "note": decision.note,
            "from": before.value,
            "drain": work.lane.drain,
        },
    )
    save(tx, [work])
    log.save(tx)
    return Decided(state=work.lane.state, version=next_version(work))


def _about_empty_directory(tx: Tx, profile_id: str) -> bool:
    """Whether what a person is asked about the profile is that its directory is empty."""
    (reviews,) = tx.read(("open_reviews_of", {"profile_id": profile_id}))
    return any(row["target"] == Target.PROFILE and row["reason"] == "PROFILE_DIRECTORY_EMPTY" for row in reviews)


def decide_job(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Approve, requeue, cancel, retry or drop one job."""
    missing = NotFound(f"there is no job {decision.id}; see 'leasekeeper jobs'")
    (found,) = tx.read(("jobs_by_id", {"ids": [decision.id]}))
    if not found:
        raise missing
    now, works, (known, rows) = lock(
        tx, [found[0]["profile_id"]], ("known_tasks", {}), ("jobs_by_id", {"ids": [decision.id]})
    )
    if not rows:
        raise missing  # it was pruned while its lane was waited for
    job = read_job(rows[0])
    _check_version("job", decision, job.version)
    check_job_action(job.job_id, job.state, decision.action)
    placer = Placer(tx, ctx, now, works, known)
    decided = _decided_job(placer, works.get(job.profile_id), evolve(job, version=job.version + 1), decision, now)
    if decision.action is not Action.DROP:
        _close_review(tx, decision, now)
    tx.write("update_jobs", [change_job(decided)])
    work = works.get(job.profile_id)
    if work is not None and work.lane.head_job_id == job.job_id and decided.state is not JobState.QUEUED:
        (heads,) = tx.read(("heads", {"ids": [job.profile_id]}))
        next_head(work, heads_by_profile(heads).get(job.profile_id, []), job.job_id, work.lane.waiting_at)
        refresh(work, now)
        save(tx, [work])
    placer.log.event(
        EventType.JOB_DECIDED,
        job=decided,
        actor=decision.actor,
        job_state=decided.state,
        data={"action": decision.action.value, "note": decision.note, "from": job.state.value},
    )
    if decided.state is not job.state:
        placer.log.owe(decided)
    placer.save()
    return Decided(state=decided.state, version=decided.version)


def _decided_job(placer: Placer, work: Work | None, job: Job, decision: Decision, now: datetime) -> Job:
    if decision.action is Action.DROP:
        return evolve(job, dropped=True)
    if work is None:
        raise IllegalTransition(
            f"profile {job.profile_id} of job {job.job_id} was removed: declare it again first, or drop the job"
        )
    match decision.action:
        case Action.CANCEL:
            return evolve(job, state=JobState.CANCELLED, finished_at=now, blocked_reason=None, detail=decision.note)
        case Action.APPROVE:
            approved = evolve(job, approved=True)
            if job.state is not JobState.BLOCKED:
                return approved
            return placer.enter(approved, work, EventType.JOB_UNBLOCKED, follow_conflict=False)[0]
        case _:
            again = evolve(job, run_at=None, finished_at=None, stop_reason=None, dropped=False, approved=True)
            return placer.enter(again, work, EventType.JOB_UNBLOCKED, follow_conflict=False)[0]


def decide_account(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Pause or resume: the account's lanes are held or freed, however many jobs wait in them."""
    tx.read(("lock_fleet", {}))
    (rows,) = tx.read(("lock_accounts", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no account {decision.id}; see 'leasekeeper accounts'")
    _check_version("account", decision, rows[0]["version"])
    paused = decision.action is Action.PAUSE
    tx.write("count_change", [{"changes": 1}])
    tx.write(
        "pause_accounts",
        [{"account_id": decision.id, "paused": paused, "pause_note": decision.note if paused else ""}],
    )
    (profiles,) = tx.read(("profiles_among", {"profiles": [], "accounts": [decision.id]}))
    now, works, _ = lock(tx, [row["profile_id"] for row in profiles])
    for work in works.values():
        refresh(work, now)
    save(tx, works.values())
    log = Log(ctx, now)
    log.event(
        EventType.ACCOUNT_PAUSED if paused else EventType.ACCOUNT_RESUMED,
        account_id=decision.id,
        actor=decision.actor,
        data={"note": decision.note},
    )
    log.save(tx)
    return Decided(state="paused" if paused else "active", version=rows[0]["version"] + 1)


def _check_version(what: str, decision: Decision, version: int) -> None:
    if decision.version is not None and decision.version != version:
        raise VersionConflict(
            f"{what} {decision.id} changed since it was read (version {decision.version}, now {version}); "
            "look at it again, then decide"
        )


def _close_review(tx: Tx, decision: Decision, now: datetime) -> None:
    tx.write(
        "close_reviews",
        [
            {
                "target": decision.target.value,
                "subject": decision.id,
                "decision": decision.action.value,
                "note": decision.note,
                "actor": decision.actor,
                "decided_at": to_us(now),
            }
        ],
    )


def report(tx: Tx, ctx: Context, said: WorkerReport) -> None:
    """Keep what a worker said. The first word of a process, and its last, are events."""
    now, (rows,) = tx.clock(("worker", {"incarnation": said.incarnation}))
    log = Log(ctx, now)
    worker = Worker(
        worker_id=said.worker_id,
        incarnation=said.incarnation,
        pool=said.pool,
        tasks=said.tasks,
        concurrency=said.concurrency,
        engine=said.engine,
        started_at=now,
        heartbeat_at=now,
        stopped_at=now if said.stopping else None,
    )
    tx.write("put_workers", [_write_worker(worker)])
    if said.tasks and not said.stopping:
        tx.write("insert_tasks", [{"pool": said.pool, "task": t, "first_seen_at": to_us(now)} for t in said.tasks])
    if said.stopping or not rows:
        kind = EventType.WORKER_STOPPED if said.stopping else EventType.WORKER_STARTED
        log.event(kind, worker_id=said.worker_id, data={"incarnation": said.incarnation, "pool": said.pool})
    log.save(tx)


def record(tx: Tx, event: Event) -> None:
    """An event that goes with no other change."""
    now, _ = tx.clock()
    row = write_event(evolve(event, at=now))
    del row["seq"]
    tx.write("insert_events", [row])
