"""`leasekeeper webhooks`: messages to callback URLs and registered endpoints: list, show, replay."""

from typing import Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.decisions import decide_selected
from leasekeeper.cli.endpoints import attach
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, answer_records
from leasekeeper.cli.selection import CHOICES, Selection, selecting
from leasekeeper.cli.table import SHORT_IDS, Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState

FIRST: Final = ("delivery_id", "state", "answer", "type", "url")

VIEW = View(
    kind=Delivery,
    plural="webhooks",
    columns=(
        Column[Delivery]("WEBHOOK", "delivery_id", id=True),
        Column[Delivery]("STATE", "state", state=True),
        Column[Delivery]("TO", "host", spare=1, least=30),
        Column[Delivery]("LAST ANSWER", "answer", spare=2, least=20),
        Column[Delivery]("TRIES", "tries", spare=5),
        Column[Delivery]("TYPE", "type", spare=7),
        Column[Delivery]("CREATED", "created_at", spare=6),
        Column[Delivery]("ENDED", "ended_at", spare=9),
        Column[Delivery]("NEXT", lambda d: d.due_at if d.state is DeliveryState.PENDING else None, spare=4),
        Column[Delivery]("ENDPOINT", "endpoint_id", spare=10),
        Column[Delivery]("JOB", "job_id", spare=8, least=SHORT_IDS[0], id=True),
    ),
    empty="no job with a callback_url has ended yet",
)

command = noun("webhooks", "Webhooks: messages to the callback_url of a job when it ends, and to registered endpoints.")
attach(command)


@command.command("list")
@filters(Delivery, state="state", job="job_id", host="host", endpoint="endpoint_id")
@paging
@output
def list_webhooks(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List webhooks, newest first."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("delivery_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("webhook"))
@output
def show_webhook(delivery_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show webhooks with all their fields."""
    hide = frozenset({"seq", "host", "spent"})
    answer_records(Delivery, delivery_ids, url=store, as_json=as_json, first=FIRST, hide=hide)


@command.command("replay")
@selecting(CHOICES[Target.WEBHOOK])
@note
@actor
@output
def replay(selection: Selection, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Send webhooks once more, from the first attempt on: those named, or with --all those that were given up.

    One that was delivered is sent again if it is named. Ids of webhooks stay the same.
    """
    host = selection.where.get("host")
    what = f"webhooks to {host} that were given up" if host else "webhooks that were given up"
    decide_selected(Target.WEBHOOK, Action.REPLAY, selection, note, by, store, what=what, as_json=as_json)


@command.command("secret")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def secret(as_json: bool) -> None:
    """Make a new secret for LEASEKEEPER_WEBHOOK_SECRET. It is printed here and stored nowhere."""
    from leasekeeper.webhooks.message import new_secret

    made = new_secret()
    if as_json:
        answer_json({"secret": made})
        return
    click.echo(made)
