"""`leasekeeper proxies`: list them and their trouble; check one again.

Proxies are declared in the fleet file. Logins are references and not shown.
"""

import click

from leasekeeper.cli.decisions import decision_command
from leasekeeper.cli.options import noun, output, paging
from leasekeeper.cli.output import View, answer_page
from leasekeeper.cli.table import Column
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.decisions import Action, Target

VIEW = View(
    kind=Proxy,
    plural="proxies",
    columns=(
        Column[Proxy]("PROXY", "proxy_id"),
        Column[Proxy]("STATE", lambda proxy: proxy.trouble.value if proxy.trouble else "well", state=True),
        Column[Proxy]("REGION", "region"),
        Column[Proxy]("SINCE", "trouble_at"),
        Column[Proxy]("ASKED AGAIN", "ask_at", spare=2),
        Column[Proxy]("BECAUSE", "trouble_detail", spare=1, least=30),
        Column[Proxy]("SERVER", "server", spare=4),
    ),
    empty="declare them in fleet.yaml, then: leasekeeper apply fleet.yaml",
)

command = noun("proxies", "Proxies: named network exits. One with trouble blocks the jobs of its profiles.")


@command.command("list")
@click.option("--trouble", is_flag=True, help="Only those that cannot be reached or have another region than declared.")
@paging
@output
def list_proxies(store: str | None, limit: int, after: str | None, as_json: bool, trouble: bool) -> None:
    """List proxies, with what is wrong with them."""
    where = {"trouble": "1"} if trouble else {}
    answer_page(VIEW, where, url=store, limit=limit, after=after, as_json=as_json)


command.add_command(
    decision_command(
        Target.PROXY, Action.RETRY, "Have a proxy with trouble checked again at once, by the next worker or sweep."
    )
)
