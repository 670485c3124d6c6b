"""`leasekeeper dlq`: dead jobs, those that used up their attempts; list, retry, drop."""

from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.decisions import MAX_AT_ONCE, decide_each, every_id
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.jobs import Job

if TYPE_CHECKING:
    from leasekeeper.ports import Store

DEAD: Final = {"state": "dead", "dropped": "0"}

VIEW = View(
    kind=Job,
    plural="dead jobs",
    columns=(
        Column[Job]("JOB", "job_id"),
        Column[Job]("TASK", "task", spare=2),
        Column[Job]("PROFILE", "profile_id", spare=1),
        Column[Job]("TRIES", "attempt", spare=5),
        Column[Job]("DIED", "finished_at", spare=4),
        Column[Job]("STOPPED BY", "stop_reason", spare=3),
        Column[Job]("DETAIL", "detail", spare=6, least=24),
    ),
    empty="none has used up its attempts, or all that did were dropped",
)

command = noun("dlq", "Dead jobs: those that used up their attempts.")


@command.command("list")
@filters(Job, account="account_id", profile="profile_id", task="task", pool="pool")
@paging
@output
def list_dead(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List dead jobs."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json, always=DEAD)


@command.command("retry")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help=f"All dead jobs, maximum {MAX_AT_ONCE:,} at once.")
@note
@actor
@output
def retry(job_ids: tuple[str, ...], everything: bool, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Reopen dead jobs: a new attempt each."""
    if bool(job_ids) == everything:
        raise click.UsageError("name the jobs, or say --all")
    decide_each(Target.JOB, Action.RETRY, job_ids or _all_dead, note, by, store, what="dead jobs", as_json=as_json)


@command.command("drop")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@note
@actor
@output
def drop(job_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Take dead jobs off the list for good. Their records stay until they are pruned."""
    decide_each(Target.JOB, Action.DROP, job_ids, note, by, store, what="dead jobs", as_json=as_json)


async def _all_dead(store: "Store") -> list[str]:
    return await every_id(store, Job, DEAD, lambda job: job.job_id)
