"""Ends leases: as their holders report, when they expire, and when lost runs are resolved. One commit per batch."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from leasekeeper.core.control import request_is_over
from leasekeeper.core.events import EventType
from leasekeeper.core.homes import directory_lost
from leasekeeper.core.ids import ProfileId, RunId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import explained, lease_over, opened_by, profile_ended, profile_expired, unparked
from leasekeeper.core.launchers import LauncherSaid, ask_again_at, in_doubt
from leasekeeper.core.leases import Lease, LeaseStatus, Refusal, RunRecord, RunResult, expired, lease_key, raised
from leasekeeper.core.profiles import ProfileState, ReleasePolicy, said_of_state
from leasekeeper.core.records import changer, evolve
from leasekeeper.core.resolving import found_out, silent_launcher
from leasekeeper.core.resolving import resolve as decide_lost
from leasekeeper.core.routing import account_of, freed_keys, is_taken
from leasekeeper.core.settle import Ending, LostFacts, Settlement, ban_of, ended_job, used_proxy
from leasekeeper.core.settle import settle as decide_ending
from leasekeeper.ports import Resolution, Settled
from leasekeeper.stores.sql import lost_grants
from leasekeeper.stores.sql.banning import ban_accounts, lock_banned
from leasekeeper.stores.sql.claiming import read_held_keys
from leasekeeper.stores.sql.codec import clean, decoder, dump, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.heartbeats import withdraw_request
from leasekeeper.stores.sql.lanes import (
    Work,
    find_heads,
    lock,
    lock_runs,
    refresh,
    refused,
    save,
)
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.snapshots import good_for, keep_directory, restore
from leasekeeper.stores.sql.submitting import change_job

read_run = decoder(RunRecord)
_released = changer(Lease, "status", "ended_at", "unresolved")


class Endings:
    """What one transaction of endings has collected so far."""

    def __init__(
        self, tx: Tx, ctx: Context, now: datetime, works: Mapping[ProfileId, Work], jobs: Mapping[RunId, Job]
    ) -> None:
        self.tx, self.ctx, self.now, self.works, self.jobs = tx, ctx, now, works, jobs
        self.log = Log(ctx, now)
        self.runs: list[dict[str, object]] = []
        self.changed_jobs: list[dict[str, object]] = []
        self.returned: set[ProfileId] = set()
        self.bans: dict[str, tuple[Lease, str]] = {}

    def save(self) -> None:
        """Write all of it."""
        if self.runs:
            self.tx.write("end_runs", self.runs)
        if self.changed_jobs:
            self.tx.write("update_jobs", self.changed_jobs)
        if self.returned:
            self._find_heads()
        save(self.tx, self.works.values())
        self.log.save(self.tx)

    def _find_heads(self) -> None:
        """Read the first jobs again: a job that was given back returns to its old place in its lane."""
        find_heads(self.tx, self.works, self.returned)
        for profile_id in self.returned:
            refresh(self.works[profile_id], self.now)

    def end_job(self, job: Job | None, settlement: Settlement) -> Job | None:
        """Change the job as the settlement says. Returns it; None if the run has no job or the job does not change."""
        if job is None or settlement.job is None:
            return None
        ended = ended_job(job, settlement.job, settlement.stop_reason, self.now)
        self.changed_jobs.append(change_job(ended))
        if ended.state is JobState.QUEUED:
            self.returned.add(ended.profile_id)
        if ended.state is JobState.REVIEW:
            self.log.review_job(ended, settlement.stop_reason or "", ended.detail)
        self.log.notify(ended)
        return ended

    def end_request(self, lease: Lease, job: Job | None) -> None:
        """Close the review in which a run asked for a person, if the end of the run makes it pointless."""
        if request_is_over(lease, job):
            withdraw_request(self.tx, lease, self.now)

    def end_profile(self, work: Work, lease: Lease, settlement: Settlement) -> None:
        """Change the profile as the settlement says, with a review if a person has to check it."""
        end = profile_ended(work, settlement.profile, self.now)
        work.change(end.changes)
        if end.review is not None:
            reason = settlement.stop_reason or work.lane.state.value
            self.log.review_profile(work.lane, lease.run_id, reason, end.review)
        refresh(work, self.now)

    def end_run(self, work: Work, lease: Lease, settlement: Settlement, ending: Ending) -> None:
        """End the lease, and write the record, of a run whose holder reported its end."""
        unresolved = settlement.profile.unresolved
        end_lease(work, _released(lease, status=LeaseStatus.RELEASED, ended_at=self.now, unresolved=unresolved))
        self.tx.cached_leases.pop(lease.lease_id, None)
        self.runs.append(
            end_row(
                lease,
                LeaseStatus.RELEASED,
                self.now,
                unresolved=unresolved,
                settlement=settlement,
                message=ending.message,
                final_url=ending.facts.final_url,
                evidence=ending.evidence,
                output=ending.output,
                actual=ending.actual,
                timings=ending.timings,
                proxy_used=used_proxy(ending),
            )
        )

    def settled(self, work: Work, lease: Lease, settlement: Settlement, job: Job | None, **data: object) -> Settled:
        """Log the end of a run that its holder reported, and return the answer. `job` is as the settlement left it."""
        self.log.event(
            EventType.RUN_SETTLED,
            lease=lease,
            job=job,
            job_state=job.state if job else None,
            profile_state=work.lane.state,
            data={
                "result": settlement.result,
                "stop_reason": settlement.stop_reason,
                "belongs_to": settlement.belongs_to,
                "profile_reason": settlement.profile.reason,
                **said_of_state(work.lane),
                **data,
            },
        )
        return answer(work, lease, settlement, job)


def answer(work: Work, lease: Lease, settlement: Settlement, job: Job | None) -> Settled:
    """The answer for one settled run."""
    return Settled(
        lease_id=lease.lease_id,
        run_id=lease.run_id,
        settlement=settlement,
        job_state=job.state if job else None,
        profile_state=work.lane.state,
    )


def settle(tx: Tx, ctx: Context, endings: Sequence[Ending]) -> tuple[list[Settled], list[str]]:
    """Apply endings that holders report. Returns the answers, and the account keys that became free (see `wake`)."""
    also = lock_banned(tx, endings)
    now, works, jobs = lock_runs(tx, [(ending.ref.profile_id, ending.ref.lease_id) for ending in endings], also)
    batch = Endings(tx, ctx, now, works, jobs)
    answers = [_settle_one(batch, ending) for ending in endings]
    if batch.bans:
        ban_accounts(tx, batch.log, works.values(), batch.bans)
    batch.save()
    freed = [
        key
        for ending, answer in zip(endings, answers, strict=True)
        if answer.refused is None
        for key in freed_keys(works[ending.ref.profile_id].account, ending.ref.routing_key)
    ]
    return answers, freed


def _settle_one(batch: Endings, ending: Ending) -> Settled:
    ref = ending.ref
    work = batch.works.get(ref.profile_id)
    lease = next((o for o in work.open if o.token == ref.token), None) if work else None
    why = refused(batch.tx, lease, ref, batch.now)
    if why is not None or lease is None or work is None:
        why = why or Refusal.NO_SUCH_LEASE
        lost_grants.refused(batch.tx, batch.log, work, lease, ref, "settle", why)
        return Settled(lease_id=ref.lease_id, refused=why)
    job = batch.jobs.get(lease.run_id)
    ending = kept(ending)
    now, jitter, backoff = batch.now, batch.ctx.jitter(), batch.ctx.policy.backoff
    incomplete = _incomplete(batch.tx, lease)
    settlement = decide_ending(lease, job, ending, now=now, jitter=jitter, backoff=backoff, incomplete=incomplete)
    batch.end_run(work, lease, settlement, ending)
    keep_directory(batch.tx, batch.ctx, batch.log, work, lease, ending)
    work.change(opened_by(work.lane, ending.engine))
    raised_token: dict[str, object] = {}
    if (token := raised(work.lane.token, ending.directory_token)) != work.lane.token:
        work.change({"token": token})
        raised_token["directory_token"] = token
    size = {} if ending.directory is None else {"size_bytes": ending.directory.size_bytes}
    if (ban := ban_of(ending)) is not None:
        batch.bans[lease.account_id] = (lease, ban)
    ended = batch.end_job(job, settlement)
    batch.end_request(lease, ended)
    batch.end_profile(work, lease, settlement)
    return batch.settled(work, lease, settlement, ended, **raised_token, **size)


def _incomplete(tx: Tx, lease: Lease) -> bool:
    return lease.token <= tx.incomplete_up_to


def kept(ending: Ending) -> Ending:
    """The ending with text that can be stored: pages can put any characters into messages and URLs."""
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


def end_lease(work: Work, ended: Lease) -> None:
    work.open = [lease for lease in work.open if lease.token != ended.token]
    if ended.unresolved:
        work.open.append(ended)


def end_row(
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
    proxy_used: bool = True,
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
        "proxy_used": proxy_used,
    }


def expire(tx: Tx, ctx: Context, limit: int, seen: datetime | None = None) -> tuple[list[Lease], list[str]]:
    """End expired leases. Returns them, and the account keys that became free. Leases of profiles that another
    transaction has locked are left for the next sweep."""
    now, _ = tx.clock()
    if tx.lenient:
        return [], []
    (rows,) = tx.read(("expired_runs", {"now": to_us(_earlier(now, seen)), "limit": limit}))
    if not rows:
        return [], []
    now, works, _ = lock(tx, [row["profile_id"] for row in rows], waiting=False)
    batch = Endings(tx, ctx, now, works, {})
    gone = [
        _end_unexplained(batch, work, lease)
        for work in works.values()
        for lease in work.live
        if lease.expires_at <= _earlier(now, seen)
    ]
    batch.save()
    freed = [key for lease in gone for key in freed_keys(works[lease.profile_id].account, lease.routing_key)]
    return gone, freed


def _earlier(now: datetime, seen: datetime | None) -> datetime:
    return now if seen is None else min(now, seen)


def _end_unexplained(batch: Endings, work: Work, lease: Lease) -> Lease:
    """End an expired lease. The profile becomes stale when no other run shares it; the job waits for the resolution."""
    ended = expired(lease)
    end_lease(work, ended)
    batch.runs.append(end_row(lease, ended.status, lease.expires_at, unresolved=True))
    work.change(profile_expired(work, lease_over(ended, batch.now), batch.now))
    refresh(work, batch.now)
    batch.log.event(
        EventType.LEASE_EXPIRED,
        lease=lease,
        profile_state=work.lane.state,
        data={
            "token": lease.token,
            "status": ended.status.value,
            "last_safe_step": lease.last_safe_step,
            "open_section": lease.open_section,
            "release_policy": lease.release_policy.value,
            **said_of_state(work.lane),
        },
    )
    return ended


def resolve(tx: Tx, ctx: Context, resolutions: Sequence[Resolution]) -> list[Settled]:
    """Resolve lost runs with the reported facts, each run once. Returns those that were resolved.

    Each report is stored with its run first, also if it comes too early or too late to decide.
    """
    wanted = {key: r for r in resolutions if (key := lease_key(r.lease_id)) is not None}
    now, works, jobs = lock_runs(tx, [(profile_id, r.lease_id) for (profile_id, _), r in wanted.items()])
    _keep_reports(tx, resolutions)
    batch = Endings(tx, ctx, now, works, jobs)
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
    return evolve(
        facts,
        final_url=url if url is None else clean(url),
        reported_by=clean(facts.reported_by),
        problem=clean(facts.problem),
    )


def _known_facts(tx: Tx, lease: Lease, facts: LostFacts) -> tuple[LostFacts, Mapping[str, object], bool]:
    """The facts about a lost run from this report and an earlier one, the evidence with those facts, and whether its
    launcher is in doubt: a check was postponed, or the keeper got no answer."""
    (rows,) = tx.read(("run_by_token", {"profile_id": lease.profile_id, "token": lease.token}))
    facts, evidence = found_out(lease, read_run(rows[0]), _cleaned(facts))
    return facts, evidence, rows[0]["ask_at"] is not None or in_doubt(evidence)


def _resolve_one(batch: Endings, work: Work, lease: Lease, facts: LostFacts) -> Settled | None:
    job = batch.jobs.get(lease.run_id)
    facts, evidence, doubt = _known_facts(batch.tx, lease, facts)
    settlement = decide_lost(
        lease,
        job,
        facts,
        now=batch.now,
        jitter=batch.ctx.jitter(),
        backoff=batch.ctx.policy.backoff,
        proxy_id=work.profile.proxy_id,
        lenient=batch.tx.lenient,
        launched=work.profile.launcher_id is not None,
        in_doubt=doubt,
        incomplete=_incomplete(batch.tx, lease),
        good=good_for(batch.tx, work, lease) if lease.release_policy is ReleasePolicy.RESTORE else None,
    )
    if settlement is None:
        _ask_again(batch, work, lease, facts, doubt=doubt)
        return None
    work.open = [o for o in work.open if o.token != lease.token]
    if lease.status is not LeaseStatus.RELEASED:
        work.change(directory_lost(work.lane, work.profile, lease, facts))
    if (good := settlement.profile.restore) is not None:
        restore(batch.tx, batch.ctx, batch.log, work, good)
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
    batch.end_request(lease, ended)
    batch.end_profile(work, lease, settlement)
    batch.log.event(
        EventType.STALE_RESOLVED,
        lease=lease,
        job=ended,
        job_state=ended.state if ended else None,
        profile_state=work.lane.state,
        data={
            "reason": settlement.profile.reason,
            "reported_by": facts.reported_by,
            **said_of_state(work.lane),
        },
    )
    return answer(work, lease, settlement, ended)


def _ask_again(batch: Endings, work: Work, lease: Lease, facts: LostFacts, *, doubt: bool) -> None:
    """Postpone a lease whose launcher did not answer: its next check comes later, after leases that were not checked
    yet. If this machine could not ask the launcher, another machine may still ask at once."""
    silent, asked = facts.launcher is LauncherSaid.SILENT, facts.launcher is not LauncherSaid.NOT_ASKED
    if work.profile.launcher_id is None or not (asked or doubt):
        return
    ask_at = ask_again_at(lease.ended_at or batch.now, batch.now) if asked else batch.now
    row = {"profile_id": lease.profile_id, "token": lease.token, "ask_at": to_us(ask_at), "asked": asked}
    batch.tx.write("ask_again", [row])
    why = silent_launcher(lease, work.profile.launcher_id, facts.problem)
    if not silent or work.lane.state is not ProfileState.STALE or work.lane.state_reason == why.reason:
        return
    work.change(explained(why))
    batch.log.event(
        EventType.LAUNCHER_SILENT,
        lease=lease,
        profile_state=work.lane.state,
        data={"launcher_id": work.profile.launcher_id, "reason": why.reason, **said_of_state(work.lane)},
    )


def wake(tx: Tx, keys: Sequence[str]) -> int:
    """Unpark lanes that wait for these account keys, if the keys are free: the best lane of each pool and task. Returns
    how many.

    The accounts are locked first, so that a concurrent claim which is about to park a lane has committed.
    """
    accounts = sorted({account_of(key) for key in keys})
    tx.read(("lock_accounts", {"ids": accounts}))
    counts, parked = tx.read(("account_keys", {"accounts": accounts}), ("parked_lanes", {"keys": sorted(set(keys))}))
    taken = read_held_keys(counts)
    free = [row["profile_id"] for row in parked if not is_taken(row["waits_on"], taken)]
    if not free:
        return 0
    now, works, _ = lock(tx, free)
    for work in works.values():
        work.change(unparked(work.lane))
        refresh(work, now)
    save(tx, works.values())
    return len(works)


def free_parked_keys(tx: Tx, *, after: str, limit: int) -> tuple[list[str], str | None]:
    """The free keys among one page of the keys that lanes wait for, beginning after the key `after`. Also returns the
    key to continue after, or None at the end. Takes no locks: `wake` checks again."""
    (rows,) = tx.read(("parked_keys", {"after": after, "limit": limit}))
    keys = [row["waits_on"] for row in rows]
    (counts,) = tx.read(("account_keys", {"accounts": sorted({account_of(key) for key in keys})}))
    taken = read_held_keys(counts)
    return [key for key in keys if not is_taken(key, taken)], keys[-1] if len(keys) == limit else None
