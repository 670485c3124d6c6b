"""PRODUCT.md's tables once more, by hand: the model must not share a mistake with the code that it checks."""

from dataclasses import dataclass
from typing import Final

FINAL: Final = frozenset({"completed", "dead", "skipped", "cancelled"})
STRICTNESS: Final = {"recover": 0, "restore": 1, "review": 2, "quarantine": 3}


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason of section 6. `retry`: yes (unless something may have been done) or no. `profile`: what the reason
    alone does to it."""

    retry: str
    profile: str


DEFAULT_RULE: Final = Rule("no", "available")

FAILURES: Final = {
    "TIMEOUT": Rule("yes", "available"),
    "TEMPORARY_NAVIGATION_ERROR": Rule("yes", "available"),
    "BROWSER_LAUNCH_FAILED": Rule("yes", "available"),
    "BROWSER_CRASHED": Rule("yes", "available"),
    "MEMORY_EXCEEDED": Rule("yes", "available"),
    "LOGIN_REQUIRED": Rule("no", "review_required"),
    "PROFILE_MISMATCH": Rule("no", "review_required"),
    "PROFILE_DIRECTORY_EMPTY": Rule("no", "review_required"),
    "HUMAN_REVIEW_REQUIRED": Rule("no", "review_required"),
    "SECURITY_PROMPT": Rule("no", "quarantined"),
    "PROXY_REGION_MISMATCH": Rule("no", "available"),
    "PROXY_CHANGED": Rule("no", "quarantined"),
    "PROXY_UNREACHABLE": Rule("yes", "available"),
    "LAUNCHER_UNAVAILABLE": Rule("yes", "available"),
    "PROFILE_IN_USE_ELSEWHERE": Rule("no", "review_required"),
    "MANUAL_USE_DETECTED": Rule("no", "review_required"),
    "WORKER_STOPPED": Rule("yes", "available"),
    "PROFILE_CORRUPT": Rule("no", "quarantined"),
    "ACTION_NOT_ALLOWED": Rule("no", "available"),
    "TASK_ERROR": Rule("no", "available"),
    "EVIDENCE_NOT_SAVED": Rule("no", "review_required"),
    "WORKER_LOST": Rule("yes", "stale"),
    "LEASE_LOST": Rule("yes", "stale"),
}

# Section 2: every move of a profile that exists.
PROFILE_MOVES: Final = frozenset(
    {
        ("available", "leased"),
        ("leased", "available"),
        ("leased", "stale"),
        ("leased", "review_required"),
        ("leased", "quarantined"),
        ("leased", "disabled"),
        ("stale", "quarantined"),
        ("stale", "review_required"),
        ("stale", "available"),
        ("stale", "disabled"),
        ("review_required", "available"),
        ("review_required", "quarantined"),
        ("review_required", "disabled"),
        ("quarantined", "available"),
        ("quarantined", "review_required"),
        ("quarantined", "disabled"),
        ("available", "review_required"),
        ("available", "quarantined"),
        ("available", "disabled"),
        ("review_required", "leased"),
        ("quarantined", "leased"),
        ("disabled", "leased"),
        ("disabled", "available"),
        ("disabled", "review_required"),
    }
)

# Section 2: in which a person has to decide.
WAITS: Final = ("review_required", "quarantined")

PROFILE_DECISIONS: Final = {
    ("review_required", "clear"): "available",
    ("quarantined", "clear"): "available",
    ("available", "quarantine"): "quarantined",
    ("stale", "quarantine"): "quarantined",
    ("review_required", "quarantine"): "quarantined",
    ("available", "review"): "review_required",
    ("stale", "review"): "review_required",
    ("quarantined", "review"): "review_required",
    ("available", "disable"): "disabled",
    ("stale", "disable"): "disabled",
    ("review_required", "disable"): "disabled",
    ("quarantined", "disable"): "disabled",
    ("disabled", "enable"): "available",
}

JOB_DECISIONS: Final = {
    "scheduled": ("approve", "cancel"),
    "queued": ("approve", "cancel"),
    "blocked": ("approve", "cancel"),
    "review": ("requeue", "cancel"),
    "dead": ("retry", "drop"),
}
