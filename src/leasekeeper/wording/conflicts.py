"""What to do about conflicts of each cause, in a sentence."""

from collections.abc import Mapping
from typing import Final

from leasekeeper.core.conflicts import ConflictCause

ADVICE: Final[Mapping[str, str]] = {
    ConflictCause.SAME_ACCOUNT_ROUTING: "split the work over more profiles, or declare read-only jobs shared",
    ConflictCause.PREVIOUS_WORKER_LOST: "find out why the worker was lost; the profile waits until that is resolved",
    ConflictCause.LONG_RUN: "split the long task into shorter jobs, or let the others reschedule on conflict",
    ConflictCause.MANUAL_USE: "pause the account while somebody works by hand",
    ConflictCause.PRIORITY: "schedule the less urgent task at another time",
}


def advice(cause: str) -> str:
    """What helps against this cause; empty if nothing is known."""
    return ADVICE.get(cause, "")
