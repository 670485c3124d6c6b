"""`leasekeeper why job|profile ID`: one screen that says why something waits and what to do.

The facts are from `core`, the sentences from `wording`; this module adds the commands and lays it out.
"""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.completing import offered
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.hints import commands_for
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.record_ids import whole_ids
from leasekeeper.cli.table import Screen, render_sheet, wrapped
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import Lane
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.wording.why import why_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from leasekeeper.core.why_facts import WhyFacts
    from leasekeeper.ports import Store


def _of_kind(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    return offered(ctx, ctx.params.get("kind") or "job", {}, incomplete)


@click.command("why")
@click.argument("kind", type=click.Choice(["job", "profile"]))
@click.argument("record_ids", metavar="ID...", nargs=-1, required=True, shell_complete=_of_kind)
@output
def command(kind: str, record_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say why a job does not run or a profile is not available, what happens next, and what you can do."""

    async def read(opened: "Store") -> "list[WhyFacts]":
        if kind == "job":
            return [await opened.why(job_id=each) for each in await whole_ids(opened, Job, record_ids)]
        return [await opened.why(profile_id=each) for each in await whole_ids(opened, Lane, record_ids)]

    answers = [explain(facts) for facts in with_store(store, read)]
    if as_json:
        documents = [document(why) for why in answers]
        answer_json(documents[0] if len(record_ids) == 1 else {"items": documents})
        return
    for number, why in enumerate(answers):
        if number:
            click.echo()
        for line in lay_out(why, Screen.now()):
            click.echo(line)


def document(why: Why) -> dict[str, object]:
    """The answer in codes, ids and times, with the same in sentences under `text`."""
    said = why_text(why)
    facts = [{"name": name, "text": text} for name, text in said.facts]
    answer = encoded(why)
    return {
        **(answer if isinstance(answer, dict) else {}),
        "text": {"headline": said.headline, "facts": facts, "next": list(said.next)},
    }


def lay_out(why: Why, screen: Screen) -> list[str]:
    """Headline, facts, what happens by itself, and commands to copy (these are never wrapped)."""
    said, commands = why_text(why), commands_for(why)
    lines = [screen.title(line) for line in wrapped(said.headline, screen, indent="")]
    lines += render_sheet(said.facts, why.now, screen)
    if said.next:
        lines += ["", screen.title("what happens next")]
        lines += [line for text in said.next for line in wrapped(text, screen)]
    if commands:
        lines += ["", screen.title("what you can do")]
        lines += [f"  {text}" for text in commands]
    return lines
