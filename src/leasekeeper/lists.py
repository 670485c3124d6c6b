"""What can be listed, by which filters, in which order: part of what the port promises, as data.

Stores check against it; options of the command line and the reference are made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leasekeeper.core.accounts import Account, BanStatus, Limit, Proxy
from leasekeeper.core.alerts import Endpoint, EndpointState
from leasekeeper.core.decisions import Review, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import is_number
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.leases import Lease, LeaseStatus, RunRecord, RunResult
from leasekeeper.core.notes import Note, NoteAbout
from leasekeeper.core.pauses import Pause
from leasekeeper.core.profiles import Lane, Profile, ProfileState, StateCause
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.schedules import Schedule, ScheduleState
from leasekeeper.core.secrets import Secret
from leasekeeper.core.snapshots import Snapshot, Verdict
from leasekeeper.core.tokens import ApiToken
from leasekeeper.core.workers import Worker
from leasekeeper.errors import InputError, Problem

MAX_IN_PAGE: Final = 1_000
PREFIX: Final = "prefix"


class Order(StrEnum):
    """How a list is sorted."""

    KEY = "key"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter. Values are text; `kind` says of what: str, one of an enum, bool (`1` or `0`), or int."""

    name: str
    doc: str
    kind: type = str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum; empty: any."""
        return tuple(str(value) for value in self.kind) if issubclass(self.kind, StrEnum) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How one kind of record is listed. `key` is the field that names one record; None: single
    records cannot be read."""

    what: str
    key: str | None
    order: Order
    filters: tuple[Filter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.filters)

    def filter(self, name: str) -> Filter:
        return next(each for each in self.filters if each.name == name)

    def check(self, where: Mapping[str, str], limit: int) -> None:
        """Raise InputError that names every filter that the kind does not have or whose value is
        not valid, and a wrong limit."""
        problems = [
            Problem(name, f"a list of {self.what}s has no such filter; it has: {', '.join(self.names)}")
            for name in where
            if name not in self.names
        ]
        problems += [
            Problem(each.name, "must be a number that an earlier page gave")
            for each in self.filters
            if each.kind is int and not is_number(where.get(each.name, "0"))
        ]
        if "=" not in where.get("label", "="):
            problems.append(Problem("label", "must be NAME=VALUE"))
        if not 1 <= limit <= MAX_IN_PAGE:
            problems.append(Problem("limit", f"must be 1 to {MAX_IN_PAGE}"))
        if problems:
            raise InputError("the list cannot be made", problems)


def is_yes(text: str) -> bool:
    """The value of a bool filter: false for an empty text, `0` and `false`, true for every other text."""
    return text not in ("", "0", "false")


_SCHEDULE: Final = Filter("schedule_id", "the one with this id")
_ACCOUNT: Final = Filter("account_id", "of this account")
_PROFILE: Final = Filter("profile_id", "of this profile")
_JOB: Final = Filter("job_id", "of this job")
_RUN: Final = Filter("run_id", "of this run")
_WORKER: Final = Filter("worker_id", "of the worker with this name")
_ACCOUNT_PREFIX: Final = Filter("account_prefix", "of accounts whose id begins with this text")
_POOL: Final = Filter("pool", "of this pool")
_LABEL: Final = Filter("label", "with this label, as `NAME=VALUE`")
_TIER: Final = Filter("tier", "of this tier")
_BAN: Final = Filter("ban_status", "with this ban status", BanStatus)
_TASK: Final = Filter("task", "of this task")
_LEASE: Final = Filter("lease_id", "of this lease")
_PREFIX: Final = Filter(PREFIX, "whose id begins with this text: one page, the first by id")
_PREFIX_OF_OPEN: Final = Filter(
    PREFIX, "live or unresolved ones whose profile's id, or `profile:token`, begins with this text: one page"
)

_RUNS: Final = (
    Filter("status", "whose lease has this status", LeaseStatus),
    Filter("live", "whose lease is running or being released; `0`: has ended", bool),
    _LEASE,
    _PROFILE,
    _ACCOUNT,
    _JOB,
    _RUN,
    _WORKER,
    _POOL,
    Filter("result", "with this result", RunResult),
    Filter("stop_reason", "that ended for this reason, one of the table or your own"),
    _TASK,
)

# Kinds with an id can also be found by its beginning: a range scan of the index of their ids.
LISTS: Final[Mapping[type, Listing]] = {
    Account: Listing(
        what="account",
        key="account_id",
        order=Order.KEY,
        filters=(_ACCOUNT, _PREFIX, Filter("paused", "that a person paused", bool), _BAN),
    ),
    Profile: Listing(
        what="profile", key="profile_id", order=Order.KEY, filters=(_PROFILE, _PREFIX, _ACCOUNT, _POOL, _TIER, _LABEL)
    ),
    Lane: Listing(
        what="profile",
        key="profile_id",
        order=Order.KEY,
        filters=(
            _PROFILE,
            _PREFIX,
            _ACCOUNT,
            _ACCOUNT_PREFIX,
            _POOL,
            _TIER,
            _LABEL,
            Filter("state", "in this state", ProfileState),
            Filter("state_cause", "put into its state by this", StateCause),
            _BAN,
            Filter("home", "whose directory is on this machine"),
            Filter("saved", "whose newest state is a snapshot; `0`: whose newest directory could not be saved", bool),
        ),
    ),
    Proxy: Listing(
        what="proxy",
        key="proxy_id",
        order=Order.KEY,
        filters=(
            Filter("proxy_id", "the one with this id"),
            _PREFIX,
            Filter("trouble", "that cannot be reached or exit elsewhere than declared", bool),
        ),
    ),
    Launcher: Listing(
        what="launcher", key="launcher_id", order=Order.KEY, filters=(Filter("launcher_id", "the one with this id"),)
    ),
    Limit: Listing(what="limit of pool", key="pool", order=Order.KEY, filters=(_POOL,)),
    Job: Listing(
        what="job",
        key="job_id",
        order=Order.NEWEST,
        filters=(
            _JOB,
            _PREFIX,
            Filter("state", "in this state, as it is shown", JobState),
            _ACCOUNT,
            _PROFILE,
            _TASK,
            _POOL,
            Filter("blocked_reason", "blocked for this reason, as it is shown", Blocked),
            Filter("idempotency_key", "with this key"),
            Filter("schedule", "that this schedule made"),
            _RUN,
            Filter("dropped", "dead ones that a person dropped", bool),
        ),
    ),
    Lease: Listing(what="lease", key="lease_id", order=Order.NEWEST, filters=(*_RUNS, _PREFIX_OF_OPEN)),
    RunRecord: Listing(what="run", key="run_id", order=Order.NEWEST, filters=(*_RUNS, _PREFIX)),
    Event: Listing(
        what="event",
        key=None,
        order=Order.NEWEST,
        filters=(
            Filter("type", "of this type", EventType),
            _ACCOUNT,
            _PROFILE,
            _JOB,
            _RUN,
            _WORKER,
            Filter("since", "later than this `seq`", int),
        ),
    ),
    Review: Listing(
        what="review",
        key="review_id",
        order=Order.NEWEST,
        filters=(
            Filter("review_id", "the one with this id"),
            _PREFIX,
            Filter("open", "that wait for a person; `0`: decided", bool),
            Filter("target", "about a profile, or about a job", Target),
            Filter("reason", "for this reason"),
            _ACCOUNT,
            _POOL,
            _PROFILE,
            _JOB,
        ),
    ),
    Note: Listing(
        what="note",
        key="note_id",
        order=Order.NEWEST,
        filters=(
            Filter("note_id", "the one with this id"),
            _PREFIX,
            Filter("about", "on a profile, or on an account as a whole", NoteAbout),
            _ACCOUNT,
            _PROFILE,
            _JOB,
            _RUN,
        ),
    ),
    Snapshot: Listing(
        what="snapshot",
        key="snapshot_id",
        order=Order.NEWEST,
        filters=(
            Filter("snapshot_id", "the one with this id"),
            _PREFIX,
            _PROFILE,
            _ACCOUNT,
            _RUN,
            Filter("verdict", "with this answer of the login canary", Verdict),
            Filter("discarded", "that are not kept any more, and wait to be deleted; `0`: all others", bool),
        ),
    ),
    Worker: Listing(
        what="worker",
        key="incarnation",
        order=Order.KEY,
        filters=(Filter("incarnation", "this one process"), _PREFIX, _WORKER, _POOL),
    ),
    Delivery: Listing(
        what="webhook",
        key="delivery_id",
        order=Order.NEWEST,
        filters=(
            Filter("delivery_id", "the one with this id"),
            _PREFIX,
            Filter("state", "in this state", DeliveryState),
            _JOB,
            Filter("host", "to this host"),
            Filter("endpoint_id", "to this registered endpoint"),
        ),
    ),
    Endpoint: Listing(
        what="endpoint",
        key="endpoint_id",
        order=Order.KEY,
        filters=(
            Filter("endpoint_id", "the one with this id"),
            _PREFIX,
            Filter("state", "in this state", EndpointState),
        ),
    ),
    ApiToken: Listing(
        what="token",
        key="token_id",
        order=Order.NEWEST,
        filters=(Filter("token_id", "the one with this id"), _PREFIX, Filter("name", "with this name")),
    ),
    Secret: Listing(
        what="secret",
        key="name",
        order=Order.KEY,
        filters=(Filter("name", "the one with this name"), Filter("key_id", "encrypted with this key")),
    ),
    Pause: Listing(
        what="pause", key="pause_id", order=Order.KEY, filters=(Filter("pause_id", "the one with this id"),)
    ),
    Schedule: Listing(what="schedule", key="schedule_id", order=Order.KEY, filters=(_SCHEDULE, _PREFIX)),
    ScheduleState: Listing(
        what="schedule",
        key="schedule_id",
        order=Order.KEY,
        filters=(_SCHEDULE, _PREFIX, Filter("paused", "that a person paused", bool)),
    ),
}
