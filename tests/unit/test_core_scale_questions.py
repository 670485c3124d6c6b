"""The nineteen questions: each way that each of them can be answered, from records as a store keeps them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.doctor.findings import CHECKS, Answer, Group, Status, Step
from leasekeeper.core.doctor.scale_questions import QUESTIONS, ScaleFacts
from leasekeeper.core.doctor.store_checks import SweepFacts
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import ProfileId, RunId
from leasekeeper.core.jobs import Retry
from leasekeeper.core.leases import LeaseStatus, Mode, Purpose, RunRecord, RunResult, Timing
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.profiles import ManualUse
from leasekeeper.wording.doctor import todo_text
from tests.unit.records import NOW, a_job, a_lease, a_profile, an_account, before, seconds

YES, BUT, NO = Answer.YES, Answer.YES_BUT, Answer.NO
TWIN = a_profile(profile_id=ProfileId("twin"))
SHARED = a_profile(max_active_runs=3)
TIGHT = Policy(timing=Timing(renew_every=seconds(25)))


def facts(**changes: Any) -> ScaleFacts:
    """A small fleet in which nothing is wrong."""
    given: dict[str, Any] = {
        "now": NOW,
        "policy": Policy(),
        "retention": Retention(),
        "probes": True,
        "sweep": SweepFacts(now=NOW, sweep_every=seconds(5)),
        "accounts": [an_account()],
        "profiles": [a_profile()],
        "jobs": [a_job(expected_language="en-US")],
        "runs": [a_run()],
        "leases": [a_lease()],
    }
    return ScaleFacts(**{**given, **changes})


def a_run(reason: str | None = None, belongs_to: str | None = None, **changes: Any) -> RunRecord:
    lease = a_lease()
    given: dict[str, Any] = {
        "run_id": RunId("run_1"),
        "job_id": lease.job_id,
        "task": "sync_orders",
        "attempt": 1,
        "routing_key": lease.routing_key,
        "account_id": lease.account_id,
        "profile_id": lease.profile_id,
        "proxy_id": lease.proxy_id,
        "worker_id": lease.worker_id,
        "lease_id": lease.lease_id,
        "token": lease.token,
        "purpose": Purpose.JOB,
        "status": LeaseStatus.RELEASED,
        "result": RunResult.FAILED if reason else RunResult.COMPLETED,
        "stop_reason": reason,
        "belongs_to": belongs_to,
        "acquired_at": before(300),
    }
    return RunRecord(**{**given, **changes})


def runs(good: int, bad: int, reason: str, belongs_to: str = "code") -> list[RunRecord]:
    return [*(a_run() for _ in range(good)), *(a_run(reason, belongs_to) for _ in range(bad))]


Row = tuple[str, Callable[[], ScaleFacts], Answer | None, str]

ROWS: dict[str, Row] = {
    "no accounts": ("one_profile", lambda: facts(accounts=[], profiles=[]), None, "no account"),
    "an account without a profile": ("one_profile", lambda: facts(profiles=[]), BUT, "without a profile: store_us_018"),
    "an account with two profiles": (
        "one_profile",
        lambda: facts(profiles=[a_profile(), TWIN]),
        YES,
        "jobs of 1 account have to name it",
    ),
    "nothing is leased": ("owner_visible", lambda: facts(leases=[]), YES, "0 profiles leased"),
    "a lease by hand": ("owner_named", lambda: facts(leases=[a_lease(job_id=None)]), YES, "1 of them for no job"),
    "two workers of one name": (
        "owner_named",
        lambda: facts(leases=[a_lease(), a_lease(incarnation="other")]),
        BUT,
        "under one name: worker_07",
    ),
    "renewals are tight": ("lease_renewed", lambda: facts(policy=TIGHT), BUT, "40 s after its last renewal"),
    "a lease is not renewed": (
        "lease_renewed",
        lambda: facts(leases=[a_lease(heartbeat_at=before(31))]),
        BUT,
        "the holder of 1 live lease is silent: profile_018",
    ),
    "a long lease is renewed rarely": (
        "lease_renewed",
        lambda: facts(leases=[a_lease(heartbeat_at=before(31), ttl_ms=120_000, renew_ms=30_000)]),
        YES,
        "renewed every 15 s",
    ),
    "nobody sweeps": (
        "lost_resolved",
        lambda: facts(sweep=SweepFacts(now=NOW, sweep_every=seconds(5), unresolved_since=before(300))),
        NO,
        "Let a sweeper run",
    ),
    "a review is old": (
        "lost_resolved",
        lambda: facts(reviews=2, oldest_review_at=NOW - timedelta(days=9)),
        BUT,
        "2 reviews open, the oldest for 9 days",
    ),
    "a review is new": ("lost_resolved", lambda: facts(reviews=1, oldest_review_at=before(60)), YES, "quarantine 1"),
    "evidence was not saved": (
        "evidence_first",
        lambda: facts(runs=[a_run("EVIDENCE_NOT_SAVED", "worker")]),
        BUT,
        "1 recent run could not be saved",
    ),
    "events go before jobs": (
        "conflicts_logged",
        lambda: facts(retention=Retention(jobs=timedelta(days=30), events=timedelta(days=7))),
        BUT,
        "LEASEKEEPER_KEEP_EVENTS",
    ),
    "events go, jobs stay": (
        "conflicts_logged",
        lambda: facts(retention=Retention(jobs=None, events=timedelta(days=7))),
        BUT,
        "deleted before the jobs",
    ),
    "all stays": ("conflicts_logged", lambda: facts(retention=Retention(jobs=None, events=None)), YES, "each is an"),
    "conflicts are counted": (
        "conflicts_logged",
        lambda: facts(events={EventType.PROFILE_LOCK_CONFLICT: 12}),
        YES,
        "12 in 7 days",
    ),
    "no profiles": ("sharing_chosen", lambda: facts(profiles=[]), None, "no profile"),
    "sharing without sharers": ("sharing_chosen", lambda: facts(profiles=[SHARED]), BUT, "mode 'shared'"),
    "sharing with sharers": (
        "sharing_chosen",
        lambda: facts(profiles=[SHARED], jobs=[a_job(mode=Mode.SHARED)]),
        YES,
        "0 exclusive, 1 shared",
    ),
    "a disposable profile": (
        "sharing_chosen",
        lambda: facts(profiles=[a_profile(max_active_runs=3, disposable=True)]),
        YES,
        "1 disposable",
    ),
    "manual use is accepted": (
        "manual_use",
        lambda: facts(profiles=[a_profile(manual_use=ManualUse.ACCEPT)]),
        BUT,
        "manual_use 'accept': profile_018",
    ),
    "manual use was seen": (
        "manual_use",
        lambda: facts(events={EventType.MANUAL_USE_DETECTED: 2}),
        YES,
        "2 found in 7 days",
    ),
    "failures say nothing": ("failure_owner", lambda: facts(runs=runs(0, 10, "TASK_ERROR")), BUT, "10 of 10"),
    "few failures": ("failure_owner", lambda: facts(runs=runs(0, 9, "TASK_ERROR")), YES, "code 9"),
    "failures say much": ("failure_owner", lambda: facts(runs=runs(0, 10, "TIMEOUT", "page")), YES, "page 10"),
    "jobs are counted": ("job_context", lambda: facts(jobs=[a_job()] * 2), YES, "2 recent jobs"),
    "two profiles of an account": (
        "routing_key",
        lambda: facts(profiles=[a_profile(), TWIN]),
        BUT,
        "may run two at once: store_us_018",
    ),
    "two profiles, one at a time": (
        "routing_key",
        lambda: facts(accounts=[an_account(routing=Routing.ACCOUNT)], profiles=[a_profile(), TWIN]),
        YES,
        "account 1",
    ),
    "a foreign browser": (
        "one_worker",
        lambda: facts(runs=[a_run("PROFILE_IN_USE_ELSEWHERE", "profile")]),
        BUT,
        "open: profile_018",
    ),
    "some runs are lost": ("long_runs", lambda: facts(runs=runs(9, 1, "WORKER_LOST")), BUT, "1 of 10 recent runs"),
    "many runs are lost": ("long_runs", lambda: facts(runs=runs(7, 3, "LEASE_LOST")), NO, "3 of 10 recent runs"),
    "a lost run of few": ("long_runs", lambda: facts(runs=runs(0, 3, "LEASE_LOST")), BUT, "3 of 3 recent runs"),
    "late writes": (
        "late_writes",
        lambda: facts(events={EventType.STALE_WORKER_WRITE_REJECTED: 4}),
        YES,
        "4 refused",
    ),
    "a proxy without a probe": ("readiness", lambda: facts(probes=False), BUT, "LEASEKEEPER_PROBE_URL"),
    "no proxy, no probe": (
        "readiness",
        lambda: facts(probes=False, profiles=[a_profile(proxy_id=None)]),
        YES,
        "checked before",
    ),
    "jobs expect nothing": ("environment", lambda: facts(jobs=[a_job()]), BUT, "1 of 1 recent job"),
    "profiles without environment": (
        "environment",
        lambda: facts(profiles=[a_profile(proxy_id=None, language=None, timezone=None)], jobs=[a_job()]),
        YES,
        "it expects",
    ),
    "retries against the table": (
        "retries",
        lambda: facts(jobs=[a_job(retry=Retry(reasons=("TIMEOUT", "LOGIN_REQUIRED")))]),
        BUT,
        "after LOGIN_REQUIRED",
    ),
    "retries within the table": (
        "retries",
        lambda: facts(jobs=[a_job(retry=Retry(reasons=("TIMEOUT",)))]),
        YES,
        "one table",
    ),
    "a run without a reason": (
        "run_record",
        lambda: facts(runs=[a_run(result=RunResult.FAILED)]),
        NO,
        "run_1",
    ),
    "a run without a routing key": ("run_record", lambda: facts(runs=[a_run(routing_key="")]), NO, "run_1"),
    "runs are deleted soon": (
        "run_record",
        lambda: facts(retention=Retention(jobs=timedelta(days=2), events=None)),
        BUT,
        "deleted after 2 days",
    ),
}
STATUS = {YES: Status.OK, BUT: Status.WARN, NO: Status.FAIL, None: Status.SKIP}
JUDGES = {question.check.id: question.judge for question in QUESTIONS}


@pytest.mark.parametrize("name", ROWS)
def test_a_question_is_answered_from_the_facts(name: str) -> None:
    question, given, answer, words = ROWS[name]
    verdict = JUDGES[question](given())
    assert (verdict.answer, verdict.status) == (answer, STATUS[answer]), verdict
    assert words in f"{verdict.found} {todo_text(verdict)}"
    assert bool(verdict.advice) == (answer in (BUT, NO)), "what is not a plain yes says what to do"


@pytest.mark.parametrize("question", JUDGES)
def test_a_sound_fleet_gets_a_yes(question: str) -> None:
    assert JUDGES[question](facts()).answer is YES


@pytest.mark.parametrize("question", JUDGES)
def test_an_empty_store_is_no_failure(question: str) -> None:
    empty = facts(accounts=[], profiles=[], jobs=[], runs=[], leases=[])
    assert JUDGES[question](empty).answer in (YES, None)


def test_two_objections_are_both_reported() -> None:
    both = JUDGES["lease_renewed"](facts(policy=TIGHT, leases=[a_lease(heartbeat_at=before(55))]))
    assert "before it could try twice; the holder of 1 live lease is silent" in both.found
    assert "LEASEKEEPER_RENEW_EVERY. Find out why" in todo_text(both)
    assert both.steps == (Step.EXPLAIN_PROFILE,)


def test_there_are_nineteen_questions_with_ids_of_their_own() -> None:
    groups = [question.check.group for question in QUESTIONS]
    assert (groups.count(Group.PROFILES), groups.count(Group.QUEUE), len(groups)) == (10, 9, 19)
    ids = [check.id for check in (*CHECKS, *(question.check for question in QUESTIONS))]
    assert len(set(ids)) == len(ids)
