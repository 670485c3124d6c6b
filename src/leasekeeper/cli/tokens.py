"""`leasekeeper tokens`: API tokens and what each allows; list, create, revoke.

The text of a token is printed once, when it is created. It cannot be shown again.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import decide_selected
from leasekeeper.cli.options import actor, filters, given, is_quiet, note, noun, output, paging
from leasekeeper.cli.output import View, answer_json, encoded, print_ids, print_page, read_page
from leasekeeper.cli.selection import Selection
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.tokens import ApiToken, Scope, state_of, token_id_of

if TYPE_CHECKING:
    from leasekeeper.ports import Store
    from leasekeeper.service.auth import CreatedToken

MAX_DIGITS: Final = 9
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

command = noun("tokens", "API tokens: who may call the server, and what each token allows.")


def _span(_ctx: click.Context, _param: click.Parameter, text: str | None) -> timedelta | None:
    """A time span that is written as 90s, 10m, 2h or 90d."""
    if text is None:
        return None
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdigit()) or len(number) > MAX_DIGITS:
        raise click.BadParameter("is written as 90s, 10m, 2h or 90d")
    return timedelta(seconds=int(number) * unit)


@command.command("list")
@filters(ApiToken, name="name")
@paging
@output
def list_tokens(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List tokens with what each allows and when it was last used, newest first. Their texts are not shown."""
    page, now = read_page(ApiToken, given(where), url=store, limit=limit, after=after)
    if is_quiet():
        print_ids(ApiToken, page.items)
        return
    if as_json:
        items = [{**_plain(token), "state": state_of(token, now)} for token in page.items]
        answer_json({"items": items, "after": page.after})
        return
    print_page(view(now), page, now, narrowed=bool(given(where)) or after is not None)


def view(now: datetime) -> View[ApiToken]:
    """How tokens are listed, at the store's time `now`."""
    return View(
        kind=ApiToken,
        plural="tokens",
        columns=(
            Column[ApiToken]("TOKEN", "token_id"),
            Column[ApiToken]("NAME", "name", spare=1, least=16),
            Column[ApiToken]("STATE", lambda token: state_of(token, now), state=True),
            Column[ApiToken]("SCOPES", lambda token: ", ".join(token.scopes), spare=2, least=16),
            Column[ApiToken]("ONLY", restriction, spare=3, least=16),
            Column[ApiToken]("USED", "used_at", spare=4),
            Column[ApiToken]("EXPIRES", "expires_at", spare=5),
            Column[ApiToken]("CREATED", "created_at", spare=6),
            Column[ApiToken]("BY", "created_by", spare=7),
        ),
        empty="make one with 'leasekeeper tokens create NAME --scope read'",
    )


def restriction(token: ApiToken) -> str:
    """The accounts and pools that a token is restricted to."""
    parts = (("accounts", token.accounts), ("pools", token.pools))
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)


def _plain(record: object) -> dict[str, object]:
    plain = encoded(record)
    return plain if isinstance(plain, dict) else {}


@command.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([str(scope) for scope in Scope]),
    help="What it allows; may be given several times. admin includes all others.",
)
@click.option(
    "--account", "accounts", metavar="ACCOUNT", multiple=True, help="Only for this account; several: for each."
)
@click.option("--pool", "pools", metavar="POOL", multiple=True, help="Only for this pool; several: for each of them.")
@click.option("--expires", "expires_after", metavar="SPAN", callback=_span, help="Lifetime of the token: 12h, 90d.")
@actor
@output
def create(
    name: str,
    scopes: tuple[str, ...],
    accounts: tuple[str, ...],
    pools: tuple[str, ...],
    expires_after: timedelta | None,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Create a token and print its text, once. Only a hash of it is kept."""
    from leasekeeper.service.auth import create_token

    async def make(opened: "Store") -> "CreatedToken":
        return await create_token(
            opened,
            name,
            [Scope(scope) for scope in scopes],
            actor=by,
            accounts=accounts,
            pools=pools,
            expires_after=expires_after,
        )

    created = with_store(store, make)
    if as_json:
        answer_json({**_plain(created.token), "token": created.text})
        return
    click.echo(created.text)
    click.echo(f"Token {created.token.token_id} ({name}) is created. Its text is not shown again.", err=True)


@command.command("revoke")
@click.argument("token_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("token"))
@note
@actor
@output
def revoke(token_ids: tuple[str, ...], note: str, by: str, store: str | None, as_json: bool) -> None:
    """Revoke tokens, for good. Calls with them are refused within a second."""
    selection = Selection(ids=tuple(_id_in(each) for each in token_ids), where={}, yes=True)
    decide_selected(Target.TOKEN, Action.REVOKE, selection, note, by, store, as_json=as_json)


def _id_in(text: str) -> str:
    """The id; also from a token's whole text, which a person may have found somewhere."""
    return token_id_of(text) or text
