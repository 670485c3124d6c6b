"""A browser that passes on, as tables: when its job goes on, what the next lease knows, what becomes of a request."""

from dataclasses import fields
from typing import Any

import pytest

from leasekeeper.core.control import NotResumed, TransferRequest, lease_after, request_is_over, why_not_resumed
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import ProfileId, RunId, WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.leases import MOVING, PROGRESS, Lease, Timing
from leasekeeper.core.profiles import ProfileState
from leasekeeper.wording.control import not_resumed
from tests.unit.records import NOW, a_job, a_lane, a_lease, a_profile, an_account, before
from tests.unit.test_core_lanes import LEASED, facts, job, lease

WAITS = {"state": JobState.REVIEW, "stop_reason": Reason.TAKEN_OVER}
LEAVES = {"drain": ProfileState.DISABLED}


@pytest.mark.parametrize(
    ("job", "lane", "account_paused", "paused", "why"),
    [
        (WAITS, {}, False, False, None),
        ({**WAITS, "state": JobState.CANCELLED}, {}, False, False, NotResumed.NOT_WAITING),
        ({**WAITS, "stop_reason": Reason.LOGIN_REQUIRED}, {}, False, False, NotResumed.NOT_WAITING),
        ({**WAITS, "profile_id": ProfileId("other")}, {}, False, False, NotResumed.NOT_WAITING),
        (WAITS, {}, True, False, NotResumed.PAUSED),
        (WAITS, {}, False, True, NotResumed.PAUSED),
        (WAITS, LEAVES, False, False, NotResumed.PROFILE_LEAVES),
        (WAITS, {"verdict": ProfileState.QUARANTINED}, False, False, NotResumed.PROFILE_LEAVES),
        (WAITS, LEAVES, True, True, NotResumed.PAUSED),
        ({"state": JobState.DEAD}, LEAVES, True, True, NotResumed.NOT_WAITING),
    ],
)
def test_a_job_goes_on_only_where_it_waits_and_may_run(
    job: dict[str, Any], lane: dict[str, Any], account_paused: bool, paused: bool, why: NotResumed | None
) -> None:
    facts = LaneFacts(
        lane=a_lane(**lane), profile=a_profile(), account=an_account(paused=account_paused), proxy=None, open=[]
    )
    assert why_not_resumed(facts, a_job(**job), paused=paused) is why


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (NotResumed.NOT_WAITING, "job job_1 is running: it does not wait"),
        (NotResumed.PAUSED, "account store_us_018, its pool or everything is paused"),
        (NotResumed.PROFILE_LEAVES, "profile profile_018 will be quarantined when"),
    ],
)
def test_each_cause_is_a_sentence_of_its_own(why: NotResumed, words: str) -> None:
    lane = a_lane(drain=ProfileState.DISABLED, verdict=ProfileState.QUARANTINED)
    assert not_resumed(why, a_job(), lane, a_lease()).startswith(words)


BEFORE = a_lease(
    last_url="https://shop.example/cart",
    open_section="pay",
    section_at=before(3),
    section_idempotent=True,
    left_section="cart",
    asks_person="solve the prompt",
    person_answer={"by": "ann"},
)


def test_the_next_lease_knows_where_the_browser_is_and_asks_nobody() -> None:
    facts = LaneFacts(
        lane=a_lane(state=ProfileState.LEASED), profile=a_profile(), account=an_account(), proxy=None, open=[BEFORE]
    )
    ann = TransferRequest(worker_id=WorkerId("human:ann"), incarnation="take-1")
    after = lease_after(facts, BEFORE, ann, None, run_id=RunId("r2"), timing=Timing(), now=NOW)
    plain = {field.name: field.default for field in fields(Lease)}
    for name in PROGRESS:
        assert getattr(after, name) == getattr(BEFORE, name) != plain[name], name
    assert (after.asks_person, after.person_answer) == (None, None)
    # The rest is of the new grant.
    assert (after.heartbeat_at, after.ended_at, after.status) == (NOW, None, "running")
    assert set(PROGRESS) < set(MOVING)


@pytest.mark.parametrize(
    ("asks", "job", "over"),
    [
        (None, None, False),
        (None, a_job(state=JobState.COMPLETED), False),
        ("solve the prompt", None, True),
        ("solve the prompt", a_job(state=JobState.COMPLETED), True),
        ("solve the prompt", a_job(state=JobState.QUEUED), True),
        ("solve the prompt", a_job(state=JobState.REVIEW), False),
    ],
)
def test_a_request_is_over_with_its_run_unless_the_job_waits_for_a_person(
    asks: str | None, job: Job | None, over: bool
) -> None:
    assert request_is_over(a_lease(asks_person=asks), job) is over


SECTIONS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"last_safe_step": "ready"}, True),
    ({"open_section": "submit_order"}, False),
    ({"open_section": "export", "section_idempotent": True}, True),
    ({"left_section": "submit_order"}, False),
    ({"open_section": "export", "section_idempotent": True, "left_section": "submit_order"}, False),
]


@pytest.mark.parametrize(("sections", "may_begin_anew"), SECTIONS)
def test_a_task_begins_anew_only_if_nothing_may_have_been_done(sections: dict[str, Any], may_begin_anew: bool) -> None:
    handed_back = lease(**sections)
    known = facts(LEASED, handed_back)
    taken = job(state=JobState.REVIEW, stop_reason=Reason.TAKEN_OVER)
    why = why_not_resumed(known, taken, paused=False, anew_after=handed_back)
    assert (why is None) is may_begin_anew
    assert why in (None, NotResumed.MAY_BE_DONE_TWICE)
    if why is not None:
        assert "mutating section submit_order" in not_resumed(why, taken, LEASED, handed_back)
    # One that waits goes on behind what it did.
    assert why_not_resumed(known, taken, paused=False) is None
