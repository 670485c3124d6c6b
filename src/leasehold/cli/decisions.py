"""Commands that pass a person's decision about one record to the store, and say what came of it.

Which decisions exist, and in which state, is the core's table; here they only get a name on the command line.
"""

from typing import TYPE_CHECKING

import click

from leasehold.cli.answers import answer_json
from leasehold.cli.options import actor, note, output
from leasehold.cli.session import with_store
from leasehold.core.decisions import Action, Decision, Target
from leasehold.core.profiles import ProfileState

if TYPE_CHECKING:
    from leasehold.ports import Decided

version_option = click.option(
    "--if-version",
    "version",
    metavar="N",
    type=click.IntRange(1),
    help="Only if the record still has this version, as its list or `show` gave it with --json.",
)


def decision_command(target: Target, action: Action, text: str) -> click.Command:
    """`leasehold NOUN ACTION ID --note …`."""

    @click.argument("record_id", metavar="ID")
    @note
    @actor
    @output
    def decide(
        record_id: str, note: str, by: str, store: str | None, as_json: bool, version: int | None = None
    ) -> None:
        decision = Decision(target=target, id=record_id, action=action, note=note, actor=by, version=version)
        answer_decided(decision, with_store(store, lambda opened: opened.decide(decision)), as_json=as_json)

    # A lease has no version: it is decided about once, and its id is never used again.
    decorated = decide if target is Target.LEASE else version_option(decide)
    return click.command(action.value, help=text)(decorated)


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
    """The outcome in words, with a hint where it is not what the command's name suggests."""
    name = f"{decision.target} {decision.id}"
    if decision.action is Action.DISABLE and decided.state == ProfileState.LEASED:
        return f"{name} is in use: it leaves the rotation when its present lease ends"
    if decision.action is Action.ENABLE and decided.state == ProfileState.REVIEW_REQUIRED:
        return f"{name} is now review_required: its last ending was not clean, so a person has to look first"
    if decision.action is Action.REVOKE:
        return f"{name} is now revoked: its holder can write nothing more, its profile is resolved when its time is up"
    if decision.action is Action.DROP:
        return f"{name} is dropped from the dead jobs"
    return f"{name} is now {decided.state}"
