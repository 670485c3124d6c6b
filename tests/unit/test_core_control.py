"""When a job that was taken over goes on in its browser, and what is said when it does not."""

from typing import Any

import pytest

from leasekeeper.core.control import NotResumed, why_not_resumed
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.jobs import JobState
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.profiles import ProfileState
from leasekeeper.wording.control import not_resumed
from tests.unit.records import a_job, a_lane, a_profile, an_account

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
    assert not_resumed(why, a_job(), lane).startswith(words)
