"""`leasekeeper pause`: start nothing new, everywhere or in part of the fleet. Without options: list what is paused."""

from collections.abc import Sequence

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import actor, output
from leasekeeper.cli.output import answer_json, encoded, print_page
from leasekeeper.cli.pauses import VIEW, active, chosen, decide, ids_of, listed
from leasekeeper.core.decisions import Action
from leasekeeper.ports import Page


@click.command("pause")
@chosen
@click.option(
    "--until", metavar="TIME", help="It ends by itself then: 2026-05-01T09:30:00Z, or from now: +90s, +2h, +1d."
)
@click.option("--note", help="Why, for those who read it later. Needed with everything but a list.")
@actor
@output
def command(
    everything: bool,
    pools: Sequence[str],
    accounts: Sequence[str],
    workers: Sequence[str],
    until: str | None,
    note: str | None,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Pause everything, pools, accounts or workers: running jobs continue, nothing new starts.

    People may still open profiles. Without --all, --pool, --account or --worker: list what is paused.
    """
    pause_ids = ids_of(everything=everything, pools=pools, accounts=accounts, workers=workers)
    if pause_ids:
        if not note or not note.strip():
            raise click.UsageError("say why with --note: an unexplained decision is not accepted")
        decide(pause_ids, Action.PAUSE, note, by, store, until=until, as_json=as_json)
        return
    if until or note:
        raise click.UsageError("name what to pause: --all, --pool, --account or --worker")
    pauses, endless, now = with_store(store, active)
    if as_json:
        answer_json({"items": encoded(listed(pauses, endless)), "after": None})
        return
    print_page(VIEW, Page(items=listed(pauses, endless)), now, narrowed=False)
