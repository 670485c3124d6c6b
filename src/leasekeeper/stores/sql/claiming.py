"""Grants leases: the next safe jobs for a worker, or one profile for a direct request.

Leases for jobs and direct leases are granted only here. Candidate lanes are locked first, and all facts that decide are
read after that. A lane that turns out not to be safe is blocked or parked, so that later claims do not read it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import attrgetter
from typing import Any

from leasekeeper.core.accounts import Routing
from leasekeeper.core.conflicts import conflict_cause
from leasekeeper.core.events import EventType
from leasekeeper.core.granting import (
    blocked_job,
    changes_at,
    direct_gate,
    direct_refusal,
    expected_environment,
    judge_head,
    lease_for_job,
    leased,
    may_follow,
    new_lease,
    started,
)
from leasekeeper.core.homes import homes_of
from leasekeeper.core.ids import ProfileId, RunId
from leasekeeper.core.jobs import Job
from leasekeeper.core.lanes import Head, key_of, next_head, parked
from leasekeeper.core.leases import Lease, Mode
from leasekeeper.core.pauses import Scope
from leasekeeper.core.placing import lease_in_the_way
from leasekeeper.core.profiles import ProfileState, said_of_state
from leasekeeper.core.readiness import Block, Blocked
from leasekeeper.core.records import evolve
from leasekeeper.core.routing import Holding, held_keys
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.errors import NotFound, ProfileBusy
from leasekeeper.ports import MAX_IN_BATCH, ClaimRequest, Grant, LeaseRequest
from leasekeeper.stores.sql.codec import Row, dump, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Params, Tx
from leasekeeper.stores.sql.lanes import (
    Work,
    grant_of,
    heads_by_profile,
    lock,
    read_job,
    read_lease,
    refresh,
    remember,
    save,
    unknown,
    works_from,
)
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.on_conflict import apply_to_granted
from leasekeeper.stores.sql.pause_rows import account_pause_is_over, paused
from leasekeeper.stores.sql.snapshots import newest_of
from leasekeeper.stores.sql.submitting import change_job, read_key_holders
from leasekeeper.wording import block_text
from leasekeeper.wording.busy import busy_text, older_browser_text, paused_text

MAX_ROUNDS = 64
WIDEST_ROUND = 128
WINDOW = 8
_write_lease = encoder(Lease)
_group_key = attrgetter("pool", "tasks", "engine", "worker_id", "incarnation", "machine")


@dataclass(slots=True)
class Granting:
    """What one granting transaction has collected so far."""

    ctx: Context
    log: Log
    works: list[Work] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    runs: list[dict[str, object]] = field(default_factory=list)
    jobs: list[dict[str, object]] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    granted_lanes: list[Work] = field(default_factory=list)
    newest: Mapping[ProfileId, Snapshot] = field(default_factory=dict)

    def save(self, tx: Tx) -> None:
        """Write all of it, and apply `on_conflict` to the jobs that wait in `granted_lanes`."""
        if self.runs:
            tx.write("insert_runs", self.runs)
            tx.granted.update((grant.lease.lease_id, (grant.lease, grant.job)) for grant in self.grants)
        if self.jobs:
            tx.write("update_jobs", self.jobs)
        if self.granted_lanes:
            apply_to_granted(tx, self.ctx, self.log, self.granted_lanes)
        save(tx, self.works)
        self.log.save(tx)


@dataclass(slots=True)
class BlockLimit:
    """How many more lanes a transaction may block or park. `unfinished`: it stopped at the limit, there may be more."""

    left: int
    unfinished: bool = False


def claim(tx: Tx, ctx: Context, request: ClaimRequest, block_limit: BlockLimit) -> list[Grant]:
    """Grant up to `request.limit` jobs, each with a lease. Another round follows if a round blocked or parked lanes.

    Each round reads twice as many lanes, so that many lanes which cannot run do not hide one that can.
    """
    grants: list[Grant] = []
    for number in range(MAX_ROUNDS):
        wanted = request.limit - len(grants)
        limit = max(wanted, min(wanted << number, WIDEST_ROUND, block_limit.left))
        round_grants, blocked = _claim_round(tx, ctx, request, wanted, limit)
        grants += round_grants
        block_limit.left -= blocked
        if not blocked or len(grants) >= request.limit:
            break
        if block_limit.left <= 0:
            block_limit.unfinished = True
            break
    return grants


def claim_all(tx: Tx, ctx: Context, requests: Sequence[ClaimRequest], block_limit: BlockLimit) -> list[list[Grant]]:
    """Several claims in one transaction. Claims that differ only in `limit` share one read of the lanes."""
    answers: list[list[Grant]] = [[] for _ in requests]
    for request, indexes in _grouped(requests):
        grants = iter(claim(tx, ctx, request, block_limit))
        for index in indexes:
            answers[index] = list(islice(grants, requests[index].limit))
    return answers


def expect(tx: Tx, requests: Sequence[ClaimRequest]) -> None:
    """Announce that these claims come later in the transaction, so that their first read can be sent with earlier ones.

    That read does not see what this transaction settles: a claim that got too little must read once more.
    """
    groups = _grouped(requests)
    if len(groups) == 1:
        request, _ = groups[0]
        tx.expect(_ready(request, request.limit))


def _grouped(requests: Sequence[ClaimRequest]) -> list[tuple[ClaimRequest, list[int]]]:
    """Claims that differ only in `limit`, merged into one, with the indexes of the merged claims. Ordered by pool."""
    if len(requests) == 1:
        return [(requests[0], [0])]
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, request in enumerate(requests):
        alike.setdefault(_group_key(request), []).append(index)
    together = []
    for indexes in sorted(alike.values(), key=lambda places: requests[places[0]].pool):
        wanted = sum(requests[index].limit for index in indexes)
        together.append((evolve(requests[indexes[0]], limit=min(wanted, MAX_IN_BATCH)), indexes))
    return together


def _claim_round(tx: Tx, ctx: Context, request: ClaimRequest, wanted: int, limit: int) -> tuple[list[Grant], int]:
    """Read the ready lanes once and grant from them. Returns the grants, and how many lanes were blocked or parked:
    more lanes may be ready behind those."""
    (lanes,) = tx.read(_ready(request, limit))
    if not lanes:
        return [], 0
    ids = [row["profile_id"] for row in lanes]
    # An available profile has no open lease, so its runs are not read.
    shared = [row["profile_id"] for row in lanes if row["state"] != ProfileState.AVAILABLE]
    open_runs = [("open_runs", {"ids": shared})] if shared else []
    configs = unknown(tx, ids)
    now, answers = tx.clock(("heads", {"ids": ids}), *open_runs, *configs)
    if configs:
        remember(tx, answers[-1])
    if lanes[0]["paused_until"] is not None and lanes[0]["paused_until"] > to_us(now):
        return [], 0
    heads, runs = answers[0], answers[1] if open_runs else []
    works = list(works_from(tx, lanes, map(read_lease, runs)).values())
    if lanes[0]["pool_limit"] is not None:
        works = works[: _pool_room(tx, request.pool)]
    round_ = Granting(ctx=ctx, log=Log(ctx, now), works=works, newest=newest_of(tx, works))
    free = _lock_keys(tx, works, round_)
    queue = heads_by_profile(heads)
    blocked = 0
    for work in works:
        if len(round_.grants) >= wanted:
            break
        if work.account.routing is not Routing.PROFILE and work.account.account_id not in free:
            continue
        blocked += not _claim_head(round_, work, queue.get(work.lane.profile_id), request, now)
    round_.save(tx)
    return round_.grants, blocked


def claim_lane(
    tx: Tx, ctx: Context, request: ClaimRequest, profile_id: ProfileId, tasks: Sequence[str]
) -> Grant | None:
    """Grant the next job of one profile, if it is safe and its task is one of `tasks`. None also if a more urgent job
    of any task of the request waits in another lane."""
    (best,) = tx.read(_ready(request, 1))
    now, works, (heads,) = lock(tx, [profile_id], ("heads", {"ids": [profile_id]}))
    work = works.get(profile_id)
    if work is None or work.lane.head_job_id is None:
        return None
    round_ = Granting(ctx=ctx, log=Log(ctx, now), works=[work], newest=newest_of(tx, [work]))
    elsewhere = [row["head_priority"] for row in best]
    if work.account.routing is not Routing.PROFILE:
        key = key_of(work, task=work.lane.head_task, shared=False)
        counts, parked = tx.read(
            ("account_keys", {"accounts": [work.account.account_id]}), ("parked_lanes", {"keys": [key]})
        )
        elsewhere += [row["head_priority"] for row in parked if row["profile_id"] != profile_id]
        round_.keys.update(read_held_keys(counts))
    if not may_follow(
        work.lane,
        tasks=tasks,
        pool=request.pool,
        machine=request.machine,
        isolated=any(read_job(row).isolated for _, row in heads_by_profile(heads).values()),
        paused=bool(paused(tx, now, Scope.ALL, pool=request.pool, worker=request.worker_id)),
        elsewhere=elsewhere,
    ):
        return None
    if _is_full(tx, request.pool):
        return None
    _claim_head(round_, work, heads_by_profile(heads).get(profile_id), request, now)
    round_.save(tx)
    return round_.grants[0] if round_.grants else None


def _ready(request: ClaimRequest, limit: int) -> tuple[str, Params]:
    """The query that locks the best ready lanes, without those that another transaction has locked.

    An index orders the lanes of each task and home, so the first `window` of each are candidates: more than `limit`,
    because others may have locked some of them.
    """
    return "lock_ready", {
        "pool": request.pool,
        "worker": request.worker_id,
        "tasks": list(request.tasks),
        "homes": homes_of(request.machine),
        "engine": request.engine,
        "limit": limit,
        "window": limit * WINDOW + WINDOW,
    }


def _pool_room(tx: Tx, pool: str) -> int:
    """How many more leases the pool may have. Locks the pool's limit until the commit."""
    (limits,) = tx.read(("lock_pool", {"pool": pool}))
    (taken,) = tx.read(("pool_leases", {"pool": pool}))
    return max(0, limits[0]["max_leases"] - taken[0]["leases"]) if limits else len(taken)


def _is_full(tx: Tx, pool: str) -> bool:
    (limits,) = tx.read(("pool_limit", {"pool": pool}))
    return bool(limits) and _pool_room(tx, pool) == 0


def _lock_keys(tx: Tx, works: Sequence[Work], round_: Granting) -> set[str]:
    """Lock the accounts whose routing is wider than a profile, and count the live leases of their keys. Returns the
    locked accounts.

    An account that another transaction has locked is left out: its lanes stay ready for later.
    """
    wide = sorted({work.account.account_id for work in works if work.account.routing is not Routing.PROFILE})
    if not wide:
        return set()
    (rows,) = tx.read(("lock_accounts_free", {"ids": wide}))
    free = [row["account_id"] for row in rows]
    (counts,) = tx.read(("account_keys", {"accounts": free}))
    round_.keys.update(read_held_keys(counts))
    return set(free)


def read_held_keys(rows: Iterable[Row]) -> dict[str, int]:
    """How many live leases each account key has, from rows of `account_keys`."""
    return held_keys(Holding(row["account_id"], row["routing"], row["routing_key"], row["leases"]) for row in rows)


def _claim_head(
    round_: Granting, work: Work, found: tuple[list[Head], Row] | None, request: ClaimRequest, now: datetime
) -> bool:
    """Grant the lane's first job if it is safe. Otherwise block the job or park the lane, and return False."""
    heads, row = found or ([], {})
    if not heads or heads[0].job_id != work.lane.head_job_id:
        work.change(next_head(work.lane, heads, None, work.lane.waiting_at))
        refresh(work, now)
        return False
    job = read_job(row)
    verdict = judge_head(work, job, round_.keys)
    if verdict.block is not None:
        _block_job(round_, job, verdict.block)
        work.change(next_head(work.lane, heads, job.job_id, work.lane.waiting_at))
    elif verdict.waits_on is not None:
        work.change(parked(verdict.waits_on))
        return False
    elif verdict.key is not None:
        _grant_job(round_, work, job, verdict.key, request, now)
        if row["others_on_conflict"]:
            round_.granted_lanes.append(work)
        work.change(next_head(work.lane, heads, job.job_id, now))
    refresh(work, now)
    return verdict.key is not None


def _block_job(round_: Granting, job: Job, block: Block) -> None:
    blocked = blocked_job(job, block, block_text(block, job))
    round_.jobs.append(change_job(blocked))
    round_.log.event(EventType.JOB_BLOCKED, job=job, job_state=blocked.state, data={"reason": block.reason.value})
    if block.reason is Blocked.APPROVAL:
        round_.log.review_approval(blocked)


def _grant_job(round_: Granting, work: Work, queued: Job, key: str, request: ClaimRequest, now: datetime) -> None:
    job = started(queued, RunId(round_.ctx.new_id()))
    lease = lease_for_job(
        work,
        job,
        run_id=job.run_id or RunId(""),
        key=key,
        worker_id=request.worker_id,
        incarnation=request.incarnation,
        machine=request.machine,
        timing=round_.ctx.policy.timing,
        now=now,
    )
    round_.jobs.append(change_job(job))
    record_grant(round_, work, lease, job, now)


def record_grant(round_: Granting, work: Work, lease: Lease, job: Job | None, now: datetime) -> None:
    """Add a grant to the round: the lease's row, the profile's state and the event."""
    row = _write_lease(lease)
    row["attempt"] = job.attempt if job else 1
    row["run_mode"] = job.run_mode._value_ if job else None
    row["expected"] = dump(expected_environment(job))
    round_.runs.append(row)
    work.open.append(lease)
    work.change(leased(work.lane, lease, now))
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
            **said_of_state(work.lane),
        },
    )
    round_.grants.append(grant_of(work, lease, job, round_.newest.get(work.lane.profile_id)))


def lock_account(tx: Tx, profile_id: ProfileId) -> bool:
    """Lock a profile's account if its routing is wider than the profile. Returns whether it was locked. Call it before
    the lane is locked: accounts are locked before lanes."""
    (owners,) = tx.read(("configs", {"ids": [profile_id]}))
    if not owners:
        raise NotFound(f"there is no profile {profile_id}", what="profile", id=profile_id)
    wide = bool(owners[0]["a_routing"] != Routing.PROFILE)
    if wide:
        tx.read(("lock_accounts", {"ids": [owners[0]["account_id"]]}))
    return wide


def lock_account_after_all(tx: Tx, work: Work, *, locked: bool) -> None:
    """Lock the account now if its routing changed while this transaction waited for the lane. This is the wrong order:
    a transaction that locks the account first may deadlock with it, and then one of the two is run again."""
    if not locked and work.account.routing is not Routing.PROFILE:
        tx.read(("lock_accounts", {"ids": [work.account.account_id]}))


def acquire(tx: Tx, ctx: Context, request: LeaseRequest) -> Grant | ProfileBusy:
    """Lease one profile without a job, under the same limits as a claim. A refusal is returned, not raised, so that its
    events are committed."""
    locked = lock_account(tx, request.profile_id)
    now, works, _ = lock(tx, [request.profile_id])
    work = works.get(request.profile_id)
    if work is None:
        raise NotFound(
            f"profile {request.profile_id} was removed from the fleet just now", what="profile", id=request.profile_id
        )
    lock_account_after_all(tx, work, locked=locked)
    shared = request.mode is Mode.SHARED
    key = key_of(work, task=None, shared=shared)
    round_ = Granting(ctx=ctx, log=Log(ctx, now), works=[work], newest=newest_of(tx, [work]))
    if work.account.routing is not Routing.PROFILE:
        (counts,) = tx.read(("account_keys", {"accounts": [work.account.account_id]}))
        round_.keys.update(read_held_keys(counts))
    busy = _refused(tx, work, round_, key, request)
    if busy is not None:
        round_.log.save(tx)
        return busy
    lease = new_lease(
        work,
        job=None,
        run_id=RunId(ctx.new_id()),
        key=key,
        worker_id=request.worker_id,
        incarnation=request.incarnation,
        machine=request.machine,
        pool=work.profile.pool,
        mode=request.mode,
        purpose=request.purpose,
        policy=request.release_policy,
        ttl=request.ttl,
        timing=ctx.policy.timing,
        now=now,
    )
    record_grant(round_, work, lease, None, now)
    refresh(work, now)
    round_.granted_lanes.append(work)
    round_.save(tx)
    return round_.grants[0]


def _refused(tx: Tx, work: Work, round_: Granting, key: str, request: LeaseRequest) -> ProfileBusy | None:
    """The refusal if the profile cannot be leased now, else None. A refusal because of another run writes an event."""
    lane, engine = work.lane, request.engine
    about: dict[str, Any] = {"profile_id": lane.profile_id, "account_id": lane.account_id, "state": lane.state}
    now = round_.log.now
    resumed = work.account.paused and account_pause_is_over(tx, lane.account_id, now)
    shared = request.mode is Mode.SHARED
    gate = direct_gate(
        work,
        shared=shared,
        purpose=request.purpose,
        key=key,
        held=round_.keys,
        machine=request.machine,
        resumed=resumed,
    )
    pool = work.profile.pool
    pauses = paused(tx, now, Scope.ALL, pool=pool)
    why = direct_refusal(
        gate, lane, purpose=request.purpose, paused=bool(pauses), engine=engine, full=lambda: _is_full(tx, pool)
    )
    if why is None:
        return None
    if why is Blocked.PAUSE:
        text = paused_text(lane.profile_id, pauses[0])
        return ProfileBusy(text, reason=why, until_at=pauses[0].until, **about)
    if why is Blocked.ENVIRONMENT_MISMATCH:
        return ProfileBusy(older_browser_text(lane.profile_id, lane.engine, engine), reason=why, **about)
    holder = _holder(tx, work, key, why)
    if holder is not None and not request.again:
        cause = conflict_cause(None, holder, None, round_.log.now, round_.ctx.policy.long_run)
        round_.log.lease_refused(lane, holder, request, cause)
    until = changes_at(work) or (holder.expires_at if holder else None)
    return ProfileBusy(
        busy_text(work, why, until, holder),
        reason=why,
        **about,
        holder=holder.worker_id if holder and holder.ended_at is None else None,
        run_id=holder.run_id if holder and holder.ended_at is None else None,
        until_at=until,
    )


def _holder(tx: Tx, work: Work, key: str, why: Blocked) -> Lease | None:
    """The lease because of which the request is refused, of this profile or of another profile of its account. None if
    `why` is another reason."""
    if why not in (Blocked.PROFILE_LEASE, Blocked.PROFILE_STATE):
        return None
    elsewhere = read_key_holders(tx, [work]) if why is Blocked.PROFILE_LEASE and not work.open else {}
    return lease_in_the_way(work, key, elsewhere, here=True)
