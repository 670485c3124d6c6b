"""`why`: why a job does not run or a profile is not available, what happens next, and what a person can do.

Pure, and data only: the store reads `WhyFacts` at one moment, `explain` turns them into a `Why` of codes, ids and
times. `leasekeeper.wording` makes sentences of it.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.ids import RunId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import LIVE, Lease, LeaseStatus, RunRecord, is_live, silent_for
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.readiness import WAITS_FOR_PERSON, Block, Blocked, NoWorker, job_gate
from leasekeeper.core.resolving import waits_until
from leasekeeper.core.why_answer import (
    Holder,
    JobView,
    LastRun,
    Next,
    PoolUse,
    Possible,
    ProfileView,
    ProxyView,
    Step,
    UnwellWorker,
    Webhook,
    Why,
)
from leasekeeper.core.why_facts import WhyFacts

# A webhook that is due is sent within this time, if any sender runs.
_SENT_BY: Final = timedelta(minutes=1)
_WAITS_FOR_WORKER: Final = frozenset({JobState.QUEUED, JobState.BLOCKED, JobState.SCHEDULED})
_WAITS_FOR_PROFILE: Final = frozenset({JobState.BLOCKED, JobState.REVIEW})


def explain(facts: WhyFacts) -> Why:
    """The answer for the job if the facts are about one, else for the profile."""
    return _explain_job(facts, facts.job) if facts.job is not None else _explain_profile(facts)


def _explain_job(facts: WhyFacts, job: Job) -> Why:
    reason = blocked_reason(job)
    limit = facts.limit if reason is Blocked.CAPACITY else None
    steps, actions = _job_next(facts, job)
    return Why(
        now=facts.now,
        target=Target.JOB,
        id=job.job_id,
        state=job.state,
        reason=reason,
        block=_block(facts, job, reason),
        job=JobView(
            job_id=job.job_id,
            task=job.task,
            pool=job.pool,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            priority=job.priority,
            losses=job.losses,
            ahead=facts.ahead,
            detail=job.detail,
            run_at=job.run_at,
            finished_at=job.finished_at,
        ),
        profile=_profile_view(facts),
        holders=_holders(facts),
        last_run=_last_run(facts.job_run),
        unwell=_unwell(facts) if job.state in _WAITS_FOR_WORKER else (),
        proxy=_proxy(facts) if job.state in _WAITS_FOR_WORKER else None,
        pauses=facts.pauses if job.state in _WAITS_FOR_WORKER else (),
        pool=PoolUse(pool=job.pool, leases=facts.pool_leases, max_leases=limit.max_leases) if limit else None,
        webhooks=tuple(_webhook(delivery) for delivery in facts.webhooks),
        notes=facts.notes,
        next=(*steps, *_webhook_steps(facts)),
        evidence=_evidence(facts),
        possible=(
            *actions,
            *(_profile_actions(facts) if job.state in _WAITS_FOR_PROFILE else ()),
            *_webhook_actions(facts),
        ),
    )


def _explain_profile(facts: WhyFacts) -> Why:
    steps, actions = _profile_next(facts)
    return Why(
        now=facts.now,
        target=Target.PROFILE,
        id=facts.profile.profile_id,
        state=facts.lane.state,
        profile=_profile_view(facts),
        holders=_holders(facts),
        pauses=facts.pauses,
        last_run=_last_run(facts.last_run),
        proxy=_proxy(facts),
        notes=facts.notes,
        next=tuple(steps),
        evidence=_evidence(facts),
        possible=(*actions, *_profile_actions(facts)),
    )


def blocked_reason(job: Job) -> Blocked | None:
    """Why a job is blocked; None if it is not."""
    if job.state is not JobState.BLOCKED:
        return None
    return Blocked(job.blocked_reason) if job.blocked_reason else Blocked.PROFILE_STATE


def _block(facts: WhyFacts, job: Job, reason: Blocked | None) -> Block | None:
    """What exactly blocks a job. None: it is not blocked, or its lane is, which other parts of the answer explain."""
    match reason:
        case Blocked.NO_WORKER if not facts.task_known:
            return Block(reason=reason, no_worker=NoWorker.NEVER_OFFERED)
        case Blocked.NO_WORKER if facts.outdated:
            return Block(reason=reason, no_worker=NoWorker.BROWSER_TOO_OLD, engine=facts.lane.engine)
        case Blocked.NO_WORKER:
            return Block(reason=reason, no_worker=NoWorker.NOT_OFFERED_NOW)
        case Blocked.HOME:
            return Block(reason=reason, home=facts.lane.home)
    block = job_gate(job, facts.profile, facts.proxy, task_known=True)
    return block if block is not None and block.reason is reason else None


def _job_next(facts: WhyFacts, job: Job) -> tuple[list[Step], list[Possible]]:
    """What happens next to the job, and what can be decided about the job itself."""
    cancel = _of_job(job, Action.CANCEL)
    match job.state:
        case JobState.RUNNING:
            mine = [lease for lease in facts.holders if lease.run_id == job.run_id]
            return _revoked(mine) or _silent(mine, facts) or [Step(code=Next.RUN_ENDS)], _revocations(mine)
        case JobState.SCHEDULED:
            late = job.run_at is not None and job.run_at <= facts.now
            return [Step(code=Next.SWEEP_TAKES_JOB if late else Next.DUE, at=job.run_at)], [cancel]
        case JobState.QUEUED:
            return [Step(code=Next.WORKER_TAKES_JOB)], [cancel]
        case JobState.BLOCKED:
            reason = blocked_reason(job)
            taken, silent = [], []
            if reason is Blocked.PROFILE_LEASE:
                taken = _revoked(facts.holders)
                silent = _silent((*facts.holders, *facts.key_holders), facts)
            approve = [_of_job(job, Action.APPROVE)] if reason is Blocked.APPROVAL else []
            ends = facts.pauses[0].until if facts.pauses and reason is Blocked.PAUSE else None
            return taken or [Step(code=Next.UNBLOCKED, reason=reason, at=ends), *silent], [*approve, cancel]
        case JobState.REVIEW:
            section = facts.job_run.open_section if facts.job_run else None
            requeue = Possible(target=Target.JOB, id=job.job_id, action=Action.REQUEUE, section=section)
            return [Step(code=Next.PERSON_DECIDES)], [requeue, cancel]
        case JobState.DEAD:
            return [Step(code=Next.PERSON_DECIDES)], [_of_job(job, Action.RETRY), _of_job(job, Action.DROP)]
        case JobState.COMPLETED | JobState.SKIPPED | JobState.CANCELLED:
            return [Step(code=Next.OVER)], []


def _profile_next(facts: WhyFacts) -> tuple[list[Step], list[Possible]]:
    match facts.lane.state:
        case ProfileState.AVAILABLE:
            return [_next_start(facts)], []
        case ProfileState.LEASED if any(lease.expires_at <= facts.now for lease in facts.holders):
            return [Step(code=Next.SWEEP_ENDS_LEASE)], []
        case ProfileState.LEASED:
            taken, live = _revoked(facts.holders), _revocations(facts.holders)
            if taken and live:
                taken.append(Step(code=Next.OTHER_RUNS_GO_ON))
            return taken or _silent(facts.holders, facts) or [Step(code=Next.RUN_ENDS)], live
        case ProfileState.STALE:
            return [resolution(lease) for lease in facts.unresolved], []
        case ProfileState.REVIEW_REQUIRED | ProfileState.QUARANTINED | ProfileState.DISABLED:
            return [Step(code=Next.PERSON_DECIDES)], []


def _next_start(facts: WhyFacts) -> Step:
    """When the next job of a profile starts that nobody has leased."""
    job = facts.next_job
    if facts.account.paused:
        return Step(code=Next.ACCOUNT_RESUMED)
    if facts.lane.waits_on and facts.key_holders:
        return Step(code=Next.ACCOUNT_RUN_ENDS, run_id=facts.key_holders[0].run_id)
    if facts.waiting and facts.outdated:
        return Step(code=Next.BROWSER_UPGRADED, engine=facts.lane.engine)
    if job is not None and (reason := blocked_reason(job)) is not None:
        return Step(code=Next.NEXT_JOB_UNBLOCKED, job_id=job.job_id, task=job.task, pool=job.pool, reason=reason)
    return Step(code=Next.NEXT_JOB_STARTS if facts.waiting else Next.NOTHING_WAITS)


def resolution(lease: Lease) -> Step:
    """What becomes of a profile whose lease ended without an explanation, once it has expired."""
    if lease.open_section is not None:
        return Step(code=Next.SWEEP_QUARANTINES, lease_id=lease.lease_id, section=lease.open_section)
    match lease.release_policy:
        case ReleasePolicy.QUARANTINE:
            return Step(code=Next.SWEEP_QUARANTINES, lease_id=lease.lease_id)
        case ReleasePolicy.REVIEW:
            return Step(code=Next.SWEEP_SENDS_TO_REVIEW, lease_id=lease.lease_id)
        case ReleasePolicy.RESTORE:
            return Step(code=Next.SWEEP_RESTORES, lease_id=lease.lease_id, at=waits_until(lease))
        case ReleasePolicy.RECOVER:
            return Step(code=Next.SWEEP_RECOVERS, lease_id=lease.lease_id, at=waits_until(lease))


def _revoked(holders: Sequence[Lease]) -> list[Step]:
    """For each revoked lease: until when its profile stays leased, and what becomes of the profile then."""
    return [
        step
        for lease in holders
        if lease.status is LeaseStatus.REVOKED
        for step in (
            Step(code=Next.LEASE_REVOKED, lease_id=lease.lease_id, at=lease.expires_at),
            resolution(lease),
        )
    ]


def _silent(holders: Sequence[Lease], facts: WhyFacts) -> list[Step]:
    """For each lease whose worker is silent: when it expires, if the worker stays silent."""
    return [
        Step(code=Next.SILENT_LEASE_EXPIRES, lease_id=lease.lease_id, at=lease.expires_at)
        for lease in holders
        if is_live(lease, facts.now) and silent_for(lease, facts.now) is not None
    ]


def _of_job(job: Job, action: Action) -> Possible:
    return Possible(target=Target.JOB, id=job.job_id, action=action)


def _revocations(holders: Sequence[Lease]) -> list[Possible]:
    return [
        Possible(target=Target.LEASE, id=lease.lease_id, action=Action.REVOKE)
        for lease in holders
        if lease.status in LIVE
    ]


_ACTIONS: Final = {
    ProfileState.AVAILABLE: (),
    ProfileState.LEASED: (),
    ProfileState.STALE: (Action.DISABLE,),
    ProfileState.REVIEW_REQUIRED: (Action.CLEAR, Action.QUARANTINE, Action.DISABLE),
    ProfileState.QUARANTINED: (Action.CLEAR, Action.REVIEW, Action.DISABLE),
    ProfileState.DISABLED: (Action.ENABLE,),
}


def _profile_actions(facts: WhyFacts) -> list[Possible]:
    """What a person can do for the profile, and so for each job that waits for it."""
    account = facts.account
    resume = Possible(target=Target.ACCOUNT, id=account.account_id, action=Action.RESUME)
    found = [resume] if account.paused else []
    if facts.proxy is not None and facts.proxy.trouble is not None:
        found.append(Possible(target=Target.PROXY, id=facts.proxy.proxy_id, action=Action.RETRY))
    profile_id, lane = facts.profile.profile_id, facts.lane
    # A decision about a leased profile says where it goes at the end of the lease.
    heading = lane.drain if lane.state is ProfileState.LEASED and lane.drain else lane.state
    found += [Possible(target=Target.PROFILE, id=profile_id, action=action) for action in _ACTIONS[heading]]
    stuck = lane.state in WAITS_FOR_PERSON or bool(lane.unsaved_reason)
    if stuck and lane.state is not ProfileState.LEASED and lane.snapshot is not None:
        found.append(Possible(target=Target.PROFILE, id=profile_id, action=Action.RESTORE))
    return found


def _webhook_steps(facts: WhyFacts) -> list[Step]:
    steps = []
    for delivery in facts.webhooks:
        if delivery.state is not DeliveryState.PENDING:
            continue
        tried_at = facts.webhooks_tried_at
        code, host = Next.WEBHOOK_SENT, None
        if facts.now - delivery.due_at > _SENT_BY:
            code = Next.WEBHOOK_SENT_BY_NOBODY
            if tried_at is not None and facts.now - tried_at <= _SENT_BY:
                code, host = Next.WEBHOOK_WAITS_ITS_TURN, delivery.host
        steps.append(Step(code=code, at=delivery.due_at, host=host))
    return steps


def _webhook_actions(facts: WhyFacts) -> list[Possible]:
    """Messages that were given up, or are due later, may be sent now."""
    pending = [delivery for delivery in facts.webhooks if delivery.state is not DeliveryState.DELIVERED]
    return [
        Possible(target=Target.WEBHOOK, id=delivery.delivery_id, action=Action.REPLAY)
        for delivery in pending
        if delivery.state is DeliveryState.EXHAUSTED or delivery.due_at > facts.now
    ]


def _evidence(facts: WhyFacts) -> tuple[RunId, ...]:
    """The runs to read before deciding: those that sent the job, or its profile, to a person."""
    job, runs = facts.job, []
    if job is not None and job.state in (JobState.REVIEW, JobState.DEAD):
        runs.append(facts.job_run)
    found = [run.run_id for run in runs if run is not None]
    if facts.lane.state in WAITS_FOR_PERSON and (job is None or job.state in _WAITS_FOR_PROFILE):
        # People may have opened the profile since: the review names the run that it is about.
        asked = [review.run_id for review in facts.reviews if review.target is Target.PROFILE and review.run_id]
        found += asked or ([facts.last_run.run_id] if facts.last_run else [])
    return tuple(dict.fromkeys(found))


def _profile_view(facts: WhyFacts) -> ProfileView:
    return ProfileView(
        profile_id=facts.profile.profile_id,
        account_id=facts.profile.account_id,
        state=facts.lane.state,
        state_reason=facts.lane.state_reason,
        state_cause=facts.lane.state_cause,
        state_data=facts.lane.state_data,
        since_at=facts.lane.state_at,
        waiting=facts.waiting,
        drain=facts.lane.drain,
        drain_reason=facts.lane.drain_reason,
        drain_cause=facts.lane.drain_cause,
        drain_data=facts.lane.drain_data,
        tier=facts.lane.tier,
        ban_status=facts.lane.ban_status,
        account_ban_status=facts.account.ban_status,
        paused=facts.account.paused,
        pause_note=facts.account.pause_note if facts.account.paused else "",
        home=facts.lane.home,
        snapshot=facts.lane.snapshot,
        saved=facts.lane.saved,
        unsaved_reason=facts.lane.unsaved_reason,
        size_bytes=facts.lane.size_bytes,
        max_size_mb=facts.profile.max_size_mb,
    )


def _holders(facts: WhyFacts) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            lease_id=lease.lease_id,
            worker_id=lease.worker_id,
            run_id=lease.run_id,
            profile_id=lease.profile_id,
            purpose=lease.purpose,
            job_id=lease.job_id,
            task=lease.task,
            token=lease.token,
            status=lease.status,
            acquired_at=lease.acquired_at,
            heartbeat_at=lease.heartbeat_at,
            expires_at=lease.expires_at,
            last_safe_step=lease.last_safe_step,
            last_safe_at=lease.last_safe_at,
            open_section=lease.open_section,
            silent_seconds=None if (quiet := silent_for(lease, facts.now)) is None else int(quiet.total_seconds()),
        )
        for lease in (*facts.holders, *facts.key_holders)
    )


def _last_run(run: RunRecord | None) -> LastRun | None:
    if run is None:
        return None
    return LastRun(
        run_id=run.run_id,
        worker_id=run.worker_id,
        result=run.result,
        stop_reason=run.stop_reason,
        ended_at=run.ended_at,
    )


def _proxy(facts: WhyFacts) -> ProxyView | None:
    proxy = facts.proxy
    if proxy is None or proxy.trouble is None:
        return None
    return ProxyView(
        proxy_id=proxy.proxy_id,
        trouble=proxy.trouble,
        detail=proxy.trouble_detail,
        since_at=proxy.trouble_at,
        asked=proxy.asked,
        ask_at=proxy.ask_at,
    )


def _unwell(facts: WhyFacts) -> tuple[UnwellWorker, ...]:
    return tuple(
        UnwellWorker(worker_id=worker.worker_id, reason=worker.unwell_reason or "", since_at=worker.unwell_since)
        for worker in facts.unwell
    )


def _webhook(delivery: Delivery) -> Webhook:
    return Webhook(
        delivery_id=delivery.delivery_id,
        type=delivery.type,
        state=delivery.state,
        tries=delivery.tries,
        replayed=delivery.spent > 0,
        answer=delivery.answer,
        due_at=delivery.due_at,
        ended_at=delivery.ended_at,
    )
