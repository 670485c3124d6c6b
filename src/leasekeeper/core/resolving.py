"""Endings that nobody explained, decided: the lease expired, was revoked, or its browser was not proven closed.

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
from leasekeeper.core.profiles import Cause, ProfileState, ReleasePolicy
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import INCOMPLETE, LostFacts, ProfileVerdict, Settlement, job_verdict, section_sentence

# Policies by which a lost profile may come back without a person.
_GIVES_BACK: Final = frozenset({ReleasePolicy.RESTORE, ReleasePolicy.RECOVER})


def waits_until(lease: Lease) -> datetime | None:
    """Until when a lost lease is not resolved: only a profile that may come back by itself waits for the lock-delay.
    None: it is resolved by the first sweep, as a person may have the profile at once."""
    waits = lease.release_policy in _GIVES_BACK and lease.open_section is None
    return lock_delay_over_at(lease) if waits else None


def found_out(lease: Lease, run: RunRecord, facts: LostFacts) -> tuple[LostFacts, Mapping[str, object]]:
    """What is known of a lost run, and its evidence with that in it. `facts` are from now; an earlier report is kept
    with the run, and counts if now nobody has one.

    The evidence of a run that was released is its holder's own: no keeper's report is kept there, and its final URL
    counts for what a launcher says now.
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
    """Decide an ending that nobody explained. None: not yet, the lock-delay has not passed.

    `proxy_id` is the proxy that the profile has now: whoever declared another one meanwhile has to look first.

    `lenient` while expiry pauses: the clock jumped, so that it cannot tell whether the lock-delay has passed.
    A job whose run already reported its own ending (the close was not proven) is not touched again.

    `good` is the snapshot that the profile may go back to, if there is one and nobody else has the profile.

    `incomplete`: the store may have lost writes of this lease, so that a section may be open, or left, which is not in
    its record.

    `launched`: the browser is a launcher's. As long as that did not answer (`in_doubt`) nothing is decided.
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


def silent_reason(lease: Lease, launcher_id: str, problem: str) -> str:
    """Why a profile stays stale whose launcher does not answer."""
    silent = f"launcher {launcher_id} does not say whether it still runs ({problem}); it is asked again until it does"
    return f"{_unexplained(lease)}; {silent}"


def _unexplained(lease: Lease) -> str:
    """How a run ended that nobody could explain, as a person reads it."""
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
    lost = _unexplained(lease)
    if lease.open_section is not None:
        # When it died nobody knows: an expiry comes long after. When it last wrote, the store knows.
        heard = max(lease.heartbeat_at, lease.section_at or lease.heartbeat_at)
        verb = "revoked" if lease.status is LeaseStatus.REVOKED else "died"
        sentence = section_sentence(verb, lease, "; last heard of", heard)
        return ProfileVerdict(state=ProfileState.QUARANTINED, cause=Cause.RESOLVED, reason=sentence)
    if facts.proxy_changed:
        return ProfileVerdict(
            state=ProfileState.QUARANTINED,
            cause=Cause.RESOLVED,
            reason=f"{lost}; the proxy changed during the run",
        )
    until = waits_until(lease)
    if incomplete and until is not None:
        return ProfileVerdict(state=ProfileState.REVIEW_REQUIRED, cause=Cause.RESOLVED, reason=f"{lost}; {INCOMPLETE}")
    if until is not None and (lenient or now < until):
        return None
    match lease.release_policy:
        case ReleasePolicy.QUARANTINE:
            return ProfileVerdict(
                state=ProfileState.QUARANTINED,
                cause=Cause.RESOLVED,
                reason=f"{lost}; release policy is quarantine",
            )
        case ReleasePolicy.REVIEW:
            return ProfileVerdict(
                state=ProfileState.REVIEW_REQUIRED,
                cause=Cause.RESOLVED,
                reason=f"{lost}; release policy is review",
            )
        case ReleasePolicy.RESTORE:
            return _restored(lease, facts, lost, good)
        case ReleasePolicy.RECOVER:
            return _recovered(lease, facts, lost, proxy_id)


def _restored(lease: Lease, facts: LostFacts, lost: str, good: Token | None) -> ProfileVerdict:
    """Back to the last state that is known to be good. What the lost run did to the profile is given up, so nothing
    needs to be known of its end but that no section was open, and that nobody saw its browser alive since: another
    machine may open the profile now. Of a machine that is gone nobody ever hears."""
    seen = bool(facts.reported_by) or lease.status is LeaseStatus.RELEASED
    doubt = "there is no snapshot that is known to be good" if good is None else ""
    if seen and not facts.browser_dead:
        doubt = "the browser is not proven dead"
    if doubt:
        reason = f"{lost}; not restored: {doubt}"
        return ProfileVerdict(state=ProfileState.REVIEW_REQUIRED, cause=Cause.RESOLVED, reason=reason)
    return ProfileVerdict(
        state=None, cause=Cause.RESOLVED, reason=f"{lost}; went back to the snapshot of token {good}", restore=good
    )


def _recovered(lease: Lease, facts: LostFacts, lost: str, proxy_id: str | None) -> ProfileVerdict:
    doubts = [
        sentence
        for proven, sentence in (
            (lease.last_safe_step is not None, "no safe step is known"),
            (facts.final_url is not None, "the final URL is unknown"),
            (facts.browser_dead, NOT_DEAD.get(facts.launcher, "the browser is not proven dead")),
            (lease.proxy_id == proxy_id, f"its proxy was {lease.proxy_id or 'none'} and is {proxy_id or 'none'} now"),
        )
        if not proven
    ]
    if doubts:
        return ProfileVerdict(
            state=ProfileState.REVIEW_REQUIRED,
            cause=Cause.RESOLVED,
            reason=f"{lost}; not recovered: {', '.join(doubts)}",
        )
    return ProfileVerdict(
        state=None,
        cause=Cause.RESOLVED,
        reason=f"{lost}; recovered after safe step {lease.last_safe_step}: the browser has been proven dead since",
    )
