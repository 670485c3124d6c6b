"""Endings: reported by the holder, found out by the sweeper, or ordered by a person. One commit each batch."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from leasekeeper.core.accounts import Routing
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import JobId, ProfileId, RunId
from leasekeeper.core.jobs import FINAL, Job, JobState
from leasekeeper.core.leases import Lease, LeaseStatus, RunRecord, RunResult, lease_key, raised
from leasekeeper.core.profiles import Cause, ProfileState, settle_state, worse
from leasekeeper.core.routing import is_account_key
from leasekeeper.core.settle import Ending, JobVerdict, LostFacts, Settlement
from leasekeeper.core.settle import resolve as decide_lost
from leasekeeper.core.settle import settle as decide_ending
from leasekeeper.core.why import after_revoke
from leasekeeper.errors import Conflict
from leasekeeper.ports import Resolution, Settled
from leasekeeper.stores.sql.claiming import held_keys
from leasekeeper.stores.sql.codec import changer, clean, decoder, dump, evolve, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.holding import renewal_row
from leasekeeper.stores.sql.lanes import (
    Work,
    heads_by_profile,
    lock,
    lock_runs,
    move,
    next_head,
    refresh,
    refused,
    save,
    unpark,
)
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.submitting import change_job

read_run = decoder(RunRecord)
_ended = changer(Job, "state", "detail", "stop_reason", "run_at", "losses", "attempt", "finished_at", "version")
_released = changer(Lease, "status", "ended_at", "unresolved")

_TRIGGERED = {
    ProfileState.QUARANTINED: Cause.QUARANTINE_TRIGGER,
    ProfileState.REVIEW_REQUIRED: Cause.NEEDS_PERSON,
}


class _Ending:
    """What one transaction of endings has collected so far."""

    def __init__(
        self, tx: Tx, ctx: Context, now: datetime, works: Mapping[ProfileId, Work], jobs: Mapping[RunId, Job]
    ) -> None:
        self.tx, self.ctx, self.now, self.works, self.jobs = tx, ctx, now, works, jobs
        self.log = Log(ctx, now)
        self.runs: list[dict[str, object]] = []
        self.changed_jobs: list[dict[str, object]] = []
        self.returned: set[ProfileId] = set()

    def save(self) -> None:
        if self.runs:
            self.tx.write("end_runs", self.runs)
        if self.changed_jobs:
            self.tx.write("update_jobs", self.changed_jobs)
        if self.returned:
            self._find_heads()
        save(self.tx, self.works.values())
        self.log.save(self.tx)

    def _find_heads(self) -> None:
        """A job that was given back takes its old place in its lane."""
        (rows,) = self.tx.read(("heads", {"ids": sorted(self.returned)}))
        for profile_id, heads in heads_by_profile(rows).items():
            work = self.works[ProfileId(profile_id)]
            next_head(work, heads, JobId(""), work.lane.waiting_at)
            refresh(work, self.now)

    def end_job(self, job: Job | None, settlement: Settlement) -> Job | None:
        """The job as the settlement leaves it."""
        if job is None or settlement.job is None:
            return None
        ended = _ended_job(job, settlement.job, settlement.stop_reason, self.now)
        self.changed_jobs.append(change_job(ended))
        if ended.state is JobState.QUEUED:
            self.returned.add(ended.profile_id)
        if ended.state is JobState.REVIEW:
            self.log.review_job(ended, settlement.stop_reason or "", ended.detail)
        self.log.owe(ended)
        return ended

    def end_profile(self, work: Work, lease: Lease, settlement: Settlement) -> None:
        """The profile as the settlement leaves it: at once, or when the last sharer ends."""
        verdict = settlement.profile
        lane = work.lane
        if lane.state not in (ProfileState.LEASED, ProfileState.STALE):
            refresh(work, self.now)
            return
        after_all = worse(lane.verdict, verdict.state)
        if after_all is not lane.verdict:
            work.change(verdict=after_all, verdict_reason=verdict.reason)
            lane = work.lane
        after = settle_state(live=len(work.live), unresolved=work.unresolved, verdict=lane.verdict, drain=lane.drain)
        if after is ProfileState.LEASED or after is lane.state:
            refresh(work, self.now)
            return
        cause = _cause(lane.state, after, verdict.cause)
        reason = lane.verdict_reason or verdict.reason
        move(work, after, cause, reason, self.now)
        if after is ProfileState.STALE:
            work.change(clean=False)
        elif lane.verdict is not None or lane.drain or not lane.clean:
            clean = lane.verdict is None
            work.change(verdict=None, verdict_reason="", drain=False, clean=clean)
        if after in (ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED):
            self.log.review_profile(work.lane, lease.run_id, settlement.stop_reason or after.value, reason)
        refresh(work, self.now)


def _cause(before: ProfileState, after: ProfileState, cause: Cause) -> Cause:
    """The cause under which the table has this move; sharers can end in an order that blurs the verdict's own."""
    if after is ProfileState.DISABLED:
        return Cause.DRAINED
    if before is ProfileState.STALE:
        return Cause.RESOLVED
    if after is ProfileState.STALE:
        return cause if cause in (Cause.EXPIRED, Cause.NOT_PROVEN_CLOSED) else Cause.EXPIRED
    if after is ProfileState.AVAILABLE:
        return Cause.CLEAN_RELEASE
    if after is ProfileState.REVIEW_REQUIRED and cause is Cause.EVIDENCE_NOT_SAVED:
        return cause
    return _TRIGGERED[after]


def _ended_job(job: Job, verdict: JobVerdict, stop_reason: str | None, now: datetime) -> Job:
    return _ended(
        job,
        state=verdict.state,
        detail=verdict.detail,
        stop_reason=stop_reason,
        run_at=verdict.run_at or job.run_at,
        losses=job.losses + (1 if verdict.lost else 0),
        attempt=job.attempt - (1 if verdict.state is JobState.QUEUED else 0),
        finished_at=now if verdict.state in FINAL else None,
        version=job.version + 1,
    )


def settle(tx: Tx, ctx: Context, endings: Sequence[Ending]) -> tuple[list[Settled], list[str]]:
    """Apply reported endings. The second answer: account keys that are free now, for whoever waits on them."""
    now, works, jobs = lock_runs(tx, [(ending.ref.profile_id, ending.ref.lease_id) for ending in endings])
    batch = _Ending(tx, ctx, now, works, jobs)
    answers = [_settle_one(batch, ending) for ending in endings]
    batch.save()
    freed = [
        key
        for ending, answer in zip(endings, answers, strict=True)
        if answer.refused is None
        for key in _freed(works[ending.ref.profile_id], ending.ref.routing_key)
    ]
    return answers, freed


def _freed(work: Work, key: str) -> list[str]:
    """The account keys that the end of a lease may free: its own, and the account's if that is routed as one by now."""
    account = work.account
    earlier = account.routing is Routing.ACCOUNT_TASK and not is_account_key(key)
    wide = account.routing is Routing.ACCOUNT or earlier
    keys = {key, f"account:{account.account_id}"} if wide else {key}
    return [key for key in sorted(keys) if is_account_key(key)]


def _settle_one(batch: _Ending, ending: Ending) -> Settled:
    ref = ending.ref
    work = batch.works.get(ref.profile_id)
    lease = next((o for o in work.open if o.token == ref.token), None) if work else None
    why = refused(batch.tx, lease, ref, batch.now)
    if why is not None or lease is None or work is None:
        why = why or "the lease is not live"
        batch.log.refused(ref, "settle", why)
        return Settled(lease_id=ref.lease_id, refused=why)
    job = batch.jobs.get(lease.run_id)
    ending = _kept(ending)
    settlement = decide_ending(
        lease, job, ending, now=batch.now, jitter=batch.ctx.jitter(), backoff=batch.ctx.policy.backoff
    )
    unresolved = settlement.profile.unresolved
    _end_lease(work, _released(lease, status=LeaseStatus.RELEASED, ended_at=batch.now, unresolved=unresolved))
    batch.tx.held.pop(lease.lease_id, None)
    batch.runs.append(
        _end_row(
            lease,
            LeaseStatus.RELEASED,
            batch.now,
            unresolved=unresolved,
            settlement=settlement,
            message=ending.message,
            final_url=ending.facts.final_url,
            evidence=ending.evidence,
            output=ending.output,
            actual=ending.actual,
            timings=ending.timings,
        )
    )
    if ending.engine is not None:
        work.change(engine=max(ending.engine, work.lane.engine or 0))
    fence = {}
    if (token := raised(work.lane.token, ending.fence)) != work.lane.token:
        work.change(token=token)
        fence["fence"] = token
    ended = batch.end_job(job, settlement)
    batch.end_profile(work, lease, settlement)
    batch.log.event(
        EventType.RUN_SETTLED,
        lease=lease,
        job=ended,
        job_state=ended.state if ended else None,
        profile_state=work.lane.state,
        data={
            "result": settlement.result,
            "stop_reason": settlement.stop_reason,
            "belongs_to": settlement.belongs_to,
            "profile_reason": settlement.profile.reason,
            **fence,
        },
    )
    return Settled(
        lease_id=lease.lease_id,
        run_id=lease.run_id,
        settlement=settlement,
        job_state=ended.state if ended else None,
        profile_state=work.lane.state,
    )


def _kept(ending: Ending) -> Ending:
    """The ending with text that can be kept: pages write into messages and addresses what they like."""
    url = ending.facts.final_url
    texts = f"{ending.message}{url or ''}{ending.facts.failing_clause}{ending.reason or ''}"
    if clean(texts) is texts:
        return ending
    facts = evolve(
        ending.facts,
        final_url=url if url is None else clean(url),
        failing_clause=clean(ending.facts.failing_clause),
    )
    reason = ending.reason if ending.reason is None else clean(ending.reason)
    return evolve(ending, message=clean(ending.message), facts=facts, reason=reason)


def _end_lease(work: Work, ended: Lease) -> None:
    work.open = [lease for lease in work.open if lease.token != ended.token]
    if ended.unresolved:
        work.open.append(ended)


def _end_row(
    lease: Lease,
    status: LeaseStatus,
    ended_at: datetime,
    *,
    unresolved: bool,
    settlement: Settlement | None = None,
    message: str = "",
    final_url: str | None = None,
    evidence: Mapping[str, object] | None = None,
    output: Mapping[str, object] | None = None,
    actual: Mapping[str, str] | None = None,
    timings: Mapping[str, float] | None = None,
) -> dict[str, object]:
    return {
        "profile_id": lease.profile_id,
        "token": lease.token,
        "status": status._value_,
        "ended_at": to_us(ended_at),
        "unresolved": unresolved,
        "result": (settlement.result if settlement else RunResult.STARTED)._value_,
        "stop_reason": settlement.stop_reason if settlement else None,
        "belongs_to": settlement.belongs_to if settlement else None,
        "message": message,
        "final_url": final_url,
        "evidence": dump(evidence or {}),
        "output": None if output is None else dump(output),
        "actual": dump(actual or {}),
        "timings": dump(timings or {}),
    }


def expire(tx: Tx, ctx: Context, most: int, seen: datetime | None = None) -> tuple[list[Lease], list[str]]:
    """End leases whose time is up. Those whose profile somebody holds right now wait for the next sweep."""
    now, _ = tx.clock()
    if tx.lenient:
        return [], []
    (rows,) = tx.read(("expired_runs", {"now": to_us(_earlier(now, seen)), "most": most}))
    if not rows:
        return [], []
    now, works, _ = lock(tx, [row["profile_id"] for row in rows], waiting=False)
    batch = _Ending(tx, ctx, now, works, {})
    expired = [
        _end_unexplained(batch, work, lease)
        for work in works.values()
        for lease in work.live
        if lease.expires_at <= _earlier(now, seen)
    ]
    batch.save()
    return expired, [key for lease in expired for key in _freed(works[lease.profile_id], lease.routing_key)]


def _earlier(now: datetime, seen: datetime | None) -> datetime:
    return now if seen is None else min(now, seen)


def revoke(tx: Tx, ctx: Context, lease_id: str, actor: str, note: str) -> Lease | None:
    """A person takes the lease away: it can write nothing any more.

    Its holder may not know it yet, so the profile stays leased until the lease would have expired; then it is an
    ending without an explanation like any other.
    """
    key = lease_key(lease_id)
    if key is None:
        return None
    now, works, _ = lock(tx, [key[0]])
    work = works.get(key[0])
    lease = next((o for o in work.live if o.token == key[1]), None) if work else None
    if work is None or lease is None:
        return None
    if lease.status is LeaseStatus.REVOKED:
        raise Conflict(f"lease {lease_id} was revoked already: {after_revoke(lease, now)}")
    revoked = evolve(lease, status=LeaseStatus.REVOKED)
    tx.write("renew_runs", [renewal_row(revoked)])
    log = Log(ctx, now)
    log.event(
        EventType.LEASE_REVOKED,
        lease=lease,
        actor=actor,
        profile_state=work.lane.state,
        data={"token": lease.token, "note": note},
    )
    log.save(tx)
    return revoked


def _end_unexplained(batch: _Ending, work: Work, lease: Lease) -> Lease:
    """The lease ends, the profile goes stale once nobody shares it, the job waits for the resolution."""
    status = lease.status if lease.status is LeaseStatus.REVOKED else LeaseStatus.EXPIRED
    ended = evolve(lease, status=status, ended_at=lease.expires_at, unresolved=True)
    _end_lease(work, ended)
    batch.runs.append(_end_row(lease, status, lease.expires_at, unresolved=True))
    if work.lane.state is ProfileState.LEASED and not work.live:
        move(
            work,
            ProfileState.STALE,
            Cause.EXPIRED,
            f"lease {status}: {lease.worker_id} stopped reporting",
            batch.now,
        )
        work.change(clean=False)
    refresh(work, batch.now)
    batch.log.event(
        EventType.LEASE_EXPIRED,
        lease=lease,
        profile_state=work.lane.state,
        data={
            "token": lease.token,
            "status": status.value,
            "last_safe_step": lease.last_safe_step,
            "open_section": lease.open_section,
            "release_policy": lease.release_policy.value,
        },
    )
    return ended


def resolve(tx: Tx, ctx: Context, resolutions: Sequence[Resolution]) -> list[Settled]:
    """Decide unexplained endings, each once, with what was found out about them.

    A report is kept with its run first, whether it is time to decide, too early or too late.
    """
    wanted = {key: r for r in resolutions if (key := lease_key(r.lease_id)) is not None}
    now, works, jobs = lock_runs(tx, [(profile_id, r.lease_id) for (profile_id, _), r in wanted.items()])
    _keep_reports(tx, resolutions)
    batch = _Ending(tx, ctx, now, works, jobs)
    answers = []
    for (profile_id, token), resolution in wanted.items():
        work = works.get(profile_id)
        lease = next((o for o in work.open if o.token == token and o.unresolved), None) if work else None
        if work is not None and lease is not None:
            answer = _resolve_one(batch, work, lease, resolution.facts)
            if answer is not None:
                answers.append(answer)
    batch.save()
    return answers


def _keep_reports(tx: Tx, resolutions: Sequence[Resolution]) -> None:
    rows = []
    for resolution in resolutions:
        key, facts = lease_key(resolution.lease_id), _cleaned(resolution.facts)
        if key is not None and facts.reported_by:
            rows.append(
                {
                    "profile_id": key[0],
                    "token": key[1],
                    "final_url": facts.final_url,
                    "evidence": dump(facts.kept()),
                }
            )
    if rows:
        tx.write("keep_reports", rows)


def _cleaned(facts: LostFacts) -> LostFacts:
    url = facts.final_url
    return evolve(facts, final_url=url if url is None else clean(url), reported_by=clean(facts.reported_by))


def _recall(tx: Tx, lease: Lease, facts: LostFacts) -> tuple[LostFacts, Mapping[str, object]]:
    """What is known of a lost run, by this report or an earlier one, and its evidence with that in it."""
    (rows,) = tx.read(("run_by_token", {"profile_id": lease.profile_id, "token": lease.token}))
    run = read_run(rows[0])
    # The evidence of a run that was released is its holder's own: a keeper's report is kept with lost ones only.
    early = facts == LostFacts() and lease.status is not LeaseStatus.RELEASED
    facts = LostFacts.recalled(run.final_url, run.evidence) if early else _cleaned(facts)
    return facts, {**run.evidence, **facts.kept()} if facts.reported_by else run.evidence


def _resolve_one(batch: _Ending, work: Work, lease: Lease, facts: LostFacts) -> Settled | None:
    job = batch.jobs.get(lease.run_id)
    facts, evidence = _recall(batch.tx, lease, facts)
    settlement = decide_lost(
        lease,
        job,
        facts,
        now=batch.now,
        jitter=batch.ctx.jitter(),
        backoff=batch.ctx.policy.backoff,
        proxy_id=work.profile.proxy_id,
        lenient=batch.tx.lenient,
    )
    if settlement is None:
        return None
    work.open = [o for o in work.open if o.token != lease.token]
    batch.tx.write(
        "resolve_runs",
        [
            {
                "profile_id": lease.profile_id,
                "token": lease.token,
                "stop_reason": settlement.stop_reason,
                "belongs_to": settlement.belongs_to,
                "message": settlement.profile.reason,
                "final_url": facts.final_url,
                "evidence": dump(evidence),
            }
        ],
    )
    ended = batch.end_job(job, settlement)
    batch.end_profile(work, lease, settlement)
    batch.log.event(
        EventType.STALE_RESOLVED,
        lease=lease,
        job=ended,
        job_state=ended.state if ended else None,
        profile_state=work.lane.state,
        data={"reason": settlement.profile.reason, "reported_by": facts.reported_by},
    )
    return Settled(
        lease_id=lease.lease_id,
        run_id=lease.run_id,
        settlement=settlement,
        job_state=ended.state if ended else None,
        profile_state=work.lane.state,
    )


def wake(tx: Tx, keys: Sequence[str]) -> int:
    """Lanes that wait for a free account key become ready: the best one of each pool and task.

    The accounts are locked first, so that a claim which is about to park a lane has done so.
    """
    accounts = sorted({key.split(":")[1] for key in keys})
    tx.read(("lock_accounts", {"ids": accounts}))
    counts, parked = tx.read(("account_keys", {"accounts": accounts}), ("parked_lanes", {"keys": sorted(set(keys))}))
    taken = held_keys(counts)
    free = [row["profile_id"] for row in parked if row["waits_on"] not in taken]
    if not free:
        return 0
    now, works, _ = lock(tx, free)
    for work in works.values():
        unpark(work)
        refresh(work, now)
    save(tx, works.values())
    return len(works)
