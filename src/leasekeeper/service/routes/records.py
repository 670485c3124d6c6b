"""Lists and single records over HTTP, made of `lists.LISTS`: the same filters as the command line, paged by key."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.decisions import Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import MAX_DIGITS
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.notes import Note
from leasekeeper.core.pauses import Pause
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.schedules import Schedule, ScheduleState
from leasekeeper.core.secrets import Secret
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.core.tokens import ApiToken, to_read
from leasekeeper.core.workers import Worker
from leasekeeper.lists import LISTS, MAX_IN_PAGE, Filter
from leasekeeper.ports import Page
from leasekeeper.service.routing import Call, Parameter, Route, Subject
from leasekeeper.wire.kinds import Choice, Kind, Scalar, Text, Wrong

MAX_FILTER: Final = 512
DEFAULT_LIMIT: Final = 100

# Path → kind of record. Profiles and schedules are listed by their state; `VIEWS` lists their configuration.
NOUNS: Final[dict[str, type]] = {
    "jobs": Job,
    "profiles": Lane,
    "accounts": Account,
    "proxies": Proxy,
    "limits": Limit,
    "leases": Lease,
    "runs": RunRecord,
    "events": Event,
    "reviews": Review,
    "notes": Note,
    "snapshots": Snapshot,
    "workers": Worker,
    "webhooks": Delivery,
    "endpoints": Endpoint,
    "launchers": Launcher,
    "schedules": ScheduleState,
    "pauses": Pause,
    "tokens": ApiToken,
    "secrets": Secret,
}

# Lists that are a part of another: path → kind, fixed filters, summary.
VIEWS: Final[dict[str, tuple[type, dict[str, str], str]]] = {
    "dead-letters": (Job, {"state": JobState.DEAD.value, "dropped": "0"}, "Dead jobs that nobody dropped."),
    "conflicts": (Event, {"type": EventType.PROFILE_LOCK_CONFLICT.value}, "Lock conflicts, newest first."),
    "profile-settings": (Profile, {}, "The configuration of each profile."),
    "schedule-settings": (Schedule, {}, "The configuration of each schedule."),
}


class WholeNumber(Scalar):
    """A whole number that arrives as text."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self.rule = f"a whole number from {minimum} to {maximum}"
        self.minimum, self.maximum = minimum, maximum

    def parse(self, value: object) -> int:
        text = str(value)
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else -1
        if not self.minimum <= number <= self.maximum:
            raise Wrong(f"must be {self.rule}")
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


def _kind_of(each: Filter) -> Kind:
    """How the value of a filter is read."""
    if each.choices:
        return Choice(each.kind)
    if each.kind is bool:
        return Text("1 or 0", maximum=1, pattern="[01]")
    if each.kind is int:
        return Text("a number that an earlier page gave", maximum=MAX_DIGITS, pattern="[0-9]+")
    return Text(f"text of at most {MAX_FILTER} characters", maximum=MAX_FILTER)


PAGING: Final = (
    Parameter("limit", "maximum number of records in the page", WholeNumber(1, MAX_IN_PAGE)),
    Parameter(
        "after",
        "continues a list: what the page before gave as `after`",
        Text(f"text of at most {MAX_FILTER} characters", maximum=MAX_FILTER),
    ),
)


def _where(call: Call, fixed: dict[str, str]) -> dict[str, str]:
    given = {name: str(value) for name, value in call.query.items() if name not in ("limit", "after")}
    return {**given, **fixed}


async def list_records(kind: type, fixed: dict[str, str], call: Call) -> Page[Any]:
    """One page."""
    limit = call.query.get("limit", DEFAULT_LIMIT)
    return await call.service.store.find(kind, _where(call, fixed), after=call.query.get("after"), limit=limit)


async def about_list(fixed: dict[str, str], call: Call) -> Subject:
    """A list is about the account and the pool that it is filtered by."""
    place = await call.service.permissions.place_of_filter(_where(call, fixed))
    return Subject(account=place.account, pool=place.pool)


async def about_record(kind: type, call: Call) -> Subject:
    """A record is about its own account and pool."""
    record: Any = await call.service.store.get(kind, call.path["id"])
    place = await call.service.permissions.place(record)
    return Subject(account=place.account, pool=place.pool, record=record)


async def show_record(call: Call) -> Any:
    """One record. Its version, where it has one, is the ETag."""
    version = getattr(call.record, "version", None)
    if version is not None:
        call.headers["ETag"] = f'"{version}"'
    return call.record


def _page_of(kind: Any) -> Any:
    return Page[kind]


def _list_route(noun: str, kind: type, fixed: dict[str, str], summary: str) -> Route:
    filters = [each for each in LISTS[kind].filters if each.name not in fixed]
    handler: Callable[[Call], Awaitable[Any]] = partial(list_records, kind, fixed)
    return Route(
        method="GET",
        path=f"/v1/{noun}",
        summary=summary,
        handler=handler,
        needs=to_read(kind),
        about=partial(about_list, fixed),
        parameters=(*(Parameter(each.name, f"only those {each.doc}", _kind_of(each)) for each in filters), *PAGING),
        answers=_page_of(kind),
        tag=noun,
    )


def _record_route(noun: str, kind: type) -> Route:
    return Route(
        method="GET",
        path=f"/v1/{noun}/{{id}}",
        summary=f"One {LISTS[kind].what}.",
        handler=show_record,
        needs=to_read(kind),
        about=partial(about_record, kind),
        answers=kind,
        payload=True,
        tag=noun,
    )


ROUTES: Final = (
    *(_list_route(noun, kind, {}, f"List {noun}, a page at a time.") for noun, kind in NOUNS.items()),
    *(_list_route(noun, *view) for noun, view in VIEWS.items()),
    *(_record_route(noun, kind) for noun, kind in NOUNS.items() if LISTS[kind].key is not None),
)
