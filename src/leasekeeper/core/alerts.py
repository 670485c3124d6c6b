"""Alerts: the events that registered webhook endpoints may subscribe to. Pure: names and tables.

`ALERTS` is the one table of names, each with where it comes from: an event of a type, an event that leaves a profile in
a state, a job in a state, or a review. An endpoint filters by name, by `profile.*`, or takes all with `*`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.core.jobs import FINAL, JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import Problem, nearest

ALL: Final = "*"
MAX_FILTERS: Final = 64
MAX_DESCRIPTION: Final = 256
MAX_ENDPOINTS: Final = 100

PING: Final = "webhook.ping"
REVIEW_OPENED: Final = "review.opened"
SECRET_PREFIX: Final = "webhook-"  # noqa: S105 - the beginning of a name

# Where messages about jobs come from: the same states and the same body as for a job's own callback_url.
JOB_ALERTS: Final[Mapping[JobState, str]] = {
    state: f"job.{state}" for state in JobState if state in FINAL or state is JobState.REVIEW
}

PROFILE_ALERTS: Final[Mapping[ProfileState, str]] = {
    ProfileState.STALE: "profile.stale",
    ProfileState.REVIEW_REQUIRED: "profile.review_required",
    ProfileState.QUARANTINED: "profile.quarantined",
    ProfileState.DISABLED: "profile.disabled",
}

EVENT_ALERTS: Final[Mapping[EventType, str]] = {
    EventType.LEASE_EXPIRED: "lease.lost",
    EventType.LEASE_REVOKED: "lease.revoked",
    EventType.STALE_WORKER_WRITE_REJECTED: "lease.write_rejected",
    EventType.PROFILE_LOCK_CONFLICT: "profile.conflict",
    EventType.MANUAL_USE_DETECTED: "profile.manual_use",
    EventType.PROFILE_DECIDED: "profile.decided",
    EventType.PROFILE_RESTORED: "profile.restored",
    EventType.PROFILE_NOT_SAVED: "profile.not_saved",
    EventType.PROFILE_TOO_LARGE: "profile.too_large",
    EventType.ACCOUNT_PAUSED: "account.paused",
    EventType.ACCOUNT_RESUMED: "account.resumed",
    EventType.PROXY_MISMATCH: "proxy.mismatch",
    EventType.PROXY_UNREACHABLE: "proxy.unreachable",
    EventType.PROXY_RECOVERED: "proxy.recovered",
    EventType.SCHEDULE_SKIPPED: "schedule.skipped",
    EventType.SCHEDULE_MISSED: "schedule.missed",
    EventType.WORKER_STARTED: "worker.started",
    EventType.WORKER_STOPPED: "worker.stopped",
    EventType.WORKER_SILENT: "worker.silent",
    EventType.WORKER_RETURNED: "worker.returned",
    EventType.WORKER_UNWELL: "worker.unwell",
    EventType.WORKER_WELL: "worker.well",
    EventType.CLOCK_JUMPED: "store.clock_jumped",
    EventType.FLEET_APPLIED: "fleet.applied",
    EventType.WEBHOOK_EXHAUSTED: "webhook.exhausted",
    EventType.ENDPOINT_DISABLED: "webhook.endpoint_disabled",
    EventType.TOKEN_CREATED: "token.created",
    EventType.TOKEN_REVOKED: "token.revoked",
}

# Every name that a filter may have.
ALERTS: Final[tuple[str, ...]] = (
    *JOB_ALERTS.values(),
    *PROFILE_ALERTS.values(),
    REVIEW_OPENED,
    *EVENT_ALERTS.values(),
)

_BY_TYPE: Final = {kind.value: name for kind, name in EVENT_ALERTS.items()}
_BY_STATE: Final = {state.value: name for state, name in PROFILE_ALERTS.items()}


class EndpointState(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A registered receiver of alerts. Its signing secret is a stored secret, named by `secret_of`.

    `reason` says why it is disabled: `gone` (it answered 410), or a person's note.
    """

    endpoint_id: str
    url: str
    events: tuple[str, ...]
    description: str = ""
    state: EndpointState = EndpointState.ACTIVE
    reason: str = ""
    created_at: datetime
    created_by: str
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEndpoint:
    """A receiver to be registered."""

    endpoint_id: str
    url: str
    events: tuple[str, ...]
    description: str = ""


def secret_of(endpoint_id: str) -> str:
    """The name of the stored secret that signs what this endpoint gets."""
    return SECRET_PREFIX + endpoint_id


def matches(filters: Collection[str], alert: str) -> bool:
    """Whether an endpoint with these filters gets this alert."""
    return alert in filters or ALL in filters or f"{alert.split('.', 1)[0]}.*" in filters


def names_of(kind: str, profile_state: str | None) -> Iterator[str]:
    """The alerts that an event is, by its type and by the state that it leaves its profile in."""
    name = _BY_TYPE.get(kind)
    if name is not None:
        yield name
    state = _BY_STATE.get(profile_state or "")
    if state is not None:
        yield state


def problems_of(new: NewEndpoint) -> list[Problem]:
    """Every fault of an endpoint that is to be registered, but for its address."""
    problems = []
    if not is_id(new.endpoint_id) or not is_id(secret_of(new.endpoint_id)):
        problems.append(Problem("endpoint_id", f"must be {ID_RULE}"))
    if not 1 <= len(new.events) <= MAX_FILTERS:
        problems.append(Problem("events", f"must be 1 to {MAX_FILTERS} names of alerts"))
    problems += [Problem("events", _unknown(name)) for name in new.events if not _known(name)]
    if len(new.description) > MAX_DESCRIPTION or not new.description.isprintable():
        problems.append(Problem("description", f"must be at most {MAX_DESCRIPTION} printable characters"))
    return problems


def _known(name: str) -> bool:
    return name == ALL or name in ALERTS or name in _groups()


def _groups() -> set[str]:
    return {f"{name.split('.', 1)[0]}.*" for name in ALERTS}


def _unknown(name: str) -> str:
    near = nearest(name, [*ALERTS, *_groups()])
    return f"there is no alert {name!r}{f'; did you mean {near}?' if near else ''}"
