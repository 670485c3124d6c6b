"""`leasekeeper up`: everything on one machine, with the options of a worker."""

import click

from leasekeeper.cli.options import sessions_option
from leasekeeper.cli.worker import start, worker_options


@click.command("up")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="The port of the HTTP API; 0 takes a free one.  [default: 7070, or a free one if that is taken]",
)
@click.option("--no-server", is_flag=True, help="Serve neither the HTTP API nor sessions.")
@sessions_option(4)
@worker_options
def command(
    app: str,
    store: str | None,
    concurrency: int,
    pool: str,
    name: str | None,
    verbose: bool,
    port: int | None,
    no_server: bool,
    sessions: int,
) -> None:
    """Run everything on one machine: an SQLite store is brought up to date (for others: leasekeeper db migrate),
    jobs are taken, browsers run, housekeeping (lost workers, due jobs, old records, webhooks) is done beside it, and
    the HTTP API is served on 127.0.0.1, for programs of this machine.

    MODULE:APP is your file and the App in it: tasks:app for tasks.py with `app = App()`.
    """
    start(
        app,
        store,
        concurrency,
        pool,
        name,
        verbose=verbose,
        sweep=True,
        serve=not no_server,
        port=port,
        sessions=sessions,
    )
