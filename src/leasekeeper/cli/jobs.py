"""`leasekeeper jobs`: list, show, cancel, requeue, approve, prioritize.

A payload is shown only to somebody who asks for it.
"""

from typing import Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.decisions import decide_selected, decision_command, version_option
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_page, answer_records
from leasekeeper.cli.selection import Selection
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import MAX_PRIORITY, Action, Target
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.readiness import Blocked

PREFIX: Final = "blocked_by_"
FIRST: Final = ("job_id", "state", "blocked_reason", "detail", "stop_reason", "task")


def _tried(job: Job) -> str:
    """'2/3'. Only '4' if a person retried it beyond its limit."""
    return f"{job.attempt}/{job.max_attempts}" if job.attempt <= job.max_attempts else str(job.attempt)


VIEW = View(
    kind=Job,
    plural="jobs",
    columns=(
        Column[Job]("JOB", "job_id", id=True),
        Column[Job]("STATE", "state", state=True),
        Column[Job]("BLOCKED BY", lambda job: (job.blocked_reason or "").removeprefix(PREFIX), spare=2, least=15),
        Column[Job]("TASK", "task", spare=3),
        Column[Job]("PROFILE", "profile_id", spare=1),
        Column[Job]("TRY", _tried, spare=6),
        Column[Job]("PRIO", lambda job: job.priority or None, spare=7),
        Column[Job]("CREATED", "created_at", spare=5),
        Column[Job]("DUE", lambda job: job.run_at if job.state is JobState.SCHEDULED else None, spare=4),
        Column[Job]("DETAIL", "detail", spare=8, least=20),
    ),
    empty="submit one: leasekeeper submit TASK --account ID",
)


def short_reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """`--reason capacity` is `--reason blocked_by_capacity`."""
    return value if value is None or value.startswith(PREFIX) else PREFIX + value


command = noun("jobs", "Jobs: one request each, to run a task for an account inside a profile.")


@command.command("list")
@filters(
    Job,
    state="state",
    account="account_id",
    profile="profile_id",
    task="task",
    pool="pool",
    schedule="schedule",
)
@click.option(
    "--reason",
    "blocked_reason",
    type=click.Choice([str(reason).removeprefix(PREFIX) for reason in Blocked] + [str(reason) for reason in Blocked]),
    metavar="REASON",
    callback=short_reason,
    help=f"Only jobs blocked for this reason: {', '.join(str(r).removeprefix(PREFIX) for r in Blocked)}.",
)
@paging
@output
def list_jobs(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List jobs, newest first."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("job"))
@click.option("--payload", is_flag=True, help="Show the payload too.")
@output
def show_job(job_ids: tuple[str, ...], payload: bool, store: str | None, as_json: bool) -> None:
    """Show jobs with all their fields."""
    hide = frozenset({"seq"}) if payload else frozenset({"seq", "payload"})
    answer_records(Job, job_ids, url=store, as_json=as_json, first=FIRST, hide=hide)


@command.command("prioritize")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("job"))
@click.option(
    "--to",
    "priority",
    metavar="N",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    required=True,
    help="The new priority; higher runs first, over all profiles.",
)
@version_option
@note
@actor
@output
def prioritize(
    job_ids: tuple[str, ...],
    priority: int,
    version: int | None,
    note: str,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Change the priority of jobs that are not running."""
    decide_selected(
        Target.JOB,
        Action.PRIORITIZE,
        Selection(ids=job_ids, where={}, yes=False),
        note,
        by,
        store,
        as_json=as_json,
        version=version,
        to=str(priority),
        alone=True,
    )


command.add_command(decision_command(Target.JOB, Action.CANCEL, "Cancel a job that is not running."))
command.add_command(decision_command(Target.JOB, Action.REQUEUE, "Send a job that waits in review back to its queue."))
command.add_command(
    decision_command(Target.JOB, Action.APPROVE, "Approve a job whose risk level needs approval before it runs.")
)
