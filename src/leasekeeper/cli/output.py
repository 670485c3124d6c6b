"""How commands answer: a page of records, one record, or one sentence; as text or as one JSON document.

Relative times refer to the store's clock, which is read with the records.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import is_quiet
from leasekeeper.cli.record_ids import whole_ids, with_whole_ids
from leasekeeper.cli.table import Column, Screen, render_sheet, render_table
from leasekeeper.lists import LISTS
from leasekeeper.ports import Page

if TYPE_CHECKING:
    from leasekeeper.ports import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[T]):
    """How records of one kind are listed. `empty` says what to do when there is none at all."""

    kind: type[T]
    plural: str
    columns: Sequence[Column[T]]
    empty: str


def answer_page(
    view: View[T],
    where: Mapping[str, str],
    *,
    url: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
    always: Mapping[str, str] | None = None,
) -> None:
    """One page of a list. `where` has the filters that were given, `always` those that this list always has."""
    page, now = read_page(view.kind, {**(always or {}), **where}, url=url, limit=limit, after=after)
    if is_quiet():
        print_ids(view.kind, page.items)
        return
    if as_json:
        answer_json({"items": encoded(page.items), "after": page.after})
        return
    print_page(view, page, now, narrowed=bool(where) or after is not None)


def print_ids(kind: type, records: Sequence[object]) -> None:
    """The whole id of each record, for pipes."""
    key = LISTS[kind].key or "seq"
    for record in records:
        click.echo(str(getattr(record, key)))


def read_page(
    kind: type[T], where: Mapping[str, str], *, url: str | None, limit: int, after: str | None
) -> tuple[Page[T], datetime]:
    """One page, and the store's time, which all relative times refer to."""

    async def read(store: "Store") -> tuple[Page[T], datetime]:
        page = await store.find(kind, await with_whole_ids(store, where), after=after, limit=limit)
        return page, (await store.check()).now

    return with_store(url, read)


def print_page(view: View[T], page: Page[T], now: datetime, *, narrowed: bool) -> None:
    """Print the page as a table, with the option for the next one."""
    screen = Screen.now()
    if not page.items:
        click.echo(f"no {view.plural} match" if narrowed else f"no {view.plural}: {view.empty}")
        print_what_is_paused(view.kind, screen)
        return
    for line in render_table(view.columns, page.items, now, screen):
        click.echo(line)
    if page.after is not None:
        click.echo(screen.dim(f"showing {len(page.items)}, more: --after {page.after}"))
    print_what_is_paused(view.kind, screen)


def print_what_is_paused(kind: type | None, screen: Screen) -> None:
    """Below every list, print what is paused."""
    from leasekeeper.cli.pauses import Paused, active, print_paused

    if kind is not Paused:
        pauses, accounts, _ = with_store(click.get_current_context().params.get("store"), active)
        print_paused(pauses, accounts, screen)


def answer_records(
    kind: type[T],
    record_ids: Sequence[str],
    *,
    url: str | None,
    as_json: bool,
    first: Sequence[str] = (),
    hide: frozenset[str] = frozenset(),
    after_each: Callable[[T], None] = lambda _: None,
) -> list[T]:
    """Print records with all their fields, one below the other; `first` names the first fields. Several records are
    `items` in JSON. Returns them.
    """

    async def read(store: "Store") -> tuple[list[T], datetime]:
        ids = await whole_ids(store, kind, record_ids)
        return [await store.get(kind, record_id) for record_id in ids], (await store.check()).now

    records, now = with_store(url, read)
    if as_json:
        shown = [encoded(record, payload="payload" not in hide) for record in records]
        answer_json(shown[0] if len(record_ids) == 1 else {"items": shown})
        return records
    for number, record in enumerate(records):
        if number:
            click.echo()
        for line in render_sheet(fields_of(record, hide, first), now, Screen.now()):
            click.echo(line)
        after_each(record)
    return records


def fields_of(
    record: object, hide: frozenset[str] = frozenset(), first: Sequence[str] = ()
) -> list[tuple[str, object]]:
    """The fields of a record, by their name on the command line."""
    names = [f.name for f in fields(record) if f.name not in hide and f.name not in first]  # type: ignore[arg-type]  # every record is a dataclass
    return [(_title(name), _shown(name, getattr(record, name))) for name in (*first, *names)]


def _title(name: str) -> str:
    return "fencing token" if name == "token" else name.replace("_", " ")


def _shown(name: str, value: object) -> object:
    """Webhook addresses are shown without their query: people put keys there."""
    from leasekeeper.wire.encoding import without_query

    return without_query(value) if name in ("callback_url", "url") and isinstance(value, str) else value


def answer_json(document: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def encoded(value: object, *, payload: bool = False) -> object:
    """Records as JSON values. Payloads only where somebody asked for them."""
    from leasekeeper.wire import encode

    if isinstance(value, list | tuple):
        return [encode(item, payload=payload) for item in value]
    return encode(value, payload=payload)
