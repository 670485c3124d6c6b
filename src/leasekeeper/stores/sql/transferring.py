"""Transfers control of an open browser: one run ends and another begins in it, in one commit."""

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.control import TransferRequest, lane_passed, lease_after, resumed, transferred, why_not_resumed
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import RunId
from leasekeeper.core.jobs import Job
from leasekeeper.core.lanes import opened_by
from leasekeeper.core.leases import Lease, Refusal
from leasekeeper.core.pauses import Scope
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict, NotFound
from leasekeeper.ports import Grant, HandedOver, Settled
from leasekeeper.stores.sql.claiming import Granting, record_grant
from leasekeeper.stores.sql.codec import to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.heartbeats import step_row
from leasekeeper.stores.sql.lanes import Work, grant_of, lock_runs, read_job, refresh, refused, save, writer_of
from leasekeeper.stores.sql.pause_rows import paused
from leasekeeper.stores.sql.settling import Endings, kept
from leasekeeper.stores.sql.snapshots import newest_of
from leasekeeper.stores.sql.submitting import change_job
from leasekeeper.wording.control import not_resumed


def transfer(tx: Tx, ctx: Context, ending: Ending, to: TransferRequest) -> HandedOver:
    """End one run and begin the other. A refusal is returned, not raised, so that its event is committed. If the other
    run has begun already, its grant is returned."""
    ref = ending.ref
    now, works, jobs = lock_runs(tx, [(ref.profile_id, ref.lease_id)])
    work = works.get(ref.profile_id)
    made = next((lease for lease in work.live if lease.incarnation == to.incarnation), None) if work else None
    if work is not None and made is not None:
        job = None if made.job_id is None else _job(tx, made.job_id)
        newest = newest_of(tx, [work]).get(work.lane.profile_id)
        settled = Settled(lease_id=ref.lease_id, run_id=ref.run_id)
        return HandedOver(settled=settled, grant=grant_of(work, made, job, newest))
    batch = Endings(tx, ctx, now, works, jobs)
    lease = next((each for each in work.open if each.token == ref.token), None) if work else None
    why = refused(tx, lease, ref, now)
    if work is None or lease is None or why is not None:
        why = why or Refusal.NO_SUCH_LEASE
        batch.log.refused(ref, "transfer", why, lease or writer_of(tx, ref))
        batch.log.save(tx)
        return HandedOver(settled=Settled(lease_id=ref.lease_id, refused=why))
    going_on = None if to.job_id is None else _resumed(tx, ctx, work, lease, to, batch)
    settled = _end(batch, work, lease, kept(ending))
    grant = _begin(batch, work, lease, to, going_on, settled)
    return HandedOver(settled=settled, grant=grant)


def _job(tx: Tx, job_id: str) -> Job:
    (rows,) = tx.read(("jobs_by_id", {"ids": [job_id]}))
    if not rows:
        raise NotFound(f"there is no job {job_id}", what="job", id=job_id)
    return read_job(rows[0])


def _resumed(tx: Tx, ctx: Context, work: Work, before: Lease, to: TransferRequest, batch: Endings) -> Job:
    """The job that continues, under a new run. Raises Conflict if it cannot continue."""
    job = _job(tx, to.job_id or "")
    pauses = paused(tx, batch.now, Scope.ALL, pool=job.pool)
    why = why_not_resumed(work, job, paused=bool(pauses), anew_after=before if to.begins_anew else None)
    if why is not None:
        raise Conflict(
            f"{not_resumed(why, job, work.lane, before)}; nothing was handed back",
            cause=ConflictReason.NOT_RESUMABLE,
            why=why.value,
            job_id=job.job_id,
            profile_id=job.profile_id,
        )
    return resumed(job, RunId(ctx.new_id()))


def _end(batch: Endings, work: Work, lease: Lease, ending: Ending) -> Settled:
    job = batch.jobs.get(lease.run_id)
    settlement = transferred(lease, job, ending)
    batch.end_run(work, lease, settlement, ending)
    work.change(opened_by(work.lane, ending.engine))
    ended = batch.end_job(job, settlement)
    batch.end_request(lease, ended)
    return batch.settled(work, lease, settlement, ended)


def _begin(batch: Endings, work: Work, before: Lease, to: TransferRequest, job: Job | None, settled: Settled) -> Grant:
    tx, ctx, now = batch.tx, batch.ctx, batch.now
    run_id = RunId(ctx.new_id()) if job is None or job.run_id is None else job.run_id
    lease = lease_after(work, before, to, job, run_id=run_id, timing=ctx.policy.timing, now=now)
    batch.log.event(
        EventType.CONTROL_PASSED,
        lease=lease,
        actor=to.actor,
        profile_state=work.lane.state,
        data={"from": before.worker_id, "to": to.worker_id, "run_before": before.run_id, "note": to.note},
    )
    granting = Granting(ctx=ctx, log=batch.log, works=[work], newest=newest_of(tx, [work]))
    record_grant(granting, work, lease, job, now)
    if settled.settlement is not None:
        work.change(lane_passed(work, settled.settlement, lease))
    refresh(work, now)
    tx.write("end_runs", batch.runs)
    tx.write("insert_runs", granting.runs)
    if lease.last_safe_step or lease.open_section or lease.left_section:
        tx.write("step_runs", [step_row(lease)])
    tx.granted[lease.lease_id] = (lease, job)
    changed = [*batch.changed_jobs, *([change_job(job)] if job else [])]
    if changed:
        tx.write("update_jobs", changed)
    if job is not None:
        _close_review(batch, job, to)
    save(tx, [work])
    batch.log.save(tx)
    return granting.grants[0]


def _close_review(batch: Endings, job: Job, to: TransferRequest) -> None:
    row = {
        "target": Target.JOB.value,
        "subject": job.job_id,
        "decision": Action.RESUME.value,
        "note": to.note,
        "actor": to.actor,
        "decided_at": to_us(batch.now),
    }
    batch.tx.write("close_reviews", [row])
