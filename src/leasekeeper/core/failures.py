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


class Reason(StrEnum):
    """Every built-in reason why a run stops. A project adds its own as plain text, by `app.reason`."""

    TIMEOUT = "TIMEOUT"
    TEMPORARY_NAVIGATION_ERROR = "TEMPORARY_NAVIGATION_ERROR"
    BROWSER_LAUNCH_FAILED = "BROWSER_LAUNCH_FAILED"
    BROWSER_CRASHED = "BROWSER_CRASHED"
    MEMORY_EXCEEDED = "MEMORY_EXCEEDED"
    LOGIN_REQUIRED = "LOGIN_REQUIRED"
    PROFILE_MISMATCH = "PROFILE_MISMATCH"
    PROFILE_DIRECTORY_EMPTY = "PROFILE_DIRECTORY_EMPTY"
    HUMAN_REVIEW_REQUIRED = "HUMAN_REVIEW_REQUIRED"
    SECURITY_PROMPT = "SECURITY_PROMPT"
    ACCOUNT_BANNED = "ACCOUNT_BANNED"
    PROXY_REGION_MISMATCH = "PROXY_REGION_MISMATCH"
    PROXY_CHANGED = "PROXY_CHANGED"
    PROXY_UNREACHABLE = "PROXY_UNREACHABLE"
    LAUNCHER_UNAVAILABLE = "LAUNCHER_UNAVAILABLE"
    SECRET_UNAVAILABLE = "SECRET_UNAVAILABLE"  # noqa: S105 - the name of a reason
    SNAPSHOT_UNAVAILABLE = "SNAPSHOT_UNAVAILABLE"
    PROFILE_IN_USE_ELSEWHERE = "PROFILE_IN_USE_ELSEWHERE"
    MANUAL_USE_DETECTED = "MANUAL_USE_DETECTED"
    PROFILE_CORRUPT = "PROFILE_CORRUPT"
    PROFILE_NEWER_THAN_BROWSER = "PROFILE_NEWER_THAN_BROWSER"
    ACTION_NOT_ALLOWED = "ACTION_NOT_ALLOWED"
    TAKEN_OVER = "TAKEN_OVER"
    TASK_ERROR = "TASK_ERROR"
    EVIDENCE_NOT_SAVED = "EVIDENCE_NOT_SAVED"
    VISIBLE_NEEDS_DISPLAY = "VISIBLE_NEEDS_DISPLAY"
    MACHINE_UNWELL = "MACHINE_UNWELL"
    WORKER_STOPPED = "WORKER_STOPPED"
    WORKER_LOST = "WORKER_LOST"
    LEASE_LOST = "LEASE_LOST"


class RetryRule(StrEnum):
    """Whether a run that stopped for this reason is retried by itself. A mutation that may have
    been done never is: see `settle`."""

    YES = "yes"
    NO = "no"


class ProfileRule(StrEnum):
    """What the reason by itself does to the profile; the facts of the ending may make it stricter. From lenient to
    strict."""

    AVAILABLE = "available"
    REVIEW_REQUIRED = "review_required"
    STALE = "stale"
    QUARANTINED = "quarantined"


_STRICTNESS: Final = {rule: place for place, rule in enumerate(ProfileRule)}


@dataclass(frozen=True, slots=True)
class Failure:
    """One row: how a run that stopped for this reason is treated. `bans`: the account is banned, and so paused."""

    reason: str
    belongs_to: BelongsTo
    retry: RetryRule
    profile: ProfileRule
    bans: bool = False

    @property
    def needs_person(self) -> bool:
        """Whether a person has to check the profile before the next run."""
        return self.profile in (ProfileRule.REVIEW_REQUIRED, ProfileRule.QUARANTINED)


_ROWS: Final = (
    Failure(Reason.TIMEOUT, BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.TEMPORARY_NAVIGATION_ERROR, BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.BROWSER_LAUNCH_FAILED, BelongsTo.BROWSER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.BROWSER_CRASHED, BelongsTo.BROWSER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.MEMORY_EXCEEDED, BelongsTo.PAGE, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.LOGIN_REQUIRED, BelongsTo.ACCOUNT, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.PROFILE_MISMATCH, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.PROFILE_DIRECTORY_EMPTY, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.HUMAN_REVIEW_REQUIRED, BelongsTo.WORKFLOW, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.SECURITY_PROMPT, BelongsTo.ACCOUNT, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure(Reason.ACCOUNT_BANNED, BelongsTo.ACCOUNT, RetryRule.NO, ProfileRule.REVIEW_REQUIRED, bans=True),
    Failure(Reason.PROXY_REGION_MISMATCH, BelongsTo.PROXY, RetryRule.NO, ProfileRule.AVAILABLE),
    # A run that stops for this reason reports the change itself: no other fact is needed.
    Failure(Reason.PROXY_CHANGED, BelongsTo.PROXY, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure(Reason.PROXY_UNREACHABLE, BelongsTo.PROXY, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.LAUNCHER_UNAVAILABLE, BelongsTo.BROWSER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.SECRET_UNAVAILABLE, BelongsTo.WORKER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.SNAPSHOT_UNAVAILABLE, BelongsTo.WORKER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.PROFILE_IN_USE_ELSEWHERE, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.MANUAL_USE_DETECTED, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.PROFILE_CORRUPT, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.QUARANTINED),
    Failure(Reason.PROFILE_NEWER_THAN_BROWSER, BelongsTo.PROFILE, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure(Reason.ACTION_NOT_ALLOWED, BelongsTo.WORKFLOW, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure(Reason.TAKEN_OVER, BelongsTo.WORKFLOW, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure(Reason.TASK_ERROR, BelongsTo.CODE, RetryRule.NO, ProfileRule.AVAILABLE),
    Failure(Reason.EVIDENCE_NOT_SAVED, BelongsTo.WORKER, RetryRule.NO, ProfileRule.REVIEW_REQUIRED),
    Failure(Reason.VISIBLE_NEEDS_DISPLAY, BelongsTo.WORKER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.MACHINE_UNWELL, BelongsTo.WORKER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.WORKER_STOPPED, BelongsTo.WORKER, RetryRule.YES, ProfileRule.AVAILABLE),
    Failure(Reason.WORKER_LOST, BelongsTo.WORKER, RetryRule.YES, ProfileRule.STALE),
    Failure(Reason.LEASE_LOST, BelongsTo.WORKER, RetryRule.YES, ProfileRule.STALE),
)

FAILURES: Final[Mapping[str, Failure]] = {row.reason: row for row in _ROWS}

# The stop reason of a run that was given back before it began, if no reason of the table was given.
NOT_STARTED: Final = "NOT_STARTED"
LOST: Final = frozenset({Reason.WORKER_LOST, Reason.LEASE_LOST})


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
    """The row for a reason that a holder reports. `own` are the reasons that the holder's app has registered.

    An unknown reason may be a misspelt one, so a person checks the profile before its next run.
    """
    if reason in FAILURES or reason in own:
        return failure(reason, own.get(reason))
    return Failure(reason, BelongsTo.CODE, RetryRule.NO, ProfileRule.REVIEW_REQUIRED)


def strictness(row: Failure | None) -> int:
    """How strict a row is with the profile, to compare two endings; lowest without any reason."""
    return -1 if row is None else _STRICTNESS[row.profile]


def unknown(reason: str, own: Mapping[str, Failure]) -> str:
    """The error text for a reason that is neither built in nor registered; empty if the reason is known."""
    if reason in FAILURES or reason in own:
        return ""
    meant = nearest(reason, [*FAILURES, *own])
    return f"there is no reason {reason}; did you mean {meant}?" if meant else f"there is no reason {reason}."
