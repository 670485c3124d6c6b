"""`leasekeeper up`: everything on one machine, with the options of a worker."""

import click

from leasekeeper.cli.worker import start, worker_options


@click.command("up")
@worker_options
def command(app: str, store: str | None, concurrency: int, pool: str, name: str | None, verbose: bool) -> None:
    """Run everything on one machine: an SQLite store is brought up to date (for PostgreSQL: leasekeeper db migrate),
    jobs are taken, browsers run, and housekeeping (lost workers, due jobs, old records, webhooks) is done beside it.

    MODULE:APP is your file and the App in it: tasks:app for tasks.py with `app = App()`.
    """
    start(app, store, concurrency, pool, name, verbose=verbose, sweep=True)
