"""What a keeper leaves in a run's folder, read back with types. Knows the file's format and nothing else."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

REPORT_VERSION: Final = 1
REPORT_NAME: Final = "report.json"
MOST_REPORT_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


class ReportUnreadable(Exception):
    """The report is of a version this program does not know, or is damaged: treat the ending as unexplained."""


class LaunchRefused(Exception):
    """The keeper did not start the browser, or would not hand it over. `reason` is a failure reason's name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there was no browser."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The clean-close proof, clause by clause. It holds iff no clause fails."""

    graceful: bool
    processes_gone: bool
    lock_gone: bool
    exit_type: str | None
    failing_clause: str

    @property
    def holds(self) -> bool:
        """True only if every clause was seen to hold; an empty `failing_clause` alone is not believed."""
        clauses = self.graceful and self.processes_gone and self.lock_gone and self.exit_type == "Normal"
        return clauses and not self.failing_clause


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command that the worker sent: when (wall clock, seconds), which, and on what page. Never its payload."""

    at: float
    method: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperReport:
    """How one run's browser ended, by the keeper's own observation."""

    profile_id: str
    run_id: str
    lease_id: str
    token: int
    refused: Refusal | None
    cause: str
    stopped_by: str
    exit_code: int | None
    signal: int | None
    proof: Proof
    final_url: str | None
    screenshot: str | None
    commands: tuple[Command, ...]
    started_at: float | None
    ended_at: float
    fence_reason: str

    @property
    def no_browser(self) -> bool:
        """True if no browser was in the profile: none was started, or it ended at once, before it began to write."""
        proof = self.proof
        untouched = proof.processes_gone and proof.lock_gone and proof.exit_type in (None, "Normal")
        return self.refused is not None and (self.started_at is None or untouched)


def read_report(folder: Path | str) -> KeeperReport | None:
    """The keeper's report of the run whose folder this is; None if there is none (yet)."""
    path = Path(folder) / REPORT_NAME
    try:
        if path.stat().st_size > MOST_REPORT_BYTES:
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
    except (KeyError, TypeError, ValueError) as error:
        raise ReportUnreadable(f"{path} is incomplete: {error!r}") from error


def _report(found: Mapping[str, Any]) -> KeeperReport:
    refused, proof = found["refused"], found["proof"]
    return KeeperReport(
        profile_id=str(found["profile_id"]),
        run_id=str(found["run_id"]),
        lease_id=str(found["lease_id"]),
        token=int(found["token"]),
        refused=None if refused is None else Refusal(reason=str(refused["reason"]), message=str(refused["message"])),
        cause=str(found["cause"]),
        stopped_by=str(found["stopped_by"]),
        exit_code=_optional(found["exit_code"], int),
        signal=_optional(found["signal"], int),
        proof=Proof(
            graceful=proof["graceful"] is True,
            processes_gone=proof["processes_gone"] is True,
            lock_gone=proof["lock_gone"] is True,
            exit_type=_optional(proof["exit_type"], str),
            failing_clause=str(proof["failing_clause"]),
        ),
        final_url=_optional(found["final_url"], str),
        screenshot=_optional(found["screenshot"], str),
        commands=tuple(
            Command(at=float(item["at"]), method=str(item["method"]), url=str(item["url"]))
            for item in found["commands"]
        ),
        started_at=_optional(found["started_at"], float),
        ended_at=float(found["ended_at"]),
        fence_reason=str(found["fence_reason"]),
    )


def _optional(value: Any, kind: Callable[[Any], T]) -> T | None:
    return None if value is None else kind(value)
