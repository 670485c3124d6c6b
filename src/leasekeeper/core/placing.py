"""Placing a job: which profile it is for, and where it goes: scheduled, blocked, in conflict, or into its lane.

Pure: the store reads the facts, and writes the job and its events as the returned placement says.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.conflicts import ConflictDecision, decide_conflict
from leasekeeper.core.ids import AccountId, JobId, ProfileId
from leasekeeper.core.jobs import FINAL, Job, JobSpec, JobState
from leasekeeper.core.lanes import LaneFacts, gate, key_of
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState, ReleasePolicy, stricter
from leasekeeper.core.readiness import Block, job_gate
from leasekeeper.core.records import evolve
from leasekeeper.core.routing import is_account_key
from leasekeeper.errors import AmbiguousProfile, InputError, LeasekeeperError, Problem, UnknownAccount, UnknownProfile

MAX_NAMED: Final = 5
NOTHING: Final = "nothing was submitted"
Faults = list[tuple[int, LeasekeeperError]]
"""What is wrong with jobs of a batch, each with the job's place in it."""
_SPEC_FIELDS: Final = tuple(
    f.name
    for f in fields(JobSpec)
    if f.name not in {"job_id", "account_id", "profile_id", "pool", "created_at", "attempt"}
)


def profile_for(
    spec: JobSpec,
    index: int,
    *,
    accounts: Collection[str],
    owner: Mapping[str, str],
    of_account: Mapping[str, Collection[str]],
) -> ProfileId:
    """The profile that a job is for. Raises InputError, which says what exists. `index` is the
    job's place in its batch."""
    if spec.account_id is not None and spec.account_id not in accounts:
        fault = f"there is no account {spec.account_id}; declare it in fleet.yaml and apply that"
        raise UnknownAccount(NOTHING, [Problem(f"jobs[{index}].account_id", fault)], account_id=spec.account_id)
    if spec.account_id is None and spec.profile_id is None:
        raise InputError(NOTHING, [Problem(f"jobs[{index}]", "needs an account_id or a profile_id")])
    mine = sorted(of_account.get(spec.account_id or "", []))
    named = ", ".join(mine[:MAX_NAMED])
    about = {"account_id": spec.account_id, "profile_id": spec.profile_id}
    if spec.profile_id is not None:
        if spec.profile_id not in owner:
            has = f"; account {spec.account_id} has: {named or 'none'}" if spec.account_id else ""
            fault = f"there is no profile {spec.profile_id}{has}"
            raise UnknownProfile(NOTHING, [Problem(f"jobs[{index}].profile_id", fault)], **about)
        if spec.account_id is not None and owner[spec.profile_id] != spec.account_id:
            fault = f"profile {spec.profile_id} belongs to account {owner[spec.profile_id]}, not {spec.account_id}"
            raise UnknownProfile(NOTHING, [Problem(f"jobs[{index}].profile_id", fault)], **about)
        return spec.profile_id
    if not mine:
        fault = f"account {spec.account_id} has no profile; declare one in fleet.yaml"
        raise UnknownProfile(NOTHING, [Problem(f"jobs[{index}].account_id", fault)], **about)
    if len(mine) > 1:
        more = " …" if len(mine) > MAX_NAMED else ""
        fault = f"account {spec.account_id} has {len(mine)} profiles, say which: {named}{more}"
        raise AmbiguousProfile(
            NOTHING,
            [Problem(f"jobs[{index}].profile_id", fault)],
            account_id=spec.account_id,
            profile_ids=tuple(mine),
        )
    return ProfileId(mine[0])


def all_faults(faults: Faults) -> LeasekeeperError:
    """One error for what is wrong with a batch, found job by job: the first one, with the problems of all, in the order
    of the jobs."""
    first = faults[0][1]
    problems = [problem for _, fault in sorted(faults, key=lambda found: found[0]) for problem in fault.problems]
    return first.restored(first.message, problems, first.data)


def new_job(spec: JobSpec, facts: LaneFacts, *, fresh_id: str, now: datetime) -> Job:
    """The job that a request becomes."""
    values = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    return Job(
        job_id=spec.job_id or JobId(fresh_id),
        account_id=AccountId(facts.lane.account_id),
        profile_id=facts.lane.profile_id,
        pool=spec.pool or facts.profile.pool,
        created_at=spec.created_at or now,
        **values,
    )


def check_policy(job: Job, facts: LaneFacts, index: int) -> None:
    """Raise InputError for a job that asks for a more lenient release policy than its profile has."""
    if job.release_policy is None:
        return
    own, wanted = facts.profile.release_policy, ReleasePolicy(job.release_policy)
    if stricter(own, wanted) is not wanted:
        raise InputError(
            NOTHING,
            [
                Problem(
                    f"jobs[{index}].release_policy",
                    f"{wanted} is more lenient than {own} of profile {job.profile_id}; a job may only make it stricter",
                )
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job goes. `block`: what blocks it, for the job's `detail`. `holder` and `conflict`: the lease that it
    met, and what follows."""

    job: Job
    block: Block | None = None
    holder: Lease | None = None
    conflict: ConflictDecision | None = None


def place(
    job: Job,
    facts: LaneFacts,
    *,
    task_known: bool,
    key_holders: Mapping[str, Lease],
    follow_conflict: bool,
    now: datetime,
    long_run: timedelta,
) -> Placement:
    """Where a job goes when it is submitted, becomes due, or is checked again after a block. The store puts a queued
    job into its lane."""
    if job.run_at is not None and job.run_at > now and job.state is not JobState.BLOCKED:
        return Placement(job=evolve(job, state=JobState.SCHEDULED))
    block = job_gate(job, facts.profile, facts.proxy, task_known)
    if block is not None:
        return Placement(job=evolve(job, state=JobState.BLOCKED, blocked_reason=block.reason), block=block)
    queued = evolve(job, state=JobState.QUEUED, blocked_reason=None, detail="")
    met = conflict_of(queued, facts, key_holders, now, long_run) if follow_conflict else None
    return met or Placement(job=queued)


def conflict_of(
    queued: Job, facts: LaneFacts, key_holders: Mapping[str, Lease], now: datetime, long_run: timedelta
) -> Placement | None:
    """Where a job that is due goes if its profile is leased to another run; None if it is not."""
    holder = holder_of(queued, facts, key_holders)
    if holder is None:
        return None
    decided = decide_conflict(queued, holder, holder.priority, now, long_run)
    placed = evolve(
        queued,
        state=decided.state,
        run_at=decided.run_at or queued.run_at,
        finished_at=now if decided.state in FINAL else None,
        stop_reason=None,
        detail="" if decided.state is JobState.QUEUED else f"profile was taken by run {holder.run_id}",
    )
    return Placement(job=placed, holder=holder, conflict=decided)


def holder_of(job: Job, facts: LaneFacts, key_holders: Mapping[str, Lease]) -> Lease | None:
    """The lease that keeps this job from running now; None if no lease does. That of its own
    earlier run does not count."""
    others = LaneFacts(
        lane=facts.lane,
        profile=facts.profile,
        account=facts.account,
        proxy=facts.proxy,
        open=[lease for lease in facts.open if lease.job_id != job.job_id],
    )
    taken = facts.lane.state in (ProfileState.LEASED, ProfileState.STALE)
    here = taken and gate(others, shared=job.shared, even_paused=True) is not None
    key = key_of(facts, task=job.task, shared=job.shared)
    holder = lease_in_the_way(others, key, key_holders, here=here)
    return None if holder is None or holder.job_id == job.job_id else holder


def lease_in_the_way(facts: LaneFacts, key: str, key_holders: Mapping[str, Lease], *, here: bool) -> Lease | None:
    """The lease that keeps out a run that needs this key; None if no lease does.

    `here`: the profile itself is taken, so it is a lease of this profile, a live one first. Otherwise it is the lease
    that has the account's key.
    """
    if here and facts.open:
        return (facts.live or facts.open)[0]
    if not is_account_key(key):
        return None
    # A profile that several may use at once can have the account's key itself.
    own = next((lease for lease in facts.live if lease.routing_key == key), None)
    return own or key_holders.get(key)
