"""`leasekeeper take`: take control of a running browser, hand it back to its task, or release it."""

from typing import Final

import click

from leasekeeper.cli.options import output

USUAL_SERVER: Final = "http://127.0.0.1:7070"  # where `leasekeeper up` serves


@click.command("take")
@click.argument("run_or_profile", metavar="RUN|PROFILE")
@click.option("--note", default="", help="Why, or what you did; others read it, and so does the task.")
@click.option("--hand-back", is_flag=True, help="Give it back: the task goes on. Or only answer a task that asks.")
@click.option("--outcome", default="", help="With --hand-back: one word for the task, as `solved`.")
@click.option("--release", is_flag=True, help="Close the browser that you have taken, with proof.")
@click.option("--job", type=click.Choice(["requeue", "cancel"]), help="With --release: what becomes of its job.")
@click.option(
    "--profile", type=click.Choice(["review", "quarantine", "disable"]), help="With --release: where the profile goes."
)
@click.option("--server", metavar="URL", help=f"The server that runs it.  [default: the store, or {USUAL_SERVER}]")
@output
def command(
    run_or_profile: str,
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
    """Take control of the browser of a run or profile: it stays open, under a lease of yours.

    Nothing of its task or agent reaches the browser any more. Work in the live view, whose address this prints; then
    --hand-back or --release. A person who neither looks nor acts for 10 minutes has left: the browser is closed.

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
    from leasekeeper.service.calling import post

    config = settings(store)
    url = (server or (config.store if config.store.startswith(("http://", "https://")) else USUAL_SERVER)).rstrip("/")
    action = "hand-back" if hand_back else "release" if release else "take"
    wanted = {"note": note, "outcome": outcome, "job": job, "profile": profile}
    answer = post(config, url, f"/v1/runs/{run_or_profile}/{action}", {k: v for k, v in wanted.items() if v})
    token = f"fencing token {answer.get('fencing_token')}"
    live = f"{url}/ui/runs/{answer['run_id']}/live"
    if as_json:
        answer_json(answer if release else {**answer, "live_view_url": live})
    elif release:
        state = answer.get("profile_state") or "not settled, its lease was lost"
        click.echo(f"Released. Profile {answer['profile_id']} is {state}.")
    elif hand_back:
        click.echo(f"The task of {answer['profile_id']} has control again, {token}.\n{live}")
    else:
        click.echo(f"You have control of {answer['profile_id']}, {token}. Work in it:\n{live}")
