"""What the keeper asks of a launcher for one profile: start it, stop it, is it idle? Remembers what it heard.

A vendor's stop names only the profile. So past the lease's time none is sent: the profile may be somebody else's by
then. After a 429 nothing at all is sent for a while.
"""

import threading
import time

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control, wait_readable
from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls, fill_quoted
from leasekeeper.browsers.keeper.orders import Orders, Refused
from leasekeeper.browsers.keeper.reasons import (
    BROWSER_LAUNCH_FAILED,
    LAUNCHER_UNAVAILABLE,
    LEASE_LOST,
    PROFILE_IN_USE_ELSEWHERE,
)

STOP_SECONDS = 20.0
ASK_SECONDS = 10.0
AGAIN_SECONDS = 0.5
MAX_AGAIN_SECONDS = 5.0
# After a 429: twice as long each time, unless the launcher says how long.
CALM_SECONDS = 2.0
MAX_CALM_SECONDS = 32.0
# A start that was never answered may still be under way: then idle has to be said twice, so far apart.
SETTLE_SECONDS = 2.0
# How often the lease is checked while the launcher starts a profile.
WATCH_SECONDS = 0.25
# Of the lease's time, what is kept for stopping a start that is answered late.
LAST_STOP_SECONDS = 2.0
TOO_LATE = "the lease was over before it could be stopped"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class LeaseTime:
    """How long the keeper may act for its lease. Reads the worker's renewals while the launcher takes its time."""

    def __init__(self, orders: Orders | None = None, control: Control | None = None) -> None:
        self._orders = orders
        self._control = control

    @property
    def left(self) -> float:
        """Seconds until somebody else may have the profile."""
        return float("inf") if self._orders is None else self._orders.kill_at - boot_time()

    def over(self) -> str:
        """Why nobody waits for a start any more; empty: the lease is alive."""
        if self._orders is None:
            return ""
        if self._control is not None:
            messages = self._control.read()
            if messages is None or wait_readable(self._control.worker, seconds=0):
                return f"the worker (process {self._orders.worker_pid}) is gone"
            for message in messages:
                self._orders.take_renewal(message)
                if "revoke" in message:
                    return str(message["revoke"]) or "the lease was revoked"
                if "close" in message:
                    return "the worker closed the browser before it was open"
        if self._orders.expired(boot_time()):
            return f"the deadline of lease {self._orders.lease_id} passed while its launcher started the profile"
        return ""


class _Starting:
    """A start under way, in a thread: meanwhile the lease is watched."""

    def __init__(self, start: "Callable[[], tuple[str, bool]]") -> None:
        self._start = start
        self._answered = threading.Event()
        self._answer = ("", False)
        self._error: Exception | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._start()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error
        self._answered.set()

    def wait(self, seconds: float) -> bool:
        return self._answered.wait(max(0.0, seconds))

    @property
    def answer(self) -> tuple[str, bool]:
        """The endpoint, and whether the profile is busy. Raises what the start raised."""
        if self._error is not None:
            raise self._error
        return self._answer

    @property
    def refused(self) -> bool:
        """Whether the launcher answered that it did not start the profile."""
        error = self._error
        return self._answer[1] or (isinstance(error, CallFailed) and not error.sent and not error.server_failed)

    @property
    def answered(self) -> bool:
        """Whether the launcher has come to an end with it."""
        return not isinstance(self._error, CallFailed) or self._error.status is not None


class LauncherEnd:
    """One profile of one launcher."""

    def __init__(self, description: dict[str, object], lease: LeaseTime | None = None) -> None:
        self._calls = LauncherCalls(description)
        self._lease = lease or LeaseTime()
        self._start_seconds = _seconds(description, "start_seconds", 90.0)
        self._idle_seconds = _seconds(description, "idle_seconds", 30.0)
        self._confirm_seconds = _seconds(description, "confirm_seconds", 0.0)
        self._calm_until = 0.0
        self._refusals = 0
        self.endpoint_stays = description.get("endpoint_stays") is True
        self.stopped = not self._calls.has("stop")
        self.idle: bool | None = None
        self.problem = ""

    @property
    def can_say(self) -> bool:
        """Whether the launcher can say that a profile is idle."""
        return self._calls.has("status")

    @property
    def idle_seconds(self) -> float:
        """How long a profile may take to become idle."""
        return self._idle_seconds

    @property
    def calm_seconds(self) -> float:
        """For how long the launcher wants no calls: it answered 429."""
        return max(0.0, self._calm_until - time.monotonic())

    def without_secrets(self, text: str) -> str:
        """The text without the launcher's token."""
        return self._calls.without_secrets(text)

    def start(self) -> str:
        """Start the profile and return its endpoint. One that runs already is never adopted. Raises Refused."""
        self._refuse_running()
        if not self._calls.has("start"):
            # The address of a browser that runs already. A token in it is not in the fleet file.
            return fill_quoted(str(self._calls.values.get("profile", "")), self._calls.values)
        starting = _Starting(lambda: self._calls.start(self._start_seconds))
        while not starting.wait(WATCH_SECONDS):
            if why := self._lease.over():
                raise self._abandoned(starting, why)
        try:
            endpoint, busy = starting.answer
        except CallFailed as error:
            if error.sent or (error.server_failed and not self._clearly_idle()):
                raise self.failed_after_start(str(error), answered=error.status is not None) from None
            raise self._refused(error) from None
        if busy:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, "the launcher says that the profile is running already")
        return endpoint

    def _refuse_running(self) -> None:
        try:
            running = self._calls.running(ASK_SECONDS)
        except CallFailed as error:
            raise self._refused(error) from None
        if running:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, "the profile is running in its launcher: stop it there first")

    def _clearly_idle(self) -> bool:
        """Whether a start that was answered with an error (a gateway's timeout, for instance) did nothing."""
        try:
            return self._calls.running(ASK_SECONDS) is False
        except CallFailed as error:
            self._note(error)
            return False

    def _abandoned(self, starting: _Starting, why: str) -> Refused:
        """Nobody waits for this start any more. What it leads to has to be stopped: until it is answered, idle proves
        nothing."""
        if starting.wait(min(self._start_seconds, self._lease.left - LAST_STOP_SECONDS)):
            if starting.refused:
                return Refused(LEASE_LOST, why)
            return self.failed_after_start(why, reason=LEASE_LOST, answered=starting.answered)
        self.stop(LAST_STOP_SECONDS)
        self.stopped = False
        self.problem = "its start was not answered"
        return self._in_doubt(LEASE_LOST, why)

    def failed_after_start(
        self, problem: str, *, reason: str = BROWSER_LAUNCH_FAILED, answered: bool = True
    ) -> Refused:
        """The profile may be running, and nobody can use it: stop it, and see that it is idle."""
        problem = self._calls.without_secrets(problem)
        self.stop(STOP_SECONDS)
        apart = self._confirm_seconds if answered else max(self._confirm_seconds, SETTLE_SECONDS)
        if self.wait_idle(time.monotonic() + self._idle_seconds, apart):
            return Refused(reason, f"{problem}; the profile was stopped again", self.calm_seconds)
        return self._in_doubt(reason, problem)

    def _in_doubt(self, reason: str, problem: str) -> Refused:
        """Somebody has to ask again, until the launcher says that the profile is idle."""
        doubt = f"whether the profile runs is not known ({self.problem})"
        clauses = {"processes_gone": False, "launcher_stopped": self.stopped}
        if self.can_say:
            clauses["launcher_idle"] = False
        proof: dict[str, object] = {"clauses": clauses, "failing_clause": doubt}
        return Refused(reason, f"{problem}; {doubt}", self.calm_seconds, proof)

    def stop(self, seconds: float) -> bool:
        """Ask the launcher to stop the profile, once more if the answer is lost early. False if it did not confirm."""
        until = time.monotonic() + seconds
        lost = self._try_stop(seconds)
        if lost and time.monotonic() + AGAIN_SECONDS < until:
            time.sleep(AGAIN_SECONDS)
            self._try_stop(until - time.monotonic())
        return self.stopped

    def _try_stop(self, seconds: float) -> bool:
        """Whether the answer was lost: then the profile may have been stopped, or not."""
        if self.stopped or self.calm_seconds:
            return False
        if self._lease.left <= 0:
            self.problem = TOO_LATE
            return False
        try:
            self._calls.stop(min(seconds, self._lease.left))
            self.stopped = True
        except CallFailed as error:
            self.problem = str(error)
            self._note(error)
            return error.sent
        return False

    def wait_idle(self, until: float, apart: float | None = None) -> bool:
        """Ask until the launcher says idle, twice where its answers lag. Where it cannot say, its stop has to do.

        What still runs is stopped again, as is what did not confirm its stop: as long as the lease lasts.
        """
        confirm = self._confirm_seconds if apart is None else apart
        pause, since = AGAIN_SECONDS, 0.0
        while True:
            idle = self._is_idle()
            now = time.monotonic()
            if not idle:
                since = 0.0
            elif not confirm or (since and now - since >= confirm):
                self.idle = True if self.can_say else None
                return True
            else:
                since = since or now
            wait = max(pause, self.calm_seconds)
            if now + wait > until or not (self.can_say or self._lease.left > 0):
                self.idle = False if self.can_say else None
                return False
            time.sleep(wait)
            pause = min(pause * 1.5, MAX_AGAIN_SECONDS)
            if not idle:
                self.stop(STOP_SECONDS)

    def _is_idle(self) -> bool:
        """Whether the launcher says so, or, where it has no call for that, confirmed its stop."""
        if not self.can_say:
            return self.stopped
        if self.calm_seconds:
            return False
        try:
            running = self._calls.running(ASK_SECONDS)
        except CallFailed as error:
            self.problem = str(error)
            self._note(error)
            return False
        late = f", and {TOO_LATE}" if self._lease.left <= 0 else ""
        self.problem = f"the launcher says that it runs{late}" if running else ""
        if running:
            self.stopped = self.stopped and not self._calls.has("stop")
        return not running

    def _note(self, error: CallFailed) -> None:
        """After a 429 nothing is sent for as long as the launcher says, or longer each time."""
        if error.rate_limited:
            pause = min(CALM_SECONDS * 2**self._refusals, MAX_CALM_SECONDS)
            self._refusals += 1
            self._calm_until = time.monotonic() + max(pause, error.retry_after or 0.0)

    def _refused(self, error: CallFailed) -> Refused:
        """A call that was not carried out: the launcher is away, has enough, or will not start this profile. A token
        that it does not accept is no fault of the profile either."""
        away = error.status is None or error.rate_limited or error.unauthorized or error.server_failed
        return Refused(LAUNCHER_UNAVAILABLE if away else BROWSER_LAUNCH_FAILED, str(error), error.retry_after or 0.0)


def _seconds(description: dict[str, object], name: str, default: float) -> float:
    found = description.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default
