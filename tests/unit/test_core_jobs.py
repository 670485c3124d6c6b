"""Job states and backoff."""

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.jobs import FINAL, JOB_TRANSITIONS, Backoff, JobState, attempt_text
from leasekeeper.core.leases import Mode
from tests.unit.records import a_job, seconds

LEGAL = """
scheduled → queued blocked scheduled skipped review cancelled
queued    → running blocked cancelled scheduled skipped review
blocked   → queued blocked cancelled
running   → completed scheduled review dead queued
review    → queued blocked cancelled running
dead      → queued blocked
completed →
skipped   →
cancelled →
"""

MOVES = {(before, after) for before, _, *afters in map(str.split, LEGAL.strip().splitlines()) for after in afters}


@pytest.mark.parametrize(("before", "after"), list(product(JobState, JobState)))
def test_a_job_moves_only_as_the_table_says(before: JobState, after: JobState) -> None:
    assert (after in JOB_TRANSITIONS[before]) is ((before.value, after.value) in MOVES)


def test_a_final_state_is_left_only_by_reopening_a_dead_job() -> None:
    assert {state: JOB_TRANSITIONS[state] for state in FINAL if JOB_TRANSITIONS[state]} == {
        JobState.DEAD: {JobState.QUEUED, JobState.BLOCKED}
    }


def test_the_final_states_are_those_of_the_product() -> None:
    assert {JobState.COMPLETED, JobState.DEAD, JobState.SKIPPED, JobState.CANCELLED} == FINAL


def test_only_a_queued_job_can_start_and_one_that_was_taken_go_on() -> None:
    before = [state for state in JobState if JobState.RUNNING in JOB_TRANSITIONS[state]]
    assert before == [JobState.QUEUED, JobState.REVIEW]


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(0, 10), (1, 10), (2, 20), (3, 40), (4, 80), (7, 640), (8, 900), (1_000_000, 900)],
)
def test_each_delay_is_twice_the_one_before_up_to_a_quarter_of_an_hour(attempt: int, expected: int) -> None:
    assert Backoff().delay(attempt, 0.0) == seconds(expected / 2)


@given(
    first=st.floats(min_value=0, max_value=604_800),
    factor=st.floats(min_value=1, max_value=100),
    maximum=st.floats(min_value=0, max_value=604_800),
    attempt=st.integers(min_value=0, max_value=10_000),
    jitter=st.floats(min_value=0, max_value=1, exclude_max=True),
)
def test_jitter_takes_at_most_half_and_the_limit_holds(
    first: float, factor: float, maximum: float, attempt: int, jitter: float
) -> None:
    backoff = Backoff(first=seconds(first), factor=factor, max=seconds(maximum))
    delay = backoff.delay(attempt, jitter)
    least = min(backoff.first, backoff.max) / 2
    assert least - timedelta(microseconds=1) <= delay <= backoff.max


@given(st.integers(min_value=1, max_value=200), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_with_the_same_luck_a_later_attempt_never_waits_less(attempt: int, jitter: float) -> None:
    assert Backoff().delay(attempt, jitter) <= Backoff().delay(attempt + 1, jitter)


def test_a_job_is_shared_if_its_mode_says_so() -> None:
    assert a_job(mode=Mode.SHARED).shared
    assert not a_job(mode=Mode.EXCLUSIVE).shared


def test_an_attempt_beyond_the_last_says_that_a_person_reopened_the_job() -> None:
    assert [attempt_text(n, 2) for n in (1, 2)] == ["attempt 1 of 2", "attempt 2 of 2"]
    assert attempt_text(3, 2) == "attempt 3, 1 more than 2 because a person reopened the job"
