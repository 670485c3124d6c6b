"""Checks of arguments, before the transaction begins: it may be shared with other callers."""

from collections.abc import Iterable, Sequence
from datetime import timedelta

from leasekeeper.core.leases import Mode, Purpose
from leasekeeper.core.settle import Ending
from leasekeeper.errors import InputError, Problem
from leasekeeper.ports import MAX_IN_BATCH, ClaimRequest, LeaseRequest
from leasekeeper.stores.sql.codec import check_structure

SHORTEST_TTL = timedelta(seconds=1)  # the minimum of the setting lease_ttl: a shorter one cannot be renewed in time
LONGEST_TTL = timedelta(days=30)


def check_lease(request: LeaseRequest) -> None:
    problems = []
    if request.ttl is not None and not SHORTEST_TTL <= request.ttl <= LONGEST_TTL:
        bounds = f"must be from {SHORTEST_TTL.total_seconds():g} s to {LONGEST_TTL.days} days"
        problems.append(Problem("ttl", bounds))
    if request.purpose is Purpose.INSPECT and request.mode is not Mode.EXCLUSIVE:
        problems.append(Problem("mode", "must be exclusive to inspect a profile"))
    if problems:
        raise InputError("nothing was leased", problems)


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_IN_BATCH:
        raise InputError("nothing was listed", [Problem("limit", f"must be 1 to {MAX_IN_BATCH}")])


def check_batch(items: Sequence[object], what: str) -> None:
    if len(items) > MAX_IN_BATCH:
        raise InputError("nothing was done", [Problem(what, f"at most {MAX_IN_BATCH} in one call, got {len(items)}")])


def check_claim(request: ClaimRequest) -> None:
    if not 1 <= request.limit <= MAX_IN_BATCH or not request.tasks:
        raise InputError(f"a claim asks for 1 to {MAX_IN_BATCH} jobs of at least one task")


def check_endings(endings: Sequence[Ending]) -> None:
    check_batch(endings, "endings")
    names = ("output", "evidence", "actual", "timings")
    check_storable(
        "nothing was settled",
        ((f"endings[{n}].{name}", getattr(ending, name)) for n, ending in enumerate(endings) for name in names),
    )


def check_storable(message: str, structures: Iterable[tuple[str, object]]) -> None:
    """Raise InputError for values that cannot be stored as JSON or are nested too deep to be read again."""
    problems = []
    for where, value in structures:
        try:
            check_structure(value)
        except (TypeError, ValueError) as error:
            problems.append(Problem(where, f"cannot be kept as JSON: {error}"))
    if problems:
        raise InputError(message, problems)
