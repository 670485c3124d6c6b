"""Alerts: one table of names, and which endpoint gets which."""

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from leasekeeper.core.alerts import (
    ALERTS,
    ENDPOINT_EVENTS,
    EVENT_ALERTS,
    Endpoint,
    EndpointState,
    NewEndpoint,
    endpoint_decided,
    endpoint_gone,
    matches,
    names_of,
    problems_of,
)
from leasekeeper.core.decisions import ACTIONS, Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import IllegalTransition
from tests.unit.records import NOW

NEW: dict[str, Any] = {"endpoint_id": "ops", "url": "https://x.test/", "events": ("job.dead",)}


def test_every_name_is_there_once_and_written_alike() -> None:
    assert len(set(ALERTS)) == len(ALERTS)
    assert all(len(name.split(".")) == 2 and name == name.lower() for name in ALERTS)


@pytest.mark.parametrize(
    ("filters", "alert", "expected"),
    [
        (("*",), "job.dead", True),
        (("job.*",), "job.dead", True),
        (("job.*",), "profile.stale", False),
        (("job.dead",), "job.dead", True),
        (("job.dead",), "job.completed", False),
    ],
)
def test_a_filter_is_a_name_a_group_or_everything(filters: tuple[str, ...], alert: str, expected: bool) -> None:
    assert matches(filters, alert) is expected


def test_an_event_is_an_alert_by_its_type_and_by_the_state_of_its_profile() -> None:
    assert list(names_of("lease_expired", "stale")) == ["lease.lost", "profile.stale"]
    assert list(names_of("run_settled", "quarantined")) == ["profile.quarantined"]
    assert list(names_of("run_settled", ProfileState.AVAILABLE.value)) == []
    assert list(names_of("lease_granted", "leased")) == []
    for kind in EventType:
        assert list(names_of(kind.value, None)) == ([EVENT_ALERTS[kind]] if kind in EVENT_ALERTS else [])


@pytest.mark.parametrize(
    ("field", "value"),
    [("endpoint_id", "a/b"), ("endpoint_id", "x" * 125), ("events", ()), ("events", ("job",)), ("description", "a\nb")],
)
def test_what_is_wrong_with_an_endpoint_is_named_by_its_field(field: str, value: object) -> None:
    assert problems_of(NewEndpoint(**NEW)) == []
    assert {problem.where for problem in problems_of(NewEndpoint(**{**NEW, field: value}))} == {field}


LATER = NOW + timedelta(hours=1)
# (state, action) -> the state and the reason after it; `removed`, or what is allowed instead.
ENDPOINT_TABLE: dict[tuple[str, str], tuple[str, str] | str] = {
    ("active", "enable"): "disable ping remove",
    ("active", "disable"): ("disabled", "odd"),
    ("active", "ping"): ("active", ""),
    ("active", "remove"): ("removed", ""),
    ("disabled", "enable"): ("active", ""),
    ("disabled", "disable"): "enable remove",
    ("disabled", "ping"): "enable remove",
    ("disabled", "remove"): ("removed", ""),
}


def an_endpoint(state: EndpointState) -> Endpoint:
    reason = "gone" if state is EndpointState.DISABLED else ""
    return Endpoint(**NEW, state=state, reason=reason, created_at=NOW, created_by="ann", changed_at=NOW)


@pytest.mark.parametrize(("state", "action"), list(product(EndpointState, ACTIONS[Target.ENDPOINT])))
def test_what_is_decided_about_an_endpoint(state: EndpointState, action: Action) -> None:
    endpoint, expected = an_endpoint(state), ENDPOINT_TABLE[state.value, action.value]
    decision = Decision(target=Target.ENDPOINT, id="ops", action=action, note="odd", actor="ann")
    if isinstance(expected, str):
        with pytest.raises(IllegalTransition, match="endpoint ops is ") as refused:
            endpoint_decided(endpoint, decision, LATER)
        assert (refused.value.state, refused.value.allowed) == (state, tuple(expected.split()))
        return
    after = endpoint_decided(endpoint, decision, LATER)
    assert expected == (("removed", "") if after is None else (after.state, after.reason))
    if after is not None:
        assert after.changed_at == (NOW if after is endpoint else LATER)


def test_a_receiver_that_is_gone_is_disabled_once() -> None:
    after = endpoint_gone(an_endpoint(EndpointState.ACTIVE), LATER)
    assert after is not None
    assert (after.state, after.reason, after.changed_at) == (EndpointState.DISABLED, "gone", LATER)
    assert endpoint_gone(after, LATER) is None


def test_every_decision_about_an_endpoint_is_an_event() -> None:
    assert set(ENDPOINT_EVENTS) == set(ACTIONS[Target.ENDPOINT])
