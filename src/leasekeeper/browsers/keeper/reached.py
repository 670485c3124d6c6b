"""The interface between the keeper and its browser: channels for DevTools traffic, and how to stop and prove the end.

Deadline, revocation, relay, evidence and report know only these classes. Implementations: `child`, a process of our own
over a pipe, whose close is proven by its directory; `attached`, a launcher's browser over a WebSocket, whose close is
proven by the launcher's answers.
"""

import os
from abc import ABC, abstractmethod

TYPE_CHECKING = False  # the typing module would cost each launch 5 ms
if TYPE_CHECKING:
    from leasekeeper.browsers.keeper.capture import Cdp

PIECE = 256 * 1024


class Channel:
    """One direction of the DevTools traffic as a stream of messages that end with a NUL. Never blocks.

    This class is for pipes. A subclass for another transport converts its frames to and from such a stream.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read(self, limit: int = PIECE) -> bytes | None:
        """The bytes that have arrived; None if there are none yet; empty at the end of the stream."""
        try:
            return os.read(self.descriptor, limit)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def write(self, data: "memoryview | bytes") -> int:
        """Write without waiting. Returns how many bytes were accepted; -1 if the other side is closed."""
        try:
            return os.write(self.descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1


class ReachedBrowser(ABC):
    """A browser that the keeper has started or connected to.

    `to` is the channel that it reads, `out` the one that it writes, `watch` a descriptor that becomes readable at its
    end. `exit_code` and `signal` say how its process ended, if it is ours. `ways` name `interrupt` and `kill` in the
    report. `outlives_lease`: after the lease's end somebody else may use this very browser. `calm_seconds`: how long
    its launcher must not be called.
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
        """Make sure that the last command, partly written, is never executed. Returns bytes to write before others."""

    @abstractmethod
    def take_lease(self, token: int, lease_id: str, run_id: str) -> None:
        """Record that the browser continues under this token. Raises Refused if the directory has a higher one."""

    @abstractmethod
    def gone(self) -> bool:
        """Whether the browser has ended."""

    def before_close(self, cdp: "Cdp", until: float, *, visited: bool) -> None:
        """Called before `Browser.close`: save what a close would lose, at the latest by `until`."""
        del cdp, until, visited  # most have nothing to save

    @abstractmethod
    def interrupt(self) -> None:
        """Stop it more forcefully, after `Browser.close` did not end it."""

    @abstractmethod
    def kill(self) -> None:
        """Stop it by force."""

    @abstractmethod
    def all_gone(self, until: float) -> bool:
        """Wait until all of it has ended; kill what is left after `until`. False if something is still alive then."""

    @abstractmethod
    def prove(self, stopped_by: str, all_gone: bool) -> dict[str, object]:
        """The clean-close proof: all clauses, and a sentence about the first that fails (`failing_clause`)."""

    @abstractmethod
    def failed_start(self) -> tuple[str, str]:
        """Reason and message for a browser that ended before its first message."""

    @abstractmethod
    def clean_up(self, proof: dict[str, object], *, spoke: bool) -> bool:
        """Called before the report, once all of it has ended: prepare its directory for the next browser.

        Returns whether the profile is untouched: the browser ended before its first message (`spoke` is False) and
        changed nothing.
        """

    @abstractmethod
    def release(self) -> None:
        """Called after the report, if all of it has ended: release the directory's lock."""
