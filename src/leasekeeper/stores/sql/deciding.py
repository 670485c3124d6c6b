"""People's decisions about a profile, a job or an account; workers' reports; and single events."""

from datetime import datetime

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import (
    LEAVES_PAUSE,
    LEAVES_REVIEW,
    Action,
    Decision,
    Target,
    account_decided,
    check_job_action,
    check_profile_of_job,
    job_decided,
    placed_again,
    problems_of,
    profile_decided,
)
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import Token
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import next_head
from leasekeeper.core.pauses import Scope, pause_id_of
from leasekeeper.core.profiles import said_of_state
from leasekeeper.core.records import evolve
from leasekeeper.core.workers import Earlier, Worker, WorkerReport, news_in, reported
from leasekeeper.errors import InputError, NotFound, VersionConflict
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.banning import account_row
from leasekeeper.stores.sql.codec import decoder, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import (
    Work,
    heads_by_profile,
    lock,
    next_version,
    read_job,
    refresh,
    save,
)
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.snapshots import restore
from leasekeeper.stores.sql.submitting import Placer, change_job

_write_worker = encoder(Worker)
_read_worker = decoder(Worker)
_read_earlier = decoder(Earlier)
_silent_row = encoder(Worker, ("incarnation", "silent_since"))
_read_account = decoder(Account)


def check(decision: Decision) -> None:
    """Raise InputError for a decision that is not complete."""
    problems = problems_of(decision)
    if problems:
        raise InputError("the decision is not complete", problems)


def decide_profile(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Clear, quarantine, review, disable, enable, move or restore one profile. Touches its lane, not its jobs."""
    now, works, _ = lock(tx, [decision.id])
    work = next(iter(works.values()), None)
    if work is None:
        raise NotFound(f"there is no profile {decision.id}", what="profile", id=decision.id)
    check_version("profile", decision, work.lane.version)
    log = Log(ctx, now)
    before, home = work.lane.state, work.lane.home
    decided = profile_decided(work, decision, now, about_empty_directory=_about_empty_directory(tx, decision.id))
    work.change(decided.changes)
    if decision.action is Action.RESTORE:
        restore(tx, ctx, log, work, Token(int(decision.to)) if decision.to else None, decision.actor)
    if decision.action not in LEAVES_REVIEW:
        _close_review(tx, decision, now)
    if decided.review is not None:
        log.review_profile(work.lane, None, decision.action.value, decided.review)
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
            "drain": work.lane.drain.value if work.lane.drain else None,
            **said_of_state(work.lane),
            **({"home_before": home, "home": work.lane.home} if decision.action is Action.MOVE else {}),
        },
    )
    save(tx, [work])
    log.save(tx)
    return Decided(state=work.lane.state, version=next_version(work))


def _about_empty_directory(tx: Tx, profile_id: str) -> bool:
    """Whether the profile has an open review because its directory is empty."""
    (reviews,) = tx.read(("open_reviews_of", {"profile_id": profile_id}))
    return any(row["target"] == Target.PROFILE and row["reason"] == Reason.PROFILE_DIRECTORY_EMPTY for row in reviews)


def decide_job(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Approve, requeue, cancel, retry, drop or prioritize one job."""
    missing = NotFound(f"there is no job {decision.id}", what="job", id=decision.id)
    (found,) = tx.read(("jobs_by_id", {"ids": [decision.id]}))
    if not found:
        raise missing
    now, works, (known, rows) = lock(
        tx, [found[0]["profile_id"]], ("known_tasks", {}), ("jobs_by_id", {"ids": [decision.id]})
    )
    if not rows:
        raise missing  # it was pruned while its lane was waited for
    job = read_job(rows[0])
    check_version("job", decision, job.version)
    check_job_action(job.job_id, job.state, decision.action)
    placer = Placer(tx, ctx, now, works, known)
    decided = _decided_job(placer, works.get(job.profile_id), evolve(job, version=job.version + 1), decision, now)
    if decision.action not in LEAVES_REVIEW:
        _close_review(tx, decision, now)
    tx.write("update_jobs", [change_job(decided)])
    work = works.get(job.profile_id)
    if decision.action is Action.PRIORITIZE:
        tx.write("prioritize_jobs", [{"seq": decided.seq, "priority": decided.priority}])
        _find_head(tx, work, now)
    elif work is not None and work.lane.head_job_id == job.job_id and decided.state is not JobState.QUEUED:
        (heads,) = tx.read(("heads", {"ids": [job.profile_id]}))
        following, _ = heads_by_profile(heads).get(job.profile_id, ([], {}))
        work.change(next_head(work.lane, following, job.job_id, work.lane.waiting_at))
        refresh(work, now)
        save(tx, [work])
    placer.log.event(
        EventType.JOB_DECIDED,
        job=decided,
        actor=decision.actor,
        job_state=decided.state,
        data={
            "action": decision.action.value,
            "note": decision.note,
            "from": job.state.value,
            **({"priority": decided.priority} if decision.action is Action.PRIORITIZE else {}),
        },
    )
    if decided.state is not job.state:
        placer.log.notify(decided)
    placer.save()
    return Decided(state=decided.state, version=decided.version)


def _find_head(tx: Tx, work: Work | None, now: datetime) -> None:
    """Read the lane's first job and its priority again, after the order of its jobs changed."""
    if work is None or work.lane.head_job_id is None:
        return
    (rows,) = tx.read(("heads", {"ids": [work.lane.profile_id]}))
    heads, _ = heads_by_profile(rows).get(work.lane.profile_id, ([], {}))
    work.change(next_head(work.lane, heads, None, work.lane.waiting_at))
    refresh(work, now)
    save(tx, [work])


def _decided_job(placer: Placer, work: Work | None, job: Job, decision: Decision, now: datetime) -> Job:
    check_profile_of_job(job, decision.action, declared=work is not None)
    decided = job_decided(job, decision, now)
    if work is None or not placed_again(job, decision.action):
        return decided
    return placer.enter(decided, work, EventType.JOB_UNBLOCKED, follow_conflict=False)[0]


def decide_account(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Pause or resume one account, or change its ban status. Blocks or unblocks its lanes, without a write per job."""
    tx.read(("lock_fleet", {}))
    (rows,) = tx.read(("lock_accounts", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no account {decision.id}", what="account", id=decision.id)
    check_version("account", decision, rows[0]["version"])
    before = _read_account(rows[0])
    account = account_decided(before, decision)
    tx.write("count_change", [{"changes": 1}])
    if decision.action not in LEAVES_PAUSE:
        tx.write("delete_pauses", [{"pause_id": pause_id_of(Scope.ACCOUNT, decision.id)}])
    tx.write("pause_accounts", [account_row(account)])
    (profiles,) = tx.read(("profiles_among", {"profiles": [], "accounts": [decision.id]}))
    now, works, _ = lock(tx, [row["profile_id"] for row in profiles])
    for work in works.values():
        refresh(work, now)
    save(tx, works.values())
    log = Log(ctx, now)
    log.account(
        before, account, actor=decision.actor, note=decision.note, decided=decision.action, until=decision.until
    )
    log.save(tx)
    return Decided(state="paused" if account.paused else "active", version=account.version)


def check_version(what: str, decision: Decision, version: int) -> None:
    """Raise VersionConflict if the record changed since the person read it."""
    if decision.version is not None and decision.version != version:
        raise VersionConflict(
            f"{what} {decision.id} changed since it was read (version {decision.version}, now {version}); "
            "read it again, then decide",
            version=version,
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
    """Store a worker's report. The first and last report of a process, and changes between them, write events."""
    now, (rows,) = tx.clock(("worker", {"incarnation": said.incarnation}))
    before = _read_earlier(rows[0]) if rows else None
    tx.write("put_workers", [_write_worker(reported(said, before, now))])
    if said.tasks and not said.stopping:
        tx.write("insert_tasks", [{"pool": said.pool, "task": t, "first_seen_at": to_us(now)} for t in said.tasks])
    log = Log(ctx, now)
    for kind, data in news_in(said, before, now):
        log.event(kind, worker_id=said.worker_id, data=data)
    log.save(tx)


def record(tx: Tx, ctx: Context, event: Event) -> None:
    """Write one event, with no other change."""
    now, _ = tx.clock()
    log = Log(ctx, now)
    log.add(evolve(event, at=now))
    log.save(tx)


def mark_silent(tx: Tx, ctx: Context, limit: int) -> list[Worker]:
    """Mark workers whose last report is too old as silent. Returns those that were not marked before."""
    now, _ = tx.clock()
    since = to_us(now - ctx.policy.worker_ttl)
    (rows,) = tx.read(("lock_silent_workers", {"since": since, "limit": limit}))
    silent = [evolve(worker, silent_since=now) for worker in map(_read_worker, rows)]
    if silent:
        tx.write("silence_workers", [_silent_row(worker) for worker in silent])
    log = Log(ctx, now)
    for worker in silent:
        data = {"incarnation": worker.incarnation, "pool": worker.pool, "heartbeat_at": worker.heartbeat_at.isoformat()}
        log.event(EventType.WORKER_SILENT, worker_id=worker.worker_id, data=data)
    log.save(tx)
    return silent
