"""Why runs fail: one table, as data. Reason → what it belongs to → retry? → what becomes of the profile.

A project may register rows of its own; a reason that no table has is never retried.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leasekeeper.errors import nearest


class BelongsTo(StrEnum):
    PAGE = "page"
    BROWSER = "browser"
    PROFILE = "profile"
    ACCOUNT = "account"
    PROXY = "proxy"
    WORKFLOW = "workflow"
    WORKER = "worker"
    CODE = "code"


class RetryRule(StrEnum):
    YES = "yes"
    UNLESS_SECTION_OPEN = "unless_section_open"
    NO = "no"


class ProfileRule(StrEnum):
    """What the reason by itself does to the profile; the facts of the ending may make it stricter."""

    AVAILABLE = "available"
    BY_FACTS = "by_facts"
    REVIEW_REQUIRED = "review_required"
    QUARANTINED = "quarantined"
    QUARANTINED_IF_PROXY_CHANGED = "quarantined_if_proxy_changed"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Failure:
    """One row: how a run that stopped for this reason is treated."""

    reason: str
    belongs_to: BelongsTo
    retry: RetryRule
    profile: ProfileRule


_ROWS: Final = (
    Failure("TIMEOUT", BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure("TEMPORARY_NAVIGATION_ERROR", BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure("BROWSER_LAUNCH_FAILED", BelongsTo.BROWSER, RetryRule.UNLESS_SECTION_OPEN, ProfileRule.BY_FACTS),
    Failure("BROWSER_CRASHED", BelongsTo.BROWSER, RetryRule.UNLESS_SECTION_OPEN, ProfileRule.BY_FACTS),
    Failure("LOGIN_REQUIRED", BelongsTo.ACCOUNT, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("PROFILE_MISMATCH", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("PROFILE_DIRECTORY_EMPTY", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("HUMAN_REVIEW_REQUIRED", BelongsTo.WORKFLOW, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("SECURITY_PROMPT", BelongsTo.ACCOUNT, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure("PROXY_REGION_MISMATCH", BelongsTo.PROXY, RetryRule.NO, ProfileRule.QUARANTINED_IF_PROXY_CHANGED),
    # Whoever stops a run for this says that it did: the reason is the fact.
    Failure("PROXY_CHANGED", BelongsTo.PROXY, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure("PROXY_UNREACHABLE", BelongsTo.PROXY, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure("PROFILE_IN_USE_ELSEWHERE", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("MANUAL_USE_DETECTED", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("PROFILE_CORRUPT", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure("PROFILE_NEWER_THAN_BROWSER", BelongsTo.PROFILE, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure("ACTION_NOT_ALLOWED", BelongsTo.WORKFLOW, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure("TASK_ERROR", BelongsTo.CODE, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure("EVIDENCE_NOT_SAVED", BelongsTo.WORKER, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure("WORKER_STOPPED", BelongsTo.WORKER, RetryRule.UNLESS_SECTION_OPEN, ProfileRule.AVAILABLE),
    Failure("WORKER_LOST", BelongsTo.WORKER, RetryRule.UNLESS_SECTION_OPEN, ProfileRule.STALE),
    Failure("LEASE_LOST", BelongsTo.WORKER, RetryRule.UNLESS_SECTION_OPEN, ProfileRule.STALE),
)

FAILURES: Final[Mapping[str, Failure]] = {row.reason: row for row in _ROWS}

LOST: Final = frozenset({"WORKER_LOST", "LEASE_LOST"})


def failure(reason: str, registered: Failure | None = None) -> Failure:
    """The row for a reason: the built-in one, else the project's, else 'unknown: no retry'.

    A project cannot soften a built-in reason by registering it again.
    """
    known = FAILURES.get(reason)
    if known is not None:
        return known
    if registered is not None and registered.reason == reason:
        return registered
    return Failure(reason, BelongsTo.CODE, RetryRule.NO, ProfileRule.AVAILABLE)


def handed_in(reason: str, own: Mapping[str, Failure]) -> Failure:
    """The row for a reason that a holder gives, who has registered `own`.

    One that nobody knows may be a misspelt one: then a person looks at the profile before anybody else has it.
    """
    if reason in FAILURES or reason in own:
        return failure(reason, own.get(reason))
    return Failure(reason, BelongsTo.CODE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED)


def unknown(reason: str, own: Mapping[str, Failure]) -> str:
    """What to say of a reason that is neither built in nor registered; nothing, if it is."""
    if reason in FAILURES or reason in own:
        return ""
    meant = nearest(reason, [*FAILURES, *own])
    return f"there is no reason {reason}; did you mean {meant}?" if meant else f"there is no reason {reason}."
