"""`leasekeeper accounts`: list, pause, resume.

Accounts are declared in the fleet file; here they are paused, resumed and marked as banned.
"""

import click

from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.options import filters, given, noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.table import Column
from leasekeeper.core.accounts import Account, BanStatus
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.profiles import Lane


def ban_text(record: "Account | Lane") -> str:
    """Empty if nothing is known."""
    return "" if record.ban_status is BanStatus.NONE else record.ban_status.value


VIEW = View(
    kind=Account,
    plural="accounts",
    columns=(
        Column[Account]("ACCOUNT", "account_id"),
        Column[Account]("STATE", lambda account: "paused" if account.paused else "active", state=True),
        Column[Account]("ROUTING", "routing"),
        Column[Account]("BAN", ban_text, spare=4),
        Column[Account]("PAUSED BECAUSE", "pause_note", spare=1, least=20),
        Column[Account]("NOTES", "notes", spare=2, least=16),
    ),
    empty="declare them in fleet.yaml, then: leasekeeper apply fleet.yaml",
)

command = noun("accounts", "Accounts: the identities being operated. Each owns profiles.")


@command.command("list")
@filters(Account, **{"ban-status": "ban_status"})
@click.option("--paused", is_flag=True, help="Only those that are paused.")
@paging
@output
def list_accounts(
    paused: bool, store: str | None, limit: int, after: str | None, as_json: bool, **where: str | None
) -> None:
    """List accounts."""
    where["paused"] = "1" if paused else None
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json)


command.add_command(
    decision_command(Target.ACCOUNT, Action.PAUSE, "Pause an account: its jobs wait, what runs now ends normally.")
)
command.add_command(decision_command(Target.ACCOUNT, Action.RESUME, "Resume a paused account: its jobs move on."))
for action, text in (
    (Action.BAN, "Mark an account as banned, and pause it."),
    (Action.SUSPECT, "Mark an account as suspected to be banned. It goes on running."),
    (Action.UNBAN, "An account is not banned, or no longer. If it is paused, resume it yourself."),
):
    command.add_command(decision_command(Target.ACCOUNT, action, text))
