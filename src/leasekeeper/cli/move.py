"""`leasekeeper profiles move`: say that a profile's directory is on another machine now."""

from typing import Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import settings
from leasekeeper.cli.decisions import decide_selected, version_option
from leasekeeper.cli.options import actor, note, output
from leasekeeper.cli.selection import Selection
from leasekeeper.core.decisions import Action, Target

HERE: Final = "here"


@click.command("move")
@click.argument("profile_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("profile"))
@click.option(
    "--to", "machine", metavar="MACHINE", required=True, help="A name of `leasekeeper workers`, or `here`: this one."
)
@version_option
@note
@actor
@output
def move(
    profile_ids: tuple[str, ...],
    machine: str,
    version: int | None,
    note: str,
    by: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Say that the directories of profiles are on another machine now, and let its workers have the profiles.

    Take each directory there first, closed and whole. Nothing is copied: a machine without it would open an empty one,
    which sends the profile to review.
    """
    decide_selected(
        Target.PROFILE,
        Action.MOVE,
        Selection(ids=profile_ids, where={}, yes=False),
        note,
        by,
        store,
        as_json=as_json,
        version=version,
        to=_this_machine(store) if machine == HERE else machine,
        alone=True,
    )


def _this_machine(store: str | None) -> str:
    from leasekeeper.browsers.machine_name import machine_name

    return machine_name(settings(store).browsers)
