"""Which snapshots are kept, and which one a profile goes back to first. Tables of the rules."""

from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.core.ids import AccountId, ProfileId, SnapshotId, Token
from leasekeeper.core.snapshots import Snapshot, Verdict, known_good, last_of_each_day, unwanted

NOW = datetime(2026, 3, 9, 12, tzinfo=UTC)
PROFILE = ProfileId("p1")
IN, OUT, UNASKED = Verdict.LOGGED_IN, Verdict.LOGGED_OUT, Verdict.NOT_ASKED


def snapshot(
    token: int, verdict: Verdict = UNASKED, *, hours: float = 0, clean: bool = True, discarded: bool = False
) -> Snapshot:
    return Snapshot(
        snapshot_id=SnapshotId(f"s{token}"),
        profile_id=PROFILE,
        account_id=AccountId("a1"),
        token=Token(token),
        run_id=None,
        created_at=NOW - timedelta(hours=hours),
        size_bytes=1,
        packed_bytes=1,
        sha256="",
        contents_hash="",
        place=f"p1/{token}",
        clean=clean,
        verdict=verdict,
        discarded_at=NOW if discarded else None,
    )


@pytest.mark.parametrize(
    ("snapshots", "token"),
    [
        ([], None),
        ([snapshot(1), snapshot(2)], 2),
        ([snapshot(1, IN), snapshot(2)], 1),
        ([snapshot(1, IN), snapshot(2, IN), snapshot(3, OUT)], 2),
        ([snapshot(1), snapshot(2, OUT)], 1),
        ([snapshot(1, OUT)], None),
        ([snapshot(1), snapshot(2, clean=False)], 1),
        ([snapshot(1, IN), snapshot(2, IN, discarded=True)], 1),
    ],
)
def test_a_profile_goes_back_to_the_last_that_was_logged_in(snapshots: list[Snapshot], token: int | None) -> None:
    found = known_good(reversed(snapshots))
    assert (found and found.token) == token


@pytest.mark.parametrize(
    ("snapshots", "keep", "newest", "gone"),
    [
        ([], 2, None, []),
        ([snapshot(n) for n in (1, 2, 3, 4)], 2, 4, [1, 2]),
        # One for each of the last seven days, whatever `keep` says.
        ([snapshot(n, hours=24 * (10 - n)) for n in range(1, 11)], 1, 10, [1, 2, 3]),
        # Of a day the last one.
        ([snapshot(1, hours=26), snapshot(2, hours=25), snapshot(3)], 1, 3, [1]),
        # The last that was logged in stays, however old.
        ([snapshot(1, IN, hours=900), snapshot(2, IN, hours=800), *(snapshot(n, OUT) for n in (3, 4))], 1, 4, [1, 3]),
        # So does the newest state, if a restore has made an older one the newest.
        ([snapshot(1, OUT, hours=900), snapshot(2), snapshot(3)], 1, 1, [2]),
        # Those that go already are not counted.
        ([snapshot(1), snapshot(2, discarded=True), snapshot(3)], 2, 3, []),
        # A limit of none keeps what is in use.
        ([snapshot(1), snapshot(2)], 0, 2, [1]),
    ],
)
def test_retention_keeps_the_newest_one_a_day_and_the_last_that_was_logged_in(
    snapshots: list[Snapshot], keep: int, newest: int | None, gone: list[int]
) -> None:
    unneeded = unwanted(snapshots, keep=keep, newest=None if newest is None else Token(newest), now=NOW)
    assert [each.token for each in unneeded] == gone


def test_growth_is_shown_by_the_last_size_of_each_day() -> None:
    sizes = [(NOW - timedelta(days=day, minutes=minute), 10 * day + minute) for day in range(9) for minute in (0, 5)]
    assert [size for _, size in last_of_each_day(reversed(sizes))] == [0, 10, 20, 30, 40, 50, 60]
    assert last_of_each_day([]) == []
