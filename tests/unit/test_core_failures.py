"""The failure table against PRODUCT section 6, row by row."""

import pytest

from leasekeeper.browsers.keeper import reasons as keeper_reasons
from leasekeeper.core.failures import (
    FAILURES,
    BelongsTo,
    Failure,
    ProfileRule,
    Reason,
    RetryRule,
    failure,
    handed_in,
    strictness,
    unknown,
)

TABLE = """
TIMEOUT                    page     yes available
TEMPORARY_NAVIGATION_ERROR page     yes available
BROWSER_LAUNCH_FAILED      browser  yes available
BROWSER_CRASHED            browser  yes available
LOGIN_REQUIRED             account  no  review_required
PROFILE_MISMATCH           profile  no  review_required
PROFILE_DIRECTORY_EMPTY    profile  no  review_required
HUMAN_REVIEW_REQUIRED      workflow no  review_required
SECURITY_PROMPT            account  no  quarantined
ACCOUNT_BANNED             account  no  review_required
PROXY_REGION_MISMATCH      proxy    no  available
PROXY_CHANGED              proxy    no  quarantined
PROXY_UNREACHABLE          proxy    yes available
LAUNCHER_UNAVAILABLE       browser  yes available
SECRET_UNAVAILABLE         worker   yes available
SNAPSHOT_UNAVAILABLE       worker   yes available
PROFILE_IN_USE_ELSEWHERE   profile  no  review_required
VISIBLE_NEEDS_DISPLAY      worker   yes available
MACHINE_UNWELL             worker   yes available
MEMORY_EXCEEDED            page     yes available
WORKER_STOPPED             worker   yes available
MANUAL_USE_DETECTED        profile  no  review_required
PROFILE_CORRUPT            profile  no  quarantined
ACTION_NOT_ALLOWED         workflow no  available
TASK_ERROR                 code     no  available
WORKER_LOST                worker   yes stale
LEASE_LOST                 worker   yes stale
"""

ROWS = [line.split() for line in TABLE.strip().splitlines()]
OF_OUR_OWN = {"PROFILE_NEWER_THAN_BROWSER", "EVIDENCE_NOT_SAVED", "TAKEN_OVER"}


@pytest.mark.parametrize(("reason", "belongs_to", "retry", "profile"), ROWS, ids=[row[0] for row in ROWS])
def test_a_reason_is_treated_as_the_product_says(reason: str, belongs_to: str, retry: str, profile: str) -> None:
    row = failure(reason)
    assert (row.reason, row.belongs_to, row.retry, row.profile) == (reason, belongs_to, retry, profile)


def test_there_are_no_other_reasons_than_the_documented_ones() -> None:
    assert set(FAILURES) == {row[0] for row in ROWS} | OF_OUR_OWN


def test_evidence_that_was_not_saved_needs_a_person() -> None:
    row = failure("EVIDENCE_NOT_SAVED")
    assert (row.retry, row.profile) == (RetryRule.NO, ProfileRule.REVIEW_REQUIRED)


def test_every_row_is_found_under_its_own_reason() -> None:
    assert all(reason == row.reason for reason, row in FAILURES.items())


def test_an_unknown_reason_is_never_retried() -> None:
    row = failure("SOMETHING_ELSE")
    assert (row.reason, row.retry, row.belongs_to) == ("SOMETHING_ELSE", RetryRule.NO, BelongsTo.CODE)


def test_a_project_may_register_a_reason_of_its_own() -> None:
    own = Failure("SHOP_CLOSED", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.AVAILABLE)
    assert failure("SHOP_CLOSED", own) is own


def test_a_project_cannot_soften_a_built_in_reason() -> None:
    softer = Failure("SECURITY_PROMPT", BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE)
    assert failure("SECURITY_PROMPT", softer).profile is ProfileRule.QUARANTINED


def test_a_row_registered_for_another_reason_does_not_count() -> None:
    own = Failure("SHOP_CLOSED", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.AVAILABLE)
    assert failure("SHOP_OPEN", own).retry is RetryRule.NO


def test_a_holders_reason_that_nobody_knows_needs_a_person() -> None:
    own = {"SHOP_CLOSED": Failure("SHOP_CLOSED", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.AVAILABLE)}
    row = handed_in("SHOP_CLOSD", own)
    assert (row.reason, row.retry, row.profile) == ("SHOP_CLOSD", RetryRule.NO, ProfileRule.REVIEW_REQUIRED)
    assert handed_in("SHOP_CLOSED", own) is own["SHOP_CLOSED"]
    assert handed_in("TIMEOUT", own) is FAILURES["TIMEOUT"]


@pytest.mark.parametrize(
    ("reason", "reported"),
    [
        ("LOGIN_REQUIERD", "there is no reason LOGIN_REQUIERD; did you mean LOGIN_REQUIRED?"),
        ("login_required", "there is no reason login_required; did you mean LOGIN_REQUIRED?"),
        ("QQQQ", "there is no reason QQQQ."),
        ("LOGIN_REQUIRED", ""),
    ],
)
def test_what_a_misspelt_reason_may_have_meant(reason: str, reported: str) -> None:
    assert unknown(reason, {}) == reported


def test_a_keeper_gives_reasons_that_the_table_has() -> None:
    names = {name: value for name, value in vars(keeper_reasons).items() if name.isupper()}
    assert names == {name: Reason(name).value for name in names}


def test_every_built_in_reason_has_a_row() -> None:
    assert set(FAILURES) == set(Reason)


def test_only_one_built_in_reason_bans_the_account() -> None:
    assert [reason for reason, row in FAILURES.items() if row.bans] == ["ACCOUNT_BANNED"]


def test_reasons_are_compared_by_how_hard_they_are_on_the_profile() -> None:
    rising = [None, *(FAILURES[name] for name in ("TIMEOUT", "LOGIN_REQUIRED", "LEASE_LOST", "SECURITY_PROMPT"))]
    assert sorted({*rising}, key=strictness) == rising
    assert [row.needs_person for row in rising if row] == [False, True, False, True]
