"""`leasekeeper leases`: who has which profile until when; revoke.

Lists show live leases; --all also shows those that ended.
"""

from datetime import datetime
from typing import Final

import click

from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.table import SHORT_IDS, Column, Timely
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.leases import Lease, silent_for
from leasekeeper.wording import silent_text

LIVE: Final = {"live": "1"}


def _status(lease: Lease) -> Timely:
    """The status, or how long its worker has been silent, once that is too long."""

    def text(now: datetime) -> str:
        quiet = silent_for(lease, now)
        return lease.status.value if quiet is None else silent_text(quiet.total_seconds())

    return text


VIEW = View(
    kind=Lease,
    plural="leases",
    columns=(
        Column[Lease]("LEASE", "lease_id"),
        Column[Lease]("STATUS", _status, state=True),
        Column[Lease]("PROFILE", "profile_id", spare=8),
        Column[Lease]("WORKER", "worker_id", spare=1),
        Column[Lease]("TASK", "task", spare=2),
        Column[Lease]("JOB", "job_id", spare=4, least=SHORT_IDS[0], id=True),
        Column[Lease]("FOR", "purpose", spare=7),
        Column[Lease]("SINCE", "acquired_at", spare=6),
        Column[Lease]("HEARTBEAT", "heartbeat_at", spare=5),
        Column[Lease]("ENDS", lambda lease: None if lease.ended_at else lease.expires_at, spare=3),
        Column[Lease]("ENDED", "ended_at", spare=3),
        Column[Lease]("SAFE STEP", "last_safe_step", spare=7),
        Column[Lease]("INSIDE", "open_section", spare=3),
    ),
    empty="no live leases; --all shows those that ended",
)

command = noun("leases", "Leases: the right of one worker to use one profile for one run.")


@command.command("list")
@filters(Lease, profile="profile_id", worker="worker_id")
@click.option("--all", "with_ended", is_flag=True, help="Those that ended, too.")
@paging
@output
def list_leases(
    store: str | None, limit: int, after: str | None, as_json: bool, with_ended: bool, **where: str | None
) -> None:
    """List live leases."""
    always = {} if with_ended else LIVE
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json, always=always)


command.add_command(
    decision_command(
        Target.LEASE,
        Action.REVOKE,
        "Revoke a live lease: its writes are refused; the profile is resolved when the lease would have expired.",
    )
)
