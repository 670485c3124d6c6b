"""Events, jobs and runs as sentences. Pure: records in, text out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Refusal, RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.core.readiness import Blocked
from leasekeeper.wording import REFUSALS, UNBLOCKED_BY


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event: when, about what, and its text. `stage`: the demo did it, not the fleet."""

    at: datetime
    about: str
    text: str
    stage: bool = False


def line_of(event: Event, tasks: Mapping[str, str]) -> Line | None:
    """An event as a line; None for events that are not shown. `tasks`: the task of each job."""
    text = _sentence(event, tasks.get(event.job_id or "", "a job"))
    about = event.profile_id or event.account_id or event.worker_id or ""
    return Line(at=event.at, about=about, text=text) if text else None


def _sentence(event: Event, task: str) -> str:  # noqa: C901 - one case for each kind of event, on one screen
    data = event.data
    match event.type:
        case EventType.LEASE_GRANTED:
            again = f", attempt {data['attempt']}" if data.get("attempt", 1) != 1 else ""
            return f"{event.worker_id} leases it for {task} (token {data.get('token')}{again})"
        case EventType.CHECKPOINT_SAVED:
            return f"safe step {data.get('step')}"
        case EventType.SECTION_ENTERED:
            return f"enters mutating section {data.get('section')}"
        case EventType.SECTION_LEFT:
            return f"leaves mutating section {data.get('section')}"
        case EventType.RUN_SETTLED:
            return _settled(event, task)
        case EventType.LEASE_EXPIRED:
            return f"the lease of {event.worker_id} is over: profile {event.profile_state}"
        case EventType.STALE_RESOLVED:
            job = f"; job {event.job_state}" if event.job_state else ""
            return f"now {event.profile_state}: {data.get('reason')}{job}"
        case EventType.STALE_WORKER_WRITE_REJECTED:
            because = REFUSALS[Refusal(str(data["why"]))]
            return f"late {data.get('write')} of {event.worker_id or 'a worker'} refused: {because}"
        case EventType.PROFILE_LOCK_CONFLICT:
            return f"{data.get('blocked_task')} is due while it is taken: {data.get('decision')}"
        case EventType.JOB_BLOCKED:
            return f"{task} is {data.get('reason')}"
        case EventType.JOB_ALREADY_HANDLED:
            return f"{task} came again with the same key: nothing runs twice"
        case EventType.JOB_DUE:
            return f"{task} is due again"
        case EventType.ACCOUNT_PAUSED:
            return "paused: its jobs wait"
        case EventType.ACCOUNT_RESUMED:
            return "resumed: its jobs go on"
        case EventType.WORKER_STARTED:
            return "is there"
        case EventType.WORKER_STOPPED:
            return "has stopped"
        case EventType.MANUAL_USE_DETECTED:
            return f"used outside a lease: {data.get('found')}"
        case _:
            return ""


def _settled(event: Event, task: str) -> str:
    reason = event.data.get("stop_reason")
    ended = f"stops with {reason}, job {event.job_state}" if reason else "completed"
    state = f"profile {event.profile_state}" if event.profile_state else "profile unchanged"
    return f"{task} {ended}; {state}"


def what_became_of(job: Job, runs: Sequence[RunRecord], lane: Lane) -> str:
    """Why a job is in its state. `runs`: its attempts, oldest first; `lane`: the state of its profile."""
    if job.state is JobState.SKIPPED:
        return "its profile was taken, and on_conflict is skip"
    if job.blocked_reason:
        blocked = Blocked(job.blocked_reason)
        by_state = blocked in (Blocked.PROFILE_STATE, Blocked.REVIEW_REQUIRED)
        why = f"waits: its profile is {lane.state}" if by_state else job.detail or str(blocked)
        return why if by_state else f"{why}; {UNBLOCKED_BY[blocked]}"
    if not runs:
        return job.detail
    *before, last = runs
    said = [f"attempt {run.attempt}: {_stopped(run)}" for run in before]
    if last.stop_reason is None:
        said.append(_output(last) if not before else f"attempt {last.attempt}: {_output(last)}")
    else:
        said.append(job.detail or _stopped(last))
    return "; ".join(said)


def _stopped(run: RunRecord) -> str:
    return f"{run.stop_reason}: {run.message}" if run.message else str(run.stop_reason)


def _output(run: RunRecord) -> str:
    return ", ".join(f"{name}: {value}" for name, value in (run.output or {}).items()) or "done"
