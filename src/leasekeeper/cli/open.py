"""`leasekeeper open PROFILE`: a person uses a profile, under a lease like everybody else."""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.options import os_user, store_option

if TYPE_CHECKING:
    from leasekeeper.core.jobs import RunMode
    from leasekeeper.ports import Grant, Store
    from leasekeeper.runtime.manual_run import ManualRun


@click.command("open")
@click.argument("profile", metavar="PROFILE")
@click.option("--url", metavar="URL", help="Go there first.")
@store_option
def command(profile: str, url: str | None, store: str | None) -> None:
    """Open a profile yourself: it is leased to you, its browser opens, and nobody else gets it meanwhile.

    Close the window, or press Ctrl-C here, to give it back. Where there is no display the browser runs headless.
    """
    import socket

    from leasekeeper.cli.connection import settings, with_store

    config = settings(store)
    who = f"{os_user()}@{socket.gethostname()}".replace("@", "-")[:100]

    async def work(opened: "Store") -> "ManualRun":
        import asyncio

        from leasekeeper.runtime.heartbeat import Heartbeat
        from leasekeeper.runtime.manual_run import run_manually
        from leasekeeper.runtime.shutdown import Shutdown
        from leasekeeper.stores import open_store

        stop = Shutdown(config.browsers.stop_grace)
        stop.listen()
        heartbeat = Heartbeat(lambda: open_store(config.store, policy=config.policy), config.policy.timing)
        try:
            return await run_manually(
                opened, config, profile, who=who, heartbeat=heartbeat, stop=stop, url=url, opened_as=_print_open
            )
        finally:
            stop.done()
            await asyncio.to_thread(heartbeat.close)

    _print_end(with_store(store, work))


def _print_open(grant: "Grant", mode: "RunMode") -> None:
    lease = grant.lease
    click.echo(f"profile {lease.profile_id} is yours: lease {lease.lease_id}, renewed while it is open")
    if mode.value == "headless":
        click.echo("  there is no display here, so the browser runs headless; press Ctrl-C to give the profile back")
    else:
        click.echo("  close the window, or press Ctrl-C here, to give it back")


def _print_end(ended: "ManualRun") -> None:
    settled, report = ended.settled, ended.report
    click.echo(f"given back: profile {ended.grant.lease.profile_id} is {settled.profile_state}")
    if report is not None and not report.proof.holds:
        click.echo(f"  the close is not proven: {report.proof.failing_clause}")
