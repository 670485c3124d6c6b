"""The checker must be able to fail: small histories by hand, each with one promise broken, beside sound ones.

Times are seconds. `stops_after` is 10, so a holder believes in its lease for 10 s after the call that renewed it.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.chaos.checker import Call, Contents, Rules, check, read_log

RULES = Rules(stops_after=10, limits={"profile p": 1, "profile q": 2, "pool vendor": 2, "key account:a": 1})


def grant(
    who: str,
    token: int,
    at: float,
    *,
    until: float | None = None,
    profile: str = "p",
    job: str | None = "j1",
    **more: Any,
) -> Call:
    """An answer to a claim that was called at `at` and came at `until`."""
    lease = {"profile": profile, "token": token, "job": job, "shared": False, "key": f"profile:{profile}", "pool": "x"}
    return Call(who, "claim", {}, at, until or at + 1, [{**lease, **more}])


def write(
    who: str, op: str, token: int, at: float, *, profile: str = "p", error: str | None = None, **more: Any
) -> Call:
    return Call(who, op, {"profile": profile, "token": token}, at, at + 1, more, error)


def settle(who: str, token: int, at: float, state: str | None, *, job: str = "j1", error: str | None = None) -> Call:
    args = {"profile": "p", "token": token, "job": job}
    return Call(who, "settle", args, at, at + 1, None if error else {"job_state": state}, error)


def submit(who: str, at: float, job: str, *, key: str | None = None, already: bool = False) -> Call:
    return Call(who, "submit", {}, at, at + 1, [{"job": job, "key": key, "already": already}])


def stored(job: str = "j1", state: str = "completed", **more: Any) -> dict[str, Any]:
    return {"job": job, "state": state, "attempt": 1, "max_attempts": 3, "key": None, "mark": None, **more}


def broken(calls: Iterable[Call], *jobs: dict[str, Any], **contents: Any) -> list[str]:
    return check(calls, Contents(jobs=jobs, **contents), RULES)


SOUND = [
    submit("s", 0, "j1"),
    grant("a", 1, 2),
    write("a", "renew", 1, 5),
    settle("a", 1, 9, "scheduled"),
    grant("b", 2, 11),
    settle("b", 2, 15, "completed"),
]


def test_an_ordinary_history_breaks_nothing() -> None:
    assert broken(SOUND, stored(), endings=(("j1", "completed"),)) == []


def test_nothing_at_all_breaks_nothing() -> None:
    assert broken([]) == []


def assert_only(findings: list[str], start: str) -> None:
    """Exactly this promise was broken."""
    assert findings, f"nothing was found, wanted {start}"
    assert {finding.split(":")[0] for finding in findings} == {start}, findings


# I1: who holds what, and when


def test_a_second_holder_before_the_first_one_stopped_is_found() -> None:
    assert_only(broken([grant("a", 1, 0, job="j1"), grant("b", 2, 8, job="j2")]), "I1")


def test_a_second_holder_after_the_deadline_of_the_first_is_sound() -> None:
    assert broken([grant("a", 1, 0, job="j1"), grant("b", 2, 10, job="j2")]) == []


def test_a_renewal_moves_the_deadline_by_the_time_it_was_sent() -> None:
    renewed = [grant("a", 1, 0, job="j1"), write("a", "renew", 1, 5)]
    assert_only(broken([*renewed, grant("b", 2, 13, job="j2")]), "I1")
    assert broken([*renewed, grant("b", 2, 15, job="j2")]) == []


def test_a_renewal_that_was_refused_or_not_answered_moves_nothing() -> None:
    for error in ("LeaseLost", "StoreUnavailable"):
        history = [grant("a", 1, 0, job="j1"), write("a", "renew", 1, 5, error=error), grant("b", 2, 10, job="j2")]
        assert broken(history) == []
    silent = Call("a", "renew", {"profile": "p", "token": 1}, 5)
    assert broken([grant("a", 1, 0, job="j1"), silent, grant("b", 2, 10, job="j2")]) == []


def test_a_holder_that_sent_its_ending_has_stopped_whatever_the_answer() -> None:
    sent = Call("a", "settle", {"profile": "p", "token": 1, "job": "j1"}, 3)
    assert broken([grant("a", 1, 0, job="j1"), sent, grant("b", 2, 4, job="j2")]) == []


def test_a_grant_whose_answer_came_after_the_deadline_was_never_held() -> None:
    assert (
        broken([grant("a", 1, 0, until=30, job="j1"), grant("b", 2, 20, job="j2"), grant("c", 3, 41, job="j3")]) == []
    )


def test_sharers_may_overlap_up_to_their_number_but_not_with_an_exclusive_one() -> None:
    first = grant("a", 1, 0, profile="q", job="j1", shared=True)
    second = grant("b", 2, 1, profile="q", job="j2", shared=True)
    assert broken([first, second]) == []
    assert_only(broken([first, second, grant("c", 3, 2, profile="q", job="j3", shared=True)]), "I1")
    assert_only(broken([first, grant("b", 2, 1, profile="q", job="j2")]), "I1")
    assert_only(broken([grant("a", 1, 0, profile="q", job="j1"), second]), "I1")


def test_a_pool_and_a_routing_key_have_limits_over_all_profiles() -> None:
    pool = [grant(f"w{n}", 1, n, profile=f"v{n}", job=f"j{n}", pool="vendor") for n in range(3)]
    assert broken(pool[:2]) == []
    assert_only(broken(pool), "I1")
    account = [grant(f"w{n}", 1, n, profile=f"v{n}", job=f"j{n}", key="account:a") for n in range(2)]
    assert broken(account[:1]) == []
    assert_only(broken(account), "I1")


def test_one_job_in_two_profiles_at_once_is_found() -> None:
    assert_only(broken([grant("a", 1, 0, profile="v1", job="j1"), grant("b", 1, 1, profile="v2", job="j1")]), "I1")


# I3: tokens and late writes


def test_a_token_that_is_granted_twice_is_found() -> None:
    assert_only(broken([grant("a", 1, 0), settle("a", 1, 2, "scheduled"), grant("b", 1, 20, job="j2")]), "I3")


def test_a_token_that_goes_down_is_found() -> None:
    assert_only(broken([grant("a", 5, 0), grant("b", 4, 20, job="j2")]), "I3")


def test_tokens_of_grants_that_were_under_way_together_may_come_in_any_order() -> None:
    history = [
        grant("a", 2, 0, until=12, profile="q", shared=True),
        grant("b", 1, 1, profile="q", shared=True, job="j2"),
    ]
    assert broken(history) == []


@pytest.mark.parametrize("op", ["renew", "checkpoint", "enter_section", "leave_section"])
def test_a_write_that_is_accepted_after_a_later_grant_is_found(op: str) -> None:
    grants = [grant("a", 1, 0), grant("b", 2, 20, job="j2")]
    assert_only(broken([*grants, write("a", op, 1, 22)]), "I3")
    assert broken([*grants, write("a", op, 1, 22, error="LeaseLost")]) == []


def test_a_result_that_is_accepted_after_a_later_grant_is_found() -> None:
    history = [grant("a", 1, 0), grant("b", 2, 20, job="j2"), settle("a", 1, 22, "completed")]
    assert_only(broken(history, stored()), "I3")


def test_a_write_that_was_sent_before_the_later_grant_came_is_sound() -> None:
    history = [grant("a", 1, 0), grant("b", 2, 12, until=20, job="j2"), write("a", "renew", 1, 19, error="LeaseLost")]
    assert broken(history) == []


def test_sharers_write_beside_each_other() -> None:
    first = grant("a", 1, 0, profile="q", job="j1", shared=True)
    second = grant("b", 2, 1, profile="q", job="j2", shared=True)
    assert broken([first, second, write("a", "renew", 1, 5, profile="q")]) == []


def test_a_write_that_is_accepted_after_the_lease_was_settled_is_found() -> None:
    assert_only(broken([grant("a", 1, 0), settle("a", 1, 2, "scheduled"), write("a", "checkpoint", 1, 5)]), "I3")


# I4, I5, I8, I9: jobs


def test_an_acknowledged_job_that_is_gone_is_found() -> None:
    assert_only(broken([submit("s", 0, "j1")]), "I4")


def test_a_job_that_was_never_acknowledged_may_be_gone() -> None:
    assert broken([Call("s", "submit", {}, 0)]) == []
    assert broken([Call("s", "submit", {}, 0, 1, None, "StoreUnavailable")]) == []


def test_a_job_that_is_there_twice_is_found() -> None:
    assert_only(broken([submit("s", 0, "j1")], stored(), stored()), "I4")


def test_one_submission_that_became_two_jobs_is_found() -> None:
    assert_only(broken([], stored("j1", mark="s-1"), stored("j2", mark="s-1")), "I4")


def test_a_job_that_is_finished_twice_is_found() -> None:
    history = [
        *SOUND[:-1],
        settle("b", 2, 15, "completed"),
        grant("c", 3, 12, profile="v"),
        settle("c", 3, 13, "completed"),
    ]
    findings = broken(history, stored())
    assert any("again" in finding for finding in findings)


def test_two_final_states_in_the_log_of_events_are_found() -> None:
    assert_only(broken(SOUND, stored(), endings=(("j1", "dead"), ("j1", "completed"))), "I5")


def test_a_job_whose_final_state_was_overwritten_is_found() -> None:
    assert_only(broken(SOUND, stored(state="dead")), "I5")


def test_a_job_that_is_granted_after_it_was_finished_is_found() -> None:
    assert_only(broken([*SOUND, grant("c", 3, 20)], stored()), "I5")


def test_a_job_that_ran_too_often_is_found() -> None:
    history = [grant(f"w{n}", n + 1, n * 20) for n in range(3)]
    assert broken(history, stored(state="review")) == []
    assert_only(broken([*history, grant("z", 4, 60)], stored(state="review")), "I9")
    assert_only(broken([], stored(state="review", attempt=4)), "I9")


def test_one_key_with_two_jobs_is_found() -> None:
    assert_only(
        broken([submit("s", 0, "j1", key="k"), submit("t", 0, "j2", key="k", already=True)], stored(), stored("j2")),
        "I8",
    )
    assert_only(broken([submit("s", 0, "j1", key="k")], stored(key="k"), stored("j2", key="k")), "I8")


def test_one_key_that_was_new_twice_is_found() -> None:
    history = [submit("s", 0, "j1", key="k"), submit("t", 0, "j1", key="k")]
    assert_only(broken(history, stored(key="k")), "I8")


def test_one_key_with_one_job_is_sound() -> None:
    history = [submit("s", 0, "j1", key="k", already=True), submit("t", 0, "j1", key="k")]
    assert broken(history, stored(key="k")) == []


# Lost answers, and several sweepers


def lease(status: str, token: int = 1, who: str = "a") -> dict[str, Any]:
    return {"profile": "p", "token": token, "who": who, "status": status}


def test_a_lease_that_its_holder_never_heard_of_is_found() -> None:
    assert_only(broken([Call("a", "claim", {}, 0, 1, [])], leases=(lease("expired"),)), "I4")


def test_a_lease_may_be_unknown_to_a_holder_whose_answer_was_lost() -> None:
    for call in (Call("a", "claim", {}, 0), Call("a", "claim", {}, 0, 1, None, "StoreUnavailable")):
        assert broken([call], leases=(lease("expired"),)) == []


def test_a_refusal_of_what_was_done_is_found() -> None:
    refused = [grant("a", 1, 0), settle("a", 1, 2, None, error="LeaseLost")]
    assert_only(broken(refused, leases=(lease("released"),)), "I4")
    assert broken(refused, leases=(lease("expired"),)) == []


def test_a_refusal_after_a_lost_answer_is_sound() -> None:
    lost = Call("a", "settle", {"profile": "p", "token": 1, "job": "j1"}, 2)
    history = [grant("a", 1, 0), lost, settle("a", 1, 4, None, error="LeaseLost")]
    assert broken(history, leases=(lease("released"),)) == []


@pytest.mark.parametrize("op", ["expire", "resolve"])
def test_a_lease_that_two_sweepers_ended_is_found(op: str) -> None:
    first, second = (Call(f"s{n}", op, {}, n, n + 1, ["p:1"]) for n in range(2))
    assert broken([first]) == []
    assert_only(broken([first, second]), "I5")


def test_logs_are_read_with_their_torn_ends() -> None:
    calls = read_log(
        [
            '{"who": "a", "n": 1, "op": "claim", "at": 1.0, "args": {}}',
            '{"who": "a", "n": 1, "at": 2.0, "answer": []}',
            '{"who": "a", "n": 2, "op": "claim", "at": 3.0, "args": {}}',
            '{"who": "b", "n": 1, "op": "claim", "at": 3.5, "args": {}}',
            '{"who": "b", "n": 1, "at": 4.0, "error": "StoreUnavailable"}',
            '{"who": "a", "n": 2, "at": 4.0, "ans',
        ]
    )
    assert [(call.who, call.accepted, call.refused, call.open) for call in calls] == [
        ("a", True, False, False),
        ("a", False, False, True),
        ("b", False, False, True),
    ]
