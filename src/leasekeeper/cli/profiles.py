"""`leasekeeper profiles`: list, show, and what a person may decide about one.

A list shows the runtime state (Lane); `show` adds the configuration and the current lease.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from leasekeeper.cli.accounts import ban_text
from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.leases import LIVE
from leasekeeper.cli.leases import VIEW as LEASES
from leasekeeper.cli.move import move
from leasekeeper.cli.notes import print_notes, read_notes
from leasekeeper.cli.options import filters, given, is_quiet, noun, output, paging
from leasekeeper.cli.output import View, answer_json, encoded, fields_of, print_ids, print_page
from leasekeeper.cli.profile_transfer import export_profile, import_profile, trim_profiles
from leasekeeper.cli.record_ids import whole_ids
from leasekeeper.cli.snapshots import restore, snapshots
from leasekeeper.cli.table import Column, Screen, render_sheet, render_table
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.leases import Lease, silent_for
from leasekeeper.core.profiles import Lane, Profile, ProfileState
from leasekeeper.core.snapshots import last_of_each_day
from leasekeeper.wording import silent_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasekeeper.core.notes import Note
    from leasekeeper.ports import Page, Store

MAX_HOLDERS: Final = 100
MAX_ENDED: Final = 500  # runs, for how its directory grew


def _reason_shown(lane: Lane) -> str:
    """The reason, unless the state is an ordinary one."""
    return "" if lane.state in (ProfileState.AVAILABLE, ProfileState.LEASED) else lane.state_reason


def _size(lane: Lane) -> str:
    return "" if lane.size_bytes is None else size_text(lane.size_bytes)


def _saved(lane: Lane) -> str | None:
    """Whether its newest state is saved, so that any machine can fetch it."""
    if lane.saved:
        return f"snapshot {lane.snapshot}"
    if not lane.unsaved_reason:
        return None
    return f"no, it stays at home: {lane.unsaved_reason}"


def _blocked_by(lane: Lane) -> str:
    """What blocks its next job."""
    return (lane.blocked_by or "").removeprefix("blocked_by_") if lane.head_job_id else ""


def view(holders: "Mapping[str, str]") -> View[Lane]:
    """How profiles are listed. `holders` has the holder of each that is leased."""
    return View(
        kind=Lane,
        plural="profiles",
        columns=(
            Column[Lane]("PROFILE", "profile_id"),
            Column[Lane]("ACCOUNT", "account_id", spare=2),
            Column[Lane]("STATE", "state", state=True),
            Column[Lane]("TIER", "tier", spare=7),
            Column[Lane]("BAN", ban_text, spare=7),
            Column[Lane]("SINCE", "state_at"),
            Column[Lane]("HOME", "home", spare=8),
            Column[Lane]("SIZE", _size, spare=9),
            Column[Lane]("HELD BY", lambda lane: holders.get(lane.profile_id), spare=2, least=12),
            Column[Lane]("NEXT TASK", "head_task", spare=5),
            Column[Lane]("BLOCKED BY", _blocked_by, spare=6, least=15),
            Column[Lane]("BECAUSE", _reason_shown, spare=3, least=30),
        ),
        empty="declare them in fleet.yaml, then: leasekeeper apply fleet.yaml",
    )


def _silence(leases: "Sequence[Lease]", now: datetime) -> str:
    quiet = [seconds for lease in leases if (seconds := silent_for(lease, now)) is not None]
    return f", {silent_text(max(quiet).total_seconds())}" if quiet else ""


async def holders_of(store: "Store", lanes: "Iterable[Lane]", now: datetime) -> dict[str, str]:
    """The holder of each leased profile: the worker of its newest live lease, how many more share it, and how long it
    has been silent, once that is too long.
    """
    held: dict[str, str] = {}
    for lane in lanes:
        if lane.state is ProfileState.LEASED:
            leases = (await store.find(Lease, {"profile_id": lane.profile_id, **LIVE}, limit=MAX_HOLDERS)).items
            more = f" and {len(leases) - 1} more" if len(leases) > 1 else ""
            held[lane.profile_id] = f"{leases[0].worker_id}{more}{_silence(leases, now)}" if leases else ""
    return held


command = noun("profiles", "Profiles: the browser environments, each of one account.")


@command.command("list")
@filters(
    Lane,
    state="state",
    cause="state_cause",
    account="account_id",
    pool="pool",
    tier="tier",
    label="label",
    home="home",
    **{"ban-status": "ban_status"},
)
@click.option("--unsaved", is_flag=True, help="Only those whose newest state could not be saved: it stays at home.")
@paging
@output
def list_profiles(
    store: str | None, limit: int, after: str | None, as_json: bool, unsaved: bool, **where: str | None
) -> None:
    """List profiles with their state."""
    if unsaved:
        where["saved"] = "0"

    async def read(opened: "Store") -> "tuple[Page[Lane], dict[str, str], datetime]":
        page = await opened.find(Lane, given(where), after=after, limit=limit)
        now = (await opened.check()).now
        return page, {} if as_json or is_quiet() else await holders_of(opened, page.items, now), now

    page, holders, now = with_store(store, read)
    if is_quiet():
        print_ids(Lane, page.items)
    elif as_json:
        answer_json({"items": encoded(page.items), "after": page.after})
    else:
        print_page(view(holders), page, now, narrowed=bool(given(where)) or after is not None)


@command.command("show")
@click.argument("profile_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("profile"))
@output
def show_profile(profile_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show profiles: state, configuration, current lease."""

    async def read(opened: "Store") -> "tuple[list[Shown], datetime]":
        shown = []
        for profile_id in await whole_ids(opened, Lane, profile_ids):
            lane, profile = await opened.get(Lane, profile_id), await opened.get(Profile, profile_id)
            holders = await opened.find(Lease, {"profile_id": profile_id, **LIVE})
            notes, _ = await read_notes(opened, profile_id)
            shown.append(Shown(lane, profile, holders.items, notes, await _sizes(opened, profile_id)))
        return shown, (await opened.check()).now

    shown, now = with_store(store, read)
    if as_json:
        documents = [
            {
                "profile": encoded(each.profile),
                "lane": encoded(each.lane),
                "leases": encoded(each.holders),
                "notes": encoded(each.notes),
                "sizes": [{"at": encoded(at), "size_bytes": size} for at, size in each.sizes],
            }
            for each in shown
        ]
        answer_json(documents[0] if len(profile_ids) == 1 else {"items": documents})
        return
    for number, each in enumerate(shown):
        if number:
            click.echo()
        _print_profile(each, now)


class Shown(NamedTuple):
    """All that `show` says about one profile."""

    lane: Lane
    profile: Profile
    holders: "Sequence[Lease]"
    notes: "Sequence[Note]"
    sizes: "Sequence[tuple[datetime, int]]"


async def _sizes(store: "Store", profile_id: str) -> "list[tuple[datetime, int]]":
    """How large its directory was at the end of its last runs, once a day."""
    ended = await store.find(Event, {"type": EventType.RUN_SETTLED, "profile_id": profile_id}, limit=MAX_ENDED)
    return last_of_each_day(
        (event.at, size) for event in ended.items if isinstance(size := event.data.get("size_bytes"), int)
    )


def _print_profile(shown: Shown, now: datetime) -> None:
    screen = Screen.now()
    shown_once = frozenset({"profile_id", "account_id"})
    for title, fields in (("now", _now(shown.lane, shown.sizes)), ("configured", fields_of(shown.profile, shown_once))):
        click.echo(screen.title(title))
        click.echo("\n".join(render_sheet(fields, now, screen)))
    if shown.holders:
        click.echo(screen.title("held by"))
        click.echo("\n".join(render_table(LEASES.columns, shown.holders, now, screen)))
    print_notes(shown.notes, now, screen)


def _now(lane: Lane, sizes: "Sequence[tuple[datetime, int]]") -> list[tuple[str, object]]:
    """The runtime state, in the order in which people need it."""
    next_job = f"{lane.head_task}, job {lane.head_job_id}, priority {lane.head_priority}" if lane.head_job_id else None
    return [
        ("profile id", lane.profile_id),
        ("account id", lane.account_id),
        ("state", lane.state),
        ("since", lane.state_at),
        ("because", lane.state_reason),
        ("next job", next_job),
        ("blocked by", lane.blocked_by),
        ("waits on", lane.waits_on),
        ("drains", f"will be {lane.drain} when its present lease ends: {lane.drain_reason}" if lane.drain else None),
        ("tier", lane.tier),
        ("ban status", lane.ban_status),
        ("last ending", "clean" if lane.clean else "not clean"),
        ("fencing token", lane.token),
        ("engine", lane.engine),
        ("home", lane.home),
        ("saved", _saved(lane)),
        ("size", _size(lane)),
        ("size before", ", ".join(f"{size_text(size)} ({at:%Y-%m-%d})" for at, size in sizes[1:])),
        ("version", lane.version),
    ]


for action, text in (
    (Action.CLEAR, "Put a profile in review or quarantine back into rotation: a person has checked that it is safe."),
    (Action.QUARANTINE, "Quarantine a profile: unsafe until cleared. A leased one drains: when its lease ends."),
    (Action.REVIEW, "Send a profile to review: a person has to check it. A leased one drains: when its lease ends."),
    (Action.DISABLE, "Take a profile out of rotation. A leased one drains: out when its lease ends."),
    (Action.BAN, "Mark a profile as banned. Its state stays; disable it to take it out."),
    (Action.SUSPECT, "Mark a profile as suspected to be banned."),
    (Action.UNBAN, "A profile is not banned, or no longer."),
    (Action.ENABLE, "Put a disabled profile back; to review first if its last ending was not clean."),
):
    command.add_command(decision_command(Target.PROFILE, action, text))
command.add_command(move)
command.add_command(snapshots)
command.add_command(restore)
command.add_command(import_profile)
command.add_command(export_profile)
command.add_command(trim_profiles)
