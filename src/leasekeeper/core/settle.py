"""Decide every ending of a run: what becomes of the job, of the profile, and why, as a sentence.

`settle` is for a holder that reports its own ending; `resolve` (in `core.resolving`) is for one that vanished. Both
only decide: the store applies the answer in one commit, if the lease still allows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.failures import NOT_STARTED, BelongsTo, Failure, ProfileRule, Reason, RetryRule, failure
from leasekeeper.core.ids import Token
from leasekeeper.core.jobs import FINAL, Backoff, Job, JobState, attempt_text
from leasekeeper.core.launchers import LauncherSaid
from leasekeeper.core.leases import (
    Lease,
    LeaseRef,
    Purpose,
    RunResult,
    may_have_been_done,
)
from leasekeeper.core.profiles import Because, Cause, ProfileState, StateCause
from leasekeeper.core.records import changer, quick_init
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot

MAX_LOSSES = 2
# How often in a row a job is given back without a delay: that happens when a worker stops, and when a caller is gone
# before it got the answer to its claim.
FREE_GIVE_BACKS = 3
_ended = changer(
    Job, "state", "detail", "stop_reason", "run_at", "losses", "attempt", "given_back", "finished_at", "version"
)

# A reason that concerns the profile counts also if the run had not started.
_BLOCKS_UNSTARTED = {
    ProfileRule.REVIEW_REQUIRED: (ProfileState.REVIEW_REQUIRED, Cause.NEEDS_PERSON),
    ProfileRule.QUARANTINED: (ProfileState.QUARANTINED, Cause.QUARANTINE_TRIGGER),
}


# Not the job's failure if a proxy check confirmed it: the next worker would meet the same.
_OF_PROXY = frozenset({Reason.PROXY_UNREACHABLE, Reason.PROXY_REGION_MISMATCH})

INCOMPLETE: Final = "the store lost its last writes during the run, maybe of a mutating section"

_SENTENCES: Mapping[str, str] = {
    Reason.SECURITY_PROMPT: "a security prompt appeared",
    Reason.PROXY_CHANGED: "the proxy changed during the run",
}
# Stop reasons with a state cause of their own; for all others it is RUN_STOPPED.
_CAUSES: Mapping[str, StateCause] = {
    Reason.SECURITY_PROMPT: StateCause.SECURITY_PROMPT,
    Reason.PROXY_CHANGED: StateCause.PROXY_CHANGED,
    Reason.PROFILE_DIRECTORY_EMPTY: StateCause.DIRECTORY_EMPTY,
    Reason.EVIDENCE_NOT_SAVED: StateCause.EVIDENCE_NOT_SAVED,
}


class Browser(StrEnum):
    """What is known of the browser at the end of a run."""

    NONE = "none"
    CLOSED = "closed"
    NOT_PROVEN = "not_proven"
    HANDED_OVER = "handed_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What the holder saw at the end. Unless the holder says otherwise, the browser is not proven closed.

    `proxy_trouble`: a proxy check confirmed that the proxy is at fault (see `core.proxies`): the job is given back.
    """

    browser: Browser = Browser.NOT_PROVEN
    failing_clause: str = ""
    final_url: str | None = None
    proxy_changed: bool = False
    evidence_saved: bool = True
    proxy_trouble: bool = False


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A holder's report of how its run ended. `reason` None means it completed.

    `not_started`: the holder gives the job back untouched; it keeps its place and its attempts. With a `reason` that
    needs a person, the profile goes to that person first. It is ignored if a mutation may have been done.

    `retry`: the task says itself that its error may be tried again. It counts for TASK_ERROR only.

    `engine` is the version of the browser that was open in the profile's own directory. `directory_token` is the token
    that the directory was opened under by another store, or before this one was restored: the next tokens are above it.

    `proxy_used` False: there was a browser, but not behind the profile's proxy. See `used_proxy`.

    `directory` is what is known of the profile's own directory after its browser was closed; None: nothing. `snapshot`
    is what was uploaded of it before this report: the same commit frees the profile and makes that snapshot the newest.
    """

    ref: LeaseRef
    reason: str | None = None
    message: str = ""
    retry: bool = False
    not_started: bool = False
    facts: EndFacts = EndFacts()
    registered: Failure | None = None
    output: Mapping[str, object] | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    actual: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    engine: int | None = None
    directory_token: int | None = None
    proxy_used: bool = True
    directory: DirectoryReport | None = None
    snapshot: NewSnapshot | None = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """Where the job goes. `run_at` is set if it will be tried again. `given_back`: its task had not begun, so the
    attempt does not count."""

    state: JobState
    detail: str = ""
    run_at: datetime | None = None
    lost: bool = False
    given_back: bool = False


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileVerdict:
    """Where the profile goes once no sharer is left. None: nothing stands against `available`.

    `restore` is the token of the snapshot that it goes back to in the same commit.
    """

    state: ProfileState | None
    cause: Cause
    reason: str
    state_cause: StateCause | None = None
    state_data: Mapping[str, object] = field(default_factory=dict)
    unresolved: bool = False
    restore: Token | None = None

    @property
    def because(self) -> Because:
        return Because(self.reason, self.state_cause, self.state_data)


def verdict_of(
    state: ProfileState | None,
    cause: Cause,
    why: Because,
    *,
    unresolved: bool = False,
    restore: Token | None = None,
) -> ProfileVerdict:
    """A verdict from its parts; `why` gives its reason, state cause and data."""
    return ProfileVerdict(
        state=state,
        cause=cause,
        reason=why.reason,
        state_cause=why.cause,
        state_data=why.data,
        unresolved=unresolved,
        restore=restore,
    )


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The whole decision on one ending."""

    result: RunResult
    stop_reason: str | None
    belongs_to: str | None
    job: JobVerdict | None
    profile: ProfileVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFacts:
    """What was found out about a run whose holder vanished: from the keeper's report, or nothing.

    A report is kept with the run's evidence as soon as it is known (`kept`), and read from there for the decision
    (`recalled`): the machine that has the report need not be the one that sweeps first. `launcher` is what a profile's
    launcher said when it was asked after the run; `problem` why it said nothing. `same_as` is the token of the snapshot
    that the directory was proven to be no newer than; None: unknown.
    """

    final_url: str | None = None
    browser_dead: bool = False
    proxy_changed: bool = False
    reported_by: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    launcher: LauncherSaid = LauncherSaid.NOT_ASKED
    problem: str = ""
    same_as: Token | None = None

    def kept(self) -> Mapping[str, object]:
        said = {
            "by": self.reported_by,
            "browser_dead": self.browser_dead,
            "proxy_changed": self.proxy_changed,
            **({} if self.same_as is None else {"same_as": self.same_as}),
        }
        return {**self.evidence, "report": said}

    def merged(self, own: Mapping[str, object]) -> Mapping[str, object]:
        """The run's own evidence with what was found out added. Files of both are kept, by name."""
        found = self.kept()
        files = {str(file["name"]): file for part in (own, found) for file in _files_of(part)}
        return {**own, **found, **({"artifacts": list(files.values())} if files else {})}

    @staticmethod
    def recalled(final_url: str | None, evidence: Mapping[str, object]) -> "LostFacts":
        said = evidence.get("report")
        if not isinstance(said, Mapping):
            return LostFacts()
        return LostFacts(
            final_url=final_url,
            browser_dead=said.get("browser_dead") is True,
            proxy_changed=said.get("proxy_changed") is True,
            reported_by=str(said.get("by", "")),
            same_as=Token(same) if isinstance(same := said.get("same_as"), int) else None,
            evidence={name: value for name, value in evidence.items() if name != "report"},
        )


def _files_of(evidence: Mapping[str, object]) -> list[Mapping[str, object]]:
    files = evidence.get("artifacts")
    return [file for file in files if isinstance(file, Mapping) and "name" in file] if isinstance(files, list) else []


def settle(
    lease: Lease,
    job: Job | None,
    ending: Ending,
    *,
    now: datetime,
    jitter: float,
    backoff: Backoff,
    incomplete: bool = False,
) -> Settlement:
    """Decide an ending that the live holder reports.

    `incomplete`: the store may have lost writes of this lease: a section may be open, or left, that its record does not
    show. Job and profile of a failed run then go to a person.
    """
    done = may_have_been_done(lease)
    if ending.not_started and lease.open_section is None and done is None:
        return _given_back(lease, job, ending, now=now, jitter=jitter, backoff=backoff)
    reason, message = ending.reason, ending.message
    if reason is None and ending.not_started and lease.open_section is None:
        reason, message = Reason.TASK_ERROR, "the run was given back as not started"
    if reason is None and lease.open_section is not None:
        reason, message = Reason.TASK_ERROR, f"the run ended inside mutating section {lease.open_section}"
    if reason is None and not ending.facts.evidence_saved:
        reason, message = Reason.EVIDENCE_NOT_SAVED, "the run's evidence could not be saved"
    row = failure(reason, ending.registered) if reason is not None else None
    profile = _profile_verdict(lease, row, ending.facts, now)
    if incomplete and row is not None and profile.state is None and not profile.unresolved:
        why = Because(f"{profile.reason}; {INCOMPLETE}", StateCause.STORE_LOST_WRITES, profile.state_data)
        profile = verdict_of(ProfileState.REVIEW_REQUIRED, Cause.NEEDS_PERSON, why)
    if row is not None and row.reason == Reason.TASK_ERROR and ending.retry:
        row = replace(row, retry=RetryRule.YES)
    verdict = None
    if job is not None:
        verdict = job_verdict(lease, job, row, message, now=now, jitter=jitter, backoff=backoff, incomplete=incomplete)
    certain = done is None and not incomplete
    if job and row and ending.facts.proxy_trouble and row.reason in _OF_PROXY and certain:
        verdict = _returned(job, ending, now + _delay_of_return(job, jitter, backoff))
    return Settlement(
        result=RunResult.COMPLETED if row is None else RunResult.FAILED,
        stop_reason=reason,
        belongs_to=row.belongs_to if row else None,
        job=verdict,
        profile=profile,
    )


def ban_of(ending: Ending) -> str | None:
    """Why the run's account and profile are banned, judged by this ending; None if they are not."""
    if ending.reason is None or not failure(ending.reason, ending.registered).bans:
        return None
    return f"{ending.reason}: {ending.message}" if ending.message else ending.reason


def used_proxy(ending: Ending) -> bool:
    """Whether the run's record names the profile's proxy: only if a browser was opened, and behind it.

    The record of a lost run keeps the proxy that the run was granted with: nobody knows whether it was used.
    """
    facts = ending.facts
    opened = bool(facts.failing_clause) if ending.not_started else facts.browser is not Browser.NONE
    return opened and ending.proxy_used


def ended_job(job: Job, verdict: JobVerdict, stop_reason: str | None, now: datetime) -> Job:
    """The job after its verdict."""
    return _ended(
        job,
        state=verdict.state,
        detail=verdict.detail,
        stop_reason=stop_reason,
        run_at=verdict.run_at or job.run_at,
        losses=job.losses + (1 if verdict.lost else 0),
        attempt=job.attempt - (1 if verdict.given_back else 0),
        given_back=job.given_back + 1 if verdict.given_back else 0,
        finished_at=now if verdict.state in FINAL else None,
        version=job.version + 1,
    )


def _given_back(
    lease: Lease, job: Job | None, ending: Ending, *, now: datetime, jitter: float, backoff: Backoff
) -> Settlement:
    row = failure(ending.reason, ending.registered) if ending.reason is not None else None
    why = Because("the job was given back unstarted", StateCause.GIVEN_BACK)
    profile = verdict_of(None, Cause.CLEAN_RELEASE, why)
    if row is not None and row.profile in _BLOCKS_UNSTARTED:
        said = ending.message or f"{row.reason} before the run started"
        state, cause = _BLOCKS_UNSTARTED[row.profile]
        profile = verdict_of(state, cause, Because(said, _cause_of(row), {"stop_reason": row.reason}))
    elif ending.facts.failing_clause:
        # The task had not begun, but a browser had started and was not proven closed.
        profile = _profile_verdict(lease, None, ending.facts, now)
    return Settlement(
        result=RunResult.BLOCKED,
        stop_reason=row.reason if row else NOT_STARTED,
        belongs_to=row.belongs_to if row else BelongsTo.WORKER,
        job=_returned(job, ending, now + _delay_of_return(job, jitter, backoff)) if job else None,
        profile=profile,
    )


def _delay_of_return(job: Job, jitter: float, backoff: Backoff) -> timedelta:
    """Zero for the first few returns in a row, then growing: a worker that gives a job back at once
    may do so for ever."""
    extra = job.given_back + 1 - FREE_GIVE_BACKS
    return timedelta(0) if extra <= 0 else ((job.retry and job.retry.backoff) or backoff).delay(extra, jitter)


def _returned(job: Job, ending: Ending, run_at: datetime) -> JobVerdict:
    times = job.given_back + 1
    if times <= FREE_GIVE_BACKS:
        return JobVerdict(state=JobState.QUEUED, given_back=True)
    why = ": ".join(part for part in (ending.reason, ending.message) if part) or "no reason was given"
    detail = f"given back {times} times in a row before its task began; the last time: {why}"
    return JobVerdict(state=JobState.SCHEDULED, detail=detail, run_at=run_at, given_back=True)


def may_hand_over(lease: Lease, ending: Ending) -> str | None:
    """Why an open browser must not pass to the next run of its profile; None if it may."""
    if ending.reason is not None or ending.not_started or not ending.facts.evidence_saved:
        return "only a run that completed hands its browser over"
    if lease.open_section is not None:
        return f"mutating section {lease.open_section} is open"
    if ending.facts.final_url is None or ending.facts.proxy_changed:
        return "the final URL is unknown, or the proxy changed"
    return "a shared run has no browser of its own" if lease.shared else None


def _profile_verdict(lease: Lease, row: Failure | None, facts: EndFacts, now: datetime) -> ProfileVerdict:
    rule = row.profile if row else ProfileRule.AVAILABLE
    left_open = facts.browser is Browser.NOT_PROVEN or (facts.browser is Browser.HANDED_OVER and row is not None)
    clause = facts.failing_clause or (row.reason if row and rule is ProfileRule.STALE else "no proof was given")
    open_still = f"the browser could not be proven closed: {clause}"
    also = f"; {open_still}" if left_open else ""
    known: Mapping[str, object] = {"stop_reason": row.reason} if row else {}
    if left_open or rule is ProfileRule.STALE:
        known = {**known, "clause": clause}
    trigger = quarantine_trigger(lease, row, facts, now)
    if trigger:
        why = Because(f"{trigger.reason}{also}", trigger.cause, {**trigger.data, **known})
        return verdict_of(ProfileState.QUARANTINED, Cause.QUARANTINE_TRIGGER, why)
    if not facts.evidence_saved:
        why = Because(f"the run's evidence could not be saved{also}", StateCause.EVIDENCE_NOT_SAVED, known)
        return verdict_of(ProfileState.REVIEW_REQUIRED, Cause.EVIDENCE_NOT_SAVED, why)
    if row and rule is ProfileRule.REVIEW_REQUIRED:
        why = Because(f"the run stopped with {row.reason}{also}", _cause_of(row), known)
        return verdict_of(ProfileState.REVIEW_REQUIRED, Cause.NEEDS_PERSON, why)
    if rule is ProfileRule.STALE or left_open:
        why = Because(open_still, StateCause.NOT_PROVEN_CLOSED, known)
        return verdict_of(None, Cause.NOT_PROVEN_CLOSED, why, unresolved=True)
    done = "completed" if row is None else f"stopped with {row.reason}"
    if facts.browser is Browser.HANDED_OVER:
        why = Because(f"the run {done} and handed its browser over", StateCause.HANDED_OVER, known)
    else:
        # A program with a direct lease may have had a browser of its own.
        unopened = row is not None and facts.browser is Browser.NONE and lease.purpose is not Purpose.API
        how = "before a browser was open" if unopened else "and closed cleanly"
        why = Because(f"the run {done} {how}", StateCause.CLEAN_RELEASE, known)
    return verdict_of(None, Cause.CLEAN_RELEASE, why)


def _cause_of(row: Failure) -> StateCause:
    return _CAUSES.get(row.reason, StateCause.RUN_STOPPED)


def quarantine_trigger(lease: Lease, row: Failure | None, facts: EndFacts, now: datetime) -> Because | None:
    """Why the profile is quarantined: the first trigger that fired; None if none did."""
    if lease.open_section is not None:
        return in_section("ended", lease, ",", now)
    if row is not None and row.profile is ProfileRule.QUARANTINED:
        return Because(_SENTENCES.get(row.reason, f"the run stopped with {row.reason}"), _cause_of(row))
    if facts.proxy_changed:
        return Because(_SENTENCES[Reason.PROXY_CHANGED], StateCause.PROXY_CHANGED)
    if facts.browser is not Browser.NONE and facts.final_url is None:
        return Because("the final URL is unknown", StateCause.FINAL_URL_UNKNOWN)
    return None


def in_section(verb: str, lease: Lease, joint: str, last: datetime) -> Because:
    """Why a profile is quarantined whose run ended inside a mutating section, and how long after its last safe step."""
    section = {"section": lease.open_section}
    if lease.last_safe_step is None or lease.last_safe_at is None:
        said = f"{verb} inside {lease.open_section}, before any safe step"
        return Because(said, StateCause.OPEN_SECTION, section)
    seconds = max(0, int((last - lease.last_safe_at).total_seconds()))
    said = f"{verb} inside {lease.open_section}{joint} {seconds} s after the last safe step {lease.last_safe_step}"
    data = {**section, "safe_step": lease.last_safe_step, "seconds": seconds}
    return Because(said, StateCause.OPEN_SECTION, data)


def job_verdict(
    lease: Lease,
    job: Job,
    row: Failure | None,
    message: str,
    *,
    now: datetime,
    jitter: float,
    backoff: Backoff,
    incomplete: bool = False,
) -> JobVerdict:
    if row is None:
        return JobVerdict(state=JobState.COMPLETED)
    lost = row.profile is ProfileRule.STALE
    detail = f"{row.reason}: {message}" if message else row.reason
    losses = job.losses + (1 if lost else 0)
    if lost and losses >= MAX_LOSSES:
        return JobVerdict(state=JobState.REVIEW, detail=f"{detail}; {losses} of its runs lost their worker", lost=lost)
    done = may_have_been_done(lease) or (INCOMPLETE if incomplete else None)
    if done is not None:
        return JobVerdict(state=JobState.REVIEW, detail=f"{detail}; {done}: it may have been done", lost=lost)
    if not _may_retry(job, row):
        return JobVerdict(state=JobState.REVIEW, detail=detail, lost=lost)
    if job.attempt >= job.max_attempts:
        spent = f"{detail}; {attempt_text(job.attempt, job.max_attempts)} was the last"
        return JobVerdict(state=JobState.REVIEW if lost else JobState.DEAD, detail=spent, lost=lost)
    delay = ((job.retry and job.retry.backoff) or backoff).delay(job.attempt, jitter)
    return JobVerdict(state=JobState.SCHEDULED, detail=detail, run_at=now + delay, lost=lost)


def _may_retry(job: Job, row: Failure) -> bool:
    if job.retry is not None and job.retry.reasons is not None:
        return row.reason in job.retry.reasons
    return row.retry is not RetryRule.NO
