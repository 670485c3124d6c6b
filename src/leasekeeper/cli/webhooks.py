"""`leasekeeper webhooks`: messages to callback URLs and their delivery; list, show, replay, secret."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.decisions import MAX_AT_ONCE, decide_each, every_id
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, answer_record
from leasekeeper.cli.table import ID_WIDTH, Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState

if TYPE_CHECKING:
    from leasekeeper.ports import Store

FIRST: Final = ("delivery_id", "state", "answer", "type", "url")

VIEW = View(
    kind=Delivery,
    plural="webhooks",
    columns=(
        Column[Delivery]("WEBHOOK", "delivery_id"),
        Column[Delivery]("STATE", "state", state=True),
        Column[Delivery]("TO", "host", spare=1, least=30),
        Column[Delivery]("LAST ANSWER", "answer", spare=2, least=20),
        Column[Delivery]("TRIES", "tries", spare=5),
        Column[Delivery]("TYPE", "type", spare=7),
        Column[Delivery]("CREATED", "created_at", spare=6),
        Column[Delivery]("ENDED", "ended_at", spare=9),
        Column[Delivery]("NEXT", lambda d: d.due_at if d.state is DeliveryState.PENDING else None, spare=4),
        Column[Delivery]("JOB", "job_id", spare=8, least=ID_WIDTH),
    ),
    empty="no job with a callback_url has ended yet",
)

command = noun("webhooks", "Webhooks: the messages that are sent to the callback_url of a job when it ends.")


@command.command("list")
@filters(Delivery, state="state", job="job_id", host="host")
@paging
@output
def list_webhooks(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List webhooks, newest first."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("delivery_id", metavar="ID")
@output
def show_webhook(delivery_id: str, store: str | None, as_json: bool) -> None:
    """Show one webhook with all its fields."""
    hide = frozenset({"seq", "host", "spent"})
    answer_record(Delivery, delivery_id, url=store, as_json=as_json, first=FIRST, hide=hide)


@command.command("replay")
@click.argument("delivery_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--exhausted", is_flag=True, help=f"All exhausted ones, maximum {MAX_AT_ONCE:,} at once; --host selects a host."
)
@click.option("--host", metavar="HOST", help="With --exhausted: only those that go there.")
@note
@actor
@output
def replay(
    delivery_ids: tuple[str, ...],
    exhausted: bool,
    host: str | None,
    note: str,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Send webhooks once more, from the first attempt on; also one that was delivered. Their ids stay the same."""
    if bool(delivery_ids) == exhausted:
        raise click.UsageError("name the webhooks, or say --exhausted")
    if host is not None and not exhausted:
        raise click.UsageError("--host goes with --exhausted")

    async def given_up(opened: "Store") -> Sequence[str]:
        where = given({"state": DeliveryState.EXHAUSTED, "host": host})
        return await every_id(opened, Delivery, where, lambda delivery: delivery.delivery_id)

    decide_each(
        Target.WEBHOOK,
        Action.REPLAY,
        delivery_ids or given_up,
        note,
        by,
        store,
        what=f"webhooks to {host} that were given up" if host else "webhooks that were given up",
        as_json=as_json,
    )


@command.command("secret")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def secret(as_json: bool) -> None:
    """Make a new secret for LEASEKEEPER_WEBHOOK_SECRET. It is printed here and kept nowhere."""
    from leasekeeper.webhooks.message import new_secret

    made = new_secret()
    if as_json:
        answer_json({"secret": made})
        return
    click.echo(made)
