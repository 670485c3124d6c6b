"""`leasehold dlq`: dead jobs, those that used up their attempts; list, retry, drop.

Several jobs are decided one by one, each in a commit of its own: one refusal does not stop the others.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from leasehold.cli.answers import View, answer_json, answer_page
from leasehold.cli.decisions import decided_json, sentence
from leasehold.cli.faults import exit_code
from leasehold.cli.options import actor, filters, given, note, noun, output, paging
from leasehold.cli.progress import Progress
from leasehold.cli.session import with_store
from leasehold.cli.table import Column
from leasehold.core.decisions import Action, Decision, Target
from leasehold.core.jobs import Job
from leasehold.errors import Conflict, InputError, LeaseholdError, NotFound
from leasehold.ports import MOST_IN_PAGE

if TYPE_CHECKING:
    from leasehold.ports import Decided, Store

DEAD: Final = {"state": "dead", "dropped": "0"}
MOST_AT_ONCE: Final = 10_000
MOST_SENTENCES: Final = 20

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
    empty="nothing has used up its attempts",
)

command = noun("dlq", "Dead jobs: those that used up their attempts.")


@command.command("list")
@filters(account="account_id", profile="profile_id", task="task", pool="pool")
@paging
@output
def list_dead(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List dead jobs."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json, always=DEAD)


@command.command("retry")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help=f"All dead jobs, at most {MOST_AT_ONCE:,} at once.")
@note
@actor
@output
def retry(job_ids: tuple[str, ...], everything: bool, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Reopen dead jobs: a new attempt each."""
    if bool(job_ids) == everything:
        raise click.UsageError("name the jobs, or say --all")
    _decide(job_ids, Action.RETRY, note, by, store, as_json=as_json)


@command.command("drop")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@note
@actor
@output
def drop(job_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Take dead jobs off the list for good. Their records stay until they are pruned."""
    _decide(job_ids, Action.DROP, note, by, store, as_json=as_json)


def _decide(job_ids: Sequence[str], action: Action, note: str, by: str, url: str | None, *, as_json: bool) -> None:
    """Decide each job, tell what came of it, and leave with the code of the first refusal, if any."""
    done: list[tuple[Decision, Decided]] = []
    refused: list[tuple[str, LeaseholdError]] = []

    async def decide(store: "Store") -> None:
        chosen = job_ids or await _all_dead(store)
        with Progress("decided", "jobs", len(chosen)) as progress:
            for job_id in chosen:
                decision = Decision(target=Target.JOB, id=job_id, action=action, note=note, actor=by)
                try:
                    done.append((decision, await store.decide(decision)))
                except (InputError, NotFound, Conflict) as error:
                    refused.append((job_id, error))
                if len(chosen) > MOST_SENTENCES:
                    progress.at(len(done) + len(refused))

    try:
        with_store(url, decide)
    except BaseException:
        if done or refused:
            _tell(done, refused, as_json=as_json)
        raise
    _tell(done, refused, as_json=as_json)
    if refused:
        click.get_current_context().exit(exit_code(refused[0][1]))


async def _all_dead(store: "Store") -> list[str]:
    """The ids of dead jobs, read before any is decided: deciding one changes the list."""
    job_ids: list[str] = []
    after = None
    while len(job_ids) < MOST_AT_ONCE:
        page = await store.find(Job, DEAD, after=after, most=MOST_IN_PAGE)
        job_ids += [job.job_id for job in page.items]
        after = page.after
        if after is None:
            break
    return job_ids[:MOST_AT_ONCE]


def _tell(
    done: "Sequence[tuple[Decision, Decided]]",
    refused: Sequence[tuple[str, LeaseholdError]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        faults = [{"id": job_id, "code": error.code, "message": error.message} for job_id, error in refused]
        answer_json({"items": [decided_json(*each) for each in done], "refused": faults})
        return
    for decision, decided in done[:MOST_SENTENCES]:
        click.echo(sentence(decision, decided))
    if len(done) > MOST_SENTENCES:
        click.echo(f"… and {len(done) - MOST_SENTENCES:,} more")
    if len(done) + len(refused) == MOST_AT_ONCE:
        click.echo(f"{MOST_AT_ONCE:,} are decided at once at most: run it again for what is left")
    if not done and not refused:
        click.echo("no dead jobs: nothing to do")
    for _, error in refused[:MOST_SENTENCES]:
        click.echo(f"leasehold: {error.message}", err=True)
    if len(refused) > MOST_SENTENCES:
        click.echo(f"leasehold: … and {len(refused) - MOST_SENTENCES:,} more were refused", err=True)
