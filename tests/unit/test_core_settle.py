"""Every ending of a run: the failure table, the quarantine triggers, and the resolution of stale profiles."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.failures import FAILURES, BelongsTo, Failure, ProfileRule, RetryRule
from leasekeeper.core.ids import Token
from leasekeeper.core.jobs import JOB_TRANSITIONS, Backoff, Job, JobState, Retry
from leasekeeper.core.leases import Lease, LeaseStatus, Purpose, RunResult
from leasekeeper.core.profiles import TRANSITIONS, Because, Cause, ProfileState, ReleasePolicy, StateCause, settle_state
from leasekeeper.core.resolving import resolve
from leasekeeper.core.settle import (
    Browser,
    EndFacts,
    Ending,
    LostFacts,
    ProfileVerdict,
    Settlement,
    quarantine_trigger,
    settle,
    used_proxy,
    verdict_of,
)
from tests.unit.records import NOW, a_job, a_lease, before, seconds

CLEAN = EndFacts(browser=Browser.CLOSED, final_url="https://shop.example/done")
FOUND_OUT = LostFacts(final_url="https://shop.example/orders", browser_dead=True)
BACKOFF = Backoff()


def end(
    reason: str | None = None,
    *,
    lease: Lease | None = None,
    job: Job | None = None,
    facts: EndFacts = CLEAN,
    incomplete: bool = False,
    **changes: Any,
) -> Settlement:
    """A run of the ordinary job ends now, cleanly unless the facts say otherwise."""
    lease = lease or a_lease()
    ending = replace(Ending(ref=lease.ref, reason=reason, facts=facts), **changes)
    return settle(lease, job or a_job(), ending, now=NOW, jitter=0.0, backoff=BACKOFF, incomplete=incomplete)


def lose(
    *,
    facts: LostFacts = FOUND_OUT,
    job: Job | None = None,
    policy: ReleasePolicy = ReleasePolicy.RECOVER,
    ended: float = 20,
    proxy_id: str | None = "dallas",
    good: int | None = None,
    incomplete: bool = False,
    **lease: Any,
) -> Settlement | None:
    """The ordinary lease expired so many seconds ago; its lock-delay is 15 s."""
    gone = {"status": LeaseStatus.EXPIRED, "expires_at": before(ended), "ended_at": before(ended)}
    lost = a_lease(**{**gone, "release_policy": policy, "unresolved": True, **lease})
    snapshot = None if good is None else Token(good)
    return resolve(
        lost,
        job or a_job(),
        facts,
        now=NOW,
        jitter=0.0,
        backoff=BACKOFF,
        proxy_id=proxy_id,
        good=snapshot,
        incomplete=incomplete,
    )


def state_of(verdict: ProfileVerdict) -> ProfileState:
    """Where the verdict takes a profile that nobody else shares."""
    return settle_state(live=0, unresolved=int(verdict.unresolved), verdict=verdict.state, drain=None)


def job_state(settlement: Settlement | None) -> JobState:
    assert settlement is not None
    assert settlement.job is not None
    return settlement.job.state


def test_a_run_that_completed_and_closed_cleanly_frees_its_profile() -> None:
    settlement = end()
    assert settlement.result is RunResult.COMPLETED
    assert (settlement.stop_reason, settlement.belongs_to) == (None, None)
    assert job_state(settlement) is JobState.COMPLETED
    assert settlement.profile == ProfileVerdict(
        state=None,
        cause=Cause.CLEAN_RELEASE,
        reason="the run completed and closed cleanly",
        state_cause=StateCause.CLEAN_RELEASE,
    )


def test_a_lease_without_a_job_settles_its_profile_only() -> None:
    lease = a_lease(job_id=None)
    settlement = settle(lease, None, Ending(ref=lease.ref, facts=CLEAN), now=NOW, jitter=0.0, backoff=BACKOFF)
    assert settlement.job is None
    assert state_of(settlement.profile) is ProfileState.AVAILABLE


# PRODUCT section 6: reason, job and profile after a clean close, then the same with a mutating section open.
ENDINGS = """
TIMEOUT                    scheduled available
TEMPORARY_NAVIGATION_ERROR scheduled available
BROWSER_LAUNCH_FAILED      scheduled available
BROWSER_CRASHED            scheduled available
LOGIN_REQUIRED             review    review_required
PROFILE_MISMATCH           review    review_required
PROFILE_DIRECTORY_EMPTY    review    review_required
HUMAN_REVIEW_REQUIRED      review    review_required
SECURITY_PROMPT            review    quarantined
ACCOUNT_BANNED             review    review_required
PROXY_REGION_MISMATCH      review    available
PROXY_CHANGED              review    quarantined
PROXY_UNREACHABLE          scheduled available
LAUNCHER_UNAVAILABLE       scheduled available
SECRET_UNAVAILABLE         scheduled available
SNAPSHOT_UNAVAILABLE       scheduled available
PROFILE_IN_USE_ELSEWHERE   review    review_required
MANUAL_USE_DETECTED        review    review_required
VISIBLE_NEEDS_DISPLAY      scheduled available
MACHINE_UNWELL             scheduled available
MEMORY_EXCEEDED            scheduled available
WORKER_STOPPED             scheduled available
PROFILE_CORRUPT            review    quarantined
PROFILE_NEWER_THAN_BROWSER review    available
ACTION_NOT_ALLOWED         review    available
TAKEN_OVER                 review    available
TASK_ERROR                 review    available
EVIDENCE_NOT_SAVED         review    review_required
WORKER_LOST                scheduled stale
LEASE_LOST                 scheduled stale
SOMETHING_ELSE             review    available
"""

ROWS = [line.split() for line in ENDINGS.strip().splitlines()]


@pytest.mark.parametrize(("reason", "job", "profile"), ROWS)
def test_a_failed_run_is_settled_by_the_table(reason: str, job: str, profile: str) -> None:
    settlement = end(reason)
    assert settlement.result is RunResult.FAILED
    assert settlement.stop_reason == reason
    assert (job_state(settlement), state_of(settlement.profile)) == (job, profile)


@pytest.mark.parametrize(("reason", "job", "profile"), ROWS)
def test_no_reason_is_retried_from_inside_a_mutating_section(reason: str, job: str, profile: str) -> None:
    settlement = end(reason, lease=a_lease(open_section="submit_order"))
    assert job_state(settlement) is JobState.REVIEW
    assert state_of(settlement.profile) is ProfileState.QUARANTINED


def test_every_row_of_the_failure_table_is_settled_here() -> None:
    assert {row[0] for row in ROWS} == {*FAILURES, "SOMETHING_ELSE"}


@pytest.mark.parametrize("reason", ["PROXY_REGION_MISMATCH", "PROXY_CHANGED"])
def test_a_proxy_that_changed_during_the_run_quarantines(reason: str) -> None:
    settlement = end(reason, facts=replace(CLEAN, proxy_changed=True))
    assert state_of(settlement.profile) is ProfileState.QUARANTINED
    assert settlement.profile.reason == "the proxy changed during the run"


def test_a_task_error_is_retried_if_the_task_says_so() -> None:
    assert job_state(end("TASK_ERROR", retry=True)) is JobState.SCHEDULED


def test_a_task_cannot_talk_a_retry_into_a_submitted_form_or_another_reason() -> None:
    assert job_state(end("TASK_ERROR", retry=True, lease=a_lease(open_section="pay"))) is JobState.REVIEW
    assert job_state(end("LOGIN_REQUIRED", retry=True)) is JobState.REVIEW
    assert job_state(end("SOMETHING_ELSE", retry=True)) is JobState.REVIEW


def test_a_registered_reason_follows_its_own_row() -> None:
    own = Failure("SHOP_CLOSED", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.REVIEW_REQUIRED)
    settlement = end("SHOP_CLOSED", registered=own)
    assert (job_state(settlement), state_of(settlement.profile)) == (
        JobState.SCHEDULED,
        ProfileState.REVIEW_REQUIRED,
    )
    assert settlement.belongs_to == BelongsTo.ACCOUNT


def test_a_job_may_name_the_only_reasons_that_are_retried() -> None:
    job = a_job(retry=Retry(reasons=("LOGIN_REQUIRED",)))
    assert job_state(end("LOGIN_REQUIRED", job=job)) is JobState.SCHEDULED
    assert job_state(end("TIMEOUT", job=job)) is JobState.REVIEW
    assert job_state(end("TIMEOUT", job=a_job(retry=Retry(reasons=())))) is JobState.REVIEW
    assert job_state(end("TIMEOUT", job=a_job(retry=Retry(reasons=None)))) is JobState.SCHEDULED


def test_a_job_cannot_have_a_submitted_form_retried() -> None:
    job = a_job(retry=Retry(reasons=("TIMEOUT",)))
    assert job_state(end("TIMEOUT", job=job, lease=a_lease(open_section="pay"))) is JobState.REVIEW


def test_a_retry_waits_for_its_backoff() -> None:
    settlement = end("TIMEOUT", job=a_job(attempt=2))
    assert settlement.job is not None
    assert settlement.job.run_at == NOW + seconds(10)


def test_a_job_may_bring_a_backoff_of_its_own() -> None:
    own = Backoff(first=seconds(2), factor=3, max=seconds(60))
    settlement = end("TIMEOUT", job=a_job(attempt=2, retry=Retry(backoff=own)))
    assert settlement.job is not None
    assert settlement.job.run_at == NOW + seconds(3)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [(1, JobState.SCHEDULED), (2, JobState.SCHEDULED), (3, JobState.DEAD), (4, JobState.DEAD)],
)
def test_a_job_is_dead_when_its_attempts_are_used_up(attempt: int, expected: JobState) -> None:
    assert job_state(end("TIMEOUT", job=a_job(attempt=attempt, max_attempts=3))) is expected


def test_a_reason_that_is_not_retried_goes_to_review_even_on_the_last_attempt() -> None:
    assert job_state(end("LOGIN_REQUIRED", job=a_job(attempt=3))) is JobState.REVIEW


def test_the_detail_says_what_happened() -> None:
    settlement = end("TIMEOUT", message="waiting for #orders", job=a_job(attempt=3))
    assert settlement.job is not None
    assert settlement.job.detail == "TIMEOUT: waiting for #orders; attempt 3 of 3 was the last"


TASK_ERROR = {"stop_reason": "TASK_ERROR"}
TRIGGERS: list[tuple[dict[str, Any], str | None, dict[str, Any], Because]] = [
    (
        {"open_section": "submit_order"},
        None,
        {},
        Because(
            "ended inside submit_order, 40 s after the last safe step dashboard_open",
            StateCause.OPEN_SECTION,
            {"section": "submit_order", "safe_step": "dashboard_open", "seconds": 40, **TASK_ERROR},
        ),
    ),
    (
        {"open_section": "pay", "last_safe_step": None},
        None,
        {},
        Because("ended inside pay, before any safe step", StateCause.OPEN_SECTION, {"section": "pay", **TASK_ERROR}),
    ),
    ({}, None, {"final_url": None}, Because("the final URL is unknown", StateCause.FINAL_URL_UNKNOWN)),
    ({}, None, {"proxy_changed": True}, Because("the proxy changed during the run", StateCause.PROXY_CHANGED)),
    (
        {},
        "SECURITY_PROMPT",
        {},
        Because("a security prompt appeared", StateCause.SECURITY_PROMPT, {"stop_reason": "SECURITY_PROMPT"}),
    ),
    (
        {},
        "PROFILE_CORRUPT",
        {},
        Because("the run stopped with PROFILE_CORRUPT", StateCause.RUN_STOPPED, {"stop_reason": "PROFILE_CORRUPT"}),
    ),
]


@pytest.mark.parametrize(("lease", "reason", "facts", "why"), TRIGGERS, ids=[row[3].reason for row in TRIGGERS])
def test_each_quarantine_trigger_names_itself(
    lease: dict[str, Any], reason: str | None, facts: dict[str, Any], why: Because
) -> None:
    settlement = end(reason, lease=a_lease(**lease), facts=replace(CLEAN, **facts))
    assert settlement.profile == verdict_of(ProfileState.QUARANTINED, Cause.QUARANTINE_TRIGGER, why)


def test_without_a_browser_the_final_url_is_no_trigger() -> None:
    facts = EndFacts(browser=Browser.NONE)
    assert quarantine_trigger(a_lease(), None, facts, NOW) is None
    assert state_of(end("BROWSER_LAUNCH_FAILED", facts=facts).profile) is ProfileState.AVAILABLE


def test_a_run_without_a_browser_says_so() -> None:
    facts = EndFacts(browser=Browser.NONE)
    said = end("BROWSER_LAUNCH_FAILED", facts=facts).profile.reason
    assert said == "the run stopped with BROWSER_LAUNCH_FAILED before a browser was open"
    by_program = end("BROWSER_LAUNCH_FAILED", lease=a_lease(purpose=Purpose.API), facts=facts).profile.reason
    assert by_program == "the run stopped with BROWSER_LAUNCH_FAILED and closed cleanly"


def test_a_run_that_forgot_to_leave_its_section_did_not_complete() -> None:
    settlement = end(None, lease=a_lease(open_section="submit_order"))
    assert (settlement.result, settlement.stop_reason) == (RunResult.FAILED, "TASK_ERROR")
    assert job_state(settlement) is JobState.REVIEW


@pytest.mark.parametrize(
    ("reason", "facts", "sentence"),
    [
        ("LOGIN_REQUIRED", {}, "the run stopped with LOGIN_REQUIRED"),
        ("SECURITY_PROMPT", {}, "a security prompt appeared"),
        (None, {"evidence_saved": False}, "the run's evidence could not be saved"),
    ],
)
def test_what_a_person_is_reported_names_the_clause_too(
    reason: str | None, facts: dict[str, Any], sentence: str
) -> None:
    left = replace(CLEAN, browser=Browser.NOT_PROVEN, failing_clause="the singleton lock is still there", **facts)
    reported = f"{sentence}; the browser could not be proven closed: the singleton lock is still there"
    assert end(reason, facts=left).profile.reason == reported


def test_a_close_that_was_not_proven_leaves_the_profile_stale_and_names_the_clause() -> None:
    facts = replace(CLEAN, browser=Browser.NOT_PROVEN, failing_clause="the singleton lock is still there")
    settlement = end(None, facts=facts)
    assert job_state(settlement) is JobState.COMPLETED
    assert settlement.profile == ProfileVerdict(
        state=None,
        cause=Cause.NOT_PROVEN_CLOSED,
        reason="the browser could not be proven closed: the singleton lock is still there",
        state_cause=StateCause.NOT_PROVEN_CLOSED,
        state_data={"clause": "the singleton lock is still there"},
        unresolved=True,
    )


def test_a_task_error_without_a_proven_close_does_not_free_the_profile() -> None:
    settlement = end("TASK_ERROR", facts=replace(CLEAN, browser=Browser.NOT_PROVEN))
    assert state_of(settlement.profile) is ProfileState.STALE


def test_a_run_whose_evidence_was_not_saved_did_not_complete() -> None:
    settlement = end(None, facts=replace(CLEAN, evidence_saved=False))
    assert (settlement.result, settlement.stop_reason) == (RunResult.FAILED, "EVIDENCE_NOT_SAVED")
    assert job_state(settlement) is JobState.REVIEW
    assert settlement.profile == ProfileVerdict(
        state=ProfileState.REVIEW_REQUIRED,
        cause=Cause.EVIDENCE_NOT_SAVED,
        reason="the run's evidence could not be saved",
        state_cause=StateCause.EVIDENCE_NOT_SAVED,
        state_data={"stop_reason": "EVIDENCE_NOT_SAVED"},
    )


def test_a_failed_run_keeps_its_reason_when_evidence_is_missing_too() -> None:
    settlement = end("TIMEOUT", facts=replace(CLEAN, evidence_saved=False))
    assert settlement.stop_reason == "TIMEOUT"
    assert state_of(settlement.profile) is ProfileState.REVIEW_REQUIRED


def test_by_default_a_holder_is_not_believed_to_have_closed_its_browser() -> None:
    assert state_of(end(None, facts=EndFacts()).profile) is not ProfileState.AVAILABLE


@given(
    reason=st.none() | st.sampled_from([*sorted(FAILURES), "SOMETHING_ELSE"]),
    browser=st.sampled_from(Browser),
    final_url=st.none() | st.just("https://shop.example/"),
    proxy_changed=st.booleans(),
    evidence_saved=st.booleans(),
    section=st.none() | st.just("submit_order"),
    attempt=st.integers(min_value=1, max_value=4),
)
def test_a_profile_is_freed_only_if_everything_is_proven(
    reason: str | None,
    browser: Browser,
    final_url: str | None,
    proxy_changed: bool,
    evidence_saved: bool,
    section: str | None,
    attempt: int,
) -> None:
    facts = EndFacts(browser=browser, final_url=final_url, proxy_changed=proxy_changed, evidence_saved=evidence_saved)
    settlement = end(reason, facts=facts, lease=a_lease(open_section=section), job=a_job(attempt=attempt))
    after = state_of(settlement.profile)
    proven = browser is not Browser.NOT_PROVEN and evidence_saved and not proxy_changed and section is None
    if after is ProfileState.AVAILABLE:
        assert proven
        assert final_url is not None or browser is Browser.NONE
    assert settlement.profile.cause in TRANSITIONS[ProfileState.LEASED, after]
    assert job_state(settlement) in JOB_TRANSITIONS[JobState.RUNNING]
    assert (job_state(settlement) is JobState.COMPLETED) is (settlement.result is RunResult.COMPLETED)
    if section is not None:
        assert job_state(settlement) is JobState.REVIEW


def test_quarantine_is_the_answer_to_a_lost_worker_by_default() -> None:
    assert a_lease().release_policy is ReleasePolicy.QUARANTINE


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ReleasePolicy.QUARANTINE, ProfileState.QUARANTINED),
        (ReleasePolicy.REVIEW, ProfileState.REVIEW_REQUIRED),
        (ReleasePolicy.RECOVER, ProfileState.AVAILABLE),
    ],
)
def test_a_lost_profile_goes_where_its_release_policy_says(policy: ReleasePolicy, expected: ProfileState) -> None:
    settlement = lose(policy=policy)
    assert settlement is not None
    assert state_of(settlement.profile) is expected
    assert settlement.profile.cause is Cause.RESOLVED
    assert "worker_07" in settlement.profile.reason
    assert (settlement.stop_reason, settlement.belongs_to) == ("WORKER_LOST", BelongsTo.WORKER)


@pytest.mark.parametrize("policy", [ReleasePolicy.QUARANTINE, ReleasePolicy.REVIEW])
def test_what_frees_nothing_need_not_wait_for_the_lock_delay(policy: ReleasePolicy) -> None:
    assert lose(policy=policy, ended=0) is not None


@pytest.mark.parametrize(("now", "doubt"), [("lagos", "is lagos now"), (None, "is none now")])
def test_a_profile_with_another_proxy_than_its_lost_run_is_not_recovered(now: str | None, doubt: str) -> None:
    settlement = lose(proxy_id=now)
    assert settlement is not None
    assert settlement.profile.state is ProfileState.REVIEW_REQUIRED
    assert f"its proxy was dallas and {doubt}" in settlement.profile.reason


@pytest.mark.parametrize(
    ("lease", "facts", "expected", "doubt"),
    [
        ({"last_safe_step": None}, FOUND_OUT, ProfileState.REVIEW_REQUIRED, "no safe step is known"),
        ({}, replace(FOUND_OUT, final_url=None), ProfileState.REVIEW_REQUIRED, "the final URL is unknown"),
        (
            {},
            replace(FOUND_OUT, browser_dead=False),
            ProfileState.REVIEW_REQUIRED,
            "the browser is not proven dead",
        ),
        (
            {},
            replace(FOUND_OUT, proxy_changed=True),
            ProfileState.QUARANTINED,
            "the proxy changed during the run",
        ),
        ({"open_section": "submit_order"}, FOUND_OUT, ProfileState.QUARANTINED, "died inside submit_order"),
    ],
)
def test_recovery_fails_if_any_one_condition_does(
    lease: dict[str, Any], facts: LostFacts, expected: ProfileState, doubt: str
) -> None:
    settlement = lose(facts=facts, **lease)
    assert settlement is not None
    assert settlement.profile.state is expected
    assert doubt in settlement.profile.reason


@pytest.mark.parametrize(("ended", "decided"), [(0, False), (14.9, False), (15, True), (600, True)])
def test_recovery_waits_until_the_lock_delay_has_passed(ended: float, decided: bool) -> None:
    assert (lose(ended=ended) is not None) is decided


def test_doubts_too_are_decided_only_after_the_lock_delay() -> None:
    assert lose(facts=LostFacts(), ended=1) is None


def test_with_nothing_found_out_every_doubt_is_named() -> None:
    settlement = lose(facts=LostFacts(), last_safe_step=None)
    assert settlement is not None
    assert settlement.profile.reason == (
        "no heartbeat of worker worker_07 reached the store for 0 s; not recovered: no safe step is known, "
        "the final URL is unknown, the browser is not proven dead"
    )


@pytest.mark.parametrize("policy", ReleasePolicy)
def test_a_worker_that_died_inside_a_section_quarantines_under_every_policy(policy: ReleasePolicy) -> None:
    settlement = lose(policy=policy, open_section="submit_order")
    assert settlement is not None
    assert settlement.profile.state is ProfileState.QUARANTINED
    assert settlement.profile.reason.startswith("died inside submit_order; ")
    assert job_state(settlement) is JobState.REVIEW


@pytest.mark.parametrize(
    ("lease", "sentence"),
    [
        ({"heartbeat_at": before(75)}, "died inside pay; last heard of 12 s after the last safe step cart_open"),
        ({"section_at": before(80)}, "died inside pay; last heard of 7 s after the last safe step cart_open"),
        ({"section_at": before(95)}, "died inside pay; last heard of 0 s after the last safe step cart_open"),
        ({"last_safe_at": None}, "died inside pay, before any safe step"),
        (
            {"heartbeat_at": before(75), "status": LeaseStatus.REVOKED},
            "revoked inside pay; last heard of 12 s after the last safe step cart_open",
        ),
    ],
)
def test_a_lost_run_is_reported_by_its_last_sign_of_life_and_not_by_its_expiry(
    lease: dict[str, Any], sentence: str
) -> None:
    usual = {"open_section": "pay", "last_safe_step": "cart_open", "last_safe_at": before(87)}
    settlement = lose(ended=30, **{**usual, "heartbeat_at": before(90), "section_at": before(87), **lease})
    assert settlement is not None
    assert settlement.profile.reason == sentence


@pytest.mark.parametrize("policy", ReleasePolicy)
def test_the_job_of_a_lost_run_is_tried_again_if_nothing_was_submitted(policy: ReleasePolicy) -> None:
    settlement = lose(policy=policy)
    assert settlement is not None
    assert settlement.job is not None
    assert (settlement.job.state, settlement.job.lost) == (JobState.SCHEDULED, True)


def test_the_job_of_a_lost_run_without_attempts_left_goes_to_review() -> None:
    assert job_state(lose(job=a_job(attempt=3))) is JobState.REVIEW


@pytest.mark.parametrize("reason", ["WORKER_LOST", "LEASE_LOST"])
def test_a_job_that_cost_two_workers_leaves_the_rotation(reason: str) -> None:
    assert job_state(end(reason, job=a_job(losses=0))) is JobState.SCHEDULED
    settlement = end(reason, job=a_job(losses=1))
    assert settlement.job is not None
    assert settlement.job.state is JobState.REVIEW
    assert "2 of its runs lost their worker" in settlement.job.detail
    assert job_state(lose(job=a_job(losses=1))) is JobState.REVIEW


@pytest.mark.parametrize(
    "job", [a_job(state=JobState.COMPLETED), a_job(state=JobState.SCHEDULED), a_job(run_id="run_2")]
)
def test_a_job_that_was_settled_already_is_not_touched_again(job: Job) -> None:
    settlement = lose(job=job)
    assert settlement is not None
    assert settlement.job is None


@pytest.mark.parametrize(
    ("lost", "state", "restored", "said"),
    [
        ({"good": 41}, ProfileState.AVAILABLE, 41, "went back to the snapshot of token 41"),
        ({"good": None}, ProfileState.REVIEW_REQUIRED, None, "no snapshot that is known to be good"),
        ({"good": 41, "facts": LostFacts()}, ProfileState.AVAILABLE, 41, "went back"),
        ({"good": 41, "facts": LostFacts(reported_by="keeper")}, ProfileState.REVIEW_REQUIRED, None, "not proven dead"),
        (
            {"good": 41, "facts": LostFacts(), "status": LeaseStatus.RELEASED},
            ProfileState.REVIEW_REQUIRED,
            None,
            "dead",
        ),
        ({"good": 41, "open_section": "pay"}, ProfileState.QUARANTINED, None, "died inside pay"),
        (
            {"good": 41, "facts": replace(FOUND_OUT, proxy_changed=True)},
            ProfileState.QUARANTINED,
            None,
            "proxy changed",
        ),
    ],
)
def test_a_profile_of_policy_restore_goes_back_unless_a_section_was_open(
    lost: dict[str, Any], state: ProfileState, restored: int | None, said: str
) -> None:
    settlement = lose(policy=ReleasePolicy.RESTORE, **lost)
    assert settlement is not None
    assert state_of(settlement.profile) is state
    assert settlement.profile.restore == restored
    assert said in settlement.profile.reason


def test_a_profile_is_restored_only_after_the_lock_delay() -> None:
    assert lose(policy=ReleasePolicy.RESTORE, good=41, ended=14) is None


def test_a_lost_lease_without_a_job_is_resolved_too() -> None:
    lease = a_lease(status=LeaseStatus.EXPIRED, expires_at=before(60), ended_at=None, job_id=None)
    settlement = resolve(lease, None, LostFacts(), now=NOW, jitter=0.0, backoff=BACKOFF, proxy_id=None)
    assert settlement is not None
    assert settlement.job is None
    assert settlement.profile.state is ProfileState.QUARANTINED


@given(
    policy=st.sampled_from(ReleasePolicy),
    step=st.none() | st.just("dashboard_open"),
    section=st.none() | st.just("submit_order"),
    final_url=st.none() | st.just("https://shop.example/"),
    dead=st.booleans(),
    changed=st.booleans(),
    ended=st.floats(min_value=0, max_value=60),
)
def test_a_stale_profile_is_recovered_only_if_all_conditions_hold(
    policy: ReleasePolicy,
    step: str | None,
    section: str | None,
    final_url: str | None,
    dead: bool,
    changed: bool,
    ended: float,
) -> None:
    facts = LostFacts(final_url=final_url, browser_dead=dead, proxy_changed=changed)
    settlement = lose(policy=policy, facts=facts, ended=ended, last_safe_step=step, open_section=section)
    allowed = policy is ReleasePolicy.RECOVER and step and final_url and dead and not changed and not section
    recovered = settlement is not None and state_of(settlement.profile) is ProfileState.AVAILABLE
    assert recovered is bool(allowed and before(ended) + seconds(15) <= NOW)
    if settlement is not None:
        assert settlement.profile.cause in TRANSITIONS[ProfileState.STALE, state_of(settlement.profile)]
        assert not settlement.profile.unresolved


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ({"facts": EndFacts(browser=Browser.CLOSED)}, True),
        ({"facts": EndFacts(browser=Browser.NOT_PROVEN)}, True),
        ({"facts": EndFacts(browser=Browser.CLOSED), "proxy_used": False}, False),
        ({"facts": EndFacts(browser=Browser.NONE)}, False),
        ({"not_started": True}, False),
        ({"not_started": True, "facts": EndFacts(failing_clause="its processes live on")}, True),
    ],
)
def test_a_run_names_its_proxy_only_if_a_browser_was_behind_it(said: dict[str, Any], used: bool) -> None:
    assert used_proxy(Ending(ref=a_lease().ref, **said)) is used


# A store that may have lost writes of this lease: nobody knows which sections it was in.


@pytest.mark.parametrize("reason", ["TIMEOUT", "PROXY_UNREACHABLE", "WORKER_STOPPED"])
def test_a_run_that_failed_goes_to_a_person_if_its_record_is_incomplete(reason: str) -> None:
    facts = replace(CLEAN, proxy_trouble=True)
    assert job_state(end(reason, facts=facts)) in (JobState.SCHEDULED, JobState.QUEUED)
    settlement = end(reason, facts=facts, incomplete=True)
    assert job_state(settlement) is JobState.REVIEW
    assert state_of(settlement.profile) is ProfileState.REVIEW_REQUIRED
    assert "lost its last writes" in settlement.profile.reason


def test_what_its_holder_says_counts_also_if_its_record_is_incomplete() -> None:
    assert end(incomplete=True) == end()
    assert end("TIMEOUT", not_started=True, incomplete=True) == end("TIMEOUT", not_started=True)
    assert end("SECURITY_PROMPT", incomplete=True).profile == end("SECURITY_PROMPT").profile
    not_closed = end("TIMEOUT", facts=EndFacts(final_url=CLEAN.final_url), incomplete=True)
    assert state_of(not_closed.profile) is ProfileState.STALE


@pytest.mark.parametrize("policy", ReleasePolicy)
def test_a_lost_run_goes_to_a_person_if_its_record_is_incomplete(policy: ReleasePolicy) -> None:
    known: dict[str, Any] = {"policy": policy, "last_safe_step": "cart", "good": 3}
    assert job_state(lose(**known)) is JobState.SCHEDULED
    settlement = lose(**known, incomplete=True)
    assert settlement is not None
    assert job_state(settlement) is JobState.REVIEW
    quarantined = policy is ReleasePolicy.QUARANTINE
    expected = ProfileState.QUARANTINED if quarantined else ProfileState.REVIEW_REQUIRED
    assert state_of(settlement.profile) is expected


@pytest.mark.parametrize(
    ("lease", "given_back"),
    [
        ({}, True),
        ({"left_section": "order"}, False),
        ({"open_section": "order"}, False),
        ({"open_section": "order", "section_idempotent": True}, False),
    ],
)
@pytest.mark.parametrize("reason", [None, "WORKER_STOPPED"])
def test_only_a_run_that_can_have_done_nothing_is_given_back(
    lease: dict[str, Any], given_back: bool, reason: str | None
) -> None:
    job = end(reason, lease=a_lease(**lease), not_started=True).job
    assert job is not None
    assert job.given_back is given_back
    assert (job.state is JobState.QUEUED) is given_back
    assert job.state is not JobState.COMPLETED
