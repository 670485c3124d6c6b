"""`leasekeeper open PROFILE`: a person uses a profile under a lease, or looks inside one that is out of rotation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.options import os_user, store_option

if TYPE_CHECKING:
    from leasekeeper.config import Config
    from leasekeeper.core.free_profiles import ProfileChoice
    from leasekeeper.core.jobs import RunMode
    from leasekeeper.core.leases import Purpose
    from leasekeeper.core.why_answer import Why
    from leasekeeper.ports import Grant, Store
    from leasekeeper.runtime.manual_run import ManualRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """How the run of a visit ended, and what can be decided now."""

    run: "ManualRun"
    why: "Why"


@click.command("open")
@click.argument("profile", metavar="[PROFILE]", required=False, shell_complete=ids("profile"))
@click.option("--any", "anyone", is_flag=True, help="Any free profile of the pool: the least recently used one.")
@click.option(
    "--pool",
    metavar="POOL",
    default="default",
    show_default=True,
    shell_complete=ids("pool"),
    help="With --any: of this pool.",
)
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="With --any: with this label, or tier.")
@click.option("--url", metavar="URL", help="Open this page first.")
@store_option
def command(
    profile: str | None, anyone: bool, pool: str, labels: tuple[str, ...], url: str | None, store: str | None
) -> None:
    """Open a profile yourself: it is leased to you, its browser opens, and no job gets it meanwhile.

    Close the window, or press Ctrl-C here, to give it back. Where there is no display the browser runs headless.
    A profile in review, in quarantine or disabled, or whose account is paused, is opened for you to look inside or to
    log in: when you close it, it is in the same state as before, and you are shown what you can decide.
    """
    from leasekeeper.cli.connection import settings, with_store

    config = settings(store)
    wanted = _wanted(profile, pool, labels, anyone=anyone)
    print_end(with_store(store, lambda opened: visit(opened, config, wanted, url)))


def _wanted(profile: str | None, pool: str, labels: tuple[str, ...], *, anyone: bool) -> "str | ProfileChoice":
    from leasekeeper.core.free_profiles import ProfileChoice

    if (profile is None) != anyone:
        raise click.UsageError("name a profile, or say --any")
    if profile is not None:
        return profile
    pairs = [label.partition("=") for label in labels]
    if not all(mark for _, mark, _ in pairs):
        raise click.UsageError("--label must be NAME=VALUE")
    return ProfileChoice(pool=pool, labels={name: value for name, _, value in pairs})


async def visit(store: "Store", config: "Config", profile: "str | ProfileChoice", url: str | None) -> Visit:
    """Open the profile for the person at this terminal until they close it."""
    import asyncio
    import socket

    from leasekeeper.cli.record_ids import whole_id
    from leasekeeper.core.leases import Purpose
    from leasekeeper.core.profiles import Lane
    from leasekeeper.core.why import explain
    from leasekeeper.runtime.heartbeat import Heartbeat
    from leasekeeper.runtime.manual_run import run_manually
    from leasekeeper.runtime.shutdown import Shutdown
    from leasekeeper.stores import open_store

    who = f"{os_user()}@{socket.gethostname()}".replace("@", "-")[:100]
    purpose = Purpose.MANUAL
    if isinstance(profile, str):
        profile = await whole_id(store, Lane, profile)
        purpose = await _announce(store, profile)
    stop = Shutdown(config.browsers.stop_grace)
    stop.listen()
    heartbeat = Heartbeat(
        lambda: open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca),
        config.policy.timing,
    )
    try:
        run = await run_manually(
            store,
            config,
            profile,
            who=who,
            heartbeat=heartbeat,
            stop=stop,
            url=url,
            purpose=purpose,
            opened_as=_print_open,
        )
    finally:
        stop.done()
        await asyncio.to_thread(heartbeat.close)
    return Visit(run=run, why=explain(await store.why(profile_id=run.grant.lease.profile_id)))


async def _announce(store: "Store", profile: str) -> "Purpose":
    """Print the profile's state if it is out of rotation, since it is then opened only to look inside."""
    from leasekeeper.core.accounts import Account
    from leasekeeper.core.granting import purpose_of_visit
    from leasekeeper.core.leases import Purpose
    from leasekeeper.core.profiles import INSPECTABLE, Lane

    lane = await store.get(Lane, profile)
    account = await store.get(Account, lane.account_id)
    purpose = purpose_of_visit(lane.state, paused=account.paused)
    if lane.state in INSPECTABLE:
        click.echo(f"profile {profile} is {lane.state}: {lane.state_reason}")
    if account.paused:
        click.echo(f"account {account.account_id} is paused: {account.pause_note}")
    if purpose is Purpose.INSPECT:
        click.echo("  you look inside: no job gets it, and its state stays as it is until you decide")
    return purpose


def _print_open(grant: "Grant", mode: "RunMode") -> None:
    lease = grant.lease
    click.echo(f"profile {lease.profile_id} is yours: lease {lease.lease_id}, renewed while it is open")
    if mode.value == "headless":
        click.echo("  there is no display here, so the browser runs headless; press Ctrl-C to give the profile back")
        click.echo("  to see it: open it in the dashboard (the profile's page, Open), or connect with 'ssh -X'")
    else:
        click.echo("  close the window, or press Ctrl-C here, to give it back")


def print_end(visit: Visit) -> None:
    """Print how the visit ended and, for a profile out of rotation, what can be decided now."""
    from leasekeeper.cli.hints import command_of, login_command
    from leasekeeper.core.leases import Purpose
    from leasekeeper.core.profiles import INSPECTABLE

    run = visit.run
    settled, report, lease = run.settled, run.report, run.grant.lease
    click.echo(f"given back: profile {lease.profile_id} is {settled.profile_state}")
    if report is not None and not report.proof.holds:
        click.echo(f"  the close is not proven: {report.proof.failing_clause}")
    if lease.purpose is Purpose.INSPECT and visit.why.possible:
        if visit.why.profile.state_reason:
            click.echo(f"  because: {visit.why.profile.state_reason}")
        click.echo("decide when you have seen enough:")
        if visit.why.profile.state in INSPECTABLE:
            click.echo(f"  {login_command(lease.profile_id)}")
        for possible in visit.why.possible:
            click.echo(f"  {command_of(possible)}")
