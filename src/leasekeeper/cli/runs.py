"""`leasekeeper runs`: attempts of jobs, and manual and API uses of profiles; list, show, evidence.

A run is the record of a lease; `leases` lists the same records by their lease.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import settings, with_store
from leasekeeper.cli.evidence import evidence_lines
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, answer_records
from leasekeeper.cli.record_ids import whole_id
from leasekeeper.cli.table import SHORT_IDS, Column, Screen
from leasekeeper.core.leases import RunRecord

if TYPE_CHECKING:
    from leasekeeper.ports import Store

FIRST: Final = ("run_id", "result", "stop_reason", "message")

VIEW = View(
    kind=RunRecord,
    plural="runs",
    columns=(
        Column[RunRecord]("RUN", "run_id", id=True),
        Column[RunRecord]("RESULT", "result", state=True),
        Column[RunRecord]("STOPPED BY", "stop_reason", spare=2),
        Column[RunRecord]("TASK", lambda run: run.task or f"({run.purpose})", spare=3),
        Column[RunRecord]("PROFILE", "profile_id", spare=1),
        Column[RunRecord]("JOB", "job_id", spare=5, least=SHORT_IDS[0], id=True),
        Column[RunRecord]("WORKER", "worker_id", spare=6),
        Column[RunRecord]("STARTED", "acquired_at", spare=4),
        Column[RunRecord]("ENDED", "ended_at", spare=8),
        Column[RunRecord]("MESSAGE", "message", spare=7, least=20),
    ),
    empty="a run begins when a worker takes a job, or somebody leases a profile",
)

command = noun("runs", "Runs: attempts of jobs, and manual and API uses of profiles.")


@command.command("list")
@filters(
    RunRecord,
    job="job_id",
    profile="profile_id",
    worker="worker_id",
    result="result",
    reason="stop_reason",
    task="task",
)
@paging
@output
def list_runs(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List runs, newest first."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("run"))
@output
def show_run(run_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show runs: environment, ending, evidence, timings."""
    hide = frozenset[str]() if as_json else frozenset({"evidence"})

    def evidence(run: RunRecord) -> None:
        data_dir = Path(settings(store).browsers.data_dir).absolute()
        for line in evidence_lines(run.evidence, data_dir, Screen.now()):
            click.echo(line)

    answer_records(RunRecord, run_ids, url=store, as_json=as_json, first=FIRST, hide=hide, after_each=evidence)


@command.command("evidence")
@click.argument("run_id", metavar="ID", shell_complete=ids("run"))
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--to",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the files.  [default: a new one, named by the run]",
)
@output
def save_evidence(run_id: str, names: tuple[str, ...], target: Path | None, store: str | None, as_json: bool) -> None:
    """Copy the files of a run's evidence here, from wherever they are stored.

    Each is compared with the hash in the run's record. Without NAME, all of them.
    """

    async def save(opened: "Store") -> list[Path]:
        from leasekeeper.evidence.reading import artifacts_of, fetch, place_of

        run = await opened.get(RunRecord, await whole_id(opened, RunRecord, run_id))
        folder = target or Path(run.run_id)
        artifacts = artifacts_of(run.evidence, names)
        place = place_of(run.evidence, settings(store).browsers)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [await fetch(place, run.run_id, artifact, folder) for artifact in artifacts]

    saved = with_store(store, save)
    if as_json:
        answer_json([{"name": path.name, "path": str(path.absolute())} for path in saved])
        return
    for path in saved:
        click.echo(str(path))
    if not saved:
        click.echo(f"run {run_id} left no files")
