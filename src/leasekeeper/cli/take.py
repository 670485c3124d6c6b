"""`leasekeeper take`: take control of a running browser, hand it back to its task, or release it."""

from typing import TYPE_CHECKING, Any, Final

import click

from leasekeeper.cli.options import output

if TYPE_CHECKING:
    from leasekeeper.ports import Store

USUAL_SERVER: Final = "http://127.0.0.1:7070"  # where `leasekeeper up` serves


@click.command("take")
@click.argument("run", metavar="RUN|PROFILE|JOB")
@click.option("--note", default="", help="Why, or what you did; other people and the task read it.")
@click.option("--hand-back", is_flag=True, help="Give it back: the task continues. Or just answer a task that asks.")
@click.option("--outcome", default="", help="With --hand-back: one word for the task, such as `solved`.")
@click.option("--release", is_flag=True, help="Close the browser that you have taken, with proof.")
@click.option("--job", type=click.Choice(["requeue", "cancel"]), help="With --release: what becomes of its job.")
@click.option(
    "--profile", type=click.Choice(["review", "quarantine", "disable"]), help="With --release: where the profile goes."
)
@click.option("--server", metavar="URL", help=f"The server that runs it.  [default: the store, or {USUAL_SERVER}]")
@output
def command(
    run: str,
    note: str,
    hand_back: bool,
    outcome: str,
    release: bool,
    job: str | None,
    profile: str | None,
    server: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Take control of the browser of a run, profile or job: it stays open, under a lease of yours.

    Nothing of its task or agent reaches the browser any more. Work in the live view, whose address this prints; then
    --hand-back or --release. The browser is closed after 10 minutes in which nobody watched or acted in the live view.

    A browser can be taken at the server that its worker is connected to. A task that asks for a person can be answered
    with --hand-back wherever it runs; where there is no server, through the store.

    \b
    leasekeeper take store_us_018 --note "asks for a code"
    leasekeeper take store_us_018 --hand-back --outcome solved
    """
    if hand_back and release:
        raise click.UsageError("either --hand-back or --release")
    if (outcome and not hand_back) or ((job or profile) and not release):
        raise click.UsageError("--outcome goes with --hand-back, --job and --profile with --release")
    from leasekeeper.cli.connection import settings
    from leasekeeper.cli.output import answer_json
    from leasekeeper.errors import StoreUnavailable
    from leasekeeper.service.calling import post

    config = settings(store)
    remote = config.store.startswith(("http://", "https://"))
    url = (server or (config.store if remote else USUAL_SERVER)).rstrip("/")
    action = "hand-back" if hand_back else "release" if release else "take"
    wanted = {"note": note, "outcome": outcome, "job": job, "profile": profile}
    try:
        answer = post(config, url, f"/v1/runs/{run}/{action}", {k: v for k, v in wanted.items() if v})
    except StoreUnavailable:
        if server or remote or not hand_back:
            raise
        answer = _answer_in_store(config.store, run, note, outcome)
    token = f"fencing token {answer.get('fencing_token')}"
    live = f"{url}/ui/runs/{answer['run_id']}/live"
    if as_json:
        answer_json(answer if release else {**answer, "live_view_url": live})
    elif release:
        state = answer.get("profile_state") or "not settled, its lease was lost"
        click.echo(f"Released. Profile {answer['profile_id']} is {state}.")
    elif hand_back and not answer["may_take"] and not answer["human"]:
        click.echo(f"Answered. The task of {answer['profile_id']} goes on at its worker's next heartbeat.")
    elif hand_back:
        click.echo(f"The task of {answer['profile_id']} has control again, {token}.\n{live}")
    else:
        click.echo(f"You have control of {answer['profile_id']}, {token}. Work in it:\n{live}")


def _answer_in_store(url: str, named: str, note: str, outcome: str) -> dict[str, Any]:
    """Answer a task that asks, without a server. The output is the same as a server's answer."""
    from leasekeeper.app import HumanAnswer
    from leasekeeper.cli.connection import with_store
    from leasekeeper.cli.options import os_user
    from leasekeeper.core.leases import Lease
    from leasekeeper.service.run_targets import answer_in_store, named_run

    async def work(store: "Store") -> Lease:
        lease = await store.get(Lease, (await named_run(store, named)).lease_id)
        return await answer_in_store(store, lease, HumanAnswer(by=os_user(), note=note, outcome=outcome))

    lease = with_store(url, work)
    return {
        "run_id": lease.run_id,
        "profile_id": lease.profile_id,
        "fencing_token": lease.token,
        "human": False,
        "may_take": False,
    }
