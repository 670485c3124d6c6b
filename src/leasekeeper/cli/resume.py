"""`leasekeeper resume`: resume what `leasekeeper pause` paused."""

from collections.abc import Sequence

import click

from leasekeeper.cli.options import actor, note, output
from leasekeeper.cli.pauses import chosen, decide, ids_of
from leasekeeper.core.decisions import Action


@click.command("resume")
@chosen
@note
@actor
@output
def command(
    everything: bool,
    pools: Sequence[str],
    accounts: Sequence[str],
    workers: Sequence[str],
    note: str,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Resume what was paused. --all ends the pause of everything; those of pools, accounts and workers end
    separately.
    """
    pause_ids = ids_of(everything=everything, pools=pools, accounts=accounts, workers=workers)
    if not pause_ids:
        raise click.UsageError("name what to resume: --all, --pool, --account or --worker")
    decide(pause_ids, Action.RESUME, note, by, store, until=None, as_json=as_json)
