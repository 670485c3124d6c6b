"""`leasekeeper conflicts`: which profiles and which pairs of tasks collide most.

Read from the `profile_lock_conflict` events, newest first, up to a named number of them.
"""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded, print_what_is_paused
from leasekeeper.cli.table import Column, Screen, render_table

if TYPE_CHECKING:
    from leasekeeper.ports import Store
    from leasekeeper.runtime.conflict_report import Report, Tally


@click.command("conflicts")
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Lines of each table.",
)
@output
def command(top: int, store: str | None, as_json: bool) -> None:
    """Report which profiles, and which pairs of tasks, conflict most often."""
    report = with_store(store, _count)
    if as_json:
        answer_json(
            {
                "events": report.events,
                "complete": report.complete,
                "profiles": [_json(tally) for tally in report.profiles[:top]],
                "pairs": [_json(tally) for tally in report.pairs[:top]],
            }
        )
        return
    screen = Screen.now()
    for line in lay_out(report, top, screen):
        click.echo(line)
    print_what_is_paused(None, screen)


async def _count(store: "Store") -> "Report":
    from leasekeeper.runtime.conflict_report import count_conflicts

    return await count_conflicts(store, (await store.check()).now)


def _json(tally: "Tally") -> dict[str, object]:
    last_at = encoded(tally.last_at)
    return {**tally.keys, "count": tally.count, "causes": dict(tally.causes), "last_at": last_at}


def lay_out(report: "Report", top: int, screen: Screen) -> list[str]:
    """Two tables, or a line that there are no conflicts."""
    if not report.events:
        return ["no conflicts: nobody wanted a profile that another run had"]
    lines = []
    for title, tallies in (("PROFILE", report.profiles), ("TASKS", report.pairs)):
        columns = (
            Column["Tally"](title, "name", spare=1),
            Column["Tally"]("CONFLICTS", "count"),
            Column["Tally"]("LAST", "last_at", spare=3),
            Column["Tally"]("CAUSES", "causes_text", spare=2, least=20),
        )
        lines += [*render_table(columns, tallies[:top], report.now, screen), ""]
    scope = "" if report.complete else f"the newest {report.events:,} "
    return [*lines, screen.dim(f"from {scope or f'{report.events:,} '}conflicts")]
