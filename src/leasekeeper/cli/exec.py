"""`leasekeeper exec --profile P -- command …`: run any program with a leased browser, behind a keeper."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.options import store_option
from leasekeeper.core.profiles import ProfileState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasekeeper.config import Config
    from leasekeeper.runtime.session_terms import SessionEnd


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--profile", metavar="PROFILE", shell_complete=ids("profile"), help="The profile to lease.")
@click.option(
    "--pool", metavar="POOL", shell_complete=ids("pool"), help="Instead of --profile: any free profile of this pool."
)
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="With --pool: with this label, or tier.")
@click.option("--session", metavar="URL", help="Instead: the cdp_url of a session that a server has opened.")
@click.option(
    "--wait", metavar="SECONDS", type=click.FloatRange(0), default=0.0, help="Maximum time to wait for the profile."
)
@click.option("--visible", is_flag=True, help="Show the browser, where there is a display.")
@click.option("--max-duration", metavar="SECONDS", type=click.FloatRange(1), help="Maximum run time of the program.")
@click.argument("command_line", metavar="COMMAND [ARGUMENT]…", nargs=-1, required=True, type=click.UNPROCESSED)
@store_option
def command(
    profile: str | None,
    pool: str | None,
    labels: tuple[str, ...],
    session: str | None,
    wait: float,
    visible: bool,
    max_duration: float | None,
    command_line: tuple[str, ...],
    store: str | None,
) -> None:
    """Run a program with a leased browser: connect it to $LEASEKEEPER_CDP_URL.

    The profile is leased, its browser opened behind a keeper, and the program started. When it ends the browser is
    closed cleanly, evidence is saved and the profile released; its exit code is the answer. Another exit code than 0
    is recorded as TASK_ERROR. When the lease is lost, the browser closes and the program is ended: exit code 5.

    With --session the browser is that of an open session, wherever it runs: the program gets the same variables, and
    its end releases the session.

    \b
    leasekeeper exec --profile store_us_018 -- node scrape.js
    leasekeeper exec --session "$CDP_URL" -- node scrape.js
    """
    import asyncio
    import sys

    from leasekeeper.cli.connection import check_exists, settings

    if [profile, pool, session].count(None) != 2:
        raise click.UsageError("name a profile, a pool or a session")
    if session is not None and (wait or visible or max_duration is not None):
        raise click.UsageError("--wait, --visible and --max-duration are set when a session is opened")
    pairs = [label.partition("=") for label in labels]
    if not all(mark for _, mark, _ in pairs) or (labels and pool is None):
        raise click.UsageError("--label must be NAME=VALUE, beside --pool")
    chosen = {"pool": pool, "labels": {name: value for name, _, value in pairs}} if pool else {}
    options = {**chosen, "wait": wait, "headless": not visible, "max_duration": max_duration}
    config = settings(store)
    if session is not None:
        sys.exit(asyncio.run(_run_in_session(config, session, command_line)))
    check_exists(config.store)
    code = asyncio.run(_run(config, profile, options, command_line))
    sys.exit(code)


async def _run(
    config: "Config", profile: str | None, options: "Mapping[str, Any]", command_line: tuple[str, ...]
) -> int:
    from leasekeeper.cli.record_ids import whole_id
    from leasekeeper.client import Client
    from leasekeeper.core.failures import Reason
    from leasekeeper.core.profiles import Lane
    from leasekeeper.runtime.session_command import run_command, session_environment, taken_away
    from leasekeeper.stores import open_store

    client = Client(
        await open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca), config
    )
    try:
        if profile is not None:
            profile = await whole_id(client.store, Lane, profile)
        leased = client.browser(profile, **options)
        async with leased as browser:
            environment = await session_environment(browser)
            kill_after = config.browsers.close_after
            code = await run_command(command_line, kill_after, environment, partial(taken_away, browser))
            if code:
                browser.release(Reason.TASK_ERROR, _failed(command_line, code))
        if leased.end is not None:
            _print_end(browser.lease.profile_id, leased.end)
        return code
    finally:
        await client.close()


async def _run_in_session(config: "Config", url: str, command_line: tuple[str, ...]) -> int:
    from leasekeeper.core.failures import Reason
    from leasekeeper.runtime.session_command import run_command
    from leasekeeper.service.given_session import GivenSession

    async with GivenSession(url, config) as session:
        environment = await session.environment()
        code = await run_command(command_line, config.browsers.close_after, environment, session.taken_away)
        end = await session.release(Reason.TASK_ERROR if code else None, _failed(command_line, code) if code else "")
        _print_state(environment["LEASEKEEPER_PROFILE_ID"], end.get("profile_state"), str(end["message"]))
        return code


def _failed(command_line: tuple[str, ...], code: int) -> str:
    return f"{command_line[0]} ended with exit code {code}"


def _print_state(profile_id: str, state: str | None, message: str) -> None:
    if state not in (None, ProfileState.AVAILABLE):
        click.echo(f"leasekeeper: profile {profile_id} is {state}: {message}", err=True)


def _print_end(profile_id: str, end: "SessionEnd") -> None:
    """Print the profile's state, but nothing after a success: the output is then the program's alone."""
    proven = end.report is None or end.report.proof.holds
    if end.settled is None or (proven and end.settled.profile_state is ProfileState.AVAILABLE):
        return
    click.echo(f"leasekeeper: profile {profile_id} is {end.settled.profile_state}: {end.message}", err=True)
    if end.report is not None and not proven:
        click.echo(f"  the close is not proven: {end.report.proof.failing_clause}", err=True)
