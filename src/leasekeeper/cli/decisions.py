"""Commands that pass a person's decision about one record to the store, and say what came of it.

Which decisions exist, and in which state, is the core's table; here they only get a name on the command line.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import click

from leasekeeper.cli.connection import with_store
from leasekeeper.cli.exit_codes import exit_code, say_error
from leasekeeper.cli.options import actor, note, output
from leasekeeper.cli.output import answer_json
from leasekeeper.cli.progress import Progress
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import Conflict, InputError, LeasekeeperError, NotFound
from leasekeeper.lists import MAX_IN_PAGE

if TYPE_CHECKING:
    from leasekeeper.ports import Decided, Store

T = TypeVar("T")
MAX_AT_ONCE: Final = 10_000
MAX_SENTENCES: Final = 20

# What becomes of a profile in use, by what was decided about it.
_WHEN_IT_ENDS: Final = {
    Action.QUARANTINE: "it is quarantined",
    Action.REVIEW: "it goes to review",
    Action.DISABLE: "it leaves the rotation",
    Action.CLEAR: "it goes back into rotation",
    Action.ENABLE: "it is enabled",
}

version_option = click.option(
    "--if-version",
    "version",
    metavar="N",
    type=click.IntRange(1),
    help="Only if the record still has this version, as its list or `show` gave it with --json.",
)


def decision_command(target: Target, action: Action, text: str) -> click.Command:
    """`leasekeeper NOUN ACTION ID --note …`."""

    @click.argument("record_id", metavar="ID")
    @note
    @actor
    @output
    def decide(
        record_id: str, note: str, by: str, store: str | None, as_json: bool, version: int | None = None
    ) -> None:
        decision = Decision(target=target, id=record_id, action=action, note=note, actor=by, version=version)
        answer_decided(decision, with_store(store, lambda opened: put_through(opened, decision)), as_json=as_json)

    # A lease has no version: it is decided about once, and its id is never used again.
    decorated = decide if target is Target.LEASE else version_option(decide)
    return click.command(action.value, help=text)(decorated)


async def put_through(store: "Store", decision: Decision) -> "Decided":
    """Decide, and return the state as lists show it: a job that is back in its queue may be blocked there."""
    decided = await store.decide(decision)
    if decision.target is Target.JOB and decided.state == JobState.QUEUED:
        with suppress(LeasekeeperError):  # the decision is stored, even if this query fails
            return replace(decided, state=(await store.get(Job, decision.id)).state)
    return decided


def answer_decided(decision: Decision, decided: "Decided", *, as_json: bool) -> None:
    """What the decision led to."""
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


def sentence(decision: Decision, decided: "Decided") -> str:
    """The outcome as a sentence, with a hint where it is not what the command's name suggests."""
    name = f"{decision.target} {decision.id}"
    if decision.target is Target.PROFILE and decided.state == ProfileState.LEASED:
        return f"{name} is in use: {_WHEN_IT_ENDS[decision.action]} when its present lease ends"
    if decision.action is Action.ENABLE and decided.state == ProfileState.REVIEW_REQUIRED:
        return f"{name} is now review_required: its last ending was not clean, so a person has to check it first"
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


async def every_id(store: "Store", kind: type[T], where: Mapping[str, str], id_of: Callable[[T], str]) -> list[str]:
    """The ids of all that match, read before any is decided: deciding one changes the list."""
    found: list[str] = []
    after = None
    while len(found) < MAX_AT_ONCE:
        page = await store.find(kind, where, after=after, limit=MAX_IN_PAGE)
        found += [id_of(item) for item in page.items]
        after = page.after
        if after is None:
            break
    return found[:MAX_AT_ONCE]


def decide_each(
    target: Target,
    action: Action,
    ids: "Sequence[str] | Callable[[Store], Awaitable[Sequence[str]]]",
    note: str,
    by: str,
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
        chosen = await ids(store) if callable(ids) else ids
        with Progress("decided", what, len(chosen)) as progress:
            for record_id in chosen:
                decision = Decision(target=target, id=record_id, action=action, note=note, actor=by)
                try:
                    done.append((decision, await put_through(store, decision)))
                except (InputError, NotFound, Conflict) as error:
                    refused.append((record_id, error))
                if len(chosen) > MAX_SENTENCES:
                    progress.at(len(done) + len(refused))

    try:
        with_store(url, decide)
    except BaseException:
        if done or refused:
            _tell(done, refused, what, as_json=as_json)
        raise
    _tell(done, refused, what, as_json=as_json)
    if refused:
        click.get_current_context().exit(exit_code(refused[0][1]))


def _tell(
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
