"""Errors → `application/problem+json` (RFC 9457), by one table from error class to status.

`code`, `problems` and `data` are those of `wire.errors`: a program in any language gets what `except` gets.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from leasekeeper.errors import (
    AccessDenied,
    BodyTooLarge,
    Conflict,
    CrossSiteRequest,
    EvidenceRefused,
    EvidenceUnavailable,
    Fail,
    HostNotAllowed,
    InputError,
    LeasekeeperError,
    LeaseLost,
    MethodNotAllowed,
    NotAuthenticated,
    NotFound,
    PartlyDone,
    RequestRefused,
    StoreError,
    StoreUnavailable,
    TooManyRequests,
    VersionConflict,
)
from leasekeeper.wire import error_from_json, error_to_json

MEDIA: Final = "application/problem+json"
BUG: Final = "BUG"
_LOG = logging.getLogger(__name__)

# The first row that an error is an instance of.
STATUSES: Final[tuple[tuple[type[LeasekeeperError], int], ...]] = (
    (NotAuthenticated, 401),
    (AccessDenied, 403),
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (BodyTooLarge, 413),
    (HostNotAllowed, 421),
    (TooManyRequests, 429),
    (CrossSiteRequest, 403),
    (RequestRefused, 400),
    (InputError, 400),
    (VersionConflict, 412),
    (Conflict, 409),
    (LeaseLost, 410),
    (Fail, 409),
    (EvidenceRefused, 422),
    (EvidenceUnavailable, 503),
    (PartlyDone, 500),
    (StoreUnavailable, 503),
    (StoreError, 503),
    (LeasekeeperError, 500),
)


def status_of(error: LeasekeeperError) -> int:
    return next(status for kind, status in STATUSES if isinstance(error, kind))


def problem(error: LeasekeeperError) -> dict[str, object]:
    """The body of the answer."""
    written = error_to_json(error)
    code = str(written["code"])
    return {
        "type": f"urn:leasekeeper:error:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status_of(error),
        "detail": written.pop("message"),
        **written,
    }


def problem_response(error: LeasekeeperError) -> Response:
    """The answer to a call that failed."""
    headers: dict[str, str] = {}
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="leasekeeper"'
    if isinstance(error, TooManyRequests) and error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.allowed or ())
    if isinstance(error, StoreUnavailable):
        headers["Retry-After"] = "1"
    return Response(json.dumps(problem(error)), status_of(error), headers, MEDIA)


def bug_response(error: Exception) -> Response:
    """The answer to an unexpected exception. Details go to the log, not to the caller."""
    _LOG.error("a request failed: this is a bug in Leasekeeper, please report it", exc_info=error)
    body = {
        "type": f"urn:leasekeeper:error:{BUG}",
        "title": "Bug",
        "status": 500,
        "detail": "this is a bug in Leasekeeper; the log of the server says where",
        "code": BUG,
    }
    return Response(json.dumps(body), 500, None, MEDIA)


def error_of(answer: Mapping[str, Any]) -> LeasekeeperError:
    """The error that a problem was made of."""
    return error_from_json({**answer, "message": answer.get("detail", "")})


def problem_schema() -> dict[str, Any]:
    """The JSON Schema of a problem."""
    where = {"type": "object", "properties": {"where": {"type": "string"}, "message": {"type": "string"}}}
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What happened, to what, and what to do next."},
            "code": {"type": "string", "description": "The stable code: see the reference of errors."},
            "problems": {"type": "array", "items": where, "description": "Every field at fault."},
            "data": {"type": "object", "description": "The fields that the error has for programs."},
        },
    }
