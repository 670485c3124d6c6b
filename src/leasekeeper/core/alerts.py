"""Alerts: the events that registered webhook endpoints may subscribe to, and what people decide about endpoints. Pure.

`ALERTS` is the one table of names, each with where it comes from: an event of a type, an event that leaves a profile in
a state, a job in a state, or a review. An endpoint filters by name, by `profile.*`, or takes all with `*`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.decisions import Action, Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.core.jobs import FINAL, JobState
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.records import evolve
from leasekeeper.errors import IllegalTransition, Problem, nearest

ALL: Final = "*"
MAX_FILTERS: Final = 64
MAX_DESCRIPTION: Final = 256
MAX_ENDPOINTS: Final = 100
GONE_REASON: Final = "gone"

PING: Final = "webhook.ping"
REVIEW_OPENED: Final = "review.opened"
SECRET_PREFIX: Final = "webhook-"  # noqa: S105 - the beginning of a name

# Alerts about jobs: sent in the same states and with the same body as messages to a job's own callback_url.
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

# The event that is written for each decision about an endpoint.
ENDPOINT_EVENTS: Final[Mapping[Action, EventType]] = {
    Action.ENABLE: EventType.ENDPOINT_ENABLED,
    Action.DISABLE: EventType.ENDPOINT_DISABLED,
    Action.PING: EventType.ENDPOINT_PINGED,
    Action.REMOVE: EventType.ENDPOINT_REMOVED,
}

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
    """The names of the alerts that an event raises: by its type, and by the state that it leaves its profile in."""
    name = _BY_TYPE.get(kind)
    if name is not None:
        yield name
    state = _BY_STATE.get(profile_state or "")
    if state is not None:
        yield state


def endpoint_decided(endpoint: Endpoint, decision: Decision, now: datetime) -> Endpoint | None:
    """The endpoint after a decision; None if it is removed. Raises IllegalTransition if the endpoint's state does not
    allow the action: only an active endpoint can be pinged."""
    match decision.action:
        case Action.REMOVE:
            return None
        case Action.ENABLE:
            return _moved(endpoint, EndpointState.ACTIVE, "", now)
        case Action.DISABLE:
            return _moved(endpoint, EndpointState.DISABLED, decision.note, now)
        case _:
            if endpoint.state is not EndpointState.ACTIVE:
                raise _refused(endpoint, "is disabled: enable it, then ping", Action.ENABLE, Action.REMOVE)
            return endpoint


def endpoint_gone(endpoint: Endpoint, now: datetime) -> Endpoint | None:
    """The endpoint, disabled because its receiver answered 410 Gone; None if it was disabled already."""
    if endpoint.state is EndpointState.DISABLED:
        return None
    return _moved(endpoint, EndpointState.DISABLED, GONE_REASON, now)


def _moved(endpoint: Endpoint, state: EndpointState, reason: str, now: datetime) -> Endpoint:
    if endpoint.state is state:
        active = state is EndpointState.ACTIVE
        allowed = (Action.DISABLE, Action.PING) if active else (Action.ENABLE,)
        raise _refused(endpoint, f"is {state} already", *allowed, Action.REMOVE)
    return evolve(endpoint, state=state, reason=reason, changed_at=now)


def _refused(endpoint: Endpoint, why: str, *allowed: Action) -> IllegalTransition:
    names = tuple(action.value for action in allowed)
    return IllegalTransition(f"endpoint {endpoint.endpoint_id} {why}", state=endpoint.state.value, allowed=names)


def problems_of(new: NewEndpoint) -> list[Problem]:
    """Every fault of a new endpoint. Its URL is not checked here."""
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
