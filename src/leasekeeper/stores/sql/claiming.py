"""Granting leases: the next safe jobs for a worker, or one profile for somebody who asks for it.

The one place where capacity is given out. Candidate lanes are locked first, and everything that decides is read
after that; a lane that turns out not to be safe is held or parked in passing, so that nobody looks at it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter

from leasekeeper.core.accounts import Routing
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import JobId, ProfileId, RunId, Token, WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Lease, Mode, Purpose, lease_id_of
from leasekeeper.core.profiles import Cause, ProfileState, ReleasePolicy
from leasekeeper.core.readiness import NEXT_STEP, WAITS_FOR_PERSON, Blocked, can_share, job_gate, look_inside
from leasekeeper.core.routing import ROUTING_KEY_LIMIT, is_account_key, routing_key
from leasekeeper.errors import NotFound, ProfileBusy
from leasekeeper.ports import MOST_IN_BATCH, ClaimRequest, Grant, LeaseRequest
from leasekeeper.stores.sql.codec import Row, changer, dump, encoder, evolve
from leasekeeper.stores.sql.engine import Context, Params, Tx
from leasekeeper.stores.sql.lanes import (
    Head,
    Work,
    gate_of,
    heads_by_profile,
    lock,
    move,
    next_head,
    read_job,
    read_lease,
    refresh,
    remember,
    save,
    unknown,
    works_from,
)
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.submitting import change_job

MOST_ROUNDS = 64
WIDEST_ROUND = 128
WINDOW = 8
_MILLISECOND = timedelta(milliseconds=1)
_write_lease = encoder(Lease)
_started = changer(Job, "state", "attempt", "run_id", "detail", "version")
_asked = attrgetter("pool", "tasks", "engine", "worker_id", "incarnation")


@dataclass(slots=True)
class _Granting:
    """What one granting transaction has collected so far."""

    ctx: Context
    log: Log
    works: list[Work] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    runs: list[dict[str, object]] = field(default_factory=list)
    jobs: list[dict[str, object]] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)

    def save(self, tx: Tx) -> None:
        if self.runs:
            tx.write("insert_runs", self.runs)
            tx.granted.update((grant.lease.lease_id, (grant.lease, grant.job)) for grant in self.grants)
        if self.jobs:
            tx.write("update_jobs", self.jobs)
        save(tx, self.works)
        self.log.save(tx)


def claim(tx: Tx, ctx: Context, request: ClaimRequest) -> list[Grant]:
    """Up to `most` jobs with their leases. Rounds go on only while heads had to be put aside.

    Each looks at twice as many lanes: what cannot run, however much of it comes first, must not hide what can.
    """
    grants: list[Grant] = []
    for number in range(MOST_ROUNDS):
        wanted = request.most - len(grants)
        look_at = max(wanted, min(wanted << number, WIDEST_ROUND))
        round_grants, again = _claim_round(tx, ctx, request, wanted, look_at)
        grants += round_grants
        if not again or len(grants) >= request.most:
            break
    return grants


def claim_all(tx: Tx, ctx: Context, requests: Sequence[ClaimRequest]) -> list[list[Grant]]:
    """Several claims in one transaction. Those that differ only in how many they want are one look at the lanes."""
    answers: list[list[Grant]] = [[] for _ in requests]
    for request, indexes in _alike(requests):
        grants = iter(claim(tx, ctx, request))
        for index in indexes:
            answers[index] = list(islice(grants, requests[index].most))
    return answers


def expect(tx: Tx, requests: Sequence[ClaimRequest]) -> None:
    """Say that these claims come later in the transaction, so that their first look can travel with what is before.

    That look does not see what is settled before it: who gets too little must claim once more.
    """
    groups = _alike(requests)
    if len(groups) == 1:
        request, _ = groups[0]
        tx.expect(_ready(request, request.most))


def _alike(requests: Sequence[ClaimRequest]) -> list[tuple[ClaimRequest, list[int]]]:
    """Claims that ask for the same, as one each, with the places of those in it; in the order of pools."""
    if len(requests) == 1:
        return [(requests[0], [0])]
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, request in enumerate(requests):
        alike.setdefault(_asked(request), []).append(index)
    together = []
    for indexes in sorted(alike.values(), key=lambda places: requests[places[0]].pool):
        wanted = sum(requests[index].most for index in indexes)
        together.append((evolve(requests[indexes[0]], most=min(wanted, MOST_IN_BATCH)), indexes))
    return together


def _claim_round(tx: Tx, ctx: Context, request: ClaimRequest, wanted: int, look_at: int) -> tuple[list[Grant], bool]:
    """One look at the ready lanes. The second answer: some were put aside, so others may be ready behind them."""
    (lanes,) = tx.read(_ready(request, look_at))
    if not lanes:
        return [], False
    ids = [row["profile_id"] for row in lanes]
    # An available profile has no open lease: there is nothing to read for it.
    shared = [row["profile_id"] for row in lanes if row["state"] != ProfileState.AVAILABLE]
    open_runs = [("open_runs", {"ids": shared})] if shared else []
    configs = unknown(tx, ids)
    now, answers = tx.clock(("heads", {"ids": ids}), *open_runs, *configs)
    if configs:
        remember(tx, answers[-1])
    heads, runs = answers[0], answers[1] if open_runs else []
    works = list(works_from(tx, lanes, map(read_lease, runs)).values())
    if lanes[0]["pool_limit"] is not None:
        works = works[: _pool_room(tx, request.pool)]
    round_ = _Granting(ctx=ctx, log=Log(ctx, now), works=works)
    free = _lock_keys(tx, works, round_)
    queue = heads_by_profile(heads)
    aside = False
    for work in works:
        if len(round_.grants) >= wanted:
            break
        heads_of_lane = queue.get(work.lane.profile_id, [])
        if work.account.routing is not Routing.PROFILE and work.account.account_id not in free:
            continue
        aside |= not _claim_head(round_, work, heads_of_lane, request, now)
    round_.save(tx)
    return round_.grants, aside


def claim_lane(
    tx: Tx, ctx: Context, request: ClaimRequest, profile_id: ProfileId, tasks: Sequence[str]
) -> Grant | None:
    """The next job of one profile, if it is safe and one of these tasks, and nothing more urgent waits elsewhere for
    any task of the request."""
    (best,) = tx.read(_ready(request, 1))
    now, works, (heads,) = lock(tx, [profile_id], ("heads", {"ids": [profile_id]}))
    work = works.get(profile_id)
    if work is None or work.lane.head_task not in tasks or work.lane.head_pool != request.pool:
        return None
    if work.lane.head_shared or (best and best[0]["head_priority"] > work.lane.head_priority):
        return None
    round_ = _Granting(ctx=ctx, log=Log(ctx, now), works=[work])
    if work.account.routing is not Routing.PROFILE:
        key = _key(work, task=work.lane.head_task, shared=False)
        counts, parked = tx.read(
            ("account_keys", {"accounts": [work.account.account_id]}), ("parked_lanes", {"keys": [key]})
        )
        if any(row["profile_id"] != profile_id and row["head_priority"] > work.lane.head_priority for row in parked):
            return None
        round_.keys.update(held_keys(counts))
    (limits,) = tx.read(("pool_limit", {"pool": request.pool}))
    if limits and _pool_room(tx, request.pool) == 0:
        return None
    _claim_head(round_, work, heads_by_profile(heads).get(profile_id, []), request, now)
    round_.save(tx)
    return round_.grants[0] if round_.grants else None


def _ready(request: ClaimRequest, look_at: int) -> tuple[str, Params]:
    """The query that locks the best ready lanes which nobody else is taking.

    Lanes of each task are in an order of their own, so a worker of several tasks looks at the first few of each: some
    more than it wants, as others may hold them.
    """
    common = {"pool": request.pool, "most": look_at, "engine": request.engine}
    if len(request.tasks) == 1:
        return "lock_ready", {**common, "task": request.tasks[0]}
    return "lock_ready_among", {**common, "tasks": list(request.tasks), "window": look_at * WINDOW + WINDOW}


def _pool_room(tx: Tx, pool: str) -> int:
    """How many more leases the pool may hold, with the pool's limit locked until the commit."""
    (limits,) = tx.read(("lock_pool", {"pool": pool}))
    (taken,) = tx.read(("pool_leases", {"pool": pool}))
    return max(0, limits[0]["max_leases"] - taken[0]["leases"]) if limits else len(taken)


def _lock_keys(tx: Tx, works: Sequence[Work], round_: _Granting) -> set[str]:
    """Lock the accounts whose routing is wider than a profile, and count what holds their keys.

    An account that somebody else is deciding about right now is left out: its lanes stay ready for later.
    """
    wide = sorted({work.account.account_id for work in works if work.account.routing is not Routing.PROFILE})
    if not wide:
        return set()
    (rows,) = tx.read(("lock_accounts_free", {"ids": wide}))
    free = [row["account_id"] for row in rows]
    (counts,) = tx.read(("account_keys", {"accounts": free}))
    round_.keys.update(held_keys(counts))
    return set(free)


def held_keys(rows: Sequence[Row]) -> dict[str, int]:
    """How many live leases each account key has. Leases that were granted before the account was routed so count for
    the key of the whole account: nobody knows what else they may meet."""
    held: dict[str, int] = {}
    for row in rows:
        whole = f"account:{row['account_id']}"
        wide = row["routing"] == Routing.ACCOUNT or not is_account_key(row["routing_key"])
        key = whole if wide else row["routing_key"]
        held[key] = held.get(key, 0) + row["leases"]
    return held


def _claim_head(
    round_: _Granting, work: Work, heads: Sequence[tuple[Head, Row]], request: ClaimRequest, now: datetime
) -> bool:
    """Grant the lane's head if it is safe; otherwise put the head or the lane aside. False: it was put aside."""
    if not heads:
        next_head(work, [], JobId(""), work.lane.waiting_at)
        return False
    job = read_job(heads[0][1])
    if job.job_id != work.lane.head_job_id:
        next_head(work, heads, JobId(""), work.lane.waiting_at)
        refresh(work, now)
        return False
    block = job_gate(job, work.profile, work.proxy, task_known=True)
    if block is not None:
        blocked = evolve(
            job,
            state=JobState.BLOCKED,
            blocked_reason=block.reason,
            detail=block.detail,
            version=job.version + 1,
        )
        round_.jobs.append(change_job(blocked))
        round_.log.event(
            EventType.JOB_BLOCKED, job=job, job_state=JobState.BLOCKED, data={"reason": block.reason.value}
        )
        if block.reason is Blocked.APPROVAL:
            round_.log.review_job(blocked, "approval", f"task {job.task} waits for approval before it runs")
        next_head(work, heads, job.job_id, work.lane.waiting_at)
        refresh(work, now)
        return False
    if gate_of(work, shared=job.shared) is not None:
        refresh(work, now)
        return False
    key = _key(work, task=job.task, shared=job.shared)
    if is_account_key(key) and round_.keys.get(key, 0) >= ROUTING_KEY_LIMIT:
        work.change(hold=Blocked.PROFILE_LEASE, waits_on=key)
        return False
    _grant_job(round_, work, job, key, request, now)
    next_head(work, heads, job.job_id, now)
    refresh(work, now)
    return True


def _stricter(work: Work, wanted: ReleasePolicy | None) -> ReleasePolicy:
    """A run may only make the profile's policy stricter, also when that was tightened after it was asked for."""
    own = work.profile.release_policy
    return own if wanted is None else max(own, wanted, key=list(ReleasePolicy).index)


def _key(work: Work, *, task: str | None, shared: bool) -> str:
    return routing_key(
        work.account.routing,
        account_id=work.account.account_id,
        profile_id=work.profile.profile_id,
        task=task,
        shared=shared,
    )


def _grant_job(round_: _Granting, work: Work, queued: Job, key: str, request: ClaimRequest, now: datetime) -> None:
    run_id = RunId(round_.ctx.new_id())
    job = _started(
        queued,
        state=JobState.RUNNING,
        attempt=queued.attempt + 1,
        run_id=run_id,
        detail="",
        version=queued.version + 1,
    )
    ttl = timedelta(seconds=job.lock_timeout_seconds) if job.lock_timeout_seconds else None
    lease = _lease(
        round_.ctx,
        work,
        job=job,
        run_id=run_id,
        key=key,
        worker_id=request.worker_id,
        incarnation=request.incarnation,
        pool=job.pool,
        mode=job.mode,
        purpose=Purpose.JOB,
        policy=_stricter(work, ReleasePolicy(job.release_policy) if job.release_policy else None),
        ttl=ttl,
        now=now,
    )
    round_.jobs.append(change_job(job))
    _record_grant(round_, work, lease, job, now)


def _lease(
    ctx: Context,
    work: Work,
    *,
    job: Job | None,
    run_id: RunId,
    key: str,
    worker_id: WorkerId,
    incarnation: str,
    pool: str,
    mode: Mode,
    purpose: Purpose,
    policy: ReleasePolicy,
    ttl: timedelta | None,
    now: datetime,
) -> Lease:
    timing = ctx.policy.timing if ttl is None else ctx.policy.timing.scaled(ttl)
    token = Token(work.lane.token + 1)
    return Lease(
        lease_id=lease_id_of(work.lane.profile_id, token),
        profile_id=work.lane.profile_id,
        account_id=work.lane.account_id,
        job_id=job.job_id if job else None,
        run_id=run_id,
        worker_id=worker_id,
        incarnation=incarnation,
        proxy_id=work.profile.proxy_id,
        pool=pool,
        routing_key=key,
        mode=mode,
        token=token,
        acquired_at=now,
        heartbeat_at=now,
        expires_at=now + timing.ttl,
        ttl_ms=timing.ttl // _MILLISECOND,
        lock_delay_ms=timing.lock_delay // _MILLISECOND,
        release_policy=policy,
        purpose=purpose,
        priority=job.priority if job else None,
    )


def _record_grant(round_: _Granting, work: Work, lease: Lease, job: Job | None, now: datetime) -> None:
    """The lease's row, the profile's state and the event: all that makes a grant."""
    expected = {
        name: value
        for name, value in (
            ("proxy_region", job.expected_proxy_region if job else None),
            ("language", job.expected_language if job else None),
            ("timezone", job.expected_timezone if job else None),
        )
        if value is not None
    }
    row = _write_lease(lease)
    row["task"] = job.task if job else None
    row["attempt"] = job.attempt if job else 1
    row["run_mode"] = job.run_mode._value_ if job else None
    row["expected"] = dump(expected)
    round_.runs.append(row)
    work.open.append(lease)
    work.change(token=lease.token)
    move(work, ProfileState.LEASED, Cause.GRANTED, f"run {lease.run_id} by {lease.worker_id}", now)
    round_.keys[lease.routing_key] = round_.keys.get(lease.routing_key, 0) + 1
    round_.log.event(
        EventType.LEASE_GRANTED,
        lease=lease,
        job=job,
        job_state=job.state if job else None,
        profile_state=ProfileState.LEASED,
        data={
            "token": lease.token,
            "routing_key": lease.routing_key,
            "purpose": lease.purpose,
            "mode": lease.mode,
            "attempt": job.attempt if job else 1,
        },
    )
    round_.grants.append(
        Grant(
            lease=lease,
            profile=work.profile,
            account=work.account,
            proxy=work.proxy,
            job=job,
            engine=work.lane.engine,
        )
    )


def lock_account(tx: Tx, profile_id: ProfileId) -> bool:
    """Lock the account of a profile whose keys are wider than the profile: accounts are locked before lanes."""
    (owners,) = tx.read(("configs", {"ids": [profile_id]}))
    if not owners:
        raise NotFound(f"there is no profile {profile_id}; see 'leasekeeper profiles'")
    wide = bool(owners[0]["a_routing"] != Routing.PROFILE)
    if wide:
        tx.read(("lock_accounts", {"ids": [owners[0]["account_id"]]}))
    return wide


def lock_account_after_all(tx: Tx, work: Work, *, locked: bool) -> None:
    """While the lane was waited for, its account may have become one that has to be locked. Whoever waits the other way
    round collides with this, and one of the two is run again."""
    if not locked and work.account.routing is not Routing.PROFILE:
        tx.read(("lock_accounts", {"ids": [work.account.account_id]}))


def acquire(tx: Tx, ctx: Context, request: LeaseRequest) -> Grant:
    """One profile without a job, under the same limits as a claim."""
    locked = lock_account(tx, request.profile_id)
    now, works, _ = lock(tx, [request.profile_id])
    work = works.get(request.profile_id)
    if work is None:
        raise NotFound(f"profile {request.profile_id} was removed from the fleet just now")
    lock_account_after_all(tx, work, locked=locked)
    shared = request.mode is Mode.SHARED
    key = _key(work, task=None, shared=shared)
    round_ = _Granting(ctx=ctx, log=Log(ctx, now), works=[work])
    if work.account.routing is not Routing.PROFILE:
        (counts,) = tx.read(("account_keys", {"accounts": [work.account.account_id]}))
        round_.keys.update(held_keys(counts))
    _check_free(tx, work, round_, key, request)
    lease = _lease(
        ctx,
        work,
        job=None,
        run_id=RunId(ctx.new_id()),
        key=key,
        worker_id=request.worker_id,
        incarnation=request.incarnation,
        pool=work.profile.pool,
        mode=request.mode,
        purpose=request.purpose,
        policy=_stricter(work, request.release_policy),
        ttl=request.ttl,
        now=now,
    )
    _record_grant(round_, work, lease, None, now)
    refresh(work, now)
    round_.save(tx)
    return round_.grants[0]


def _check_free(tx: Tx, work: Work, round_: _Granting, key: str, request: LeaseRequest) -> None:
    lane, live, engine = work.lane, work.live, request.engine
    by_person = request.purpose in (Purpose.MANUAL, Purpose.INSPECT)
    gate = gate_of(work, shared=request.mode is Mode.SHARED, even_paused=by_person)
    if gate is None and is_account_key(key) and round_.keys.get(key, 0) >= ROUTING_KEY_LIMIT:
        gate = Blocked.PROFILE_LEASE
    if gate is None and live and lane.head_job_id and not can_share(work.profile, shared=lane.head_shared):
        gate = Blocked.PROFILE_LEASE  # a job waits for these sharers to end: nobody joins them any more
    if gate is None and engine is not None and lane.engine is not None and lane.engine > engine:
        raise ProfileBusy(
            f"profile {lane.profile_id} was last opened by browser version {lane.engine}, this one is {engine}: "
            "PROFILE_NEWER_THAN_BROWSER; upgrade the browser",
            Blocked.ENVIRONMENT_MISMATCH,
        )
    if gate is None:
        (limits,) = tx.read(("pool_limit", {"pool": work.profile.pool}))
        if limits and _pool_room(tx, work.profile.pool) == 0:
            gate = Blocked.CAPACITY
    if gate is not None:
        holder = f", held by {live[0].worker_id} (run {live[0].run_id})" if live else ""
        reason = f": {lane.state_reason}" if lane.state_reason and not live else ""
        next_step = look_inside(lane) if by_person and lane.state in WAITS_FOR_PERSON else NEXT_STEP[gate]
        raise ProfileBusy(f"profile {lane.profile_id} is {lane.state}{holder}{reason}: {gate}; {next_step}", gate)
