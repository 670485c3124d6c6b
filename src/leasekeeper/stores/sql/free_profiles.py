"""Lists the free profiles of a pool, the one that rested longest first. Reads only: it leases nothing."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Final

from leasekeeper.core.free_profiles import FreeProfile, FreeProfiles, ProfileChoice, has_labels
from leasekeeper.core.homes import is_away
from leasekeeper.core.readiness import Blocked
from leasekeeper.errors import InputError, Problem
from leasekeeper.stores.sql.codec import Row, from_us, load
from leasekeeper.stores.sql.engine import Tx

WINDOW: Final = 500


def find(tx: Tx, choice: ProfileChoice, after: str | None, limit: int) -> FreeProfiles:
    """A page of free profiles. Rows are read in the order of the index; those that do not match are skipped."""
    since, last = _decode_after(after)
    found: list[Row] = []
    matches = _matcher(choice)
    while True:
        (rows,) = tx.read(("rested_profiles", {"pool": choice.pool, "since": since, "after": last, "limit": WINDOW}))
        found += (row for row in rows if matches(row) and not _is_away(row, choice))
        if len(found) > limit or len(rows) < WINDOW:
            break
        since, last = rows[-1]["state_at"], rows[-1]["profile_id"]
    page = found[:limit]
    items = tuple(
        FreeProfile(profile_id=row["profile_id"], account_id=row["account_id"], since_at=from_us(row["state_at"]))
        for row in page
    )
    more = f"{page[-1]['state_at']}:{page[-1]['profile_id']}" if len(found) > limit else None
    return FreeProfiles(items=items, after=more)


def count(tx: Tx, choice: ProfileChoice) -> FreeProfiles:
    """How many profiles match, by what blocks their lanes ("": nothing)."""
    counts: Counter[str] = Counter()
    (rows,) = tx.read(("count_by_blocked_by", {"pool": choice.pool}))
    for row in filter(_matcher(choice), rows):
        away = not row["blocked_by"] and _is_away(row, choice)
        counts[Blocked.HOME if away else row["blocked_by"]] += row["profiles"]
    return FreeProfiles(counts=dict(counts))


def _is_away(row: Row, choice: ProfileChoice) -> bool:
    return is_away(row["home"], choice.machine, saved=bool(row["saved"]))


def _matcher(choice: ProfileChoice) -> Callable[[Row], bool]:
    """A function that says whether a row matches the choice. Many rows have the same labels, which are parsed once."""

    @cache
    def meant(labels: str, tier: str | None) -> bool:
        return has_labels(load(labels), tier, choice.labels)

    return lambda row: not choice.labels or meant(row["labels"], row["tier"])


def _decode_after(after: str | None) -> tuple[int, str]:
    """The time and profile that the previous page ended with. Raises InputError if `after` is not from a page."""
    if after is None:
        return -1, ""
    since, _, last = after.partition(":")
    if not since.isdecimal() or len(since) > 18:
        raise InputError("the list cannot be made", [Problem("after", "must be what an earlier page gave")])
    return int(since), last
