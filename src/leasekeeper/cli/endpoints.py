"""`leasekeeper webhooks add|endpoints|enable|disable|remove|ping|listen`: registered receivers of alerts.

The signing secret of an endpoint is printed once, when it is added, and kept encrypted.
"""

import sys
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import settings, with_store
from leasekeeper.cli.decisions import decide_selected
from leasekeeper.cli.options import actor, filters, given, note, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, encoded
from leasekeeper.cli.record_ids import whole_id
from leasekeeper.cli.selection import Selection
from leasekeeper.cli.table import Column
from leasekeeper.core.alerts import PING, Endpoint, NewEndpoint, secret_of
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState

if TYPE_CHECKING:
    from leasekeeper.ports import Store
    from leasekeeper.webhooks.message import Keys

PING_SECONDS: Final = 15.0
LOOK_SECONDS: Final = 0.2
LISTEN: Final = "127.0.0.1:8020"
ENDPOINT_SECRET: Final = "LEASEKEEPER_ENDPOINT_SECRET"  # noqa: S105 - the name of a variable

VIEW = View(
    kind=Endpoint,
    plural="endpoints",
    columns=(
        Column[Endpoint]("ENDPOINT", "endpoint_id"),
        Column[Endpoint]("STATE", "state", state=True),
        Column[Endpoint]("EVENTS", lambda endpoint: " ".join(endpoint.events), spare=1, least=20),
        Column[Endpoint]("TO", "url", spare=2, least=24),
        Column[Endpoint]("WHY", "reason", spare=3, least=12),
        Column[Endpoint]("CREATED", "created_at", spare=5),
        Column[Endpoint]("BY", "created_by", spare=6),
        Column[Endpoint]("DESCRIPTION", "description", spare=4, least=16),
    ),
    empty="add one with 'leasekeeper webhooks add ID URL --event profile.quarantined'",
)


def attach(group: click.Group) -> None:
    """Add the commands of this module to `leasekeeper webhooks`."""
    for each in (add, list_endpoints, enable, disable, remove, ping, listen):
        group.add_command(each)


@click.command("add")
@click.argument("endpoint_id", metavar="ID")
@click.argument("url")
@click.option(
    "--event",
    "events",
    metavar="NAME",
    multiple=True,
    required=True,
    help="What to send: review.opened, profile.*, or * for all; may be given several times.",
)
@click.option("--description", default="", help="What the endpoint is for.")
@click.option("--secret-stdin", is_flag=True, help="Read the signing secret (whsec_...) from stdin; else one is made.")
@actor
@output
def add(
    endpoint_id: str,
    url: str,
    events: tuple[str, ...],
    description: str,
    secret_stdin: bool,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Register an endpoint that is called for events. Prints its signing secret, once.

    The secret is stored encrypted: LEASEKEEPER_SECRET_KEY must be set here and where webhooks are sent.
    """
    from leasekeeper.encryption import read_keyring
    from leasekeeper.webhooks.message import new_secret, read_keys

    secret = sys.stdin.read(4_097).strip() if secret_stdin else new_secret()
    if read_keys(secret, "the secret on stdin") is None:
        raise click.UsageError("--secret-stdin: stdin is empty")
    sealed = read_keyring(settings(store).secrets).seal(secret_of(endpoint_id), secret)
    new = NewEndpoint(endpoint_id=endpoint_id, url=url, events=events, description=description)
    endpoint = with_store(store, lambda opened_store: opened_store.add_endpoint(new, sealed, actor=by))
    if as_json:
        plain = encoded(endpoint)
        answer_json({**(plain if isinstance(plain, dict) else {}), **({} if secret_stdin else {"secret": secret})})
        return
    if not secret_stdin:
        click.echo(secret)
    shown = "" if secret_stdin else " Its secret is not shown again."
    click.echo(f"Endpoint {endpoint_id} is added.{shown} Try it: leasekeeper webhooks ping {endpoint_id}", err=True)


@click.command("endpoints")
@filters(Endpoint, state="state")
@paging
@output
def list_endpoints(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List registered endpoints. Their secrets are not shown."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


def _decision(name: str, action: Action, doc: str) -> click.Command:
    """A command that decides about endpoints."""

    @click.command(name, help=doc)
    @click.argument("endpoint_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("endpoint"))
    @note
    @actor
    @output
    def decide(endpoint_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
        selection = Selection(ids=endpoint_ids, where={}, yes=True)
        decide_selected(Target.ENDPOINT, action, selection, note, by, store, as_json=as_json)

    return decide


enable = _decision("enable", Action.ENABLE, "Enable endpoints: send to them again, from now on.")
disable = _decision(
    "disable", Action.DISABLE, "Disable endpoints: stop sending to them. Their pending messages are given up."
)
remove = _decision("remove", Action.REMOVE, "Remove endpoints and their secrets.")


@click.command("ping")
@click.argument("endpoint_id", metavar="ID", shell_complete=ids("endpoint"))
@click.option("--wait", "seconds", default=PING_SECONDS, show_default=True, help="Seconds to wait for the outcome.")
@actor
@output
def ping(endpoint_id: str, seconds: float, by: str, store: str | None, as_json: bool) -> None:
    """Send a test message to an endpoint, as an alert is sent, and print the outcome.

    It goes through the outbox, so 'leasekeeper up' must be running, or 'leasekeeper sweep' be called.
    """
    delivery = with_store(store, lambda opened: _ping(opened, endpoint_id, by, seconds))
    if as_json:
        answer_json(encoded(delivery))
    elif delivery.state is DeliveryState.DELIVERED:
        click.echo(f"endpoint {delivery.endpoint_id} accepted it: {delivery.answer}")
    elif not delivery.attempts:
        click.echo(
            f"leasekeeper: no process has sent it within {seconds:g} s. Webhooks are sent by 'leasekeeper up' or "
            "'leasekeeper sweep', with LEASEKEEPER_SECRET_KEY set",
            err=True,
        )
    else:
        problem = f"endpoint {delivery.endpoint_id} did not accept it: {delivery.answer or 'no answer'}"
        click.echo(f"leasekeeper: {problem}", err=True)
    if delivery.state is not DeliveryState.DELIVERED:
        click.get_current_context().exit(1)


async def _ping(store: "Store", endpoint_id: str, by: str, seconds: float) -> Delivery:
    import asyncio
    import time

    until = time.monotonic() + seconds
    endpoint_id = await whole_id(store, Endpoint, endpoint_id)
    await store.decide(
        Decision(target=Target.ENDPOINT, id=endpoint_id, action=Action.PING, note="ping by hand", actor=by)
    )
    page = await store.find(Delivery, {"endpoint_id": endpoint_id})
    delivery = next(each for each in page.items if each.type == PING)
    while delivery.state is DeliveryState.PENDING and not delivery.answer and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
        delivery = await store.get(Delivery, delivery.delivery_id)
    return delivery


@click.command("listen")
@click.option("--on", "address", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--exec", "program", metavar="COMMAND", help="Run it for each message, with its JSON on stdin.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per message.")
def listen(address: str, program: str | None, count: int | None, as_json: bool) -> None:
    """Receive webhooks here: verify each signature and print what arrives.

    The secret of the endpoint is read from LEASEKEEPER_ENDPOINT_SECRET. A message with a wrong signature is answered
    with 401. With --exec a message is accepted only if the command exits with 0, else it is sent again later. Webhooks
    to this machine also need LEASEKEEPER_WEBHOOK_NETWORKS=127.0.0.1 where they are sent.
    """
    import os

    from leasekeeper.cli.webhook_listener import serve
    from leasekeeper.webhooks.message import read_keys

    keys: Keys | None = read_keys(os.environ.get(ENDPOINT_SECRET, ""), ENDPOINT_SECRET)
    if keys is None:
        raise click.UsageError(f"set {ENDPOINT_SECRET} to the secret that 'webhooks add' printed")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.UsageError("--on is written as HOST:PORT")
    serve(host, int(port), keys, program=program, count=count, as_json=as_json)
