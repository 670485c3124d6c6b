"""What people may decide, in which state, and where it leads."""

from itertools import product
from typing import Any

import pytest

from leasekeeper.core.decisions import (
    ACTIONS,
    BAN_ACTIONS,
    JOB_ACTIONS,
    LEAVES_PAUSE,
    LEAVES_REVIEW,
    MAX_OUTCOME,
    PROFILE_ACTIONS,
    Action,
    Decision,
    Target,
    check_job_action,
    check_profile_of_job,
    problems_of,
    profile_after,
    profile_decided,
)
from leasekeeper.core.jobs import JOB_TRANSITIONS, JobState
from leasekeeper.core.lanes import LaneFacts, draining
from leasekeeper.core.profiles import TRANSITIONS, Because, Cause, ProfileState, StateCause
from leasekeeper.errors import IllegalTransition
from tests.unit.records import NOW, a_job, a_lane, a_profile, an_account

PROFILE_TABLE = """
clear      review_required available
clear      quarantined     available
quarantine available       quarantined
quarantine stale           quarantined
quarantine review_required quarantined
review     available       review_required
review     stale           review_required
review     quarantined     review_required
disable    available       disabled
disable    stale           disabled
disable    review_required disabled
disable    quarantined     disabled
enable     disabled        available
"""
AFTER = {(action, state): after for action, state, after in map(str.split, PROFILE_TABLE.strip().splitlines())}

JOB_TABLE = """
approve scheduled queued blocked
requeue review
cancel  scheduled queued blocked review
retry   dead
drop    dead
prioritize scheduled queued blocked review
"""
ALLOWED = {(action, state) for action, *states in map(str.split, JOB_TABLE.strip().splitlines()) for state in states}


@pytest.mark.parametrize(("action", "state"), list(product(Action, ProfileState)))
def test_a_decision_about_a_profile_leads_where_the_table_says(action: Action, state: ProfileState) -> None:
    after = AFTER.get((action.value, state.value))
    if after is not None:
        assert profile_after("p1", state, action, clean=True) == after
    else:
        with pytest.raises(IllegalTransition, match=f"profile p1 is {state}: cannot {action} it; allowed now: "):
            profile_after("p1", state, action, clean=True)


def test_a_profile_is_enabled_straight_only_if_its_last_ending_was_clean() -> None:
    assert profile_after("p1", ProfileState.DISABLED, Action.ENABLE, clean=True) is ProfileState.AVAILABLE
    assert profile_after("p1", ProfileState.DISABLED, Action.ENABLE, clean=False) is ProfileState.REVIEW_REQUIRED


@pytest.mark.parametrize("state", [ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED])
def test_a_person_may_clear_a_profile_whose_ending_was_not_clean(state: ProfileState) -> None:
    assert profile_after("p1", state, Action.CLEAR, clean=False) is ProfileState.AVAILABLE


def test_a_refused_decision_says_what_is_allowed_instead() -> None:
    with pytest.raises(IllegalTransition, match=r"allowed now: clear, quarantine, disable$"):
        profile_after("p1", ProfileState.REVIEW_REQUIRED, Action.ENABLE, clean=True)


@pytest.mark.parametrize("action", PROFILE_ACTIONS)
@pytest.mark.parametrize("drain", [None, ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED, ProfileState.DISABLED])
def test_a_decision_about_a_leased_profile_says_where_it_goes(action: Action, drain: ProfileState | None) -> None:
    known = LaneFacts(
        lane=a_lane(state=ProfileState.LEASED, drain=drain, drain_reason="as it was"),
        profile=a_profile(),
        account=an_account(),
        proxy=None,
        open=[],
    )
    decision = Decision(target=Target.PROFILE, id="p1", action=action, note="odd", actor="ann")
    why = Because(f"{action} by ann: odd", StateCause.DECIDED, {"action": action.value, "actor": "ann"})
    after = AFTER.get((action.value, (drain or ProfileState.AVAILABLE).value))
    if drain is not None and AFTER.get((action.value, "available")) == drain:
        decided = profile_decided(known, decision, NOW, about_empty_directory=False)
        assert decided == (draining(drain, why), True, None)
    elif after is None:
        words = f"profile p1 is leased.*: cannot {action} it; allowed now, to take effect at the end of the lease: "
        with pytest.raises(IllegalTransition, match=words):
            profile_decided(known, decision, NOW, about_empty_directory=False)
    elif after == "available":
        decided = profile_decided(known, decision, NOW, about_empty_directory=False)
        assert decided == (draining(None, Because("", None)), True, None)
    else:
        decided = profile_decided(known, decision, NOW, about_empty_directory=False)
        assert decided == (draining(ProfileState(after), why), True, None)


def test_people_decide_every_move_that_the_state_machine_leaves_to_them_and_no_other() -> None:
    decided = {pair for pair, causes in TRANSITIONS.items() if Cause.DECIDED in causes}
    moves = {pair for moves in PROFILE_ACTIONS.values() for pair in moves.items()}
    assert moves | {(ProfileState.DISABLED, ProfileState.REVIEW_REQUIRED)} == decided


@pytest.mark.parametrize(("action", "state"), list(product(Action, JobState)))
def test_a_job_is_decided_only_in_the_states_of_the_table(action: Action, state: JobState) -> None:
    if (action.value, state.value) in ALLOWED:
        check_job_action("j1", state, action)
    else:
        with pytest.raises(IllegalTransition, match=f"job j1 is {state}: cannot {action} it; allowed now: "):
            check_job_action("j1", state, action)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState.RUNNING, "revoke its lease"),
        (JobState.COMPLETED, "nothing: it is over"),
        (JobState.REVIEW, "requeue, cancel"),
        (JobState.BLOCKED, "approve, cancel"),
    ],
)
def test_a_refused_decision_about_a_job_says_what_is_allowed_instead(state: JobState, words: str) -> None:
    with pytest.raises(IllegalTransition, match=words):
        check_job_action("j1", state, Action.DROP)


def test_what_people_decide_about_jobs_is_a_legal_move() -> None:
    leads_to = {
        Action.REQUEUE: JobState.QUEUED,
        Action.RETRY: JobState.QUEUED,
        Action.CANCEL: JobState.CANCELLED,
    }
    for action, after in leads_to.items():
        assert [state for state in JOB_ACTIONS[action] if after not in JOB_TRANSITIONS[state]] == []


def test_every_action_is_about_one_kind_of_record() -> None:
    """But for revoke (leases, tokens), pauses (accounts, schedules, the rest), disabling (profiles, endpoints), retry
    (jobs, proxies), bans and notes (accounts, profiles)."""
    listed = [action for actions in ACTIONS.values() for action in actions]
    twice = [
        Action.REVOKE,
        *(Action.PAUSE, Action.RESUME) * 2,
        Action.ENABLE,
        Action.DISABLE,
        Action.RETRY,
        *BAN_ACTIONS,
        Action.NOTE,
    ]
    assert sorted(listed) == sorted([*Action, *twice])
    assert set(ACTIONS) == set(Target)


def decision(action: Action, target: Target = Target.PROFILE, **fields: Any) -> Decision:
    return Decision(**{"target": target, "id": "x1", "action": action, "note": "odd", "actor": "ann", **fields})


COMPLETE = {Action.MOVE: "rack1", Action.PRIORITIZE: "-7"}


@pytest.mark.parametrize(("target", "action"), list(product(Target, Action)))
def test_a_record_has_the_actions_of_the_table_and_no_other(target: Target, action: Action) -> None:
    problems = problems_of(decision(action, target, to=COMPLETE.get(action)))
    assert [problem.where for problem in problems] == ([] if action in ACTIONS[target] else ["action"])


@pytest.mark.parametrize(
    ("action", "to", "fault"),
    [
        (Action.MOVE, None, "name of the machine"),
        (Action.MOVE, "", "name of the machine"),
        (Action.MOVE, "../rack", "name of the machine"),
        (Action.MOVE, "rack1", None),
        (Action.RESTORE, None, None),
        (Action.RESTORE, "", None),
        (Action.RESTORE, "17", None),
        (Action.RESTORE, "-1", "token of a snapshot"),
        (Action.RESTORE, "1" * 19, "token of a snapshot"),
        (Action.PRIORITIZE, None, "new priority"),
        (Action.PRIORITIZE, "1000", None),
        (Action.PRIORITIZE, "-1000", None),
        (Action.PRIORITIZE, "1001", "new priority"),
        (Action.PRIORITIZE, "--1", "new priority"),
        (Action.ANSWER, None, None),
        (Action.ANSWER, "x" * MAX_OUTCOME, None),
        (Action.ANSWER, "x" * (MAX_OUTCOME + 1), "the outcome"),
        (Action.CLEAR, "anything", None),
    ],
)
def test_what_an_action_leads_to_is_checked(action: Action, to: str | None, fault: str | None) -> None:
    (target,) = (target for target, actions in ACTIONS.items() if action in actions)
    found = [(problem.where, problem.message) for problem in problems_of(decision(action, target, to=to))]
    assert (found == []) if fault is None else (len(found) == 1 and found[0][0] == "to" and fault in found[0][1])


def test_a_decision_has_a_note_and_a_name() -> None:
    problems = problems_of(decision(Action.CLEAR, note=" ", actor=""))
    assert [problem.where for problem in problems] == ["note", "actor"]


ANSWERS_REVIEW = """
profile clear quarantine review disable enable restore
job approve requeue cancel retry
"""
FORGETS_PAUSE = "account pause resume ban"


@pytest.mark.parametrize(
    ("table", "leaves", "targets"),
    [
        (ANSWERS_REVIEW, LEAVES_REVIEW, (Target.PROFILE, Target.JOB)),
        (FORGETS_PAUSE, LEAVES_PAUSE, (Target.ACCOUNT,)),
    ],
)
def test_what_a_decision_ends_besides(table: str, leaves: frozenset[Action], targets: tuple[Target, ...]) -> None:
    ends = {target: set(actions) for target, *actions in map(str.split, table.strip().splitlines())}
    for target in targets:
        assert {action.value for action in ACTIONS[target] if action not in leaves} == ends[target]


@pytest.mark.parametrize("action", JOB_ACTIONS)
@pytest.mark.parametrize("declared", [True, False])
def test_a_job_whose_profile_was_removed_can_only_be_dropped(action: Action, declared: bool) -> None:
    job = a_job(state=JobState.DEAD)
    if declared or action is Action.DROP:
        check_profile_of_job(job, action, declared=declared)
        return
    with pytest.raises(IllegalTransition, match=r"declare it again first, or drop the job$") as refused:
        check_profile_of_job(job, action, declared=False)
    error = refused.value
    assert (error.job_id, error.profile_id) == (job.job_id, job.profile_id)
    assert (error.state, error.allowed) == (JobState.DEAD, ("drop",))
