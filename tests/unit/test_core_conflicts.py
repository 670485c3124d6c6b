"""What becomes of a job that is due while its profile is taken, and what caused the conflict."""

from typing import Any

import pytest

from leasekeeper.core.conflicts import ConflictCause, conflict_cause, decide_conflict, follows_conflict
from leasekeeper.core.jobs import JOB_TRANSITIONS, JobState, OnConflict
from leasekeeper.core.leases import LeaseStatus, Purpose
from tests.unit.records import NOW, a_job, a_lease, before, seconds

LONG_RUN = seconds(600)

CAUSES: list[tuple[dict[str, Any], int | None, ConflictCause]] = [
    ({}, 0, ConflictCause.SAME_ACCOUNT_ROUTING),
    ({}, 5, ConflictCause.SAME_ACCOUNT_ROUTING),
    ({}, None, ConflictCause.SAME_ACCOUNT_ROUTING),
    ({"purpose": Purpose.API}, None, ConflictCause.SAME_ACCOUNT_ROUTING),
    ({"status": LeaseStatus.EXPIRED}, 0, ConflictCause.PREVIOUS_WORKER_LOST),
    ({"status": LeaseStatus.REVOKED}, 0, ConflictCause.PREVIOUS_WORKER_LOST),
    ({"expires_at": NOW}, 0, ConflictCause.PREVIOUS_WORKER_LOST),
    ({"purpose": Purpose.MANUAL}, None, ConflictCause.MANUAL_USE),
    ({"purpose": Purpose.INSPECT}, None, ConflictCause.MANUAL_USE),
    ({"acquired_at": before(600)}, 0, ConflictCause.LONG_RUN),
    ({"acquired_at": before(599)}, 0, ConflictCause.SAME_ACCOUNT_ROUTING),
    ({}, -1, ConflictCause.PRIORITY),
    # The cause that needs a person comes first.
    ({"purpose": Purpose.MANUAL, "expires_at": NOW}, -1, ConflictCause.PREVIOUS_WORKER_LOST),
    ({"purpose": Purpose.MANUAL, "acquired_at": before(900)}, -1, ConflictCause.MANUAL_USE),
    ({"acquired_at": before(900)}, -1, ConflictCause.PRIORITY),
]


@pytest.mark.parametrize(("holder", "priority", "expected"), CAUSES)
def test_a_conflict_names_its_most_telling_cause(
    holder: dict[str, Any], priority: int | None, expected: ConflictCause
) -> None:
    assert conflict_cause(0, a_lease(**holder), priority, NOW, LONG_RUN) is expected


def test_somebody_who_asks_without_a_job_is_not_more_urgent() -> None:
    assert conflict_cause(None, a_lease(), -1, NOW, LONG_RUN) is ConflictCause.SAME_ACCOUNT_ROUTING


@pytest.mark.parametrize("policy", OnConflict)
def test_only_a_job_that_waits_or_that_a_person_wants_to_run_stays_in_its_lane(policy: OnConflict) -> None:
    assert follows_conflict(a_job(on_conflict=policy)) is (policy is not OnConflict.WAIT)
    assert not follows_conflict(a_job(on_conflict=policy, approved=True))


def test_every_cause_of_the_product_is_there() -> None:
    assert {cause.value for cause in ConflictCause} == {
        "same_account_routing",
        "previous_worker_lost",
        "long_run",
        "manual_use",
        "priority",
    }
    assert {row[2] for row in CAUSES} == set(ConflictCause)


@pytest.mark.parametrize(
    ("on_conflict", "state", "next_check", "run_at"),
    [
        (OnConflict.WAIT, JobState.QUEUED, 50, None),
        (OnConflict.RESCHEDULE, JobState.SCHEDULED, 300, NOW + seconds(300)),
        (OnConflict.SKIP, JobState.SKIPPED, 0, None),
        (OnConflict.REVIEW, JobState.REVIEW, 0, None),
    ],
)
def test_the_job_decides_what_a_conflict_leads_to(
    on_conflict: OnConflict, state: JobState, next_check: int, run_at: object
) -> None:
    decision = decide_conflict(a_job(on_conflict=on_conflict), a_lease(), 0, NOW, LONG_RUN)
    assert decision.decision == on_conflict
    assert (decision.state, decision.next_check_seconds, decision.run_at) == (state, next_check, run_at)
    assert decision.cause is ConflictCause.SAME_ACCOUNT_ROUTING
    assert decision.state in JOB_TRANSITIONS[JobState.SCHEDULED]
    assert decision.state is JobState.QUEUED or decision.state in JOB_TRANSITIONS[JobState.QUEUED]


def test_a_rescheduled_job_comes_back_after_its_own_delay() -> None:
    job = a_job(on_conflict=OnConflict.RESCHEDULE, conflict_delay_seconds=7)
    decision = decide_conflict(job, a_lease(), 0, NOW, LONG_RUN)
    assert (decision.next_check_seconds, decision.run_at) == (7, NOW + seconds(7))


def test_a_job_that_waits_for_a_lost_worker_is_checked_again_at_once() -> None:
    decision = decide_conflict(a_job(), a_lease(expires_at=before(30)), 0, NOW, LONG_RUN)
    assert decision.next_check_seconds == 0
