"""`leasekeeper db`: the store's schema; status, migrate.

The only commands that also work on a store whose schema is not this program's.
"""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.connection import settings
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.table import Screen, render_sheet

if TYPE_CHECKING:
    from leasekeeper.ports import StoreInfo


@click.group("db")
def command() -> None:
    """The store's schema: show its version, migrate it."""


@command.command("status")
@output
def status(store: str | None, as_json: bool) -> None:
    """Show where the store is, which schema it has and which this program needs. Changes nothing."""
    import asyncio

    from leasekeeper.stores import inspect

    _answer(
        asyncio.run(inspect(settings(store).store, token=settings(store).token, ca=settings(store).store_ca)),
        as_json=as_json,
    )


@command.command("migrate")
@output
def migrate_store(store: str | None, as_json: bool) -> None:
    """Create the store's tables, or bring them up to date. Safe to run again."""
    import asyncio

    from leasekeeper.stores import migrate

    _answer(asyncio.run(migrate(settings(store).store)), as_json=as_json)


def _answer(info: "StoreInfo", *, as_json: bool) -> None:
    if as_json:
        answer_json(encoded(info))
        return
    fields = [
        ("store", info.kind),
        ("location", info.location),
        ("schema", f"{info.schema} of {info.newest_schema}: {verdict(info)}"),
        ("clock", info.now),
        ("detail", info.detail),
    ]
    for line in render_sheet(fields, info.now, Screen.now()):
        click.echo(line)


def verdict(info: "StoreInfo") -> str:
    """What the two schema numbers mean for the reader."""
    if info.schema == info.newest_schema:
        return "up to date"
    if info.schema > info.newest_schema:
        return "newer than this program; upgrade Leasekeeper here"
    return (
        "older than this program; run: leasekeeper db migrate"
        if info.schema
        else "no tables yet; run: leasekeeper db migrate"
    )
