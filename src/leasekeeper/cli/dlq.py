"""`leasekeeper dlq`: dead jobs, those that used up their attempts; list, retry, drop."""

from leasekeeper.cli.decisions import decide_selected
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.selection import DEAD_JOBS, Selection, selecting
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.jobs import Job

VIEW = View(
    kind=Job,
    plural="dead jobs",
    columns=(
        Column[Job]("JOB", "job_id", id=True),
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
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json, always=DEAD_JOBS.always)


@command.command("retry")
@selecting(DEAD_JOBS)
@note
@actor
@output
def retry(selection: Selection, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Reopen dead jobs: a new attempt each."""
    decide_selected(Target.JOB, Action.RETRY, selection, note, by, store, what="dead jobs", as_json=as_json)


@command.command("drop")
@selecting(DEAD_JOBS)
@note
@actor
@output
def drop(selection: Selection, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Take dead jobs off the list for good. Their records stay until they are pruned."""
    decide_selected(Target.JOB, Action.DROP, selection, note, by, store, what="dead jobs", as_json=as_json)
