"""How a run came to its end, decided from what the worker saw."""

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.app import App, Run, Signal, Task
from leasekeeper.core.browsers import BrowserReport, EndCause, LaunchRefusal, Proof
from leasekeeper.core.classify import Facts
from leasekeeper.core.failures import ProfileRule, RetryRule, failure
from leasekeeper.core.settle import Browser
from leasekeeper.errors import Fail, LeaseLost
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime.endings import (
    Outcome,
    end_facts,
    outcome_of_error,
    outcome_of_result,
    strictest,
    unopened_facts,
)

CLEAN = Proof(clauses={"graceful": True, "processes_gone": True})
KILLED = Proof(
    clauses={"graceful": False, "processes_gone": True},
    failing_clause="the browser did not close and was killed (SIGKILL)",
)
ALIVE = Proof(
    clauses={"graceful": False, "processes_gone": False}, failing_clause="processes of the browser are still alive"
)

# A program that cannot run at all, for want of a library.
LEFT_NOTHING = replace(KILLED, failing_clause="the browser ended by itself (exit code 127)")
REFUSED = LaunchRefusal(reason="BROWSER_LAUNCH_FAILED", message="m")


def report(proof: Proof = CLEAN, **changes: Any) -> BrowserReport:
    fields: dict[str, Any] = {
        "profile_id": "p",
        "run_id": "r",
        "lease_id": "p:1",
        "token": 1,
        "refused": None,
        "cause": EndCause.CLOSED,
        "stopped_by": "Browser.close",
        "exit_code": 0,
        "signal": None,
        "proof": proof,
        "untouched": False,
        "final_url": None,
        "screenshot": None,
        "commands": (),
        "started_at": 1.0,
        "ended_at": 2.0,
        "revoke_reason": "",
    }
    return BrowserReport(**{**fields, **changes})


async def nothing(run: Run) -> None:
    """A task that does nothing."""


def task(**options: Any) -> Task:
    app = App()
    app.task("t", **options)(nothing)
    return app.tasks["t"]


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (Fail("LOGIN_REQUIRED", "form"), "LOGIN_REQUIRED", True),
        (LeaseLost("gone"), "LEASE_LOST", False),
        (EvidenceNotSaved(28, "full"), "EVIDENCE_NOT_SAVED", False),
        (ValueError("x"), "TASK_ERROR", False),
    ],
)
def test_what_an_exception_means(error: Exception, reason: str, said: bool) -> None:
    found = outcome_of_error(error, task(), facts=Facts(), redact=str)
    assert (found.reason, found.said, found.retry) == (reason, said, False)


def test_a_secret_across_the_end_of_a_long_message_is_not_kept() -> None:
    error = ValueError("x" * 290 + "correct-horse-battery")
    found = outcome_of_error(error, task(), facts=Facts(), redact=Redactor(["correct-horse-battery"]).text)
    assert "correct" not in found.message


def test_an_error_of_its_own_is_tried_again_if_the_task_says_so() -> None:
    assert outcome_of_error(KeyError("x"), task(retry=True), facts=Facts(), redact=str).retry
    assert outcome_of_error(KeyError("x"), task(retry=(KeyError,)), facts=Facts(), redact=str).retry
    assert not outcome_of_error(ValueError("x"), task(retry=(KeyError,)), facts=Facts(), redact=str).retry


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, None),
        ({"a": 1}, None),
        ([1], "TASK_ERROR"),
        ("x", "TASK_ERROR"),
        ({"when": object()}, "TASK_ERROR"),
        ({"n": float("nan")}, "TASK_ERROR"),
        ({"big": "x" * 2_000_000}, "TASK_ERROR"),
    ],
)
def test_a_task_returns_a_mapping_or_nothing(result: object, reason: str | None) -> None:
    assert outcome_of_result(result).reason == reason


def test_a_result_that_is_nested_too_deep_is_the_task_s_error() -> None:
    deep: object = "leaf"
    for _ in range(700):
        deep = [deep]
    outcome = outcome_of_result({"found": deep})
    assert outcome.reason == "TASK_ERROR"
    assert "nested more than 32 levels deep" in outcome.message
    assert outcome_of_result({"found": [[["leaf"]]]}).reason is None


@pytest.mark.parametrize(
    ("outcome", "signals", "reason"),
    [
        (None, [], None),
        (None, ["LOGIN_REQUIRED"], "LOGIN_REQUIRED"),
        ("TIMEOUT", ["ACTION_NOT_ALLOWED"], "ACTION_NOT_ALLOWED"),
        ("TIMEOUT", ["LOGIN_REQUIRED"], "LOGIN_REQUIRED"),
        ("LOGIN_REQUIRED", ["SECURITY_PROMPT"], "SECURITY_PROMPT"),
        ("SECURITY_PROMPT", ["LOGIN_REQUIRED"], "SECURITY_PROMPT"),
        ("PROXY_CHANGED", ["LOGIN_REQUIRED"], "PROXY_CHANGED"),
        (None, ["ACTION_NOT_ALLOWED", "SECURITY_PROMPT", "LOGIN_REQUIRED"], "SECURITY_PROMPT"),
        ("TIMEOUT", ["LOGIN_REQUIERD", "ACTION_NOT_ALLOWED"], "LOGIN_REQUIERD"),
    ],
)
def test_of_several_reasons_the_hardest_on_the_profile_counts(
    outcome: str | None, signals: list[str], reason: str | None
) -> None:
    assert strictest(Outcome(reason=outcome), [Signal(name) for name in signals], {}).reason == reason


def test_a_reason_that_nobody_registered_says_so_and_needs_a_person() -> None:
    app = App()
    app.reason("OUT_OF_STOCK")
    misspelt = Outcome(reason="OUT_OF_STOK", message="none left")
    row = misspelt.row(app.reasons)
    assert row is not None
    assert (row.reason, row.retry, row.profile) == ("OUT_OF_STOK", RetryRule.NO, ProfileRule.REVIEW_REQUIRED)
    doubt = "there is no reason OUT_OF_STOK; did you mean OUT_OF_STOCK? "
    doubt += "Reasons of your own are registered with app.reason"
    assert misspelt.full_message(app.reasons) == f"none left ({doubt})"
    assert replace(misspelt, message="").full_message(app.reasons) == doubt


@pytest.mark.parametrize("reason", [None, "TIMEOUT", "OUT_OF_STOCK"])
def test_of_a_known_reason_nothing_more_is_said(reason: str | None) -> None:
    app = App()
    app.reason("OUT_OF_STOCK")
    outcome = Outcome(reason=reason, message="m")
    assert outcome.full_message(app.reasons) == "m"
    assert outcome.row(app.reasons) == (failure(reason, app.reasons.get(reason)) if reason else None)


def test_a_reason_that_is_no_text_does_not_pass_for_success() -> None:
    nothing_named: Any = None
    assert outcome_of_error(Fail(nothing_named), task(), facts=Facts(), redact=str).reason == "None"


FACTS: list[tuple[BrowserReport | None, dict[str, Any], Browser, str | None]] = [
    (report(), {}, Browser.CLOSED, "u"),
    (report(KILLED), {}, Browser.NOT_PROVEN, "u"),
    (report(Proof(clauses={})), {}, Browser.NOT_PROVEN, "u"),
    (report(replace(CLEAN, clauses={"processes_gone": True, "lock_gone": False})), {}, Browser.NOT_PROVEN, "u"),
    (None, {}, Browser.NOT_PROVEN, "u"),
    (report(final_url="k"), {"final_url": None}, Browser.CLOSED, "k"),
    (report(), {"final_url": None}, Browser.CLOSED, None),
    (report(KILLED), {"throwaway": True}, Browser.CLOSED, "u"),
    (report(ALIVE), {"throwaway": True}, Browser.NOT_PROVEN, "u"),
    (report(KILLED), {"opened": False, "final_url": None}, Browser.NOT_PROVEN, "about:blank"),
    (report(), {"opened": False, "final_url": None}, Browser.CLOSED, "about:blank"),
    (report(refused=REFUSED, started_at=None), {"opened": False}, Browser.NONE, "u"),
    (report(LEFT_NOTHING, refused=REFUSED, untouched=True), {"opened": False}, Browser.NONE, "u"),
    (report(LEFT_NOTHING, refused=REFUSED), {"opened": False}, Browser.NOT_PROVEN, "u"),
    (report(LEFT_NOTHING), {"opened": False}, Browser.NOT_PROVEN, "u"),
    (report(KILLED, refused=REFUSED), {"opened": False}, Browser.NOT_PROVEN, "u"),
    (report(ALIVE, refused=REFUSED), {"opened": False, "throwaway": True}, Browser.NOT_PROVEN, "u"),
]


@pytest.mark.parametrize(("said", "changes", "browser", "url"), FACTS)
def test_the_keepers_word_decides_what_is_proven(
    said: BrowserReport | None, changes: dict[str, Any], browser: Browser, url: str | None
) -> None:
    given: dict[str, Any] = {
        "final_url": "u", "opened": True, "throwaway": False, "evidence_saved": True, "proxy_changed": False,
    }  # fmt: skip
    facts = end_facts(said, **{**given, **changes})
    assert (facts.browser, facts.final_url) == (browser, url)
    assert bool(facts.failing_clause) == (browser is Browser.NOT_PROVEN)


UNOPENED: list[tuple[BrowserReport | None, bool, Browser, bool]] = [
    (None, False, Browser.NONE, False),
    (None, True, Browser.NOT_PROVEN, True),
    (report(KILLED), True, Browser.NOT_PROVEN, True),
    (report(), True, Browser.CLOSED, False),
    (report(refused=REFUSED, started_at=None), True, Browser.NONE, False),
    (report(KILLED, refused=REFUSED), True, Browser.NOT_PROVEN, True),
]


@pytest.mark.parametrize(("said", "begun", "browser", "doubt"), UNOPENED)
def test_a_run_that_did_not_start_has_nothing_to_prove_unless_a_keeper_was_there(
    said: BrowserReport | None, begun: bool, browser: Browser, doubt: bool
) -> None:
    facts = unopened_facts(said, begun=begun, final_url=None, throwaway=False, evidence_saved=True)
    assert (facts.browser, bool(facts.failing_clause)) == (browser, doubt)
