"""Which records a decision is about: those named, or with --all those that match the filters, after a question.

Ids may be given by their beginning. What --all chose is counted and asked about before anything is decided.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from leasekeeper.cli.completing import ids as ids_of
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import filters, given
from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.decisions import BAN_ACTIONS, JOB_ACTIONS, PROFILE_ACTIONS, Action, Review, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane
from leasekeeper.core.schedules import ScheduleState
from leasekeeper.core.tokens import ApiToken
from leasekeeper.errors import InputError
from leasekeeper.lists import LISTS, MAX_IN_PAGE

if TYPE_CHECKING:
    from leasekeeper.ports import Page, Store

F = TypeVar("F", bound=Callable[..., Any])
MAX_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How records of one kind are chosen: by which filters, and which records qualify."""

    kind: type
    filters: Mapping[str, str] = field(default_factory=dict)
    always: Mapping[str, str] = field(default_factory=dict)


CHOICES: Final[Mapping[Target, Choice]] = {
    Target.PROFILE: Choice(kind=Lane, filters={"state": "state", "account": "account_id", "label": "label"}),
    Target.JOB: Choice(
        kind=Job,
        filters={"state": "state", "account": "account_id", "profile": "profile_id", "task": "task", "pool": "pool"},
    ),
    Target.ACCOUNT: Choice(kind=Account),
    Target.LEASE: Choice(kind=Lease, filters={"profile": "profile_id", "worker": "worker_id"}, always={"live": "1"}),
    Target.SCHEDULE: Choice(kind=ScheduleState),
    Target.WEBHOOK: Choice(kind=Delivery, filters={"host": "host"}, always={"state": "exhausted"}),
    Target.TOKEN: Choice(kind=ApiToken),
    Target.ENDPOINT: Choice(kind=Endpoint),
    Target.PROXY: Choice(kind=Proxy, always={"trouble": "1"}),
}
REVIEWS: Final = Choice(
    kind=Review,
    filters={"reason": "reason", "target": "target", "account": "account_id", "profile": "profile_id"},
    always={"open": "1"},
)
DEAD_JOBS: Final = Choice(
    kind=Job,
    filters={"account": "account_id", "profile": "profile_id", "task": "task", "pool": "pool"},
    always={"state": "dead", "dropped": "0"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a person chose. `ids` as they typed them; empty: all that match `where`."""

    ids: tuple[str, ...]
    where: Mapping[str, str]
    yes: bool

    @property
    def one(self) -> str | None:
        """The only id that was typed, if it is one."""
        return self.ids[0] if len(self.ids) == 1 else None


def selecting(choice: Choice) -> Callable[[F], F]:
    """ID..., --all, --yes and the filters. The command gets them as `selection`."""

    def decorate(command: F) -> F:
        @wraps(command)
        def chosen(*, ids: tuple[str, ...], everything: bool, yes: bool, **options: Any) -> Any:
            fields = set(choice.filters.values())
            where = given({name: options.pop(name) for name in list(options) if name in fields})
            if bool(ids) == everything:
                what = f"{LISTS[choice.kind].what}s"
                raise click.UsageError(f"name the {what}, or say --all for all that match the filters")
            if ids and where:
                raise click.UsageError("filters need --all: they cannot be combined with ids")
            selection = Selection(ids=ids, where={**choice.always, **where}, yes=yes)
            return command(selection=selection, **options)

        wrapped: Any = click.option("--yes", "-y", is_flag=True, help="With --all: do not ask.")(chosen)
        wrapped = filters(choice.kind, **choice.filters)(wrapped)
        text = f"All that match the filters, maximum {MAX_AT_ONCE:,} at once, after a question."
        wrapped = click.option("--all", "everything", is_flag=True, help=text)(wrapped)
        named = ids_of(LISTS[choice.kind].what, **choice.always)
        return click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=named)(wrapped)  # type: ignore[no-any-return]  # the same kind of command that came in

    return decorate


def possible(target: Target, action: Action) -> Callable[[Any], bool]:
    """Whether a record is in a state that has this decision: --all leaves the others out."""
    if action in (*BAN_ACTIONS, Action.NOTE):
        return lambda _: True  # they say nothing about the state
    match target:
        case Target.PROFILE:
            return lambda lane: lane.state in PROFILE_ACTIONS[action]
        case Target.JOB:
            return lambda job: job.state in JOB_ACTIONS[action] and (action is not Action.APPROVE or _waits(job))
        case Target.ACCOUNT | Target.SCHEDULE:
            return lambda record: record.paused is (action is Action.RESUME)
        case Target.TOKEN:
            return lambda token: token.revoked_at is None
        case _:
            return lambda _: True


def _waits(job: Job) -> bool:
    from leasekeeper.core.jobs import Risk

    return job.risk_level is Risk.REVIEW_REQUIRED and not job.approved


async def every_id(
    store: "Store", kind: type, where: Mapping[str, str], fits: Callable[[Any], bool] = lambda _: True
) -> list[str]:
    """The ids of all that match, read before any is decided: deciding one changes the list."""
    key = LISTS[kind].key or ""
    found: list[str] = []
    after = None
    while len(found) < MAX_AT_ONCE:
        page: Page[object] = await store.find(kind, where, after=after, limit=MAX_IN_PAGE)
        found += [str(getattr(item, key)) for item in page.items if fits(item)]
        after = page.after
        if after is None:
            break
    return found[:MAX_AT_ONCE]


def chosen_ids(
    selection: Selection,
    kind: type,
    fits: Callable[[Any], bool],
    *,
    url: str | None,
    verb: str,
    what: str,
    as_json: bool,
) -> Sequence[str]:
    """The ids to decide about: as they were typed, or what --all chose, after a question."""
    if selection.ids:
        return selection.ids
    ids = with_store(url, lambda store: every_id(store, kind, selection.where, fits))
    if ids:
        _agree(selection, f"{verb} {len(ids):,} {what}", as_json=as_json)
    return ids


def _agree(selection: Selection, question: str, *, as_json: bool) -> None:
    if selection.yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InputError(f"nothing was decided: would {question}, and there is nobody to ask; say --yes to go on")
    if not click.confirm(f"{question}?"):
        click.echo("nothing was decided")
        raise click.exceptions.Exit(130)
