"""Codes and data of core → sentences for people. The only place that words them: the command line, programs, pages and
messages of errors all take them from here. Names no command: how to do something depends on where it is read."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Refusal
from leasekeeper.core.notes import Note, NoteAbout
from leasekeeper.core.pauses import Pause
from leasekeeper.core.readiness import Block, Blocked, Expected, NoWorker

REFUSALS: Final[Mapping[Refusal, str]] = {
    Refusal.NO_SUCH_LEASE: "there is no such lease",
    Refusal.WRONG_TOKEN: "the fencing token is not the one this lease was granted with",
    Refusal.OTHER_RUN: "the lease was granted to another run, by a store that had forgotten this one",
    Refusal.WRONG_ROUTING_KEY: "the routing key is not the one this lease was granted with",
    Refusal.RELEASED: "the lease is released",
    Refusal.EXPIRED: "the lease is expired",
    Refusal.REVOKED: "the lease is revoked",
    Refusal.OVERDUE: "the lease has expired",
}

# What ends each reason for waiting.
UNBLOCKED_BY: Final[Mapping[Blocked, str]] = {
    Blocked.PROFILE_LEASE: "starts by itself when the present lease is released",
    Blocked.ACCOUNT_PAUSE: "starts by itself when the account is resumed",
    Blocked.PAUSE: "starts by itself when the pause ends or a person resumes it",
    Blocked.PROXY_MISMATCH: "fix the proxy, or what fleet.yaml says of it, or cancel the job; it then moves by itself",
    Blocked.PROXY_UNREACHABLE: "starts by itself when the proxy can be reached: it is asked again, less and less often",
    Blocked.ENVIRONMENT_MISMATCH: "fix language or timezone in fleet.yaml and apply it; it then moves by itself",
    Blocked.REVIEW_REQUIRED: "a person must look at the profile and decide",
    Blocked.PROFILE_STATE: "a stale profile is resolved by itself, another one by a person",
    Blocked.CAPACITY: "starts by itself when the pool has a free lease, or raise its limit in fleet.yaml",
    Blocked.APPROVAL: "a person must approve it",
    Blocked.NO_WORKER: "start a worker that offers this task in this pool",
    Blocked.HOME: "start a worker on the machine that has the profile's directory, or move the profile",
    Blocked.DUPLICATE: "nothing: the first job with this key was accepted, see that one",
}


def pause_text(pause: Pause) -> str:
    """What is paused, until when, by whom and why."""
    what = "everything" if pause.scope == "all" else f"{pause.scope} {pause.name}"
    until = f" until {pause.until:%Y-%m-%d %H:%M:%S} UTC" if pause.until else ""
    return f"{what} is paused{until} by {pause.actor} ({pause.note})"


def note_text(note: Note, now: datetime) -> str:
    """One note on one line: when, by whom, on what if it is the whole account, and what it says."""
    on = f" on account {note.account_id}" if note.about is NoteAbout.ACCOUNT else ""
    run = f" in run {note.run_id}" if note.run_id else ""
    return f"{ago(note.written_at, now)} by {note.author}{run}{on}: {' '.join(note.text.split())}"


def block_text(block: Block, job: Job) -> str:
    """What exactly blocks a job; empty if the reason alone says it."""
    match block.field:
        case Expected.PROXY_ID:
            return f"the job wants proxy {block.wanted}, profile {job.profile_id} has {block.actual or 'none'}"
        case Expected.PROXY_REGION:
            actual = block.actual or "no known region"
            return f"the job expects proxy region {block.wanted}, the proxy of profile {job.profile_id} is in {actual}"
        case Expected.LANGUAGE | Expected.TIMEZONE:
            actual = block.actual or "none"
            return f"the job expects {block.field} {block.wanted}, profile {job.profile_id} has {actual}"
    if block.reason is Blocked.APPROVAL:
        return "risk_level is review_required and nobody has approved it yet"
    if block.no_worker is NoWorker.NEVER_OFFERED:
        return f"no worker of pool {job.pool} has ever offered task {job.task}"
    if block.engine is not None:
        return too_old(job.profile_id, block.engine)
    return at_home(job.profile_id, block.home) if block.home is not None else ""


def too_old(profile_id: str, engine: int) -> str:
    """Why no live worker takes the jobs of a profile."""
    return (
        f"profile {profile_id} was last opened by browser version {engine}, and no live worker has one as new: "
        "upgrade the browser of a worker"
    )


def at_home(profile_id: str, home: str) -> str:
    """Where a profile has to be opened, and what to do elsewhere."""
    return (
        f"the directory of profile {profile_id} is on machine {home}: start a worker there, or take the directory to "
        "another machine and move the profile"
    )


def ago(then: datetime, now: datetime) -> str:
    """'12 s ago', '3 min ago', '2 h ago', 'in 5 s': what a person reads fastest."""
    seconds = (now - then).total_seconds()
    text = span(timedelta(seconds=abs(seconds)))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def silent_text(seconds: float) -> str:
    """For how long a worker has been silent: 'silent for 90 s'."""
    return f"silent for {span(timedelta(seconds=seconds))}"


def size_text(size_bytes: int) -> str:
    """A size, in megabytes."""
    return f"{size_bytes / 1_000_000:,.1f} MB"


def span(length: timedelta) -> str:
    """A duration in the unit that people use: '119 s', '2 min', '2 h'."""
    seconds = int(length.total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
