"""Decide endings that nobody explained: the lease expired, was revoked, or its browser was not proven closed.

`resolve` goes by the lease's release policy and by what was found out. It only decides: the store applies the answer.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.failures import Reason, failure
from leasekeeper.core.ids import Token
from leasekeeper.core.jobs import Backoff, Job, JobState
from leasekeeper.core.launchers import NOT_DEAD, LauncherSaid, must_answer_first
from leasekeeper.core.leases import Lease, LeaseStatus, RunRecord, RunResult, lock_delay_over_at, silence
from leasekeeper.core.profiles import Because, Cause, Doubt, ProfileState, ReleasePolicy, StateCause
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import (
    INCOMPLETE,
    LostFacts,
    ProfileVerdict,
    Settlement,
    in_section,
    job_verdict,
    verdict_of,
)

_NOT_DEAD: Final = "the browser is not proven dead"

# Policies by which a lost profile may come back without a person.
_GIVES_BACK: Final = frozenset({ReleasePolicy.RESTORE, ReleasePolicy.RECOVER})


def waits_until(lease: Lease) -> datetime | None:
    """Until when a lost lease must not be resolved: only a profile that may go back by itself waits for the lock-delay.
    None: the first sweep resolves it, so that a person may have the profile at once."""
    waits = lease.release_policy in _GIVES_BACK and lease.open_section is None
    return lock_delay_over_at(lease) if waits else None


def found_out(lease: Lease, run: RunRecord, facts: LostFacts) -> tuple[LostFacts, Mapping[str, object]]:
    """What is known of a lost run, and the run's evidence with those facts in it. `facts` were found out now; an
    earlier report is kept with the run, and counts if there is none now.

    If the run was released, its evidence is its holder's own: no keeper's report is kept in it, and its final URL is
    used with what a launcher says now.
    """
    asked = facts.launcher is not LauncherSaid.NOT_ASKED
    if lease.status is LeaseStatus.RELEASED:
        facts = evolve(facts, final_url=facts.final_url or run.final_url) if asked else facts
    elif not facts.reported_by and (asked or facts == LostFacts()):
        said = LostFacts.recalled(run.final_url, run.evidence)
        dead = said.browser_dead or facts.browser_dead
        facts = evolve(said, browser_dead=dead, launcher=facts.launcher, problem=facts.problem)
    return facts, facts.merged(run.evidence) if facts.reported_by else run.evidence


def resolve(
    lease: Lease,
    job: Job | None,
    facts: LostFacts,
    *,
    now: datetime,
    jitter: float,
    backoff: Backoff,
    proxy_id: str | None,
    lenient: bool = False,
    launched: bool = False,
    in_doubt: bool = False,
    incomplete: bool = False,
    good: Token | None = None,
) -> Settlement | None:
    """Decide an ending that nobody explained. None: not yet, a launcher has to answer or the lock-delay to pass first.

    `proxy_id` is the proxy that the profile has now: if another one was declared meanwhile, a person checks first.

    `lenient` while expiry pauses: the clock jumped, so nobody knows whether the lock-delay has passed. A job whose run
    already reported its own ending (the close was not proven) is not touched again.

    `good` is the snapshot that the profile may go back to, if there is one and nobody else has the profile.

    `incomplete`: the store may have lost writes of this lease: a section may be open, or left, that its record does not
    show.

    `launched`: a launcher opened the browser. `in_doubt`: its keeper could not learn from the launcher whether it has
    ended (see `launchers.must_answer_first`).
    """
    early = now < lock_delay_over_at(lease) + timedelta(milliseconds=lease.ttl_ms)
    if launched and not facts.browser_dead and must_answer_first(facts.launcher, in_doubt=in_doubt, early=early):
        return None
    profile = _resolution(lease, facts, now, proxy_id=proxy_id, lenient=lenient, good=good, incomplete=incomplete)
    if profile is None:
        return None
    row = failure(Reason.WORKER_LOST)
    reported = lease.status is LeaseStatus.RELEASED
    running = job is not None and job.state is JobState.RUNNING and job.run_id == lease.run_id
    verdict = None
    if job is not None and running:
        verdict = job_verdict(
            lease, job, row, profile.reason, now=now, jitter=jitter, backoff=backoff, incomplete=incomplete
        )
    return Settlement(
        result=RunResult.FAILED,
        stop_reason=None if reported else row.reason,
        belongs_to=None if reported else row.belongs_to,
        job=verdict,
        profile=profile,
    )


def silent_launcher(lease: Lease, launcher_id: str, problem: str) -> Because:
    """Why a profile stays stale while its launcher does not answer."""
    silent = f"launcher {launcher_id} does not say whether it still runs ({problem}); it is asked again until it does"
    data = {"launcher_id": launcher_id, "problem": problem, **_ending(lease)}
    return Because(f"{unexplained(lease)}; {silent}", StateCause.LAUNCHER_SILENT, data)


def _ending(lease: Lease) -> Mapping[str, object]:
    """How the lease of an unexplained run ended, for programs."""
    return {"ending": lease.status.value}


def unexplained(lease: Lease) -> str:
    """How an unexplained run ended, as a sentence."""
    if lease.status is LeaseStatus.RELEASED:
        return f"the browser of worker {lease.worker_id} was not proven closed at the end of its run"
    if lease.status is LeaseStatus.REVOKED:
        return f"the lease of worker {lease.worker_id} was revoked"
    return silence(lease, lease.ended_at or lease.expires_at)


def _resolution(
    lease: Lease,
    facts: LostFacts,
    now: datetime,
    *,
    proxy_id: str | None,
    lenient: bool,
    good: Token | None,
    incomplete: bool,
) -> ProfileVerdict | None:
    lost = unexplained(lease)
    if lease.open_section is not None:
        # Nobody knows when the worker died: the expiry comes long after. The store knows when it last wrote.
        heard = max(lease.heartbeat_at, lease.section_at or lease.heartbeat_at)
        verb = "revoked" if lease.status is LeaseStatus.REVOKED else "died"
        return _decided(lease, ProfileState.QUARANTINED, in_section(verb, lease, "; last heard of", heard))
    if facts.proxy_changed:
        why = Because(f"{lost}; the proxy changed during the run", StateCause.PROXY_CHANGED)
        return _decided(lease, ProfileState.QUARANTINED, why)
    until = waits_until(lease)
    if incomplete and until is not None:
        why = Because(f"{lost}; {INCOMPLETE}", StateCause.STORE_LOST_WRITES)
        return _decided(lease, ProfileState.REVIEW_REQUIRED, why)
    if until is not None and (lenient or now < until):
        return None
    policy = lease.release_policy
    by_policy = Because(f"{lost}; release policy is {policy}", StateCause.RELEASE_POLICY, {"policy": policy.value})
    match policy:
        case ReleasePolicy.QUARANTINE:
            return _decided(lease, ProfileState.QUARANTINED, by_policy)
        case ReleasePolicy.REVIEW:
            return _decided(lease, ProfileState.REVIEW_REQUIRED, by_policy)
        case ReleasePolicy.RESTORE:
            return _restored(lease, facts, lost, good)
        case ReleasePolicy.RECOVER:
            return _recovered(lease, facts, lost, proxy_id)


def _restored(lease: Lease, facts: LostFacts, lost: str, good: Token | None) -> ProfileVerdict:
    """The profile goes back to its last known good snapshot, without what the lost run did to it. So it is enough that
    no section was open, and that no report says that the browser may be alive: another machine may open the profile
    now. A machine that is gone never reports."""
    seen = bool(facts.reported_by) or lease.status is LeaseStatus.RELEASED
    if seen and not facts.browser_dead:
        return _doubted(lease, StateCause.NOT_RESTORED, lost, {Doubt.BROWSER_NOT_DEAD: _NOT_DEAD})
    if good is None:
        said = "there is no snapshot that is known to be good"
        return _doubted(lease, StateCause.NOT_RESTORED, lost, {Doubt.NO_GOOD_SNAPSHOT: said})
    why = Because(f"{lost}; went back to the snapshot of token {good}", StateCause.RESTORED, {"token": good})
    return _decided(lease, None, why, restore=good)


def _decided(lease: Lease, state: ProfileState | None, why: Because, *, restore: Token | None = None) -> ProfileVerdict:
    why = Because(why.reason, why.cause, {**why.data, **_ending(lease)})
    return verdict_of(state, Cause.RESOLVED, why, restore=restore)


def _doubted(lease: Lease, cause: StateCause, lost: str, doubts: Mapping[Doubt, str]) -> ProfileVerdict:
    """The profile waits for a person: these are the reasons why it does not go back by itself."""
    reason = f"{lost}; {cause.value.replace('_', ' ')}: {', '.join(doubts.values())}"
    why = Because(reason, cause, {"doubts": [doubt.value for doubt in doubts]})
    return _decided(lease, ProfileState.REVIEW_REQUIRED, why)


def _recovered(lease: Lease, facts: LostFacts, lost: str, proxy_id: str | None) -> ProfileVerdict:
    replaced = f"its proxy was {lease.proxy_id or 'none'} and is {proxy_id or 'none'} now"
    doubts = {
        doubt: sentence
        for proven, doubt, sentence in (
            (lease.last_safe_step is not None, Doubt.NO_SAFE_STEP, "no safe step is known"),
            (facts.final_url is not None, Doubt.FINAL_URL_UNKNOWN, "the final URL is unknown"),
            (facts.browser_dead, Doubt.BROWSER_NOT_DEAD, NOT_DEAD.get(facts.launcher, _NOT_DEAD)),
            (lease.proxy_id == proxy_id, Doubt.PROXY_REPLACED, replaced),
        )
        if not proven
    }
    if doubts:
        return _doubted(lease, StateCause.NOT_RECOVERED, lost, doubts)
    said = f"{lost}; recovered after safe step {lease.last_safe_step}: the browser has been proven dead since"
    return _decided(lease, None, Because(said, StateCause.RECOVERED, {"safe_step": lease.last_safe_step}))
