"""The terms that a session is opened on, and how it ended.

Plain records, for the API, the command line and pages. `session_run` is the session itself.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from leasekeeper.core.browsers import BrowserReport
from leasekeeper.core.jobs import RunMode
from leasekeeper.ports import Settled
from leasekeeper.runtime.control_transfer import Passed


class OnDisconnect(StrEnum):
    """What happens when the last client disconnects. KEEP: the session stays open until it is released or idle for too
    long. RELEASE: it is released."""

    KEEP = "keep"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """How a session is opened and when it ends by itself. A time of None: never. `headless` None: visible if the
    machine has a display."""

    idle_timeout: timedelta | None = None
    max_duration: timedelta | None = None
    on_disconnect: OnDisconnect = OnDisconnect.KEEP
    headless: bool | None = None

    @property
    def run_mode(self) -> RunMode | None:
        if self.headless is None:
            return None
        return RunMode.HEADLESS if self.headless else RunMode.VISIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """How a session ended. `settled` is None if the lease was lost: then the sweeper resolves the profile.

    `passed`: its browser is open, and another run goes on in it.
    """

    reason: str | None
    message: str
    settled: Settled | None
    report: BrowserReport | None
    passed: Passed | None = None
