"""Replaying the log: the events of a record lead to its state (I12)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.events import Event, EventType, replay_job, replay_profile
from leasekeeper.core.jobs import JobState
from leasekeeper.core.profiles import ProfileState
from tests.unit.records import NOW

EVENTS = st.builds(
    Event,
    at=st.just(NOW),
    type=st.sampled_from(EventType),
    job_state=st.none() | st.sampled_from(JobState),
    profile_state=st.none() | st.sampled_from(ProfileState),
)


def test_no_events_lead_to_no_state() -> None:
    assert replay_job([]) is None
    assert replay_profile([]) is None


@given(st.lists(EVENTS))
def test_the_last_event_that_changed_a_state_names_it(events: Sequence[Event]) -> None:
    jobs = [event.job_state for event in events if event.job_state]
    profiles = [event.profile_state for event in events if event.profile_state]
    assert replay_job(events) == (jobs[-1] if jobs else None)
    assert replay_profile(events) == (profiles[-1] if profiles else None)


@given(st.lists(EVENTS), st.lists(EVENTS))
def test_a_replay_can_go_on_where_another_stopped(first: list[Event], rest: list[Event]) -> None:
    assert replay_job(first + rest) == (replay_job(rest) or replay_job(first))
    assert replay_profile(first + rest) == (replay_profile(rest) or replay_profile(first))


@pytest.mark.parametrize("name", ["profile_lock_conflict", "stale_worker_write_rejected", "manual_use_detected"])
def test_the_events_that_the_product_names_exist(name: str) -> None:
    assert EventType(name)
