"""Reads the report that a keeper wrote into a run's folder. Knows the file's format and nothing else."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from leasekeeper.browsers.keeper.orders import BAD_ORDERS, STALE_TOKEN
from leasekeeper.core.browsers import BrowserReport, Command, EndCause, LaunchRefusal, Proof
from leasekeeper.core.failures import Reason

REPORT_VERSION: Final = 1
REPORT_NAME: Final = "report.json"
MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
_REASONS: Final[Mapping[str, str]] = {
    STALE_TOKEN: Reason.PROFILE_IN_USE_ELSEWHERE,
    BAD_ORDERS: Reason.BROWSER_LAUNCH_FAILED,
}

T = TypeVar("T")


class ReportUnreadable(Exception):
    """The report has a version that this program does not know, or is damaged. Nobody knows how the browser ended."""


class LaunchRefused(Exception):
    """The keeper did not start the browser, or refused a hand-over. `reason` is a failure reason or a refusal code."""

    def __init__(self, reason: str, message: str, retry_after: timedelta = timedelta()) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


def failure_reason(refusal: str) -> str:
    """The reason of the failure table for a keeper's refusal code."""
    return _REASONS.get(refusal, refusal)


def read_report(folder: Path | str) -> BrowserReport | None:
    """The keeper's report in this run's folder; None if there is none (yet). Raises ReportUnreadable, OSError."""
    path = Path(folder) / REPORT_NAME
    try:
        if path.stat().st_size > MAX_REPORT_BYTES:
            raise ReportUnreadable(f"{path} is larger than any report: something else wrote it")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ReportUnreadable(f"{path} is not a keeper's report: {error}") from error
    if not isinstance(found, dict) or found.get("version") != REPORT_VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise ReportUnreadable(f"{path} has version {version!r}, this program knows {REPORT_VERSION}: upgrade it")
    try:
        return _report(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportUnreadable(f"{path} is incomplete: {error!r}") from error


def report_version(folder: Path | str) -> object:
    """A value that changes whenever the report in this folder does; None if there is no report."""
    try:
        found = (Path(folder) / REPORT_NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _report(found: Mapping[str, Any]) -> BrowserReport:
    refused, proof = found["refused"], found["proof"]
    return BrowserReport(
        profile_id=str(found["profile_id"]),
        run_id=str(found["run_id"]),
        lease_id=str(found["lease_id"]),
        token=int(found["token"]),
        refused=None
        if refused is None
        else LaunchRefusal(
            reason=str(refused["reason"]),
            message=str(refused["message"]),
            retry_after=timedelta(seconds=float(refused.get("retry_after_seconds", 0.0))),
        ),
        cause=_optional(found["cause"] or None, EndCause),  # "": a report of an earlier version about a refusal
        stopped_by=str(found["stopped_by"]),
        exit_code=_optional(found["exit_code"], int),
        signal=_optional(found["signal"], int),
        proof=Proof(
            clauses={str(name): holds is True for name, holds in proof["clauses"].items()},
            failing_clause=str(proof["failing_clause"]),
        ),
        untouched=found["untouched"] is True,
        final_url=_optional(found["final_url"], str),
        screenshot=_optional(found["screenshot"], str),
        commands=tuple(
            Command(at=float(item["at"]), method=str(item["method"]), url=str(item["url"]))
            for item in found["commands"]
        ),
        started_at=_optional(found["started_at"], float),
        ended_at=float(found["ended_at"]),
        revoke_reason=str(found["revoke_reason"]),
        retry_after=timedelta(seconds=float(found.get("retry_after_seconds", 0.0))),
    )


def _optional(value: Any, kind: Callable[[Any], T]) -> T | None:
    return None if value is None else kind(value)
