"""What `why` answers, in sentences: a headline, the facts behind it, and what happens next."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never

from leasekeeper.core.accounts import BanStatus
from leasekeeper.core.decisions import Target
from leasekeeper.core.deliveries import DeliveryState
from leasekeeper.core.jobs import FINAL, JobState, attempt_text
from leasekeeper.core.leases import LeaseStatus
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.snapshots import too_large
from leasekeeper.core.why_answer import Holder, LastRun, Next, ProfileView, Step, Webhook, Why
from leasekeeper.wording import UNBLOCKED_BY, ago, note_text, pause_text, silent_text, size_text, too_old

MAX_UNWELL: Final = 3
_NOBODY_SWEEPS: Final = "If this stays so, nothing sweeps"
_NOBODY_SENDS: Final = "Nobody sends webhooks"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyText:
    """A `Why` in sentences: a headline, the facts behind it, and what happens next."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    next: tuple[str, ...]


def why_text(why: Why) -> WhyText:
    """The answer for people."""
    return WhyText(
        headline=_headline(why),
        facts=tuple(_facts(why)),
        next=tuple(next_text(step, why) for step in why.next),
    )


def _headline(why: Why) -> str:
    if why.job is None:
        return f"profile {why.id} is {why.state}"
    return f"job {why.id} {_job_state(why, JobState(why.state))}"


def _job_state(why: Why, state: JobState) -> str:
    match state:
        case JobState.SCHEDULED:
            run_at = why.job.run_at if why.job else None
            due = ago(run_at, why.now) if run_at else "soon"
            return f"{'was' if run_at is not None and run_at <= why.now else 'is'} due {due}"
        case JobState.QUEUED:
            ahead = why.job.ahead if why.job else 0
            return f"is ready and waits for a worker, {ahead} job(s) of its profile ahead"
        case JobState.BLOCKED:
            return f"is {why.reason}"
        case JobState.REVIEW:
            return "waits for a person"
        case JobState.DEAD:
            return "is dead: it used up its attempts"
        case JobState.RUNNING | JobState.COMPLETED | JobState.SKIPPED | JobState.CANCELLED:
            return f"is {state}"
    assert_never(state)


def _facts(why: Why) -> list[tuple[str, str]]:
    return _job_facts(why) if why.job is not None else _profile_facts(why)


def _job_facts(why: Why) -> list[tuple[str, str]]:
    job, profile = why.job, why.profile
    if job is None:
        return []
    lines = [
        ("task", f"{job.task}, {attempt_text(job.attempt, job.max_attempts)}, priority {job.priority}"),
        ("profile", f"{profile.profile_id} of account {profile.account_id}: {profile.state}"),
    ]
    if profile.state_reason and profile.state is not ProfileState.AVAILABLE:
        lines.append(("because", profile.state_reason))
    if job.detail:
        lines.append(("detail", job.detail))
    lines += _proxy_lines(why)
    lines += [("paused", pause_text(pause)) for pause in why.pauses]
    lines += _unwell_lines(why)
    if job.losses:
        lines.append(("lost workers", str(job.losses)))
    lines += _holder_lines(why)
    lines += _run_lines(why.last_run, why.now)
    if why.pool is not None:
        pool = why.pool
        lines.append(("pool", f"{pool.leases} of {pool.max_leases} leases of pool {pool.pool} are taken"))
    if job.finished_at and why.state in FINAL:
        lines.append(("finished", ago(job.finished_at, why.now)))
    lines += _note_lines(why)
    return lines + [("webhook", _webhook_text(webhook, why.now)) for webhook in why.webhooks]


def _proxy_lines(why: Why) -> list[tuple[str, str]]:
    """What is wrong with the profile's proxy."""
    proxy = why.proxy
    if proxy is None:
        return []
    since = f" since {ago(proxy.since_at, why.now).removesuffix(' ago')}" if proxy.since_at else ""
    again = f"; asked {proxy.asked} times, again {ago(proxy.ask_at, why.now)}" if proxy.ask_at else ""
    return [("proxy", f"{proxy.proxy_id}: {proxy.trouble}{since} ({proxy.detail}){again}")]


def _unwell_lines(why: Why) -> list[tuple[str, str]]:
    """The first few workers whose machines are not well."""
    lines = []
    for worker in why.unwell[:MAX_UNWELL]:
        since = f", {ago(worker.since_at, why.now)}" if worker.since_at else ""
        lines.append(("unwell worker", f"{worker.worker_id}: {worker.reason}{since}"))
    more = len(why.unwell) - len(lines)
    return [*lines, ("", f"and {more} more")] if more > 0 else lines


def _profile_facts(why: Why) -> list[tuple[str, str]]:
    profile = why.profile
    lines = [("account", f"{profile.account_id}{' (paused)' if profile.paused else ''}")]
    if profile.pause_note:
        lines.append(("paused because", profile.pause_note))
    lines += [("paused", pause_text(pause)) for pause in why.pauses]
    bans = [("account", profile.account_ban_status), ("profile", profile.ban_status)]
    known = [f"{what} {status}" for what, status in bans if status is not BanStatus.NONE]
    if known:
        lines.append(("ban", ", ".join(known)))
    lines.append(("since", ago(profile.since_at, why.now)))
    if profile.state_reason:
        lines.append(("because", profile.state_reason))
    lines.append(("waiting jobs", str(profile.waiting)))
    lines += _directory_lines(profile)
    lines += _proxy_lines(why)
    lines += _holder_lines(why)
    lines += _run_lines(why.last_run, why.now)
    if profile.drain:
        lines.append(("draining", f"will be {profile.drain} when the present lease ends: {profile.drain_reason}"))
    return lines + _note_lines(why)


def _directory_lines(profile: ProfileView) -> list[tuple[str, str]]:
    """Where the newest state of the profile is, and whether its directory is too large."""
    lines = []
    if profile.home:
        lines.append(("home", f"machine {profile.home} has its directory"))
    if profile.saved:
        lines.append(("saved", f"snapshot {profile.snapshot} is its newest state; any machine can fetch it"))
    elif profile.snapshot is not None or profile.unsaved_reason:
        because = f": {profile.unsaved_reason}" if profile.unsaved_reason else ""
        lines.append(("not saved", f"the directory at its home is newer than any snapshot{because}"))
    if profile.size_bytes is not None and too_large(profile.max_size_mb, profile.size_bytes):
        lines.append(("too large", f"{size_text(profile.size_bytes)}; its limit is {profile.max_size_mb} MB"))
    return lines


def _note_lines(why: Why) -> list[tuple[str, str]]:
    """The newest notes on the profile and its account."""
    return [("note", note_text(note, why.now)) for note in why.notes]


def _holder_lines(why: Why) -> list[tuple[str, str]]:
    return [line for holder in why.holders for line in _holder_text(holder, why.now)]


def _holder_text(holder: Holder, now: datetime) -> list[tuple[str, str]]:
    run = f"run {holder.run_id} ({holder.purpose}) of profile {holder.profile_id}, token {holder.token}"
    step = f"{holder.last_safe_step} ({ago(holder.last_safe_at, now)})" if holder.last_safe_at else "none yet"
    inside = f"; inside {holder.open_section}" if holder.open_section else ""
    revoked = "revoked, " if holder.status is LeaseStatus.REVOKED else ""
    ends = f"lease {revoked}{'was over' if holder.expires_at <= now else 'ends'} {ago(holder.expires_at, now)}"
    silent = f" ({silent_text(holder.silent_seconds)})" if holder.silent_seconds is not None else ""
    works = [("its job", f"{holder.job_id}, task {holder.task}")] if holder.job_id else []
    return [
        ("holder", f"{holder.worker_id}, {run}, since {ago(holder.acquired_at, now)}"),
        *works,
        ("heartbeat", f"{ago(holder.heartbeat_at, now)}{silent}; {ends}"),
        ("last safe step", step + inside),
    ]


def _run_lines(run: LastRun | None, now: datetime) -> list[tuple[str, str]]:
    if run is None:
        return []
    ended = f", {run.result} {ago(run.ended_at, now)}" if run.ended_at else ""
    return [("last run", f"{run.run_id} by {run.worker_id}{ended}{f' ({run.stop_reason})' if run.stop_reason else ''}")]


def _webhook_text(webhook: Webhook, now: datetime) -> str:
    tries = f"{webhook.tries} {'try' if webhook.tries == 1 else 'tries'}"
    match webhook.state:
        case DeliveryState.DELIVERED:
            return f"{webhook.type} was delivered {ago(webhook.ended_at or now, now)}"
        case DeliveryState.EXHAUSTED:
            return f"{webhook.type} was given up after {tries}: {webhook.answer}"
        case DeliveryState.PENDING if not webhook.tries:
            return f"{webhook.type} is not sent yet" + (" once more" if webhook.replayed else "")
        case DeliveryState.PENDING:
            said = f": {webhook.answer}" if webhook.answer else ""
            return f"{webhook.type} is not delivered after {tries}{said}"
    assert_never(webhook.state)


_ALWAYS: Final[Mapping[Next, str]] = {
    Next.OVER: "nothing: it is over",
    Next.WORKER_TAKES_JOB: "a worker of its pool takes it when it is first in line",
    Next.DUE: "it enters its profile's queue when it is due",
    Next.SWEEP_TAKES_JOB: f"the next sweep takes it into its profile's queue. {_NOBODY_SWEEPS}",
    Next.OTHER_RUNS_GO_ON: "its other runs go on; it stays leased until the last of them has ended",
    Next.SWEEP_ENDS_LEASE: f"its lease is over: the next sweep makes it stale and resolves it. {_NOBODY_SWEEPS}",
    Next.SWEEP_SENDS_TO_REVIEW: "the next sweep sends it to review (release policy review)",
    Next.ACCOUNT_RESUMED: "its jobs wait until the account is resumed",
    Next.NEXT_JOB_STARTS: "its next job starts as soon as a worker is free",
    Next.NOTHING_WAITS: "nothing waits for it",
}


def next_text(step: Step, why: Why) -> str:
    """One step of what happens next."""
    if step.code in _ALWAYS:
        return _ALWAYS[step.code]
    about_job = why.target is Target.JOB
    match step.code:
        case Next.RUN_ENDS:
            if about_job:
                return "it ends by itself; if its worker vanishes, its lease expires and the profile is resolved"
            return "it is free again when its run ends cleanly; an expiry alone never frees it"
        case Next.PERSON_DECIDES:
            taken_out = not about_job and why.state == ProfileState.DISABLED
            return "nothing happens by itself" + (
                "" if about_job else f": a person {'took it out' if taken_out else 'decides'}"
            )
        case Next.UNBLOCKED if step.reason is not None:
            at = f" ({ago(step.at, why.now)})" if step.at else ""
            return f"{UNBLOCKED_BY[step.reason]}{at}"
        case Next.NEXT_JOB_UNBLOCKED if step.reason is not None:
            waits = UNBLOCKED_BY[step.reason]
            return f"its next job ({step.task} in pool {step.pool}) is {step.reason}: {waits}"
        case Next.ACCOUNT_RUN_ENDS:
            return f"its next job starts when run {step.run_id} of the same account ends"
        case Next.BROWSER_UPGRADED:
            return too_old(why.profile.profile_id, step.engine or 0)
        case Next.SWEEP_QUARANTINES:
            because = f": {step.section} was open" if step.section else " (release policy quarantine)"
            return f"the next sweep quarantines it{because}"
    return _timed(step, step.at or why.now, why.now)


def _timed(step: Step, at: datetime, now: datetime) -> str:
    """A step whose time is what matters about it."""
    match step.code:
        case Next.LEASE_REVOKED if at <= now:
            return f"lease {step.lease_id} was revoked and has expired"
        case Next.LEASE_REVOKED:
            return f"lease {step.lease_id} was revoked: its profile stays leased until it expires, {ago(at, now)}"
        case Next.SILENT_LEASE_EXPIRES:
            return f"if its worker stays silent, lease {step.lease_id} expires {ago(at, now)}, then it is resolved"
        case Next.SWEEP_RESTORES:
            return f"it goes back to its last good snapshot at the first sweep after the lock-delay, {ago(at, now)}"
        case Next.SWEEP_RECOVERS:
            return f"recovery is decided by the first sweep after the lock-delay, {ago(at, now)}"
        case Next.WEBHOOK_SENT:
            return f"its webhook is sent {'now' if at <= now else ago(at, now)}"
        case Next.WEBHOOK_WAITS_ITS_TURN:
            return f"its webhook was due {ago(at, now)}. It waits its turn behind others to {step.host}"
        case Next.WEBHOOK_SENT_BY_NOBODY:
            return f"its webhook was due {ago(at, now)}. {_NOBODY_SENDS}"
    return str(step.code)
