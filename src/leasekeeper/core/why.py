"""`why`: one screen that says why a job does not run or a profile is not available, and what happens next.

Pure: the store gathers `WhyFacts` at one moment, this module turns them into sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.decisions import Review
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.jobs import FINAL, Job, JobState
from leasekeeper.core.leases import LIVE, Lease, LeaseStatus, RunRecord
from leasekeeper.core.profiles import Lane, Profile, ProfileState, ReleasePolicy
from leasekeeper.core.readiness import NEXT_STEP, WAITS_FOR_PERSON, Blocked, too_old

_NOBODY_SWEEPS: Final = (
    "If this stays so, nothing sweeps: start 'leasekeeper up', or run 'leasekeeper sweep' every few seconds"
)
_NOBODY_SENDS: Final = (
    "Nobody sends webhooks: 'leasekeeper up' does, or 'leasekeeper sweep', where LEASEKEEPER_WEBHOOK_SECRET is set"
)
_SENT_BY: Final = timedelta(minutes=1)
_SWEEP: Final = "leasekeeper sweep"
_WAITS_FOR_PROFILE: Final = frozenset({JobState.BLOCKED, JobState.REVIEW})


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyFacts:
    """Everything that bears on one job or profile, read at one moment."""

    now: datetime
    job: Job | None
    profile: Profile
    account: Account
    proxy: Proxy | None
    lane: Lane
    holders: tuple[Lease, ...]
    key_holders: tuple[Lease, ...]
    unresolved: tuple[Lease, ...]
    ahead: int
    waiting: int
    limit: Limit | None
    pool_leases: int
    last_run: RunRecord | None
    reviews: tuple[Review, ...]
    outdated: bool = False  # every live worker's browser is too old for it
    job_run: RunRecord | None = None  # the job's own last run; `last_run` is the profile's
    webhooks: tuple[Delivery, ...] = ()  # the newest that are owed to the job's callback_url
    webhooks_tried_at: datetime | None = None  # when any that is pending was tried last
    next_job: Job | None = None  # of the profile, as people see it: the head of its queue, else one that is blocked


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer: a headline, the facts behind it, what happens by itself, and what a person can do."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    next: tuple[str, ...]
    can: tuple[str, ...]


def explain(facts: WhyFacts) -> Why:
    """The answer for the job if the facts are about one, else for the profile."""
    return _explain_job(facts, facts.job) if facts.job is not None else _explain_profile(facts)


def ago(then: datetime, now: datetime) -> str:
    """'12 s ago', '3 min ago', '2 h ago', 'in 5 s': what a person reads fastest."""
    seconds = (now - then).total_seconds()
    text = span(timedelta(seconds=abs(seconds)))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def span(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _explain_job(facts: WhyFacts, job: Job) -> Why:
    lines: list[tuple[str, str]] = [
        ("task", f"{job.task}, attempt {job.attempt} of {job.max_attempts}, priority {job.priority}"),
        ("profile", f"{job.profile_id} of account {job.account_id}: {facts.lane.state}"),
    ]
    if facts.lane.state_reason and facts.lane.state is not ProfileState.AVAILABLE:
        lines.append(("because", facts.lane.state_reason))
    if job.detail:
        lines.append(("detail", job.detail))
    if job.losses:
        lines.append(("lost workers", str(job.losses)))
    lines += _holder_lines(facts)
    lines += _run_lines(facts.job_run, facts.now)
    if job.blocked_reason == Blocked.CAPACITY and facts.limit:
        taken = f"{facts.pool_leases} of {facts.limit.max_leases} leases of pool {job.pool} are taken"
        lines.append(("pool", taken))
    if job.state in FINAL and job.finished_at:
        lines.append(("finished", ago(job.finished_at, facts.now)))
    lines += [("webhook", _webhook_text(delivery, facts.now)) for delivery in facts.webhooks]
    headline, next_step, commands = _job_story(facts, job)
    return Why(
        headline=f"job {job.job_id} {headline}",
        facts=tuple(lines),
        next=(next_step, *_webhook_next(facts)),
        can=(
            *_evidence(facts),
            *(f"leasekeeper {command}" for command in commands),
            *_profile_help(facts, job),
            *_webhook_help(facts),
        ),
    )


def _job_story(facts: WhyFacts, job: Job) -> tuple[str, str, list[str]]:
    """Headline, what happens next, and the commands for the job itself."""
    cancel = f"jobs cancel {job.job_id} --note …"
    match job.state:
        case JobState.RUNNING:
            mine = [lease for lease in facts.holders if lease.run_id == job.run_id]
            taken = _revoked(mine, facts.now)
            usual = "it ends by itself; if its worker vanishes, its lease expires and the profile is resolved"
            return "is running", taken[0] if taken else usual, _revoke_commands(mine)
        case JobState.SCHEDULED:
            due = ago(job.run_at, facts.now) if job.run_at else "soon"
            if job.run_at is not None and job.run_at <= facts.now:
                return f"was due {due}", f"the next sweep takes it into its profile's queue. {_NOBODY_SWEEPS}", [cancel]
            return f"is due {due}", "it enters its profile's queue when it is due", [cancel]
        case JobState.QUEUED:
            headline = f"is ready and waits for a worker, {facts.ahead} job(s) of its profile ahead"
            return headline, "a worker of its pool takes it when it is first in line", [cancel]
        case JobState.BLOCKED:
            reason = Blocked(job.blocked_reason) if job.blocked_reason else Blocked.PROFILE_STATE
            approve = [f"jobs approve {job.job_id} --note …"] if reason is Blocked.APPROVAL else []
            taken = _revoked(facts.holders, facts.now) if reason is Blocked.PROFILE_LEASE else []
            return f"is {reason}", taken[0] if taken else NEXT_STEP[reason], [*approve, cancel]
        case JobState.REVIEW:
            section = facts.job_run.open_section if facts.job_run else None
            caution = f"  # {section} may have gone through: check the site before" if section else ""
            requeue = f"jobs requeue {job.job_id} --note …{caution}"
            return "waits for a person", "nothing happens by itself", [requeue, cancel]
        case JobState.DEAD:
            commands = [f"dlq retry {job.job_id} --note …", f"dlq drop {job.job_id} --note …"]
            return "is dead: it used up its attempts", "nothing happens by itself", commands
        case JobState.COMPLETED | JobState.SKIPPED | JobState.CANCELLED:
            return f"is {job.state}", "nothing: it is over", []


def _profile_help(facts: WhyFacts, job: Job) -> tuple[str, ...]:
    """A job that waits for its profile is helped by helping the profile."""
    return tuple(_profile_commands(facts)) if job.state in _WAITS_FOR_PROFILE else ()


def _explain_profile(facts: WhyFacts) -> Why:
    lane, profile = facts.lane, facts.profile
    lines: list[tuple[str, str]] = [("account", f"{profile.account_id}{' (paused)' if facts.account.paused else ''}")]
    if facts.account.paused and facts.account.pause_note:
        lines.append(("paused because", facts.account.pause_note))
    lines.append(("since", ago(lane.state_at, facts.now)))
    if lane.state_reason:
        lines.append(("because", lane.state_reason))
    lines.append(("waiting jobs", str(facts.waiting)))
    lines += _holder_lines(facts)
    lines += _run_lines(facts.last_run, facts.now)
    if lane.drain:
        lines.append(("draining", "a person disabled it; it leaves the rotation when the present lease ends"))
    nexts, can = _profile_next(facts)
    return Why(
        headline=f"profile {profile.profile_id} is {lane.state}",
        facts=tuple(lines),
        next=tuple(nexts),
        can=(*_evidence(facts), *can, *_profile_commands(facts)),
    )


def _profile_next(facts: WhyFacts) -> tuple[list[str], list[str]]:
    match facts.lane.state:
        case ProfileState.AVAILABLE:
            if facts.account.paused:
                return ["its jobs wait until the account is resumed"], []
            if facts.lane.waits_on and facts.key_holders:
                return [f"its next job starts when run {facts.key_holders[0].run_id} of the same account ends"], []
            if facts.waiting and facts.outdated:
                return [too_old(facts.profile.profile_id, facts.lane.engine or 0)], []
            return _next_start(facts)
        case ProfileState.LEASED if any(lease.expires_at <= facts.now for lease in facts.holders):
            return ["its lease is over: the next sweep makes it stale and resolves it. " + _NOBODY_SWEEPS], [_SWEEP]
        case ProfileState.LEASED:
            taken = _revoked(facts.holders, facts.now)
            live = [f"leasekeeper {command}" for command in _revoke_commands(facts.holders)]
            if taken and live:
                taken.append("its other runs go on; it stays leased until the last of them has ended")
            return taken or ["it is free again when its run ends cleanly; an expiry alone never frees it"], live
        case ProfileState.STALE:
            return [_resolution_text(lease, facts.now) for lease in facts.unresolved], []
        case ProfileState.REVIEW_REQUIRED | ProfileState.QUARANTINED:
            return ["nothing happens by itself: a person decides"], []
        case ProfileState.DISABLED:
            return ["nothing happens by itself: a person took it out"], []


def _next_start(facts: WhyFacts) -> tuple[list[str], list[str]]:
    job = facts.next_job
    if job is not None and job.state is JobState.BLOCKED and job.blocked_reason:
        reason = Blocked(job.blocked_reason)
        said = f"its next job ({job.task} in pool {job.pool}) is {reason}: {NEXT_STEP[reason]}"
        return [said], [f"leasekeeper why job {job.job_id}"]
    return ["its next job starts as soon as a worker is free" if facts.waiting else "nothing waits for it"], []


def _revoked(holders: Sequence[Lease], now: datetime) -> list[str]:
    return [
        f"lease {lease.lease_id} was revoked: {after_revoke(lease, now)}"
        for lease in holders
        if lease.status is LeaseStatus.REVOKED
    ]


def after_revoke(lease: Lease, now: datetime) -> str:
    """What becomes of a profile whose lease a person took away: the holder may not know it yet."""
    becomes = _resolution_text(lease, now)
    if lease.expires_at <= now:
        return f"its time is up, {becomes}"
    return f"its profile stays leased until its time is up, {ago(lease.expires_at, now)}; then {becomes}"


def _revoke_commands(holders: Sequence[Lease]) -> list[str]:
    return [f"leases revoke {lease.lease_id} --note …" for lease in holders if lease.status in LIVE]


def _resolution_text(lease: Lease, now: datetime) -> str:
    if lease.open_section is not None:
        return f"the next sweep quarantines it: {lease.open_section} was open"
    match lease.release_policy:
        case ReleasePolicy.QUARANTINE:
            return "the next sweep quarantines it (release policy quarantine)"
        case ReleasePolicy.REVIEW:
            return "the next sweep sends it to review (release policy review)"
        case ReleasePolicy.RECOVER:
            after = (lease.ended_at or lease.expires_at) + timedelta(milliseconds=lease.lock_delay_ms)
            return f"recovery is decided by the first sweep after the lock-delay, {ago(after, now)}"


def _holder_lines(facts: WhyFacts) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for lease in (*facts.holders, *facts.key_holders):
        run = f"run {lease.run_id} ({lease.purpose}) of profile {lease.profile_id}, token {lease.token}"
        step = f"{lease.last_safe_step} ({ago(lease.last_safe_at, facts.now)})" if lease.last_safe_at else "none yet"
        inside = f"; inside {lease.open_section}" if lease.open_section else ""
        over = lease.expires_at <= facts.now
        revoked = "revoked, " if lease.status is LeaseStatus.REVOKED else ""
        ends = f"lease {revoked}{'was over' if over else 'ends'} {ago(lease.expires_at, facts.now)}"
        lines += [
            ("holder", f"{lease.worker_id}, {run}, since {ago(lease.acquired_at, facts.now)}"),
            ("heartbeat", f"{ago(lease.heartbeat_at, facts.now)}; {ends}"),
            ("last safe step", step + inside),
        ]
    return lines


def _run_lines(run: RunRecord | None, now: datetime) -> list[tuple[str, str]]:
    if run is None:
        return []
    ended = f", {run.result} {ago(run.ended_at, now)}" if run.ended_at else ""
    return [("last run", f"{run.run_id} by {run.worker_id}{ended}{f' ({run.stop_reason})' if run.stop_reason else ''}")]


def _webhook_text(delivery: Delivery, now: datetime) -> str:
    tries = f"{delivery.tries} {'try' if delivery.tries == 1 else 'tries'}"
    match delivery.state:
        case DeliveryState.DELIVERED:
            return f"{delivery.type} was delivered {ago(delivery.ended_at or now, now)}"
        case DeliveryState.EXHAUSTED:
            return f"{delivery.type} was given up after {tries}: {delivery.answer}"
        case DeliveryState.PENDING if not delivery.tries:
            return f"{delivery.type} is not sent yet" + (" once more" if delivery.spent else "")
        case DeliveryState.PENDING:
            said = f": {delivery.answer}" if delivery.answer else ""
            return f"{delivery.type} is not delivered after {tries}{said}"


def _webhook_next(facts: WhyFacts) -> list[str]:
    lines = []
    for delivery in facts.webhooks:
        if delivery.state is not DeliveryState.PENDING:
            continue
        tried_at = facts.webhooks_tried_at
        if facts.now - delivery.due_at > _SENT_BY:
            sent = tried_at is not None and facts.now - tried_at <= _SENT_BY
            why = f"It waits its turn behind others to {delivery.host}" if sent else _NOBODY_SENDS
            lines.append(f"its webhook was due {ago(delivery.due_at, facts.now)}. {why}")
        else:
            due = "now" if delivery.due_at <= facts.now else ago(delivery.due_at, facts.now)
            lines.append(f"its webhook is sent {due}")
    return lines


def _webhook_help(facts: WhyFacts) -> list[str]:
    """What was given up, or is sent later only, may be sent now."""
    owed = [delivery for delivery in facts.webhooks if delivery.state is not DeliveryState.DELIVERED]
    return [
        f"leasekeeper webhooks replay {delivery.delivery_id} --note …"
        for delivery in owed
        if delivery.state is DeliveryState.EXHAUSTED or delivery.due_at > facts.now
    ]


def _evidence(facts: WhyFacts) -> list[str]:
    """Where to look before deciding: the run that sent the job, or its profile, to a person."""
    job, runs = facts.job, []
    if job is not None and job.state in (JobState.REVIEW, JobState.DEAD):
        runs.append(facts.job_run)
    if facts.lane.state in WAITS_FOR_PERSON and (job is None or job.state in _WAITS_FOR_PROFILE):
        runs.append(facts.last_run)
    return list(dict.fromkeys(f"leasekeeper runs show {run.run_id}" for run in runs if run is not None))


def _profile_commands(facts: WhyFacts) -> list[str]:
    profile_id = facts.profile.profile_id
    commands = [f"leasekeeper accounts resume {facts.account.account_id} --note …"] if facts.account.paused else []
    match facts.lane.state:
        case ProfileState.REVIEW_REQUIRED:
            commands += [f"leasekeeper profiles {a} {profile_id} --note …" for a in ("clear", "quarantine", "disable")]
        case ProfileState.QUARANTINED:
            commands += [f"leasekeeper profiles {a} {profile_id} --note …" for a in ("clear", "review", "disable")]
        case ProfileState.DISABLED:
            commands.append(f"leasekeeper profiles enable {profile_id} --note …")
        case ProfileState.STALE:
            commands.append(f"leasekeeper profiles disable {profile_id} --note …")
        case ProfileState.AVAILABLE | ProfileState.LEASED:
            pass
    return commands
