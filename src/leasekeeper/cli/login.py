"""`leasekeeper login PROFILE`: a person logs in by hand, then decides about the profile and its jobs."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.open import print_end, visit
from leasekeeper.cli.options import actor, store_option

if TYPE_CHECKING:
    from leasekeeper.config import Config
    from leasekeeper.core.decisions import Action
    from leasekeeper.core.jobs import Job
    from leasekeeper.core.profiles import Lane
    from leasekeeper.ports import Store

MAX_SHOWN = 10


class Then(StrEnum):
    """What becomes of the profile and of its jobs after a login."""

    CLEAR = "clear"
    REQUEUE = "requeue"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for a decision after the visit. `back` puts the profile into rotation; None: it is not out."""

    lane: "Lane"
    back: "Action | None"
    jobs: "tuple[Job, ...]"


@click.command("login")
@click.argument("profile", metavar="PROFILE", shell_complete=ids("profile"))
@click.option("--url", metavar="URL", help="Where to log in.  [default: the account's `url`]")
@click.option(
    "--then",
    type=click.Choice([str(each) for each in Then]),
    help="Put the profile back (clear), its jobs in review too (requeue), or leave all as it is. Without it you are "
    "asked when the window is closed.",
)
@click.option("--note", metavar="TEXT", help="What you did, for those who read it later.")
@actor
@store_option
def command(profile: str, url: str | None, then: str | None, note: str | None, by: str, store: str | None) -> None:
    """Log in to a profile by hand, then put it and its jobs back.

    The profile is leased to you and a visible browser opens at the account's `url`. No job gets it meanwhile. When you
    close the window, say what becomes of the profile and of the jobs that wait for a decision: one note for all.
    """
    from leasekeeper.cli.connection import settings, with_store

    if then in (Then.CLEAR, Then.REQUEUE) and not note and not sys.stdin.isatty():
        raise click.UsageError(f"--then {then} needs --note TEXT: there is no terminal to ask at")
    config = settings(store)
    check_display(profile)
    with_store(store, lambda opened: _log_in(opened, config, profile, url, then, note, by))


def check_display(profile: str) -> None:
    """Raise Conflict where nobody could see the browser."""
    import os

    from leasekeeper.conflict_reasons import ConflictReason
    from leasekeeper.errors import Conflict
    from leasekeeper.runtime.machine_facts import display_of

    if not display_of(os.environ):
        raise Conflict(
            f"profile {profile} was not opened: this machine has no display (DISPLAY and WAYLAND_DISPLAY are not set), "
            "so nobody could see the browser. Use it in the dashboard instead (the profile's page, Open), which "
            "'leasekeeper up' serves; or connect to this machine with 'ssh -X' and run the command again",
            cause=ConflictReason.NO_DISPLAY,
            profile_id=profile,
        )


async def _log_in(
    store: "Store", config: "Config", profile: str, url: str | None, then: str | None, note: str | None, by: str
) -> None:
    from leasekeeper.cli.record_ids import whole_id
    from leasekeeper.core.accounts import Account
    from leasekeeper.core.profiles import Lane, Profile

    profile = await whole_id(store, Lane, profile)
    account = await store.get(Account, (await store.get(Profile, profile)).account_id)
    if url is None and account.url is None:
        click.echo(f"account {account.account_id} has no url: declare `url` in the fleet file, or give --url")
    ended = await visit(store, config, profile, url or account.url)
    waiting = await waiting_for_decision(store, profile)
    if waiting.back is None and not waiting.jobs:
        click.echo(f"given back: profile {profile} is {ended.run.settled.profile_state}")
        return
    _show(profile, waiting)
    choice = Then(then) if then is not None else _ask()
    note = None if choice is Then.LEAVE else note or _ask_note()
    if note is not None:
        await put_back(store, waiting, choice, note=note, by=by)
        return
    if choice is not Then.LEAVE:
        click.echo(f"no note was given, so nothing was decided: profile {profile} and its jobs are as they were")
    print_end(ended)


async def waiting_for_decision(store: "Store", profile: str) -> Waiting:
    """The profile as it is, and its jobs in review."""
    from leasekeeper.core.decisions import PROFILE_ACTIONS, Action
    from leasekeeper.core.jobs import Job
    from leasekeeper.core.profiles import Lane, ProfileState
    from leasekeeper.lists import MAX_IN_PAGE

    lane = await store.get(Lane, profile)
    ways = (Action.CLEAR, Action.ENABLE)
    back = next((each for each in ways if PROFILE_ACTIONS[each].get(lane.state) is ProfileState.AVAILABLE), None)
    jobs = await store.find(Job, {"profile_id": profile, "state": "review"}, limit=MAX_IN_PAGE)
    return Waiting(lane=lane, back=back, jobs=tuple(jobs.items))


def _show(profile: str, waiting: Waiting) -> None:
    click.echo(f"given back: profile {profile} is {waiting.lane.state}: {waiting.lane.state_reason}")
    for job in waiting.jobs[:MAX_SHOWN]:
        click.echo(f"  job {job.job_id} ({job.task}) waits for a decision: {job.detail}")
    if len(waiting.jobs) > MAX_SHOWN:
        click.echo(f"  and {len(waiting.jobs) - MAX_SHOWN} more jobs")


def _ask() -> Then:
    click.echo("clear: put the profile back; requeue: its jobs in review, too; leave: decide later")
    try:
        return Then(click.prompt("what now", type=click.Choice([str(each) for each in Then]), default=str(Then.LEAVE)))
    except click.Abort:
        return Then.LEAVE  # no terminal to ask at


def _ask_note() -> str | None:
    """What the person did; None: no note was given."""
    try:
        return str(click.prompt("note (what you did)"))
    except click.Abort:
        click.echo()
        return None


async def put_back(store: "Store", waiting: Waiting, choice: Then, *, note: str, by: str) -> None:
    """Decide about the profile as it was shown, and with `requeue` about each of the jobs."""
    from leasekeeper.cli.decisions import put_through, sentence
    from leasekeeper.core.decisions import Action, Decision, Target

    lane = waiting.lane
    decisions = []
    if waiting.back is not None:
        decisions.append(
            Decision(
                target=Target.PROFILE,
                id=lane.profile_id,
                action=waiting.back,
                note=note,
                actor=by,
                version=lane.version,
            )
        )
    if choice is Then.REQUEUE:
        decisions += [
            Decision(target=Target.JOB, id=job.job_id, action=Action.REQUEUE, note=note, actor=by, version=job.version)
            for job in waiting.jobs
        ]
    for decision in decisions:
        click.echo(sentence(decision, await put_through(store, decision)))
