"""Why a valid request met a conflict: the values of `Conflict.cause`, for programs. Knows no exception."""

from enum import StrEnum


class ConflictReason(StrEnum):
    """What was in the way of a valid request."""

    SECTION_OPEN = "section_open"
    SECTION_NOT_OPEN = "section_not_open"
    PROFILE_SHARED = "profile_shared"
    PROFILE_IN_USE = "profile_in_use"
    PROFILE_NOT_OPENED = "profile_not_opened"
    MACHINE_UNWELL = "machine_unwell"
    PROFILE_NOT_EMPTY = "profile_not_empty"
    NO_DISPLAY = "no_display"
    LEASE_REVOKED = "lease_revoked"
    LEASE_NOT_HELD = "lease_not_held"
    REVIEW_DECIDED = "review_decided"
    REQUEST_REUSED = "request_reused"
    ANSWER_NOT_KEPT = "answer_not_kept"
    TOKEN_EXISTS = "token_exists"  # noqa: S105 - the name of a cause
    SECRET_IN_USE = "secret_in_use"  # noqa: S105 - the name of a cause
    SCHEDULE_RUNNING = "schedule_running"
    ENDPOINT_EXISTS = "endpoint_exists"
    SESSIONS_FULL = "sessions_full"
    SESSIONS_NOT_OFFERED = "sessions_not_offered"
    CLIENT_REFUSED = "client_refused"
    WORKER_AWAY = "worker_away"
    TAKEN_ALREADY = "taken_already"
    NOT_RESUMABLE = "not_resumable"
    ANSWERED_ALREADY = "answered_already"
