"""Runs: the list of them, and one run with its phases, its evidence, its events and the other attempts of its job."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from leasekeeper.core.decisions import Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.evidence.files import Artifact
from leasekeeper.evidence.reading import artifacts_of
from leasekeeper.ports import Page
from leasekeeper.runtime.recording import NAME as RECORDING
from leasekeeper.service.control import JOB_CHOICES, PROFILE_CHOICES, asking_away, find_browser
from leasekeeper.service.pages.evidence import IMAGES, RECORDINGS
from leasekeeper.service.pages.filter_language import read_filter
from leasekeeper.service.pages.rendering import field_text, page
from leasekeeper.service.pages.visit import PER_PAGE, Visit

MAX_EVENTS: Final = 100
MAX_OF_JOB: Final = 500
# The events from a job to its lease. The first ones start its waiting time.
BEGINS_TO_WAIT: Final = frozenset({EventType.JOB_SUBMITTED, EventType.JOB_DUE, EventType.JOB_UNBLOCKED})
SCHEDULING: Final = BEGINS_TO_WAIT | {
    EventType.JOB_BLOCKED,
    EventType.JOB_DECIDED,
    EventType.PROFILE_LOCK_CONFLICT,
    EventType.LEASE_GRANTED,
}
MAX_ATTEMPTS: Final = 50
# Phases of a run in order, with their titles.
PHASES: Final = (
    ("open", "launch"),
    ("task", "task"),
    ("evidence", "evidence"),
    ("close", "release"),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One bar of the waterfall: start and duration, in seconds and in percent of the whole."""

    name: str
    begin: float
    length: float
    left: float
    width: float


async def view(visit: Visit) -> Response:
    asked = read_filter(RunRecord, visit.query.get("q", ""))
    found: Page[RunRecord] = Page(items=())
    if not asked.problems:
        found = await visit.find(RunRecord, asked.where, after=visit.query.get("after"), limit=PER_PAGE)
    return await page(visit, "runs.html", title="Runs", asked=asked, found=found)


async def one(visit: Visit) -> Response:
    run = await visit.get(RunRecord, visit.path["run_id"])
    job, lease, attempts, events, of_job, stats = await asyncio.gather(
        visit.get_if_there(Job, run.job_id),
        visit.get_if_there(Lease, run.lease_id),
        _attempts(visit, run),
        visit.find(Event, {"run_id": run.run_id}, limit=MAX_EVENTS),
        _events_of_job(visit, run),
        visit.stats(),
    )
    scheduling = scheduling_of(run, of_job, attempts)
    browser = find_browser(visit.service, run.run_id)
    answerable = browser or await asking_away(visit.service, run)
    due_at = next((event.at for event in reversed(scheduling) if event.type in BEGINS_TO_WAIT), None)
    return await page(
        visit,
        "run.html",
        title=f"Run {run.run_id}",
        run=run,
        job=job,
        lease=lease,
        attempts=attempts,
        events=list(reversed(events.items)),
        phases=waterfall(run, due_at, stats.now),
        scheduling=scheduling,
        due_at=due_at,
        files=artifacts_of(run.evidence),
        images=images_of(run),
        recordings=[each for each in artifacts_of(run.evidence) if each.media_type in RECORDINGS],
        pictures=[each for each in artifacts_of(run.evidence) if each.name == RECORDING],
        commands=commands_of(run.evidence),
        keeper=_keeper(run.evidence),
        field_text=field_text,
        environment=_environment(run),
        watchable=browser is not None,
        control=answerable.view() if answerable is not None else None,
        job_id=run.job_id,
        job_choices=[each for each in JOB_CHOICES if visit.may(Target.JOB, each)],
        profile_choices=[each for each in PROFILE_CHOICES if visit.may(Target.PROFILE, each)],
    )


async def _attempts(visit: Visit, run: RunRecord) -> Sequence[RunRecord]:
    """The runs of the same job, first to last."""
    if run.job_id is None:
        return ()
    found = await visit.find(RunRecord, {"job_id": run.job_id}, limit=MAX_ATTEMPTS)
    return list(reversed(found.items))


async def _events_of_job(visit: Visit, run: RunRecord) -> Sequence[Event]:
    """What happened to the run's job, oldest first."""
    if run.job_id is None:
        return ()
    return list(reversed((await visit.find(Event, {"job_id": run.job_id}, limit=MAX_OF_JOB)).items))


def scheduling_of(run: RunRecord, of_job: Sequence[Event], attempts: Sequence[RunRecord]) -> list[Event]:
    """How the job came to this run: its events from the end of the previous attempt to the lease."""
    before = [each.ended_at for each in attempts if each.ended_at is not None and each.ended_at <= run.acquired_at]
    since = max(before, default=None)
    return [
        event
        for event in of_job
        if event.type in SCHEDULING
        and event.at <= run.acquired_at
        and (since is None or event.at >= since)
        and event.run_id in (None, run.run_id)
    ]


def images_of(run: RunRecord) -> list[Artifact]:
    return [artifact for artifact in artifacts_of(run.evidence) if artifact.media_type in IMAGES]


def waterfall(run: RunRecord, waited_since: datetime | None, now: datetime) -> list[Phase]:
    """The phases of a run one after the other. Unmeasured time between them belongs to none.

    The run of a lost worker has no measurements: its keeper reports when the browser started and ended. A run that goes
    on has none yet: it shows how long the lease has been held.
    """
    steps: list[tuple[str, float]] = []
    if waited_since is not None:
        steps.append(("wait", max(0.0, (run.acquired_at - waited_since).total_seconds())))
    measured = [(shown, float(run.timings[name])) for name, shown in PHASES if name in run.timings]
    known = {name for name, _ in PHASES}
    measured += [(name, float(value)) for name, value in run.timings.items() if name not in known]
    held = ((run.ended_at or now) - run.acquired_at).total_seconds()
    if measured:
        steps += [("lease", max(0.0, held - sum(length for _, length in measured))), *measured]
    else:
        steps += _seen_by_keeper(run, held) or [("held", held)]
    whole = sum(length for _, length in steps) or 1.0
    phases, begin = [], 0.0
    for name, length in steps:
        phases.append(Phase(name, begin, length, 100 * begin / whole, max(0.4, 100 * length / whole)))
        begin += length
    return phases


def _seen_by_keeper(run: RunRecord, held: float) -> list[tuple[str, float]]:
    """The time before, with and after the browser of a lost run. Its machine's clock may differ from the store's, so no
    phase may be longer than the lease.
    """
    keeper = run.evidence.get("keeper")
    if not isinstance(keeper, Mapping) or not keeper.get("started_at") or not keeper.get("ended_at"):
        return []
    started, ended = float(keeper["started_at"]), float(keeper["ended_at"])
    before = min(max(0.0, started - run.acquired_at.timestamp()), held)
    browser = min(max(0.0, ended - started), held - before)
    return [("lease", before), ("browser", browser), ("resolving", held - before - browser)]


def _keeper(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """What the keeper reported, without its commands."""
    keeper = evidence.get("keeper")
    hidden = ("commands", "started_at", "ended_at")
    return {name: value for name, value in keeper.items() if name not in hidden} if isinstance(keeper, Mapping) else {}


def commands_of(evidence: Mapping[str, Any]) -> list[tuple[datetime, str, str]]:
    """The last commands that the keeper passed to the browser of a run that did not complete."""
    keeper = evidence.get("keeper")
    listed = keeper.get("commands", []) if isinstance(keeper, Mapping) else []
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [
        (epoch + timedelta(seconds=float(each.get("at", 0))), str(each.get("method", "")), str(each.get("url", "")))
        for each in listed
        if isinstance(each, Mapping)
    ]


def _environment(run: RunRecord) -> list[tuple[str, str, str]]:
    """Name, what was expected, what was found."""
    names = dict.fromkeys((*run.expected, *run.actual))
    return [(name, str(run.expected.get(name, "")), str(run.actual.get(name, ""))) for name in names]
