"""The profile state machine against the product's table, on purpose written down a second time here."""

from itertools import product

import pytest

from leasekeeper.core.ids import ProfileId
from leasekeeper.core.profiles import (
    INSPECTABLE,
    TRANSITIONS,
    Cause,
    ProfileState,
    check_transition,
    settle_state,
    worse,
)
from leasekeeper.errors import IllegalTransition

TABLE = """
available       → leased          granted
leased          → available       clean_release
leased          → stale           expired not_proven_closed
leased          → review_required needs_person evidence_not_saved drained
leased          → quarantined     quarantine_trigger drained
leased          → disabled        drained
stale           → quarantined     resolved decided
stale           → review_required resolved decided
stale           → available       resolved
stale           → disabled        decided drained
review_required → available       decided
review_required → disabled        decided
review_required → quarantined     decided
quarantined     → available       decided
quarantined     → disabled        decided
quarantined     → review_required decided
available       → review_required decided
available       → quarantined     decided
available       → disabled        decided
review_required → leased          inspected
quarantined     → leased          inspected
disabled        → leased          inspected
disabled        → available       decided
disabled        → review_required decided
"""

LEGAL = {
    (ProfileState(before), ProfileState(after), Cause(cause))
    for before, _, after, *causes in map(str.split, TABLE.strip().splitlines())
    for cause in causes
}
EVERY_MOVE = list(product(ProfileState, ProfileState, Cause))
PROFILE = ProfileId("profile_018")


@pytest.mark.parametrize(("before", "after", "cause"), EVERY_MOVE)
def test_a_profile_moves_only_as_the_table_says(before: ProfileState, after: ProfileState, cause: Cause) -> None:
    if (before, after, cause) in LEGAL:
        check_transition(PROFILE, before, after, cause)
    else:
        with pytest.raises(IllegalTransition, match=rf"profile_018 is {before} and cannot become {after}"):
            check_transition(PROFILE, before, after, cause)


def test_the_table_holds_nothing_but_these_moves() -> None:
    assert {(*pair, cause) for pair, causes in TRANSITIONS.items() for cause in causes} == LEGAL


def test_no_state_leads_to_itself() -> None:
    assert [pair for pair in TRANSITIONS if pair[0] is pair[1]] == []


def test_only_available_profiles_are_leased_but_for_a_look_inside() -> None:
    into = {before: causes for (before, after), causes in TRANSITIONS.items() if after is ProfileState.LEASED}
    assert into.pop(ProfileState.AVAILABLE) == {Cause.GRANTED}
    assert into == {state: {Cause.INSPECTED} for state in INSPECTABLE}
    assert {REVIEW, QUARANTINE, DISABLED} == INSPECTABLE


def test_an_expiry_never_frees_a_profile() -> None:
    freeing = {
        cause for (_, after), causes in TRANSITIONS.items() if after is ProfileState.AVAILABLE for cause in causes
    }
    assert freeing == {Cause.CLEAN_RELEASE, Cause.RESOLVED, Cause.DECIDED}


def test_a_refused_move_says_which_ones_exist() -> None:
    with pytest.raises(
        IllegalTransition, match="from stale it can become: available, disabled, quarantined, review_req"
    ):
        check_transition(PROFILE, ProfileState.STALE, ProfileState.LEASED, Cause.GRANTED)


REVIEW, QUARANTINE, DISABLED = ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED, ProfileState.DISABLED


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (None, None, None),
        (None, REVIEW, REVIEW),
        (None, QUARANTINE, QUARANTINE),
        (REVIEW, REVIEW, REVIEW),
        (REVIEW, QUARANTINE, QUARANTINE),
        (QUARANTINE, QUARANTINE, QUARANTINE),
    ],
)
def test_of_two_verdicts_the_stricter_one_stands(
    one: ProfileState | None, other: ProfileState | None, expected: ProfileState | None
) -> None:
    assert worse(one, other) is expected
    assert worse(other, one) is expected


@pytest.mark.parametrize(
    ("live", "unresolved", "verdict", "drain", "expected"),
    [
        (0, 0, None, None, ProfileState.AVAILABLE),
        (0, 0, REVIEW, None, REVIEW),
        (0, 0, QUARANTINE, None, QUARANTINE),
        (0, 0, None, DISABLED, DISABLED),
        (0, 0, QUARANTINE, DISABLED, DISABLED),
        (0, 0, None, REVIEW, REVIEW),
        (0, 0, None, QUARANTINE, QUARANTINE),
        (0, 0, QUARANTINE, REVIEW, QUARANTINE),
        (0, 0, REVIEW, QUARANTINE, QUARANTINE),
        (0, 1, None, None, ProfileState.STALE),
        (0, 1, QUARANTINE, None, ProfileState.STALE),
        (0, 1, None, DISABLED, ProfileState.STALE),
        (2, 0, None, None, ProfileState.LEASED),
        (1, 1, QUARANTINE, QUARANTINE, ProfileState.LEASED),
    ],
)
def test_the_facts_about_its_leases_give_the_state(
    live: int, unresolved: int, verdict: ProfileState | None, drain: ProfileState | None, expected: ProfileState
) -> None:
    assert settle_state(live=live, unresolved=unresolved, verdict=verdict, drain=drain) is expected


def test_an_unresolved_ending_never_gives_an_available_profile() -> None:
    states = {
        settle_state(live=live, unresolved=1, verdict=verdict, drain=drain)
        for live, verdict, drain in product((0, 1), (None, REVIEW, QUARANTINE), (None, REVIEW, QUARANTINE, DISABLED))
    }
    assert states == {ProfileState.LEASED, ProfileState.STALE}
