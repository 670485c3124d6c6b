"""`leasekeeper stats`: current counts on one screen. The store counts; this module only lays it out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded, print_what_is_paused
from leasekeeper.cli.table import Screen

if TYPE_CHECKING:
    from leasekeeper.ports import Stats, Store


@click.command("stats")
@output
def command(store: str | None, as_json: bool) -> None:
    """Count jobs by state and by blocked reason, profiles by state, live leases by pool, webhooks not delivered."""

    async def read(opened: "Store") -> "Stats":
        return await opened.stats()

    stats = with_store(store, read)
    if as_json:
        answer_json(encoded(stats))
        return
    for line in lay_out(stats, Screen.now()):
        click.echo(line)
    print_what_is_paused(None, Screen.now())


def lay_out(stats: "Stats", screen: Screen) -> list[str]:
    """A block per kind, the largest count first; empty blocks say so."""
    blocked = {reason.removeprefix("blocked_by_"): count for reason, count in stats.blocked.items()}
    lines = []
    for title, counts in (
        ("jobs", stats.jobs),
        ("blocked by", blocked),
        ("profiles", stats.profiles),
        ("live leases by pool", stats.leases),
        ("webhooks not delivered", stats.webhooks),
    ):
        lines += [screen.title(title), *_counts(counts, screen)]
    if stats.webhooks:
        lines.append(screen.dim("  leasekeeper webhooks --state exhausted, or --state pending"))
    waiting = f"{stats.reviews:,} open: leasekeeper reviews" if stats.reviews else "nothing waits for a person"
    return [*lines, screen.title("reviews"), f"  {waiting}"]


def _counts(counts: Mapping[str, int], screen: Screen) -> list[str]:
    shown = sorted(((count, name) for name, count in counts.items() if count), key=lambda pair: (-pair[0], pair[1]))
    width = max((len(f"{count:,}") for count, _ in shown), default=0)
    return [f"  {count:>{width},}  {screen.state(name)}" for count, name in shown] or [screen.dim("  none")]
