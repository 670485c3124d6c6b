"""Commands that pass a person's decision about records to the store, and print the outcome.

Which decisions exist, and in which state, is in the table of `core.decisions`; here they get command names.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.exit_codes import exit_code, say_error
from leasekeeper.cli.options import actor, note, output
from leasekeeper.cli.output import answer_json
from leasekeeper.cli.progress import Progress
from leasekeeper.cli.record_ids import whole_id
from leasekeeper.cli.selection import CHOICES, MAX_AT_ONCE, Selection, chosen_ids, possible, selecting
from leasekeeper.core.decisions import BAN_ACTIONS, Action, Decision, Target
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import Conflict, InputError, LeasekeeperError, NotFound

if TYPE_CHECKING:
    from leasekeeper.ports import Decided, Store

MAX_SENTENCES: Final = 20

# What happens to a profile in use when its lease ends, by decision.
_WHEN_IT_ENDS: Final = {
    Action.QUARANTINE: "it is quarantined",
    Action.REVIEW: "it goes to review",
    Action.DISABLE: "it leaves the rotation",
    Action.CLEAR: "it goes back into rotation",
    Action.ENABLE: "it is enabled",
}

# What a decision with a value of its own led to.
_BECOMES: Final = {
    Action.MOVE: "is at home on machine {}: its workers are given its jobs",
    Action.PRIORITIZE: "has priority {}",
    Action.NOTE: "has a new note",
    Action.RESTORE: "goes back to {} with its next run",
}

version_option = click.option(
    "--if-version",
    "version",
    metavar="N",
    type=click.IntRange(1),
    help="Only if the record still has this version, as its list or `show` gave it with --json.",
)


def decision_command(target: Target, action: Action, text: str) -> click.Command:
    """`leasekeeper NOUN ACTION ID... --note …`, or `--all` with filters."""

    @selecting(CHOICES[target])
    @note
    @actor
    @output
    def decide(
        selection: Selection, note: str, by: str, store: str | None, as_json: bool, version: int | None = None
    ) -> None:
        decide_selected(target, action, selection, note, by, store, as_json=as_json, version=version, alone=True)

    # A lease has no version: it is decided about once, and its id is never used again. A proxy has none either.
    decorated = decide if target in (Target.LEASE, Target.PROXY) else version_option(decide)
    return click.command(action.value, help=text)(decorated)


def decide_selected(
    target: Target,
    action: Action,
    selection: Selection,
    note: str,
    by: str,
    url: str | None,
    *,
    as_json: bool,
    what: str | None = None,
    version: int | None = None,
    to: str | None = None,
    alone: bool = False,
) -> None:
    """Decide about the records that were chosen. With `alone`, a single id is answered by that function."""
    if version is not None and selection.one is None:
        raise click.UsageError("--if-version is of one record: name that one alone")
    kind = CHOICES[target].kind
    what = what or ("proxies" if target is Target.PROXY else f"{target}s")

    async def decide_one(store: "Store", typed: str) -> "tuple[Decision, Decided]":
        record_id = await whole_id(store, kind, typed)
        decision = Decision(target=target, id=record_id, action=action, note=note, actor=by, version=version, to=to)
        return decision, await put_through(store, decision)

    if alone and selection.one is not None:
        answer_decided(*with_store(url, lambda store: decide_one(store, selection.ids[0])), as_json=as_json)
        return
    ids = chosen_ids(selection, kind, possible(target, action), url=url, verb=str(action), what=what, as_json=as_json)
    decide_each(ids, decide_one, url, what=what, as_json=as_json)


async def put_through(store: "Store", decision: Decision) -> "Decided":
    """Decide, and return the state as lists show it: a job that was put back in its queue may be blocked there."""
    decided = await store.decide(decision)
    if decision.target is Target.JOB and decided.state == JobState.QUEUED:
        with suppress(LeasekeeperError):  # the decision is stored, even if this query fails
            return replace(decided, state=(await store.get(Job, decision.id)).state)
    return decided


def answer_decided(decision: Decision, decided: "Decided", *, as_json: bool) -> None:
    """Print what the decision led to."""
    if as_json:
        answer_json(decided_json(decision, decided))
    else:
        click.echo(sentence(decision, decided))


def decided_json(decision: Decision, decided: "Decided") -> dict[str, object]:
    return {
        "target": str(decision.target),
        "id": decision.id,
        "action": str(decision.action),
        "state": decided.state,
        "version": decided.version,
    }


def _value(decision: Decision) -> str | None:
    """The value of the decision, as text for people."""
    if decision.action is not Action.RESTORE:
        return decision.to
    return f"snapshot {decision.to}" if decision.to else "its last good snapshot"


def sentence(decision: Decision, decided: "Decided") -> str:
    """The outcome as a sentence, with a hint where it is not what the command's name suggests."""
    name = f"{decision.target} {decision.id}"
    if decision.action in BAN_ACTIONS:
        paused = "; the account is paused" if decision.target is Target.ACCOUNT and decided.state == "paused" else ""
        return f"{name} has ban status {BAN_ACTIONS[decision.action]}{paused}"
    if decision.action in _BECOMES:
        return f"{name} {_BECOMES[decision.action].format(_value(decision))}"
    if decision.target is Target.PROFILE and decided.state == ProfileState.LEASED:
        return f"{name} is in use: {_WHEN_IT_ENDS[decision.action]} when its present lease ends"
    if decision.action is Action.ENABLE and decided.state == ProfileState.REVIEW_REQUIRED:
        return f"{name} is now review_required: its last ending was not clean, so a person has to check it first"
    if decision.target is Target.ENDPOINT:
        return f"{name} is {decided.state}"
    if decision.target is Target.PROXY:
        return f"{name} is {decided.state}" + (
            "" if decided.state == "well" else ": the next worker or sweep checks it"
        )
    if decision.target is Target.TOKEN:
        return f"{name} is now revoked: calls with it are refused"
    if decision.action is Action.REVOKE:
        return f"{name} is now revoked: its writes are refused, its profile is resolved when it would have expired"
    if decision.action is Action.DROP:
        return f"{name} is dropped from the dead jobs"
    if decision.action is Action.REPLAY:
        return f"{name} is due again: 'leasekeeper up' or 'leasekeeper sweep' sends it"
    if decided.state == JobState.BLOCKED:
        return f"{name} is now blocked: leasekeeper why job {decision.id}"
    return f"{name} is now {decided.state}"


def decide_each(
    ids: Sequence[str],
    decide_one: "Callable[[Store, str], Awaitable[tuple[Decision, Decided]]]",
    url: str | None,
    *,
    what: str,
    as_json: bool,
) -> None:
    """Decide each record, print the outcome, and exit with the code of the first refusal, if any.

    Each is a commit of its own: one refusal does not stop the others.
    """
    done: list[tuple[Decision, Decided]] = []
    refused: list[tuple[str, LeasekeeperError]] = []

    async def decide(store: "Store") -> None:
        with Progress("decided", what, len(ids)) as progress:
            for record_id in ids:
                try:
                    done.append(await decide_one(store, record_id))
                except (InputError, NotFound, Conflict) as error:
                    refused.append((record_id, error))
                if len(ids) > MAX_SENTENCES:
                    progress.at(len(done) + len(refused))

    try:
        if ids:
            with_store(url, decide)
    except BaseException:
        if done or refused:
            _report(done, refused, what, as_json=as_json)
        raise
    _report(done, refused, what, as_json=as_json)
    if refused:
        click.get_current_context().exit(exit_code(refused[0][1]))


def _report(
    done: "Sequence[tuple[Decision, Decided]]",
    refused: Sequence[tuple[str, LeasekeeperError]],
    what: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        from leasekeeper.wire import error_to_json

        faults = [{"id": record_id, **error_to_json(error)} for record_id, error in refused]
        answer_json({"items": [decided_json(*each) for each in done], "refused": faults})
        return
    for decision, decided in done[:MAX_SENTENCES]:
        click.echo(sentence(decision, decided))
    if len(done) > MAX_SENTENCES:
        click.echo(f"… and {len(done) - MAX_SENTENCES:,} more")
    if len(done) + len(refused) == MAX_AT_ONCE:
        click.echo(f"the maximum is {MAX_AT_ONCE:,} at once: run it again for the others")
    if not done and not refused:
        click.echo(f"no {what}: nothing to do")
    for _, error in refused[:MAX_SENTENCES]:
        say_error(error, as_json=False)
    if len(refused) > MAX_SENTENCES:
        click.echo(f"leasekeeper: … and {len(refused) - MAX_SENTENCES:,} more were refused", err=True)
