"""`leasekeeper sweep`: one pass of housekeeping, for cron or by hand. The runtime defines what a pass does."""

from typing import Final

import click

from leasekeeper.cli.connection import settings, with_store
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded

WORDS: Final = {
    "expired": "expired",
    "resolved": "resolved",
    "promoted": "promoted",
    "healed": "healed",
    "fired": "scheduled jobs created",
    "proxies": "proxies that work again",
    "pruned": "pruned",
    "overdue": "overdue browsers ended",
    "silent": "silent workers noticed",
    "reports": "keeper reports stored",
    "webhooks": "webhooks delivered",
    "webhooks_failed": "webhooks not delivered",
}


@click.command("sweep")
@output
def command(store: str | None, as_json: bool) -> None:
    """Do one pass of housekeeping: expire leases, resolve lost runs, promote due jobs, fire schedules, prune,
    send webhooks.

    'leasekeeper up' does this continuously, 'leasekeeper worker' does not. It is safe to run beside both.
    """
    from leasekeeper.runtime.sweeper import sweep_here

    swept = with_store(store, lambda opened: sweep_here(opened, settings(store)))
    if as_json:
        answer_json(encoded(swept))
        return
    counts = [f"{count:,} {words}" for name, words in WORDS.items() if (count := getattr(swept, name))]
    click.echo(", ".join(counts) or "nothing to do")
    if swept.webhooks_failed:
        click.echo("why: leasekeeper webhooks --state pending, or --state exhausted")
