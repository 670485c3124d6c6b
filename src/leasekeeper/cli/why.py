"""`leasekeeper why job|profile ID`: one screen that says what is the matter and what to do.

The sentences are the core's; this module lays them out.
"""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.answers import answer_json
from leasekeeper.cli.options import output
from leasekeeper.cli.session import with_store
from leasekeeper.cli.table import Screen, render_sheet, wrapped
from leasekeeper.core.why import Why, WhyFacts, explain

if TYPE_CHECKING:
    from leasekeeper.ports import Store


@click.command("why")
@click.argument("kind", type=click.Choice(["job", "profile"]))
@click.argument("record_id", metavar="ID")
@output
def command(kind: str, record_id: str, store: str | None, as_json: bool) -> None:
    """Say why a job does not run or a profile is not available, what happens next, and what you can do."""

    async def read(opened: "Store") -> WhyFacts:
        if kind == "job":
            return await opened.why(job_id=record_id)
        return await opened.why(profile_id=record_id)

    facts = with_store(store, read)
    why = explain(facts)
    if as_json:
        answer_json(
            {
                "headline": why.headline,
                "facts": [{"name": name, "text": text} for name, text in why.facts],
                "next": list(why.next),
                "can": list(why.can),
            }
        )
        return
    for line in lay_out(why, facts, Screen.now()):
        click.echo(line)


def lay_out(why: Why, facts: WhyFacts, screen: Screen) -> list[str]:
    """Headline, facts, what happens by itself, and commands to copy (these are never wrapped)."""
    lines = [screen.title(line) for line in wrapped(why.headline, screen, indent="")]
    lines += render_sheet(why.facts, facts.now, screen)
    if why.next:
        lines += ["", screen.title("what happens next")]
        lines += [line for text in why.next for line in wrapped(text, screen)]
    if why.can:
        lines += ["", screen.title("what you can do")]
        lines += [f"  {text}" for text in why.can]
    return lines
