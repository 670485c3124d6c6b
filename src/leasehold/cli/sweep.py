"""`leasehold sweep`: one pass of housekeeping, for cron or for the impatient.

What a pass consists of is the runtime's business.
"""

from dataclasses import fields

import click

from leasehold.cli.answers import answer_json, encoded
from leasehold.cli.options import output
from leasehold.cli.session import settings, with_store


@click.command("sweep")
@output
def command(store: str | None, as_json: bool) -> None:
    """Do one pass of housekeeping: expire leases, resolve lost runs, promote due jobs, prune, send webhooks.

    'leasehold up' does the same all the time, 'leasehold worker' does not; running it beside them is safe.
    """
    from leasehold.runtime.sweeper import sweep_here

    swept = with_store(store, lambda opened: sweep_here(opened, settings(store)))
    if as_json:
        answer_json(encoded(swept))
        return
    counts = [(field.name.replace("_", " "), getattr(swept, field.name)) for field in fields(swept)]
    click.echo(
        ", ".join(f"{count:,} {name}" for name, count in counts if count and count is not True) or "nothing to do"
    )
