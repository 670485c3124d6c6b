"""`leasekeeper demo`: a demonstration on this machine, with real browsers in a local shop.

The package `demo` runs it; this module shows it, and at the end prints what happened to each job and profile, why, and
where the evidence is. The store stays, so that people can query it.
"""

import os
from pathlib import Path

import click

from leasekeeper.cli.demo_live import Lines, Table
from leasekeeper.cli.find_browser import installed_browser
from leasekeeper.cli.table import Screen


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where store and evidence are kept; an earlier demo there is replaced.  [default: ~/.cache/leasekeeper/demo]",
)
@click.option("--dashboard", is_flag=True, help="Then show it in the dashboard until Ctrl-C; not with CI=true.")
def command(folder: Path | None, dashboard: bool) -> None:
    """Run the demo: a fleet of ten profiles, a local shop, real browsers, and everything that can go wrong."""
    import asyncio

    from leasekeeper.cli.demo_summary import print_summary
    from leasekeeper.demo.folder import taken
    from leasekeeper.demo.scenario import Stopped, play

    browser = installed_browser()
    screen = Screen.now()
    click.echo(
        "Ten profiles of three accounts, a shop on this machine, three workers,\n"
        f"real browsers ({browser.path} {browser.version}): about 40 seconds.\n"
        "Ctrl-C ends it cleanly.\n"
    )
    with taken(folder or _cache() / "leasekeeper" / "demo") as place:
        audience = Table(screen) if _is_terminal() else Lines()
        try:
            with audience:
                result = asyncio.run(play(place, audience))
        except Stopped:
            click.echo("stopped: the workers have ended, no browser is open")
            raise click.Abort from None
        print_summary(result, place, screen)
        if dashboard and os.environ.get("CI", "").lower() not in ("1", "true"):
            from leasekeeper.cli.demo_dashboard import keep_open

            keep_open(place)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _cache() -> Path:
    place = os.environ.get("XDG_CACHE_HOME", "")
    return Path(place) if Path(place).is_absolute() else Path.home() / ".cache"
