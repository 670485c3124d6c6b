"""`leasekeeper runs`: attempts of jobs, and manual and API uses of profiles; list, show.

A run is also what a lease leaves behind; `leases` shows the same thing from its other side.
"""

from pathlib import Path
from typing import Final

import click

from leasekeeper.cli.connection import settings
from leasekeeper.cli.evidence import evidence_lines
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_page, answer_records
from leasekeeper.cli.table import SHORT_IDS, Column, Screen
from leasekeeper.core.leases import RunRecord

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
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@output
def show_run(run_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show runs: environment, ending, evidence, timings."""
    hide = frozenset[str]() if as_json else frozenset({"evidence"})

    def evidence(run: RunRecord) -> None:
        data_dir = Path(settings(store).browsers.data_dir).absolute()
        for line in evidence_lines(run.evidence, data_dir, Screen.now()):
            click.echo(line)

    answer_records(RunRecord, run_ids, url=store, as_json=as_json, first=FIRST, hide=hide, after_each=evidence)
