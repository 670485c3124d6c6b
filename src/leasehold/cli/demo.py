"""`leasehold demo`: the whole thing at work on this machine, without a browser.

The runtime plays it; here it gets a place and an audience, and at the end it is told what became of each job and
profile. The store stays, so that people can look around.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasehold.cli.profiles import VIEW as PROFILES
from leasehold.cli.session import with_store
from leasehold.cli.table import Column, Screen, printable, render_table
from leasehold.core.jobs import Job
from leasehold.core.profiles import Lane, ProfileState
from leasehold.core.readiness import NEXT_STEP, Blocked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from leasehold.ports import Store


def _what_happened(job: Job) -> str:
    """Why the job is where it is, in a few words."""
    if job.blocked_reason:
        return f"{job.blocked_reason}: {NEXT_STEP[Blocked(job.blocked_reason)]}"
    return job.detail


_JOBS = (
    Column[Job]("PROFILE", "profile_id"),
    Column[Job]("TASK", "task", spare=3),
    Column[Job]("ENDS", lambda job: job.payload.get("ends", ""), spare=2, least=10),
    Column[Job]("STATE", "state", state=True),
    Column[Job]("RUNS", "attempt"),
    Column[Job]("WHAT HAPPENED", _what_happened, spare=1, least=20),
)


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its store is kept; an earlier one there is replaced.  [default: ~/.cache/leasehold/demo]",
)
def command(folder: Path | None) -> None:
    """See it work: a small fleet on an embedded store; several processes claim, hold, lose and settle."""
    import asyncio

    from leasehold.runtime.demo import database, play

    url = database(folder or _cache() / "leasehold" / "demo")
    click.echo("A small fleet, three worker processes, and jobs that end in every way: about 15 seconds.\n")
    asyncio.run(play(url, lambda line: click.echo(printable(line))))
    _tell_result(url)


def _tell_result(url: str) -> None:
    async def read(opened: "Store") -> "tuple[Sequence[Job], Sequence[Lane], datetime]":
        jobs, lanes = await opened.find(Job), await opened.find(Lane)
        return list(reversed(jobs.items)), lanes.items, (await opened.check()).now

    jobs, lanes, now = with_store(url, read)
    screen = Screen.now()
    for title, table in (
        ("what became of each job", render_table(_JOBS, jobs, now, screen)),
        ("what became of each profile", render_table(PROFILES.columns, lanes, now, screen)),
    ):
        click.echo("\n".join(["", screen.title(title), *table]))
    lost = next((lane.profile_id for lane in lanes if lane.state is ProfileState.QUARANTINED), lanes[0].profile_id)
    click.echo("\n".join(["", screen.title("look around"), f"  export LEASEHOLD_STORE={url}"]))
    for arguments in (f"why profile {lost}", "reviews", "events", "conflicts", "stats"):
        click.echo(f"  leasehold {arguments}")


def _cache() -> Path:
    place = os.environ.get("XDG_CACHE_HOME", "")
    return Path(place) if Path(place).is_absolute() else Path.home() / ".cache"
