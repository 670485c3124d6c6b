"""The summary of the demo: what happened to each job and profile and why, and where the evidence is.

Long sentences are wrapped, not cut: the reason is what the reader wants here.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.table import Screen, printable, wrapped
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.readiness import Blocked
from leasekeeper.demo.jobs import BUSY, KILLED, PAUSED
from leasekeeper.demo.narration import what_became_of
from leasekeeper.errors import DemoFailed

if TYPE_CHECKING:
    from leasekeeper.core.leases import RunRecord
    from leasekeeper.demo.folder import Place
    from leasekeeper.demo.scenario import Result

_GAP: Final = "  "
_LEAST: Final = 24
_PICTURES: Final = (".png", ".jpg", ".jpeg")
_NEED_EYES: Final = (ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED, ProfileState.STALE)


def print_summary(result: "Result", place: "Place", screen: Screen) -> None:
    """Print the whole summary on stdout."""
    for title, lines in (
        ("what became of each job, and why", _jobs(result, screen)),
        ("what became of each profile, and why", _profiles(result, screen)),
        ("the evidence of each run", _evidence(result, place, screen)),
        ("what needs a person", _needs_eyes(result, place, screen)),
        ("what arrived at the shop", _arrived(result, screen)),
        ("look around", look_around(place)),
    ):
        click.echo(screen.title(title))
        for line in lines:
            click.echo(line)
        click.echo()
    if result.left or result.late:
        raise DemoFailed(
            f"this should not be: {len(result.late)} requests came too late, processes left behind: "
            f"{', '.join(map(str, result.left)) or 'none'}; please report it"
        )
    click.echo("No worker, Playwright process, keeper or browser is left running: the demo has checked.")


def _jobs(result: "Result", screen: Screen) -> list[str]:
    lanes = {lane.profile_id: lane for lane in result.lanes}
    order = {profile: number for number, profile in enumerate(lanes)}
    jobs = sorted(result.jobs, key=lambda job: (order[job.profile_id], job.seq))
    runs: dict[str, list[RunRecord]] = {}
    for run in result.runs:
        runs.setdefault(run.job_id or "", []).append(run)
    rows = [
        (
            job.profile_id,
            job.task,
            str(job.state),
            str(job.attempt),
            what_became_of(job, runs.get(job.job_id, []), lanes[job.profile_id]),
        )
        for job in jobs
    ]
    return table(("PROFILE", "TASK", "STATE", "RUNS", "WHAT HAPPENED"), rows, screen, state=2)


def _profiles(result: "Result", screen: Screen) -> list[str]:
    count: dict[str, int] = {}
    for run in result.runs:
        count[run.profile_id] = count.get(run.profile_id, 0) + 1
    rows = [
        (lane.profile_id, str(lane.state), str(count.get(lane.profile_id, 0)), lane.state_reason)
        for lane in result.lanes
    ]
    return table(("PROFILE", "STATE", "RUNS", "WHY"), rows, screen, state=1)


def _evidence(result: "Result", place: "Place", screen: Screen) -> list[str]:
    """Where the screenshot of each run is. Their common folder is printed above, so that a line fits the screen."""
    order = {lane.profile_id: number for number, lane in enumerate(result.lanes)}
    rows = []
    for run in sorted(result.runs, key=lambda run: (order[run.profile_id], run.acquired_at)):
        path = picture_of(run, place.runs)
        where = str(path.relative_to(place.runs)) if path else f"{run.evidence.get('folder')}/ (none)"
        rows.append((run.profile_id, run.task or "", where))
    return [f"in {place.runs}:", *table(("PROFILE", "TASK", "PICTURE"), rows, screen, whole=True)]


def picture_of(run: "RunRecord", runs: Path) -> Path | None:
    """The last screenshot of a run: the worker's, taken at the end, else the keeper's."""
    artifacts = run.evidence.get("artifacts")
    names = (
        [str(each["name"]) for each in artifacts if isinstance(each, Mapping)] if isinstance(artifacts, list) else []
    )
    pictures = [name for name in names if name.endswith(_PICTURES)]
    return runs / str(run.evidence.get("folder", run.run_id)) / pictures[0] if pictures else None


def _needs_eyes(result: "Result", place: "Place", screen: Screen) -> Iterator[str]:
    for lane in result.lanes:
        if lane.state not in _NEED_EYES:
            continue
        last = next((run for run in reversed(result.runs) if run.profile_id == lane.profile_id), None)
        path = picture_of(last, place.runs) if last else None
        yield from wrapped(f"{lane.profile_id} is {lane.state}: {lane.state_reason}", screen)
        if path is not None:
            yield f"    {path}"
    for job in result.jobs:
        if job.state is JobState.REVIEW or job.blocked_reason == Blocked.APPROVAL:
            waits = "waits for approval" if job.state is JobState.BLOCKED else f"is in review: {job.detail}"
            yield from wrapped(f"{job.task} for {job.profile_id} {waits}", screen)
    yield "  all of it: leasekeeper reviews"


def _arrived(result: "Result", screen: Screen) -> Iterator[str]:
    clicks = sum(arrival.click for arrival in result.arrivals)
    leases = len({arrival.lease for arrival in result.arrivals})
    late_clicks = sum(arrival.click for arrival in result.late)
    yield f"  {len(result.arrivals)} requests, {clicks} of them clicks, under {leases} leases"
    yield f"  {len(result.late)} requests and {late_clicks} clicks after a lease was over"
    if any(run.profile_id == PAUSED and run.stop_reason == Reason.WORKER_LOST for run in result.runs):
        yield from wrapped("(one worker was woken after its lease was over, and wanted to go on)", screen)


def look_around(place: "Place") -> Iterator[str]:
    """Commands to paste into the shell that started the demo."""
    program = quote(_to_type(sys.argv[0]))
    yield f"  export LEASEKEEPER_STORE={quote(place.store)}"
    yield f"  export LEASEKEEPER_DATA_DIR={quote(str(place.data))}"
    for arguments in (
        f"why profile {KILLED}",
        f"events --profile {PAUSED}",
        "reviews",
        "dlq",
        f"open {BUSY}",
        "conflicts",
    ):
        yield f"  {program} {arguments}"
    yield f"  cat {quote(str(place.folder))}/*.log"


def _to_type(called: str) -> str:
    """This program as it can be typed in the shell that started it: its name if that is on the PATH, else its path."""
    name = "leasekeeper"
    if shutil.which(name):
        return name
    paths = (path for path in (Path(called), Path(sys.executable).with_name(name)) if path.name == name)
    found = next((path for path in paths if shutil.which(path.absolute())), None)
    if found is None:
        return name
    path = str(found.relative_to(Path.cwd())) if found.is_relative_to(Path.cwd()) else str(found)
    return path if "/" in path else f"./{path}"


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    screen: Screen,
    *,
    state: int | None = None,
    whole: bool = False,
) -> list[str]:
    """A table whose last column is wrapped. `whole`: it is not, since a part of it would be useless."""
    *widths, _ = (max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles)))
    before = sum(widths) + len(_GAP) * len(widths)
    room = None if whole or screen.width is None else max(screen.width - before, _LEAST)
    lines = []
    for number, row in enumerate((titles, *rows)):
        parts = [f"{printable(text):<{width}}" for text, width in zip(row, widths, strict=False)]
        if number == 0:
            lines.append(screen.dim(_GAP.join([*parts, row[-1]])))
            continue
        if state is not None:
            parts[state] = screen.state(parts[state])
        first, *more = (
            wrap(printable(row[-1]), room, break_on_hyphens=False) if room and row[-1] else [printable(row[-1])]
        )
        lines.append(_GAP.join([*parts, first]).rstrip())
        lines += [" " * before + part for part in more]
    return lines
