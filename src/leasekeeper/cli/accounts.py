"""`leasekeeper accounts`: list, pause, resume.

What an account is, the fleet file says; here it is only stopped and started.
"""

from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.options import noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.table import Column
from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Action, Target

VIEW = View(
    kind=Account,
    plural="accounts",
    columns=(
        Column[Account]("ACCOUNT", "account_id"),
        Column[Account]("STATE", lambda account: "paused" if account.paused else "active", state=True),
        Column[Account]("ROUTING", "routing"),
        Column[Account]("PAUSED BECAUSE", "pause_note", spare=1, least=20),
        Column[Account]("NOTES", "notes", spare=2, least=16),
    ),
    empty="declare them in fleet.yaml, then: leasekeeper apply fleet.yaml",
)

command = noun("accounts", "Accounts: the identities being operated. Each owns profiles.")


@command.command("list")
@paging
@output
def list_accounts(store: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List accounts."""
    answer_page(VIEW, {}, url=store, limit=limit, after=after, as_json=as_json)


command.add_command(
    decision_command(Target.ACCOUNT, Action.PAUSE, "Pause an account: its jobs wait, what runs now ends normally.")
)
command.add_command(decision_command(Target.ACCOUNT, Action.RESUME, "Resume a paused account: its jobs move on."))
