"""`leasekeeper profiles`: list, show, and what a person may decide about one.

A list shows the runtime state (Lane); `show` adds the configuration and the current lease.
"""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.leases import LIVE
from leasekeeper.cli.leases import VIEW as LEASES
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_json, answer_page, encoded, fields_of
from leasekeeper.cli.table import Column, Screen, render_sheet, render_table
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane, Profile, ProfileState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.ports import Store


def _because(lane: Lane) -> str:
    """A reason is worth its room while the state is not the ordinary one."""
    return "" if lane.state is ProfileState.AVAILABLE else lane.state_reason


VIEW = View(
    kind=Lane,
    plural="profiles",
    columns=(
        Column[Lane]("PROFILE", "profile_id"),
        Column[Lane]("ACCOUNT", "account_id", spare=2),
        Column[Lane]("STATE", "state", state=True),
        Column[Lane]("SINCE", "state_at"),
        Column[Lane]("NEXT TASK", "head_task", spare=4),
        Column[Lane]("HELD BY", lambda lane: (lane.hold or "").removeprefix("blocked_by_"), spare=5, least=15),
        Column[Lane]("BECAUSE", _because, spare=3, least=30),
    ),
    empty="declare them in fleet.yaml, then: leasekeeper apply fleet.yaml",
)


command = noun("profiles", "Profiles: the browser environments, each of one account.")


@command.command("list")
@filters(Lane, state="state", account="account_id")
@paging
@output
def list_profiles(store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None) -> None:
    """List profiles with their state."""
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


@command.command("show")
@click.argument("profile_id", metavar="ID")
@output
def show_profile(profile_id: str, store: str | None, as_json: bool) -> None:
    """Show one profile: state, configuration, current lease."""

    async def read(opened: "Store") -> "tuple[Lane, Profile, Sequence[Lease], datetime]":
        lane = await opened.get(Lane, profile_id)
        profile = await opened.get(Profile, profile_id)
        holders = await opened.find(Lease, {"profile_id": profile_id, **LIVE})
        return lane, profile, holders.items, (await opened.check()).now

    lane, profile, holders, now = with_store(store, read)
    if as_json:
        answer_json({"profile": encoded(profile), "lane": encoded(lane), "leases": encoded(holders)})
        return
    screen = Screen.now()
    shown_once = frozenset({"profile_id", "account_id"})
    for title, fields in (("now", _now(lane)), ("configured", fields_of(profile, shown_once))):
        click.echo(screen.title(title))
        click.echo("\n".join(render_sheet(fields, now, screen)))
    if holders:
        click.echo(screen.title("held by"))
        click.echo("\n".join(render_table(LEASES.columns, holders, now, screen)))


def _now(lane: Lane) -> list[tuple[str, object]]:
    """The running side in the order that people ask."""
    next_job = f"{lane.head_task}, job {lane.head_job_id}, priority {lane.head_priority}" if lane.head_job_id else None
    return [
        ("profile id", lane.profile_id),
        ("account id", lane.account_id),
        ("state", lane.state),
        ("since", lane.state_at),
        ("because", lane.state_reason),
        ("next job", next_job),
        ("held by", lane.hold),
        ("waits on", lane.waits_on),
        ("drains", f"will be {lane.drain} when its present lease ends: {lane.drain_reason}" if lane.drain else None),
        ("last ending", "clean" if lane.clean else "not clean"),
        ("fencing token", lane.token),
        ("engine", lane.engine),
        ("version", lane.version),
    ]


for action, text in (
    (Action.CLEAR, "Put a profile in review or quarantine back into rotation: a person has checked that it is safe."),
    (Action.QUARANTINE, "Quarantine a profile: unsafe until cleared. A leased one drains: when its lease ends."),
    (Action.REVIEW, "Send a profile to review: a person has to check it. A leased one drains: when its lease ends."),
    (Action.DISABLE, "Take a profile out of rotation. A leased one drains: out when its lease ends."),
    (Action.ENABLE, "Put a disabled profile back; to review first if its last ending was not clean."),
):
    command.add_command(decision_command(Target.PROFILE, action, text))
