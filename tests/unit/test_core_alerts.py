"""Alerts: one table of names, and which endpoint gets which."""

from typing import Any

import pytest

from leasekeeper.core.alerts import ALERTS, EVENT_ALERTS, NewEndpoint, matches, names_of, problems_of
from leasekeeper.core.events import EventType
from leasekeeper.core.profiles import ProfileState

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
