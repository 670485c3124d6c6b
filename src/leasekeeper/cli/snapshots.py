"""`leasekeeper profiles snapshots` and `profiles restore`: list the saved states of a profile, and go back to one."""

from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import decide_selected, version_option
from leasekeeper.cli.options import actor, is_quiet, note, output, paging
from leasekeeper.cli.output import View, answer_json, encoded, print_ids, print_page
from leasekeeper.cli.record_ids import whole_id
from leasekeeper.cli.selection import Selection
from leasekeeper.cli.table import Column
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.profiles import Lane
from leasekeeper.core.snapshots import Snapshot, Verdict, known_good
from leasekeeper.wording import size_text

if TYPE_CHECKING:
    from datetime import datetime

    from leasekeeper.ports import Page, Store

MAX_CONSIDERED: Final = 1_000


def _view(newest: int | None, good: int | None) -> View[Snapshot]:
    """How the snapshots of one profile are listed. `good` is the one that `restore` goes back to first."""

    def said(snapshot: Snapshot) -> str:
        texts = (
            ("newest" if snapshot.token == newest else ""),
            ("restored first" if snapshot.token == good else ""),
            (f"from {snapshot.restored_from}" if snapshot.restored_from is not None else ""),
            ("" if snapshot.clean else "not clean"),
            ("discarded" if snapshot.discarded_at is not None else ""),
        )
        return ", ".join(text for text in texts if text)

    return View(
        kind=Snapshot,
        plural="snapshots",
        columns=(
            Column[Snapshot]("TOKEN", "token"),
            Column[Snapshot]("TAKEN", "created_at"),
            Column[Snapshot]("LOGIN", _login),
            Column[Snapshot]("NOTE", said),
            Column[Snapshot]("SIZE", lambda each: size_text(each.size_bytes), spare=3),
            Column[Snapshot]("PACKED", lambda each: size_text(each.packed_bytes), spare=5),
            Column[Snapshot]("TASK", "task", spare=2),
            Column[Snapshot]("MACHINE", "machine", spare=6),
            Column[Snapshot]("ENGINE", "engine", spare=7),
            Column[Snapshot]("KEY", lambda each: each.key_id or "none", spare=4),
            Column[Snapshot]("RUN", "run_id", id=True, spare=8),
        ),
        empty="a run that changes the profile makes one, if fleet.yaml declares a profile_store",
    )


def _login(snapshot: Snapshot) -> str:
    return "" if snapshot.verdict is Verdict.NOT_ASKED else snapshot.verdict.value.replace("_", " ")


@click.command("snapshots")
@click.argument("profile_id", metavar="ID", shell_complete=ids("profile"))
@paging
@output
def snapshots(profile_id: str, store: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List the snapshots of a profile, newest first: the states that it can go back to."""

    async def read(opened: "Store") -> "tuple[Page[Snapshot], Lane, Snapshot | None, datetime]":
        whole = await whole_id(opened, Lane, profile_id)
        lane = await opened.get(Lane, whole)
        page = await opened.find(Snapshot, {"profile_id": whole}, after=after, limit=limit)
        every = await opened.find(Snapshot, {"profile_id": whole}, limit=MAX_CONSIDERED)
        return page, lane, known_good(every.items), (await opened.check()).now

    page, lane, good, now = with_store(store, read)
    if is_quiet():
        print_ids(Snapshot, page.items)
    elif as_json:
        answer_json(
            {
                "items": encoded(page.items),
                "after": page.after,
                "newest": lane.snapshot,
                "restored_first": good.token if good else None,
            }
        )
    else:
        print_page(_view(lane.snapshot, good.token if good else None), page, now, narrowed=after is not None)
        if lane.unsaved_reason and after is None:
            click.echo(f"not saved: machine {lane.home} has a newer directory: {lane.unsaved_reason}")


@click.command("restore")
@click.argument("profile_id", metavar="ID", shell_complete=ids("profile"))
@click.option(
    "--to",
    "token",
    metavar="TOKEN",
    type=click.IntRange(1),
    help="A token of `leasekeeper profiles snapshots`. Without it: the last snapshot that was logged in.",
)
@version_option
@note
@actor
@output
def restore(
    profile_id: str,
    token: int | None,
    version: int | None,
    note: str,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Go back to a snapshot: it becomes the newest state of the profile, under a token of its own.

    Of a profile that is not leased. One in review or quarantine goes back into rotation. Nothing is fetched now: the
    next run fetches the snapshot, and the present directory is kept beside it until a run has ended cleanly.
    """
    decide_selected(
        Target.PROFILE,
        Action.RESTORE,
        Selection(ids=(profile_id,), where={}, yes=False),
        note,
        by,
        store,
        as_json=as_json,
        version=version,
        to=None if token is None else str(token),
        alone=True,
    )
