"""Browsers as the rest of the system sees them: which drivers exist, under which terms a browser runs, how it ended.

Values only: what a driver does is in `leasekeeper.browsers`, what it must promise in `driver_port.Driver`.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from leasekeeper.errors import nearest

LOCAL: Final = "local"
NULL: Final = "null"
LAUNCHER: Final = "launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverKind:
    """What is known of a driver before it opens anything. `has_directory`: it keeps a profile's session in a directory
    of the machine that opens the profile."""

    description: str
    has_directory: bool = False


DRIVERS: Final[Mapping[str, DriverKind]] = {
    LOCAL: DriverKind(
        description="Chromium or Chrome on the worker's machine, in the profile's own directory", has_directory=True
    ),
    LAUNCHER: DriverKind(description="a browser of the profile's launcher, reached over DevTools"),
    NULL: DriverKind(description="no browser at all, for tests and benchmarks of tasks that need no page"),
}


def driver_fault(name: str) -> str | None:
    """What is wrong with the name of a driver; None if there is such a driver."""
    if name in DRIVERS:
        return None
    near = nearest(name, DRIVERS)
    return f"no driver {name}; there are: {', '.join(DRIVERS)}" + (f"; did you mean {near}?" if near else "")


def has_directory(driver: str) -> bool:
    """Whether profiles of this driver have a directory on the machine that opens them."""
    kind = DRIVERS.get(driver)
    return kind is not None and kind.has_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """What a driver found on this machine. `version` is None if only a page of the browser can report it. `engine` is
    the browser's major version, None if it has none.

    `playwright`: Playwright must be installed to use the driver's endpoints.
    """

    program: str
    version: str | None = None
    engine: int | None = None
    playwright: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many browsers of a driver one worker may launch at one moment.

    The maximum of open browsers in the whole fleet is not set by drivers: it is the limit of a pool, enforced by
    leases.
    """

    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`user` says, as a sentence, who uses a profile outside any lease; empty if the driver sees nobody."""

    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user and a password. Neither shows in a repr."""

    username: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """User and password in base64, as HTTP Basic authentication sends them to a proxy."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """The lease that a browser runs under, and its deadlines in seconds of the holder's clock, which counts suspend.

    From `deadline` on, no command of the worker may reach the browser; by `kill_at` the browser is dead. `folder`
    belongs to this run alone: the keeper writes its report of the browser's end there.
    """

    lease_id: str
    token: int
    run_id: str
    folder: str
    deadline: float
    kill_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A profile that may be opened. `manual_use`: how it was used outside a lease, as a sentence; empty: it was not."""

    manual_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An endpoint that Playwright starts: arguments of `launch_persistent_context`, with a keeper as the browser."""

    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPage:
    """An endpoint without any browser. `message` is what a task reads that asks for its page."""

    message: str


Endpoint = Launch | NoPage


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefusal:
    """Why no browser was started. `retry_after`: for how long its launcher asked for no further calls."""

    reason: str
    message: str
    retry_after: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The clean-close proof, clause by clause: each driver has its own clauses, and all have `processes_gone`."""

    clauses: Mapping[str, bool]
    failing_clause: str = ""

    @property
    def holds(self) -> bool:
        """True only if every clause holds and none is named as failing; an empty `failing_clause`
        alone is not enough."""
        return self.processes_gone and all(self.clauses.values()) and not self.failing_clause

    @property
    def processes_gone(self) -> bool:
        """Whether nothing of the browser is alive."""
        return self.clauses.get("processes_gone", False)


class EndCause(StrEnum):
    """Why a browser's use ended."""

    CLOSED = "closed"  # the worker asked for it, or whoever used the browser closed it
    REVOKED = "revoked"
    DEADLINE = "deadline"
    WORKER_GONE = "worker_gone"
    DRIVER_GONE = "driver_gone"  # the Playwright process
    BROWSER_GONE = "browser_gone"
    MESSAGE_TOO_LARGE = "message_too_large"
    TERMINATED = "terminated"  # the keeper got a signal
    OVERDUE = "overdue"  # its keeper had not ended it in time, so another program did


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command that the worker sent: when (wall clock, seconds), which, and on what page. Never its payload."""

    at: float
    method: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserReport:
    """How one run's browser ended, as its keeper saw it. `cause` is None if there was no browser.

    `retry_after`: for how long its launcher asked for no further calls.
    """

    profile_id: str
    run_id: str
    lease_id: str
    token: int
    refused: LaunchRefusal | None
    cause: EndCause | None
    stopped_by: str
    exit_code: int | None
    signal: int | None
    proof: Proof
    untouched: bool
    final_url: str | None
    screenshot: str | None
    commands: tuple[Command, ...]
    started_at: float | None
    ended_at: float
    revoke_reason: str
    retry_after: timedelta = timedelta()

    @property
    def no_browser(self) -> bool:
        """True if no browser was in the profile: none was started, or it ended at once, before it began to write."""
        return self.refused is not None and (self.started_at is None or self.untouched)
