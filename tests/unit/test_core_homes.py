"""Where the newest state of a profile is after each ending, and whose workers its jobs are kept for. Tables."""

from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.core.browsers import NULL
from leasekeeper.core.homes import (
    ANYONE,
    directory_after,
    directory_lost,
    homes_of,
    is_away,
    reserved_for,
    store_changed,
    unsaved_on,
)
from leasekeeper.core.ids import AccountId, ProfileId, Token
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot
from tests.unit.records import NOW, a_lease

PROFILE = Profile(profile_id=ProfileId("p1"), account_id=AccountId("shop"))
CLOSED = EndFacts(browser=Browser.CLOSED)
UNPROVEN = EndFacts(browser=Browser.NOT_PROVEN)
HANDED = EndFacts(browser=Browser.HANDED_OVER)
NEW = NewSnapshot(place="p1/9", sha256="", packed_bytes=1, contents_hash="")
CHANGED = DirectoryReport(size_bytes=5)
SAME = DirectoryReport(size_bytes=5, same_as=Token(3))
OLDER = DirectoryReport(size_bytes=5, same_as=Token(2))
FAILED = DirectoryReport(size_bytes=5, problem="no space")


def lane(**fields: Any) -> Lane:
    settings = {"home": "rack1", "reserved_for": "rack1", "snapshot": Token(3), "saved": True, **fields}
    return Lane(profile_id=PROFILE.profile_id, account_id=PROFILE.account_id, state_at=NOW, waiting_at=NOW, **settings)


def lease(**fields: Any) -> Lease:
    return a_lease(**{"token": Token(9), "machine": "rack2", "profile_id": PROFILE.profile_id, **fields})


def ended(**ending: Any) -> Ending:
    return Ending(ref=lease().ref, **{"facts": CLOSED, "engine": 150, **ending})


@pytest.mark.parametrize(
    ("before", "ending", "home", "snapshot", "saved", "reason"),
    [
        (lane(), ended(snapshot=NEW, directory=CHANGED), "rack2", 9, True, ""),
        (lane(snapshot=None, saved=False, home=""), ended(snapshot=NEW, directory=CHANGED), "rack2", 9, True, ""),
        (lane(), ended(directory=SAME), "rack2", 3, True, ""),
        (lane(saved=False, home="rack2", unsaved_reason="x"), ended(directory=SAME), "rack2", 3, True, ""),
        (lane(), ended(directory=OLDER), "rack2", 3, False, ""),
        (lane(), ended(directory=FAILED), "rack2", 3, False, "no space"),
        (lane(), ended(), "rack2", 3, False, ""),
        (lane(), ended(facts=UNPROVEN), "rack2", 3, False, "the browser was not proven closed"),
        (lane(), ended(facts=UNPROVEN, snapshot=NEW), "rack2", 3, False, "the browser was not proven closed"),
        (lane(), ended(facts=HANDED, snapshot=NEW), "rack2", 3, False, ""),
        (lane(), ended(engine=None), "rack1", 3, True, ""),
        (lane(), ended(engine=None, facts=UNPROVEN), "rack2", 3, False, "the browser was not proven closed"),
        # A snapshot that was restored meanwhile has a higher token than the lease: what the run left is older.
        (lane(snapshot=Token(10), home=""), ended(snapshot=NEW, directory=CHANGED), "", 10, True, ""),
    ],
)
def test_the_newest_state_is_where_the_last_run_left_it(
    before: Lane, ending: Ending, home: str, snapshot: int, saved: bool, reason: str
) -> None:
    after = replace(before, **directory_after(before, PROFILE, lease(), ending))  # type: ignore[arg-type]  # names of its fields
    assert (after.home, after.snapshot, after.saved, after.unsaved_reason) == (home, snapshot, saved, reason)


@pytest.mark.parametrize("odd", [{"driver": NULL}, {"disposable": True}])
def test_a_profile_without_a_directory_of_its_own_has_no_newest_one(odd: dict[str, Any]) -> None:
    profile = replace(PROFILE, **odd)
    assert directory_after(lane(), profile, lease(), ended(snapshot=NEW, directory=CHANGED)) == {}
    assert directory_lost(lane(), profile, lease(), LostFacts()) == {}


@pytest.mark.parametrize(
    ("before", "facts", "holder", "home", "saved"),
    [
        (lane(), LostFacts(), {}, "rack2", False),
        (lane(), LostFacts(same_as=Token(3)), {}, "rack2", True),
        (lane(), LostFacts(same_as=Token(2)), {}, "rack2", False),
        (lane(saved=False), LostFacts(same_as=Token(3)), {}, "rack2", False),
        (lane(), LostFacts(), {"purpose": Purpose.API}, "rack1", True),
        (lane(), LostFacts(), {"machine": None}, "rack1", True),
        (lane(snapshot=Token(10), home=""), LostFacts(), {}, "", True),
    ],
)
def test_a_lost_run_has_the_newest_state_unless_its_machine_proves_otherwise(
    before: Lane, facts: LostFacts, holder: dict[str, Any], home: str, saved: bool
) -> None:
    after = replace(before, **directory_lost(before, PROFILE, lease(**holder), facts))  # type: ignore[arg-type]  # names of its fields
    assert (after.home, after.saved) == (home, saved)


@pytest.mark.parametrize(
    ("home", "machine", "saved", "away"),
    [
        ("", "rack1", False, False),
        ("rack1", "rack1", False, False),
        ("rack1", "rack2", False, True),
        ("rack1", "rack2", True, False),
        ("rack1", None, False, False),
    ],
)
def test_only_a_saved_profile_may_be_opened_elsewhere(home: str, machine: str | None, saved: bool, away: bool) -> None:
    assert is_away(home, machine, saved=saved) is away


def test_jobs_are_kept_for_the_home_and_a_restored_profile_is_anybodys() -> None:
    assert [reserved_for("rack1", saved=True), reserved_for("", saved=True), reserved_for("", saved=False)] == [
        "rack1",
        ANYONE,
        "",
    ]
    assert homes_of("rack1") == ["", ANYONE, "rack1"]
    assert homes_of(None) == [""]


def test_another_profile_store_leaves_each_state_at_home_and_a_restored_one_to_the_store() -> None:
    assert unsaved_on(replace(lane(), **store_changed(lane()))) == "rack1"  # type: ignore[arg-type]  # names of its fields
    assert store_changed(lane(home="")) == {}
    assert unsaved_on(lane()) is None
