"""What is paused: chosen by options, listed, and shown in one line below every list."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.output import View, answer_json, encoded
from leasekeeper.cli.table import Column, Screen, wrapped
from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.pauses import Pause, Scope, is_active, pause_id_of, scope_of
from leasekeeper.errors import InputError, Problem
from leasekeeper.wording import pause_text

if TYPE_CHECKING:
    from leasekeeper.ports import Decided, Store

F = TypeVar("F", bound=Callable[..., Any])
MAX_SHOWN: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """What is paused, as it is listed. An account that was paused without an end has no time at which that began."""

    pause_id: str
    scope: Scope
    name: str
    note: str
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


VIEW = View(
    kind=Paused,
    plural="pauses",
    columns=(
        Column[Paused]("PAUSED", "pause_id"),
        Column[Paused]("SINCE", "since"),
        Column[Paused]("ENDS", "until"),
        Column[Paused]("BY", "actor", spare=1),
        Column[Paused]("NOTE", "note", spare=2, least=20),
    ),
    empty="nothing is paused",
)


def chosen(command: F) -> F:
    """--all, --pool, --account and --worker, each of the last three several times. The command gets `pause_ids`."""
    for scope, text in (
        (Scope.WORKER, "The worker with this name takes nothing new (drains)."),
        (Scope.ACCOUNT, "This account."),
        (Scope.POOL, "This pool."),
    ):
        name = "NAME" if scope is Scope.WORKER else "ID" if scope is Scope.ACCOUNT else "POOL"
        command = click.option(
            f"--{scope}",
            f"{scope}s",
            metavar=name,
            multiple=True,
            shell_complete=ids(scope),
            help=f"{text} May be given several times.",
        )(command)
    return click.option("--all", "everything", is_flag=True, help="Everything.")(command)


def ids_of(*, everything: bool, pools: Sequence[str], accounts: Sequence[str], workers: Sequence[str]) -> list[str]:
    """What the options name."""
    named = ((Scope.POOL, pools), (Scope.ACCOUNT, accounts), (Scope.WORKER, workers))
    whole = [pause_id_of(Scope.ALL)] if everything else []
    return whole + [pause_id_of(scope, name) for scope, names in named for name in names]


async def active(store: "Store") -> tuple[list[Pause], list[Account], datetime]:
    """What is paused now: pauses, and paused accounts without such a record."""
    now = (await store.check()).now
    found = (await store.find(Pause, limit=MAX_SHOWN)).items
    pauses = [pause for pause in found if is_active(pause, now)]
    known = {pause.pause_id for pause in pauses}
    accounts = (await store.find(Account, {"paused": "1"}, limit=MAX_SHOWN)).items
    return pauses, [each for each in accounts if pause_id_of(Scope.ACCOUNT, each.account_id) not in known], now


def listed(pauses: Sequence[Pause], accounts: Sequence[Account]) -> list[Paused]:
    """All of it in one list."""
    own = (
        Paused(
            pause_id=pause_id_of(Scope.ACCOUNT, each.account_id),
            scope=Scope.ACCOUNT,
            name=each.account_id,
            note=each.pause_note,
        )
        for each in accounts
    )
    return sorted([*(Paused(**asdict(pause)) for pause in pauses), *own], key=lambda each: each.pause_id)


def print_paused(pauses: Sequence[Pause], accounts: Sequence[Account], screen: Screen) -> None:
    """Print what is paused below a list: a line for pauses, one for accounts; nothing if nothing is."""
    said = []
    if pauses:
        more = f", and {len(pauses) - 1:,} more: leasekeeper pause" if len(pauses) > 1 else ""
        said.append(f"{pause_text(pauses[0])}{more}")
    if len(accounts) == 1:
        said.append(f"account {accounts[0].account_id} is paused ({accounts[0].pause_note})")
    elif accounts:
        number = f"{len(accounts):,}" if len(accounts) < MAX_SHOWN else f"{MAX_SHOWN:,} or more"
        said.append(f"{number} accounts are paused: leasekeeper accounts --paused")
    for line in (line for text in said for line in wrapped(text, screen, indent="")):
        click.echo(screen.paint(line, "33"))


def decide(
    pause_ids: Sequence[str], action: Action, note: str, by: str, url: str | None, *, until: str | None, as_json: bool
) -> None:
    """Pause or resume what the ids name, each a commit of its own."""

    async def work(store: "Store") -> "list[tuple[Decision, Decided]]":
        ends = end_of(until, (await store.check()).now) if until else None
        done = []
        for pause_id in [await _whole(store, each) for each in pause_ids]:
            decision = Decision(target=Target.PAUSE, id=pause_id, action=action, note=note, actor=by, until=ends)
            done.append((decision, await store.decide(decision)))
        return done

    done = with_store(url, work)
    if as_json:
        items = [{"id": d.id, "action": str(d.action), "state": s.state, "until": encoded(d.until)} for d, s in done]
        answer_json({"items": items})
        return
    for decision, decided in done:
        what = "everything" if decision.id == "all" else decision.id.replace(":", " ", 1)
        ends = f" until {decision.until:%Y-%m-%d %H:%M:%S} UTC" if decision.until else ""
        goes_on = "; running jobs continue" if action is Action.PAUSE else ""
        click.echo(f"{what} is now {decided.state}{ends}{goes_on}")


async def _whole(store: "Store", pause_id: str) -> str:
    """The pause's id with the whole name: accounts and workers may be given by the beginning of their names."""
    from leasekeeper.cli.record_ids import whole_id, worker_name

    match scope_of(pause_id):
        case Scope.ACCOUNT, name:
            return pause_id_of(Scope.ACCOUNT, await whole_id(store, Account, name))
        case Scope.WORKER, name:
            return pause_id_of(Scope.WORKER, await worker_name(store, name))
        case _:
            return pause_id


def end_of(text: str, now: datetime) -> datetime:
    """When a pause ends: a time, or `+2h` from the store's now."""
    from leasekeeper.cli.submit import due

    found = due(text, "--until", now)
    try:
        at = datetime.fromisoformat(found)
    except ValueError:
        raise InputError(
            "nothing was paused", [Problem("--until", "is written as 2026-05-01T09:30:00Z or +2h")]
        ) from None
    return at if at.tzinfo is not None else at.astimezone()
