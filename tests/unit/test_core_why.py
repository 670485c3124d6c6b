"""`why`: for every state of a job and of a profile an answer in codes and data, in sentences and in commands."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from leasekeeper.cli.hints import commands_for
from leasekeeper.cli.leases import VIEW as LEASES
from leasekeeper.cli.table import Screen, render_table
from leasekeeper.core.accounts import Limit
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.ids import JobId, LeaseId, RunId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import LeaseStatus, Purpose, RunRecord, RunResult
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Next, Possible, Step
from leasekeeper.core.why_facts import WhyFacts
from leasekeeper.wording import UNBLOCKED_BY, ago, span
from leasekeeper.wording.why import _NOBODY_SENDS, why_text
from tests.unit.records import NOW, a_job, a_lane, a_lease, a_profile, a_proxy, an_account, before, seconds

LOST = a_lease(status=LeaseStatus.EXPIRED, expires_at=before(5), ended_at=before(5), unresolved=True)


def facts(state: ProfileState = ProfileState.AVAILABLE, job: Job | None = None, **changes: Any) -> WhyFacts:
    """What a store would read about the ordinary profile in that state."""
    usual = WhyFacts(
        now=NOW,
        job=job,
        profile=a_profile(),
        account=an_account(),
        proxy=a_proxy(),
        lane=a_lane(state=state, state_reason="" if state is ProfileState.AVAILABLE else "somebody said so"),
        holders=(a_lease(),) if state is ProfileState.LEASED else (),
        key_holders=(),
        unresolved=(LOST,) if state is ProfileState.STALE else (),
        ahead=2,
        waiting=3,
        limit=None,
        pool_leases=0,
        last_run=None,
        reviews=(),
    )
    return replace(usual, **changes)


def a_run(**changes: Any) -> RunRecord:
    """The run of the ordinary lease, after a login form."""
    lease = a_lease()
    usual = RunRecord(
        run_id=lease.run_id,
        job_id=lease.job_id,
        task="sync_orders",
        attempt=1,
        routing_key=lease.routing_key,
        account_id=lease.account_id,
        profile_id=lease.profile_id,
        proxy_id=None,
        worker_id=lease.worker_id,
        lease_id=lease.lease_id,
        token=lease.token,
        purpose=lease.purpose,
        status=LeaseStatus.RELEASED,
        result=RunResult.FAILED,
        stop_reason="LOGIN_REQUIRED",
        acquired_at=lease.acquired_at,
        ended_at=before(180),
    )
    return replace(usual, **changes)


@dataclass(frozen=True, slots=True)
class Explained:
    """An answer as the command line shows it."""

    headline: str
    facts: tuple[tuple[str, str], ...]
    next: tuple[str, ...]
    can: tuple[str, ...]


def reported(facts_read: WhyFacts) -> Explained:
    why = explain(facts_read)
    said = why_text(why)
    return Explained(said.headline, said.facts, said.next, tuple(commands_for(why)))


def text(why: Explained) -> str:
    lines = [f"{name}: {value}" for name, value in why.facts]
    return "\n".join([why.headline, *lines, *why.next, *why.can])


# What each answer about a job must say: the state of its profile, and words of the whole answer.
JOBS: list[tuple[JobState, ProfileState, list[str]]] = [
    (JobState.RUNNING, ProfileState.LEASED, ["is running", "worker_07", "leasekeeper leases revoke lease_1"]),
    (JobState.SCHEDULED, ProfileState.AVAILABLE, ["is due in 3 min", "leasekeeper jobs cancel job_1"]),
    (
        JobState.QUEUED,
        ProfileState.AVAILABLE,
        ["2 job(s) of its profile ahead", "leasekeeper jobs cancel job_1"],
    ),
    (JobState.BLOCKED, ProfileState.LEASED, ["worker_07", "leasekeeper jobs cancel job_1"]),
    (
        JobState.REVIEW,
        ProfileState.AVAILABLE,
        ["waits for a person", "jobs requeue job_1", "jobs cancel job_1"],
    ),
    (JobState.DEAD, ProfileState.AVAILABLE, ["used up its attempts", "dlq retry job_1", "dlq drop job_1"]),
    (JobState.COMPLETED, ProfileState.AVAILABLE, ["is completed", "it is over", "finished: 10 s ago"]),
    (JobState.SKIPPED, ProfileState.AVAILABLE, ["is skipped", "it is over"]),
    (JobState.CANCELLED, ProfileState.AVAILABLE, ["is cancelled", "it is over"]),
]


def test_every_state_of_a_job_is_in_the_table() -> None:
    assert sorted(row[0] for row in JOBS) == sorted(JobState)


@pytest.mark.parametrize(("state", "profile", "words"), JOBS)
def test_why_answers_for_every_state_of_a_job(state: JobState, profile: ProfileState, words: list[str]) -> None:
    job = a_job(state=state, run_at=NOW + seconds(200), finished_at=before(10))
    why = reported(facts(profile, job))
    assert why.headline.startswith("job job_1 ")
    assert why.next
    assert [word for word in words if word not in text(why)] == []


@pytest.mark.parametrize("reason", Blocked)
def test_why_says_each_blocked_reason_with_its_next_step(reason: Blocked) -> None:
    why = reported(facts(job=a_job(state=JobState.BLOCKED, blocked_reason=reason.value)))
    assert why.headline == f"job job_1 is {reason}"
    assert why.next == (UNBLOCKED_BY[reason],)
    assert "leasekeeper jobs cancel job_1 --note …" in why.can


def test_why_offers_to_approve_a_job_that_waits_for_it() -> None:
    why = reported(facts(job=a_job(state=JobState.BLOCKED, blocked_reason=Blocked.APPROVAL)))
    assert "leasekeeper jobs approve job_1 --note …" in why.can


def test_why_counts_the_leases_of_a_full_pool() -> None:
    job = a_job(state=JobState.BLOCKED, blocked_reason=Blocked.CAPACITY)
    why = reported(facts(job=job, limit=Limit(pool="default", max_leases=100), pool_leases=100))
    assert "100 of 100 leases of pool default are taken" in text(why)


def test_why_offers_to_resume_the_paused_account_of_a_blocked_job() -> None:
    job = a_job(state=JobState.BLOCKED, blocked_reason=Blocked.ACCOUNT_PAUSE)
    why = reported(facts(job=job, account=an_account(paused=True)))
    assert "leasekeeper accounts resume store_us_018 --note …" in why.can


def test_why_says_a_job_s_history() -> None:
    why = reported(facts(job=a_job(state=JobState.REVIEW, losses=2, detail="WORKER_LOST: gone", attempt=2)))
    assert "sync_orders, attempt 2 of 3, priority 0" in text(why)
    assert "lost workers: 2" in text(why)
    assert "detail: WORKER_LOST: gone" in text(why)


def test_why_never_shows_a_payload() -> None:
    for state in JobState:
        job = a_job(state=state, payload={"password": "hunter2"}, run_at=NOW, finished_at=NOW)
        assert "hunter2" not in text(reported(facts(ProfileState.LEASED, job)))


PROFILES: list[tuple[ProfileState, list[str]]] = [
    (ProfileState.AVAILABLE, ["its next job starts as soon as a worker is free", "waiting jobs: 3"]),
    (
        ProfileState.LEASED,
        ["worker_07, run run_1 (job)", "token 7", "leasekeeper leases revoke lease_1 --note …"],
    ),
    (
        ProfileState.STALE,
        ["the next sweep quarantines it", "leasekeeper profiles disable profile_018 --note …"],
    ),
    (
        ProfileState.REVIEW_REQUIRED,
        ["a person decides", "profiles clear", "profiles quarantine", "profiles disable"],
    ),
    (ProfileState.QUARANTINED, ["a person decides", "profiles clear", "profiles review", "profiles disable"]),
    (ProfileState.DISABLED, ["a person took it out", "leasekeeper profiles enable profile_018 --note …"]),
]


def test_every_state_of_a_profile_is_in_the_table() -> None:
    assert [row[0] for row in PROFILES] == list(ProfileState)


@pytest.mark.parametrize(("state", "words"), PROFILES)
def test_why_answers_for_every_state_of_a_profile(state: ProfileState, words: list[str]) -> None:
    why = reported(facts(state))
    assert why.headline == f"profile profile_018 is {state}"
    assert why.next
    assert [word for word in words if word not in text(why)] == []
    assert ("because: somebody said so" in text(why)) is (state is not ProfileState.AVAILABLE)


def test_why_names_the_holder_its_heartbeat_and_its_last_step() -> None:
    lines = dict(reported(facts(ProfileState.LEASED, holders=(a_lease(open_section="submit_order"),))).facts)
    assert lines["holder"] == "worker_07, run run_1 (job) of profile profile_018, token 7, since 2 min ago"
    assert lines["heartbeat"] == "10 s ago; lease ends in 50 s"
    assert lines["last safe step"] == "dashboard_open (40 s ago); inside submit_order"


QUIET = a_lease(heartbeat_at=before(90), renew_ms=59_000, expires_at=NOW + seconds(810))


def test_why_notices_a_silent_holder_long_before_its_lease_is_over() -> None:
    profile = reported(facts(ProfileState.LEASED, holders=(QUIET,)))
    assert dict(profile.facts)["heartbeat"] == "90 s ago (silent for 90 s); lease ends in 13 min"
    expires = "if its worker stays silent, lease lease_1 expires in 13 min, then it is resolved"
    assert profile.next == (expires,)
    assert any("leases revoke lease_1" in command for command in profile.can)
    running = reported(
        facts(ProfileState.LEASED, holders=(QUIET,), job=a_job(state=JobState.RUNNING, run_id=QUIET.run_id))
    )
    assert running.next == (expires,)
    waiting = a_job(state=JobState.BLOCKED, blocked_reason=Blocked.PROFILE_LEASE)
    assert expires in reported(facts(ProfileState.LEASED, holders=(QUIET,), job=waiting)).next
    assert expires in reported(facts(key_holders=(QUIET,), job=waiting)).next


def test_the_list_of_leases_notices_a_silent_holder() -> None:
    header, quiet, heard, *_ = render_table(LEASES.columns, [QUIET, a_lease()], NOW, Screen(width=80, colours=False))
    assert "STATUS" in header
    assert "silent for 90 s" in quiet
    assert "running" in heard


def test_why_says_that_nobody_sweeps_when_a_lease_is_over_or_a_job_was_due() -> None:
    over = reported(facts(ProfileState.LEASED, holders=(a_lease(expires_at=NOW - seconds(1)),)))
    assert dict(over.facts)["heartbeat"] == "10 s ago; lease was over 1 s ago"
    assert "nothing sweeps" in text(over)
    assert [command.split("  #")[0] for command in over.can] == ["leasekeeper sweep"]
    due = a_job(state=JobState.SCHEDULED, run_at=NOW - seconds(3))
    late = reported(facts(ProfileState.AVAILABLE, job=due))
    assert "was due 3 s ago" in late.headline
    assert "nothing sweeps" in text(late)


def test_why_says_if_the_holder_has_reached_no_safe_step() -> None:
    fresh = a_lease(last_safe_step=None, last_safe_at=None, purpose=Purpose.MANUAL)
    assert dict(reported(facts(ProfileState.LEASED, holders=(fresh,))).facts)["last safe step"] == "none yet"


def test_why_offers_to_revoke_each_of_several_sharers() -> None:
    sharers = (a_lease(), a_lease(lease_id=LeaseId("lease_2")))
    assert len([c for c in reported(facts(ProfileState.LEASED, holders=sharers)).can if "revoke" in c]) == 2


REVOKED = a_lease(status=LeaseStatus.REVOKED)


@pytest.mark.parametrize(
    ("lease", "then"),
    [
        ({}, "the next sweep quarantines it (release policy quarantine)"),
        ({"open_section": "pay"}, "the next sweep quarantines it: pay was open"),
        (
            {"release_policy": ReleasePolicy.RECOVER},
            "recovery is decided by the first sweep after the lock-delay, in 65 s",
        ),
    ],
)
def test_why_says_what_becomes_of_a_revoked_lease_and_does_not_offer_to_revoke_it(
    lease: dict[str, Any], then: str
) -> None:
    holders = (replace(REVOKED, **lease),)
    said = "lease lease_1 was revoked: its profile stays leased until it expires, in 50 s"
    blocked = a_job(state=JobState.BLOCKED, blocked_reason=Blocked.PROFILE_LEASE)
    for job in (None, a_job(), blocked):
        why = reported(facts(ProfileState.LEASED, job, holders=holders))
        assert why.next == (said, then)
        assert not [command for command in why.can if "revoke" in command]
        assert dict(why.facts)["heartbeat"] == "10 s ago; lease revoked, ends in 50 s"


def test_why_distinguishes_a_revoked_lease_from_those_that_share_its_profile() -> None:
    other = a_lease(lease_id=LeaseId("lease_2"), run_id=RunId("run_2"))
    why = reported(facts(ProfileState.LEASED, holders=(REVOKED, other)))
    assert why.next[2] == "its other runs go on; it stays leased until the last of them has ended"
    assert why.can == ("leasekeeper leases revoke lease_2 --note …",)
    # The job of the other run is not the one whose lease was taken away.
    running = reported(facts(ProfileState.LEASED, a_job(run_id=RunId("run_2")), holders=(REVOKED, other)))
    assert "it ends by itself" in running.next[0]
    assert running.can == ("leasekeeper leases revoke lease_2 --note …",)


def test_why_says_if_the_time_of_a_revoked_lease_is_up() -> None:
    over = reported(facts(ProfileState.LEASED, a_job(), holders=(replace(REVOKED, expires_at=before(1)),)))
    assert over.next == (
        "lease lease_1 was revoked and has expired",
        "the next sweep quarantines it (release policy quarantine)",
    )


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        ({"release_policy": ReleasePolicy.QUARANTINE}, "quarantines it (release policy quarantine)"),
        ({"release_policy": ReleasePolicy.REVIEW}, "sends it to review"),
        ({"release_policy": ReleasePolicy.RECOVER}, "after the lock-delay, in 10 s"),
        ({"release_policy": ReleasePolicy.RECOVER, "open_section": "pay"}, "pay was open"),
    ],
)
def test_why_says_how_a_stale_profile_will_be_resolved(lease: dict[str, Any], words: str) -> None:
    why = reported(facts(ProfileState.STALE, unresolved=(replace(LOST, **lease),)))
    assert words in "\n".join(why.next)


def test_why_names_a_pause_and_of_a_drain() -> None:
    paused = an_account(paused=True, pause_note="ban wave")
    why = reported(facts(account=paused, lane=a_lane(drain=ProfileState.DISABLED, drain_reason="disable by ann: old")))
    assert "store_us_018 (paused)" in text(why)
    assert "paused because: ban wave" in text(why)
    assert "its jobs wait until the account is resumed" in why.next
    assert "leasekeeper accounts resume store_us_018 --note …" in why.can
    assert "draining" in dict(why.facts)


def test_why_names_the_run_of_the_same_account_that_is_waited_for() -> None:
    other = a_lease(run_id=RunId("run_9"), profile_id="profile_019")
    why = reported(facts(key_holders=(other,), lane=a_lane(waits_on="account:store_us_018")))
    assert why.next == ("its next job starts when run run_9 of the same account ends",)


@pytest.mark.parametrize("reason", [Blocked.NO_WORKER, Blocked.CAPACITY, Blocked.APPROVAL])
def test_why_says_what_the_next_job_of_a_free_profile_waits_for(reason: Blocked) -> None:
    why = reported(facts(next_job=a_job(state=JobState.BLOCKED, blocked_reason=reason.value)))
    assert why.next == (f"its next job (sync_orders in pool default) is {reason}: {UNBLOCKED_BY[reason]}",)
    assert why.can == ("leasekeeper why job job_1",)
    ready = reported(facts(next_job=a_job(state=JobState.QUEUED)))
    assert ready.next == ("its next job starts as soon as a worker is free",)


def test_why_names_the_command_that_starts_a_worker() -> None:
    why = reported(facts(job=a_job(state=JobState.BLOCKED, blocked_reason=Blocked.NO_WORKER.value, pool="night")))
    assert any(command.startswith("leasekeeper up TASKS --pool night") for command in why.can)


def test_why_says_if_nothing_waits() -> None:
    assert reported(facts(waiting=0)).next == ("nothing waits for it",)


def test_why_says_how_the_last_run_ended() -> None:
    line = "run_1 by worker_07, failed 3 min ago (LOGIN_REQUIRED)"
    assert dict(reported(facts(ProfileState.AVAILABLE, last_run=a_run())).facts)["last run"] == line
    # A job has its own last run: its profile may have had another since.
    other = a_run(run_id=RunId("run_9"))
    why = reported(facts(job=a_job(state=JobState.SCHEDULED), job_run=a_run(), last_run=other))
    assert dict(why.facts)["last run"] == line


@pytest.mark.parametrize("state", [ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED])
def test_why_shows_the_evidence_first_where_a_person_decides(state: ProfileState) -> None:
    other = a_run(run_id=RunId("run_9"))
    assert reported(facts(state, last_run=other)).can[0] == "leasekeeper runs show run_9"
    blocked = a_job(state=JobState.BLOCKED, run_id=None)
    assert reported(facts(state, blocked, last_run=other)).can[0] == "leasekeeper runs show run_9"
    review = reported(facts(state, a_job(state=JobState.REVIEW), job_run=a_run(), last_run=other))
    assert review.can[:2] == ("leasekeeper runs show run_1", "leasekeeper runs show run_9")
    same = reported(facts(state, a_job(state=JobState.REVIEW), job_run=a_run(), last_run=a_run()))
    assert len([command for command in same.can if "runs show" in command]) == 1


def test_why_shows_the_evidence_of_a_job_whose_profile_is_well() -> None:
    for state in (JobState.REVIEW, JobState.DEAD):
        why = reported(facts(job=a_job(state=state), job_run=a_run(), last_run=a_run(run_id=RunId("run_9"))))
        assert [command for command in why.can if "runs show" in command] == ["leasekeeper runs show run_1"]
        assert why.can[0] == "leasekeeper runs show run_1"


def test_why_warns_beside_requeue_of_a_section_that_may_have_gone_through() -> None:
    for section, caution in (("pay", "  # pay may have gone through: check the site before"), (None, "")):
        why = reported(facts(job=a_job(state=JobState.REVIEW), job_run=a_run(open_section=section)))
        assert f"leasekeeper jobs requeue job_1 --note …{caution}" in why.can


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (0, "0 s"),
        (1.9, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_a_span_is_reported_in_the_unit_that_people_use(length: float, words: str) -> None:
    assert span(seconds(length)) == words
    assert ago(before(length), NOW) == f"{words} ago"


def test_what_lies_ahead_is_reported() -> None:
    assert ago(NOW + seconds(5), NOW) == "in 5 s"


def a_delivery(**changes: Any) -> Delivery:
    usual = Delivery(
        delivery_id="d1",
        job_id=JobId("job_1"),
        type="job.completed",
        url="https://hook.test/?key=hunter2",
        host="hook.test",
        body={},
        created_at=before(600),
        due_at=before(10),
    )
    return replace(usual, **changes)


OVER = "nothing: it is over"


@pytest.mark.parametrize(
    ("changes", "line", "next_steps", "replay"),
    [
        (
            {"state": DeliveryState.DELIVERED, "ended_at": before(5)},
            "job.completed was delivered 5 s ago",
            (OVER,),
            False,
        ),
        (
            {"state": DeliveryState.EXHAUSTED, "attempts": 10, "answer": "HTTP 503", "ended_at": before(5)},
            "job.completed was given up after 10 tries: HTTP 503",
            (OVER,),
            True,
        ),
        ({}, "job.completed is not sent yet", (OVER, "its webhook is sent now"), False),
        (
            {"due_at": before(300)},
            "job.completed is not sent yet",
            (OVER, f"its webhook was due 5 min ago. {_NOBODY_SENDS}"),
            False,
        ),
        ({"due_at": before(-400)}, "job.completed is not sent yet", (OVER, "its webhook is sent in 6 min"), True),
        (
            {"attempts": 8, "spent": 7, "answer": "HTTP 503", "due_at": before(-20)},
            "job.completed is not delivered after 1 try: HTTP 503",
            (OVER, "its webhook is sent in 20 s"),
            True,
        ),
        (
            {"attempts": 2, "due_at": before(7200)},
            "job.completed is not delivered after 2 tries",
            (OVER, f"its webhook was due 2 h ago. {_NOBODY_SENDS}"),
            False,
        ),
    ],
)
def test_why_says_what_became_of_the_webhook(
    changes: dict[str, Any], line: str, next_steps: tuple[str, ...], replay: bool
) -> None:
    delivery = a_delivery(**changes)
    why = reported(facts(job=a_job(state=JobState.COMPLETED), webhooks=(delivery,)))
    assert ("webhook", line) in why.facts
    assert why.next == next_steps
    assert ("leasekeeper webhooks replay d1 --note …" in why.can) is replay
    assert "hunter2" not in text(why)


def test_why_distinguishes_a_webhook_that_waits_its_turn_from_one_that_nobody_sends() -> None:
    late = a_delivery(due_at=before(300))
    turn = "It waits its turn behind others to hook.test"
    for tried, said in ((None, _NOBODY_SENDS), (300, _NOBODY_SENDS), (9, turn)):
        tried_at = None if tried is None else before(tried)
        why = reported(facts(job=a_job(state=JobState.COMPLETED), webhooks=(late,), webhooks_tried_at=tried_at))
        assert why.next[-1] == f"its webhook was due 5 min ago. {said}"


def test_an_answer_is_codes_ids_and_times() -> None:
    lease = replace(REVOKED, release_policy=ReleasePolicy.RECOVER)
    why = explain(facts(ProfileState.LEASED, a_job(), holders=(lease,)))
    assert (why.target, why.id, why.state, why.now) == (Target.JOB, "job_1", JobState.RUNNING, NOW)
    assert why.next == (
        Step(code=Next.LEASE_REVOKED, lease_id=lease.lease_id, at=lease.expires_at),
        Step(code=Next.SWEEP_RECOVERS, lease_id=lease.lease_id, at=lease.expires_at + seconds(15)),
    )
    (holder,) = why.holders
    assert (holder.worker_id, holder.heartbeat_at, holder.expires_at) == ("worker_07", before(10), lease.expires_at)


def test_what_a_person_can_do_is_an_action_on_a_target() -> None:
    job = a_job(state=JobState.REVIEW)
    why = explain(facts(ProfileState.QUARANTINED, job, job_run=a_run(open_section="pay"), last_run=a_run()))
    assert why.possible == (
        Possible(target=Target.JOB, id="job_1", action=Action.REQUEUE, section="pay"),
        Possible(target=Target.JOB, id="job_1", action=Action.CANCEL),
        *(
            Possible(target=Target.PROFILE, id="profile_018", action=action)
            for action in (Action.CLEAR, Action.REVIEW, Action.DISABLE)
        ),
    )
    assert why.evidence == ("run_1",)


@pytest.mark.parametrize("code", Next)
def test_every_next_step_is_worded(code: Next) -> None:
    step = Step(code=code, at=NOW, reason=Blocked.CAPACITY, lease_id=LeaseId("lease_1"), run_id=RunId("run_1"))
    for job in (None, a_job()):
        (said,) = why_text(replace(explain(facts(job=job)), next=(step,))).next
        assert said != code
        assert "None" not in said.replace("None in pool None", "").replace("others to None", "")
