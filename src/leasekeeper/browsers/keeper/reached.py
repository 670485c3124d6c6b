"""A browser as the rest of the keeper sees it, however it is reached. The seam between "until when" and "how".

Deadline, revocation, relay, evidence and report know this class only. `child` is a process of our own, spoken to over
a pipe, its close proven by its directory. `attached` is a browser of somebody else's program, spoken to over a
WebSocket, its close proven by what that program says.
"""

import os
from abc import ABC, abstractmethod

TYPE_CHECKING = False  # the typing module would cost each launch 5 ms
if TYPE_CHECKING:
    from leasekeeper.browsers.keeper.capture import Cdp

PIECE = 256 * 1024


class Channel:
    """One direction of the DevTools traffic as a stream of messages that end with a NUL. Never blocks.

    This one is a pipe. A subclass whose transport has frames of its own turns them into such a stream.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, limit: int = PIECE) -> bytes | None:
        """What has come; None if nothing has; empty once there will be no more."""
        try:
            return os.read(self.descriptor, limit)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def write(self, data: "memoryview | bytes") -> int:
        """How many bytes were taken; -1 if nobody will ever read them."""
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1


class ReachedBrowser(ABC):
    """A browser that was reached under a lease.

    `to` is where it reads, `out` where it writes, `watch` a descriptor that becomes readable when it has ended.
    `exit_code` and `signal` say how its process ended, where there is one to ask. `ways` are what `interrupt` and
    `kill` are called in a report. `outlives_lease`: past the lease's time somebody else may have this very browser.
    `calm_seconds`: for so long nobody may call what it was asked from.
    """

    ways = ("SIGINT", "SIGKILL")
    outlives_lease = False

    def __init__(self, pid: int, to: Channel, out: Channel, watch: int) -> None:
        self.pid = pid
        self.to = to
        self.out = out
        self.watch = watch
        self.exit_code: int | None = None
        self.signal: int | None = None

    @property
    def calm_seconds(self) -> float:
        return 0.0

    @abstractmethod
    def break_off(self) -> bytes:
        """The last command was written in part: it must never take effect. Returns what to write before the next."""

    @abstractmethod
    def take_lease(self, token: int, lease_id: str, run_id: str) -> None:
        """Record that the browser goes on under this token. Raises Refused if a higher one was here."""

    @abstractmethod
    def gone(self) -> bool:
        """Whether the browser has ended."""

    def before_close(self, cdp: "Cdp", until: float, *, visited: bool) -> None:
        """It is about to be asked to close: save what would be lost by that, until then at the latest."""
        del cdp, until, visited  # most have nothing to save

    @abstractmethod
    def interrupt(self) -> None:
        """End it in the second-best way, after `Browser.close` did not help."""

    @abstractmethod
    def kill(self) -> None:
        """End it whatever that costs."""

    @abstractmethod
    def all_gone(self, until: float) -> bool:
        """Wait until nothing of it is alive; what lingers after `until` is killed. False if that did not help."""

    @abstractmethod
    def prove(self, stopped_by: str, all_gone: bool) -> dict[str, object]:
        """The clean-close proof: every clause, and the first that fails as a sentence (`failing_clause`)."""

    @abstractmethod
    def failed_start(self) -> tuple[str, str]:
        """Reason and message for a browser that ended before its first message."""

    @abstractmethod
    def clean_up(self, proof: dict[str, object], *, spoke: bool) -> bool:
        """Before the report, once nothing of it is alive: leave everything fit for the next browser.

        Returns whether the profile is untouched: the browser ended before its first message (`spoke` is False) and
        changed nothing.
        """

    @abstractmethod
    def release(self) -> None:
        """After the report: let others have what was taken for the browser. Only when nothing of it is alive."""
