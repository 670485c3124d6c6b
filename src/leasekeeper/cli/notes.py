"""`leasekeeper notes`: what people and runs wrote about accounts and profiles; list, show, add."""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.completing import ids, offered
from leasekeeper.cli.decisions import decide_selected
from leasekeeper.cli.options import actor, filters, given, note_text_option, noun, output, paging
from leasekeeper.cli.output import View, answer_page, answer_records
from leasekeeper.cli.selection import Selection
from leasekeeper.cli.table import Column, Screen, wrapped
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.notes import Note, NoteAbout
from leasekeeper.errors import NotFound
from leasekeeper.wording import note_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from click.shell_completion import CompletionItem

    from leasekeeper.ports import Store

VIEW = View(
    kind=Note,
    plural="notes",
    columns=(
        Column[Note]("NOTE", "note_id", id=True, spare=5),
        Column[Note]("WRITTEN", "written_at"),
        Column[Note]("ON", "about", spare=4),
        Column[Note]("ABOUT", lambda note: note.subject),
        Column[Note]("BY", "author", spare=3, least=8),
        Column[Note]("TEXT", lambda note: " ".join(note.text.split()), spare=1, least=30),
        Column[Note]("RUN", "run_id", spare=6, id=True),
    ),
    empty="write one: leasekeeper notes add profile ID --note …",
)

command = noun("notes", "Notes on accounts and profiles, by people and by runs.")


@command.command("list")
@filters(Note, profile="profile_id", account="account_id", job="job_id", run="run_id", about="about")
@paging
@output
def list_notes(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List notes, newest first. Those of an account include those on its profiles."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("note_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("note"))
@output
def show_note(note_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show notes in full."""
    answer_records(Note, note_ids, url=store, as_json=as_json)


def _of_kind(ctx: click.Context, _param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    return offered(ctx, ctx.params.get("about") or "profile", {}, incomplete)


@command.command("add")
@click.argument("about", type=click.Choice([str(each) for each in NoteAbout]))
@click.argument("record_ids", metavar="ID...", nargs=-1, required=True, shell_complete=_of_kind)
@note_text_option
@actor
@output
def add_note(about: str, record_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Write a note on profiles or accounts. Nothing else about them changes."""
    decide_selected(
        Target(about),
        Action.NOTE,
        Selection(ids=record_ids, where={}, yes=False),
        note,
        by,
        store,
        as_json=as_json,
        alone=True,
    )


async def read_notes(store: "Store", profile_id: str) -> "tuple[Sequence[Note], datetime]":
    """The newest notes on a profile and on its account, and the store's time. Empty for a profile that was removed."""
    try:
        facts = await store.why(profile_id=profile_id)
    except NotFound:
        return (), (await store.check()).now
    return facts.notes, facts.now


def print_notes(notes: "Sequence[Note]", now: "datetime", screen: Screen) -> None:
    """Print notes below the record that they are on."""
    if notes:
        click.echo(screen.title("notes"))
    for note in notes:
        click.echo("\n".join(wrapped(note_text(note, now), screen)))
