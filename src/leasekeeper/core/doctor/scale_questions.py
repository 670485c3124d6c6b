"""The nineteen questions to ask before more workers are started, answered from a fleet's configuration and history.

Ten are about profiles, nine about the queue. The answer is "yes" for what the product guarantees; "yes, but", with what
to do, if the configuration or last week's runs speak against it; "no" if more workers would do harm.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.doctor.findings import (
    Advice,
    Answer,
    Check,
    Group,
    Status,
    Step,
    Verdict,
    count,
    names,
    skip,
    span,
)
from leasekeeper.core.doctor.store_checks import SweepFacts
from leasekeeper.core.events import EventType
from leasekeeper.core.failures import FAILURES, LOST, Reason, RetryRule
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord, RunResult, silent_for
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.profiles import ManualUse, Profile

HISTORY: Final = timedelta(days=7)
REVIEW_OLD: Final = timedelta(days=7)
FEW_RUNS: Final = 10
MANY_LOST: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFacts:
    """A fleet as it is: what is declared, its live leases, and the jobs, runs and events of the last days (HISTORY)."""

    now: datetime
    policy: Policy
    retention: Retention
    probes: bool
    sweep: SweepFacts
    accounts: Sequence[Account] = ()
    profiles: Sequence[Profile] = ()
    jobs: Sequence[Job] = ()
    runs: Sequence[RunRecord] = ()
    leases: Sequence[Lease] = ()
    events: Mapping[EventType, int] = field(default_factory=dict)
    reviews: int = 0
    oldest_review_at: datetime | None = None

    def stopped_for(self, *reasons: str) -> list[RunRecord]:
        """Recent runs that ended for one of these reasons."""
        return [run for run in self.runs if run.stop_reason in reasons]


@dataclass(frozen=True, slots=True)
class But:
    """What is wrong, and what to do about it."""

    found: str
    advice: Advice
    step: Step | None = None


def _yes(found: str, *buts: But | None, **facts: object) -> Verdict:
    against = [but for but in buts if but is not None]
    if not against:
        return Verdict(status=Status.OK, answer=Answer.YES, found=found, facts=facts)
    return Verdict(
        status=Status.WARN,
        answer=Answer.YES_BUT,
        found="; ".join(but.found for but in against),
        advice=tuple(but.advice for but in against),
        steps=tuple(but.step for but in against if but.step is not None),
        facts=facts,
    )


def _no(found: str, advice: Advice, *steps: Step, **facts: object) -> Verdict:
    return Verdict(status=Status.FAIL, answer=Answer.NO, found=found, advice=(advice,), steps=steps, facts=facts)


def _profiles_of(facts: ScaleFacts) -> dict[str, list[Profile]]:
    owned: dict[str, list[Profile]] = {account.account_id: [] for account in facts.accounts}
    for profile in facts.profiles:
        owned.setdefault(profile.account_id, []).append(profile)
    return owned


# Profiles


def one_profile(facts: ScaleFacts) -> Verdict:
    owned = _profiles_of(facts)
    if not owned:
        return skip("no account is declared yet", Step.APPLY_FLEET)
    bare = [account for account, profiles in owned.items() if not profiles]
    several = [account for account, profiles in owned.items() if len(profiles) > 1]
    but = But(
        f"{count(len(bare), 'account')} without a profile: {names(bare)}",
        Advice.DECLARE_PROFILES,
    )
    named = f"; jobs of {count(len(several), 'account')} have to name it" if several else ""
    return _yes(
        f"a job that could mean two profiles, or none, is refused when it is submitted{named}",
        but if bare else None,
        accounts=len(owned),
        without_profile=bare,
        with_several=several,
    )


def owner_visible(facts: ScaleFacts) -> Verdict:
    return _yes(
        f"a lease is granted before a browser starts; {count(len(facts.leases), 'profile')} leased now",
        live_leases=len(facts.leases),
    )


def owner_named(facts: ScaleFacts) -> Verdict:
    processes: dict[str, set[str]] = {}
    for lease in facts.leases:
        processes.setdefault(lease.worker_id, set()).add(lease.incarnation)
    doubled = [worker for worker, incarnations in processes.items() if len(incarnations) > 1]
    without_job = sum(lease.job_id is None for lease in facts.leases)
    but = But(
        f"several processes hold leases under one name: {names(doubled)}",
        Advice.NAME_WORKERS,
        Step.NAME_WORKERS,
    )
    manual = f", {without_job:,} of them for no job (by hand or by a program)" if without_job else ""
    return _yes(
        f"each lease names job, run, worker and process; {len(facts.leases):,} live{manual}",
        but if doubled else None,
        live_leases=len(facts.leases),
        without_job=without_job,
        shared_names=doubled,
    )


def lease_renewed(facts: ScaleFacts) -> Verdict:
    timing = facts.policy.timing
    tight = timing.holder_stops_after < 2 * timing.renew_every
    silent = [lease.profile_id for lease in facts.leases if silent_for(lease, facts.now) is not None]
    return _yes(
        f"a lease ends {span(timing.ttl)} after its last renewal and is renewed every {span(timing.renew_every)}",
        But(
            f"a holder gives up {span(timing.holder_stops_after)} after its last renewal, before it could try twice",
            Advice.GIVE_RENEWAL_TIME,
        )
        if tight
        else None,
        But(
            f"the holder of {count(len(silent), 'live lease')} is silent: {names(silent)}",
            Advice.FIND_SILENT_HOLDERS,
            Step.EXPLAIN_PROFILE,
        )
        if silent
        else None,
        ttl_seconds=timing.ttl.total_seconds(),
        renew_every_seconds=timing.renew_every.total_seconds(),
        holder_stops_after_seconds=timing.holder_stops_after.total_seconds(),
        not_renewed=silent,
    )


def lost_resolved(facts: ScaleFacts) -> Verdict:
    policies = Counter(profile.release_policy.value for profile in facts.profiles)
    data = {"release_policies": dict(policies), "late_seconds": facts.sweep.late.total_seconds()}
    if facts.sweep.nobody:
        return _no(
            f"no sweeper runs: the oldest work for one has waited for {span(facts.sweep.late)}",
            Advice.RUN_SWEEPER,
            Step.START_SWEEPER,
            **data,
        )
    age = facts.now - facts.oldest_review_at if facts.oldest_review_at is not None else timedelta(0)
    chosen = ", ".join(f"{policy} {number:,}" for policy, number in sorted(policies.items())) or "no profiles yet"
    return _yes(
        f"by each profile's release policy ({chosen})",
        But(
            f"{count(facts.reviews, 'review')} open, the oldest for {span(age)}",
            Advice.DECIDE_REVIEWS,
            Step.LIST_REVIEWS,
        )
        if age > REVIEW_OLD
        else None,
        open_reviews=facts.reviews,
        oldest_review_at=facts.oldest_review_at,
        **data,
    )


def evidence_first(facts: ScaleFacts) -> Verdict:
    unsaved = facts.stopped_for(Reason.EVIDENCE_NOT_SAVED)
    return _yes(
        "a run is settled after its evidence is on disk; without it the profile goes to review",
        But(
            f"the evidence of {count(len(unsaved), 'recent run')} could not be saved",
            Advice.MAKE_ROOM_FOR_EVIDENCE,
        )
        if unsaved
        else None,
        runs=len(facts.runs),
        not_saved=len(unsaved),
    )


def conflicts_logged(facts: ScaleFacts) -> Verdict:
    conflicts = facts.events.get(EventType.PROFILE_LOCK_CONFLICT, 0)
    jobs, events = facts.retention.jobs, facts.retention.events
    short = events is not None and (jobs is None or events < jobs)
    return _yes(
        f"each is an event with its cause; {conflicts:,} in {span(HISTORY)}",
        But(
            "events are deleted before the jobs that they are about",
            Advice.KEEP_EVENTS_LONGER,
        )
        if short
        else None,
        conflicts=conflicts,
    )


def sharing_chosen(facts: ScaleFacts) -> Verdict:
    if not facts.profiles:
        return skip("no profile is declared yet", Step.APPLY_FLEET)
    shared = [p.profile_id for p in facts.profiles if p.max_active_runs > 1 and not p.disposable]
    used = {job.profile_id for job in facts.jobs}
    really = {job.profile_id for job in facts.jobs if job.shared}
    idle = [profile for profile in shared if profile in used - really]
    disposable = sum(profile.disposable for profile in facts.profiles)
    exclusive = len(facts.profiles) - len(shared) - disposable
    return _yes(
        f"{exclusive:,} exclusive, {len(shared):,} shared by read-only jobs, {disposable:,} disposable",
        But(
            f"{names(idle)}: max_active_runs is above 1, but no recent job has mode 'shared'",
            Advice.USE_SHARING,
        )
        if idle
        else None,
        exclusive=exclusive,
        shared=len(shared),
        disposable=disposable,
        shared_without_use=idle,
    )


def manual_use(facts: ScaleFacts) -> Verdict:
    seen = facts.events.get(EventType.MANUAL_USE_DETECTED, 0)
    accepting = [p.profile_id for p in facts.profiles if p.manual_use is ManualUse.ACCEPT]
    return _yes(
        f"a directory that changed outside a lease goes to a person; {seen:,} found in {span(HISTORY)}",
        But(
            f"{count(len(accepting), 'profile')} with manual_use 'accept': {names(accepting)}",
            Advice.REVIEW_MANUAL_USE,
        )
        if accepting
        else None,
        detected=seen,
        accepting=accepting,
    )


def failure_owner(facts: ScaleFacts) -> Verdict:
    failed = [run for run in facts.runs if run.result is RunResult.FAILED]
    owners = Counter(run.belongs_to or "unknown" for run in failed)
    vague = sum(run.stop_reason == Reason.TASK_ERROR for run in failed)
    shown = ", ".join(f"{owner} {number:,}" for owner, number in owners.most_common()) or "none"
    return _yes(
        f"every failure has a reason and what it belongs to; in {span(HISTORY)}: {shown}",
        But(
            f"{vague:,} of {len(failed):,} recent failures are TASK_ERROR",
            Advice.GIVE_REASONS,
        )
        if len(failed) >= FEW_RUNS and vague > len(failed) / 2
        else None,
        failures=dict(owners),
        task_errors=vague,
    )


# The queue


def job_context(facts: ScaleFacts) -> Verdict:
    return _yes(
        f"both are looked up when a job is submitted and kept with it; {count(len(facts.jobs), 'recent job')}",
        recent_jobs=len(facts.jobs),
    )


def routing_key(facts: ScaleFacts) -> Verdict:
    owned = _profiles_of(facts)
    loose = [a.account_id for a in facts.accounts if a.routing is Routing.PROFILE and len(owned[a.account_id]) > 1]
    routings = Counter(account.routing.value for account in facts.accounts)
    chosen = ", ".join(f"{routing} {number:,}" for routing, number in sorted(routings.items())) or "no accounts yet"
    return _yes(
        f"by each account's routing ({chosen})",
        But(
            f"{count(len(loose), 'account')} with several profiles may run two at once: {names(loose)}",
            Advice.ROUTE_BY_ACCOUNT,
        )
        if loose
        else None,
        routings=dict(routings),
        parallel_profiles=loose,
    )


def one_worker(facts: ScaleFacts) -> Verdict:
    foreign = sorted({run.profile_id for run in facts.stopped_for(Reason.PROFILE_IN_USE_ELSEWHERE)})
    return _yes(
        "by leases in the store, and by a lock and a fencing token in the directory itself",
        But(
            f"another program had these profiles open: {names(foreign)}",
            Advice.FIND_OTHER_PROGRAM,
            Step.OPEN_PROFILE,
        )
        if foreign
        else None,
        in_use_elsewhere=foreign,
    )


def long_runs(facts: ScaleFacts) -> Verdict:
    lost = facts.stopped_for(*LOST)
    data = {"runs": len(facts.runs), "lost": len(lost)}
    found = f"{len(lost):,} of {count(len(facts.runs), 'recent run')} lost the lease or the worker"
    todo = Advice.FIND_LOSING_MACHINES
    if len(facts.runs) >= FEW_RUNS and len(lost) > MANY_LOST * len(facts.runs):
        return _no(found, todo, Step.LIST_FAILED_RUNS, **data)
    but = But(found, todo, Step.LIST_FAILED_RUNS) if lost else None
    return _yes("renewal does not depend on the task, however long it takes", but, **data)


def late_writes(facts: ScaleFacts) -> Verdict:
    refused = facts.events.get(EventType.STALE_WORKER_WRITE_REJECTED, 0)
    return _yes(
        f"every write carries lease and fencing token; {refused:,} refused in {span(HISTORY)}",
        refused=refused,
    )


def readiness(facts: ScaleFacts) -> Verdict:
    proxied = sum(profile.proxy_id is not None for profile in facts.profiles)
    return _yes(
        "pause, profile state, environment and approval are checked before a lease is granted",
        But(
            f"{count(proxied, 'profile')} with a proxy, and no probe asks whether it works and where it is",
            Advice.SET_PROBE,
        )
        if proxied and not facts.probes
        else None,
        with_proxy=proxied,
        probe=facts.probes,
    )


def environment(facts: ScaleFacts) -> Verdict:
    special = {p.profile_id for p in facts.profiles if p.proxy_id or p.language or p.timezone}
    asked = [job for job in facts.jobs if job.profile_id in special]
    silent = sum(
        not (job.expected_proxy_region or job.expected_language or job.expected_timezone or job.proxy_id)
        for job in asked
    )
    return _yes(
        "a job may say which proxy, region, language and time zone it expects; it waits until they are so",
        But(
            f"{silent:,} of {count(len(asked), 'recent job')} expect nothing, though their profile has an environment",
            Advice.EXPECT_ENVIRONMENT,
        )
        if silent
        else None,
        jobs=len(asked),
        without_expectation=silent,
    )


def retries(facts: ScaleFacts) -> Verdict:
    final = {reason for reason, row in FAILURES.items() if row.retry is RetryRule.NO}
    forced = Counter(
        reason
        for job in facts.jobs
        if job.retry is not None and job.retry.reasons is not None
        for reason in final.intersection(job.retry.reasons)
    )
    return _yes(
        "one table says for each reason whether a retry may help; the number of attempts only bounds it",
        But(
            f"recent jobs ask for retries after {names(sorted(forced))}",
            Advice.RETRY_FEWER_REASONS,
        )
        if forced
        else None,
        forced=dict(forced),
    )


def run_record(facts: ScaleFacts) -> Verdict:
    incomplete = [
        run.run_id
        for run in facts.runs
        if not (run.worker_id and run.profile_id and run.routing_key and run.lease_id and run.token)
        or (run.result is RunResult.FAILED and not run.stop_reason)
    ]
    data = {"runs": len(facts.runs), "incomplete": incomplete}
    if incomplete:
        return _no(f"incomplete records: {names(incomplete)}", Advice.REPORT_BUG, **data)
    kept = facts.retention.jobs
    return _yes(
        f"worker, profile, routing key, lease, token and stop reason; {count(len(facts.runs), 'recent run')} read",
        But(f"runs are deleted after {span(kept)}", Advice.KEEP_JOBS_LONGER)
        if kept is not None and kept < HISTORY
        else None,
        **data,
    )


@dataclass(frozen=True, slots=True)
class Question:
    """One question, and the function that answers it."""

    check: Check
    judge: Callable[[ScaleFacts], Verdict]


def _about(group: Group, *rows: tuple[str, str, Callable[[ScaleFacts], Verdict]]) -> tuple[Question, ...]:
    return tuple(Question(Check(name, group, question), judge) for name, question, judge in rows)


QUESTIONS: Final = (
    *_about(
        Group.PROFILES,
        ("one_profile", "Does every job lead to exactly one profile?", one_profile),
        ("owner_visible", "Is it known who has a profile before a browser starts?", owner_visible),
        ("owner_named", "Does a lease name its job and its worker?", owner_named),
        ("lease_renewed", "Do leases end by themselves unless they are renewed?", lease_renewed),
        ("lost_resolved", "Is there a rule for profiles whose worker vanished?", lost_resolved),
        ("evidence_first", "Is evidence on disk before a profile is free again?", evidence_first),
        ("conflicts_logged", "Can people see which jobs wanted the same profile?", conflicts_logged),
        ("sharing_chosen", "Is sharing chosen profile by profile?", sharing_chosen),
        ("manual_use", "Is it noticed when somebody uses a profile by hand?", manual_use),
        ("failure_owner", "Does a failure say whether code, profile, proxy or worker caused it?", failure_owner),
    ),
    *_about(
        Group.QUEUE,
        ("job_context", "Does every job carry its account and its profile?", job_context),
        ("routing_key", "Does account or profile decide what runs one at a time?", routing_key),
        ("one_worker", "Are two workers kept out of one profile?", one_worker),
        ("long_runs", "Do long runs keep their lease?", long_runs),
        ("late_writes", "Is a worker that lost its lease kept from writing?", late_writes),
        ("readiness", "Is an account checked before its browser starts?", readiness),
        ("environment", "Do jobs say which environment they expect?", environment),
        ("retries", "Does the reason of a failure decide about retries?", retries),
        ("run_record", "Does a run record say who, where, under which lease and why it stopped?", run_record),
    ),
)
