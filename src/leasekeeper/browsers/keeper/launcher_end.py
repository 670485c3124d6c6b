"""Starts and stops one profile in its launcher, waits until it is idle, and remembers the answers for the proof.

A vendor's stop names only the profile. So no stop is sent after the lease's end: somebody else may use the profile
then. After a 429 (rate limit) nothing at all is sent for a while.
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
# How long nothing is sent after a 429: twice as long each time, or longer if the launcher says so.
CALM_SECONDS = 2.0
MAX_CALM_SECONDS = 32.0
# A start that was never answered may still be in progress: then two idle answers are needed, this far apart.
SETTLE_SECONDS = 2.0
# How often the lease is checked while the launcher starts a profile.
WATCH_SECONDS = 0.25
# Kept from the lease's time for stopping a profile whose start is answered late.
LAST_STOP_SECONDS = 2.0
TOO_LATE = "the lease was over before it could be stopped"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class LeaseTime:
    """How long the keeper may act for its lease. Reads the worker's messages during a slow start.

    Without `orders` there is no limit.
    """

    def __init__(self, orders: Orders | None = None, control: Control | None = None) -> None:
        self._orders = orders
        self._control = control

    @property
    def left(self) -> float:
        """Seconds until somebody else may have the profile."""
        return float("inf") if self._orders is None else self._orders.kill_at - boot_time()

    def over(self) -> str:
        """Why the start must be abandoned; empty while the lease is alive."""
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
    """A start in progress, in a thread of its own, so that the lease can be watched meanwhile."""

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
        """Whether the launcher has answered the start, with whatever result."""
        return not isinstance(self._error, CallFailed) or self._error.status is not None


class LauncherEnd:
    """One profile of one launcher. `stopped`: its stop was confirmed, or none is needed. `idle`: the last answer to
    that; None if unknown. `problem`: the last error, for a person."""

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
        """How long a profile may take to become idle after its stop."""
        return self._idle_seconds

    @property
    def calm_seconds(self) -> float:
        """How long the launcher must not be called, because it answered 429."""
        return max(0.0, self._calm_until - time.monotonic())

    def without_secrets(self, text: str) -> str:
        """The text without the launcher's token."""
        return self._calls.without_secrets(text)

    def start(self) -> str:
        """Start the profile and return its endpoint. Raises Refused, also for a profile that runs already."""
        self._refuse_running()
        if not self._calls.has("start"):
            # No start call: the profile's name is the address of a running browser, in which `{token}` is replaced.
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
        """Whether the launcher says idle: then a start that got an error (a gateway timeout, say) started nothing."""
        try:
            return self._calls.running(ASK_SECONDS) is False
        except CallFailed as error:
            self._note(error)
            return False

    def _abandoned(self, starting: _Starting, why: str) -> Refused:
        """Stop a profile whose start was abandoned. Until the start is answered, an idle profile proves nothing: it may
        start later."""
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
        """Stop a profile that may be running but cannot be used, and wait until it is idle. Returns the refusal."""
        problem = self._calls.without_secrets(problem)
        self.stop(STOP_SECONDS)
        apart = self._confirm_seconds if answered else max(self._confirm_seconds, SETTLE_SECONDS)
        if self.wait_idle(time.monotonic() + self._idle_seconds, apart):
            return Refused(reason, f"{problem}; the profile was stopped again", self.calm_seconds)
        return self._in_doubt(reason, problem)

    def _in_doubt(self, reason: str, problem: str) -> Refused:
        """The refusal for a profile that may still run. Because of its proof, the runtime asks until it is idle."""
        doubt = f"whether the profile runs is not known ({self.problem})"
        clauses = {"processes_gone": False, "launcher_stopped": self.stopped}
        if self.can_say:
            clauses["launcher_idle"] = False
        proof: dict[str, object] = {"clauses": clauses, "failing_clause": doubt}
        return Refused(reason, f"{problem}; {doubt}", self.calm_seconds, proof)

    def stop(self, seconds: float) -> bool:
        """Ask the launcher to stop the profile, twice if the first answer is lost early. False: not confirmed."""
        until = time.monotonic() + seconds
        lost = self._try_stop(seconds)
        if lost and time.monotonic() + AGAIN_SECONDS < until:
            time.sleep(AGAIN_SECONDS)
            self._try_stop(until - time.monotonic())
        return self.stopped

    def _try_stop(self, seconds: float) -> bool:
        """Send one stop. Returns whether the answer was lost: then the profile may have been stopped, or not."""
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
        """Ask until the launcher says idle; False if not by `until`. Without a status call a confirmed stop counts.

        `apart`: how many seconds apart two such answers must be; 0: one is enough; None: as the description says. While
        the lease lasts, the stop is repeated as long as the profile runs or the stop is not confirmed.
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
        """Whether the launcher says idle. Without a status call: whether it confirmed the stop."""
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
        """After a 429, set how long nothing is sent: longer each time, and at least as long as the launcher says."""
        if error.rate_limited:
            pause = min(CALM_SECONDS * 2**self._refusals, MAX_CALM_SECONDS)
            self._refusals += 1
            self._calm_until = time.monotonic() + max(pause, error.retry_after or 0.0)

    def _refused(self, error: CallFailed) -> Refused:
        """The refusal for a call that was not executed. LAUNCHER_UNAVAILABLE if the launcher cannot be reached, limits
        calls, fails, or does not accept the token; BROWSER_LAUNCH_FAILED if it does not start this profile."""
        unavailable = error.status is None or error.rate_limited or error.unauthorized or error.server_failed
        reason = LAUNCHER_UNAVAILABLE if unavailable else BROWSER_LAUNCH_FAILED
        return Refused(reason, str(error), error.retry_after or 0.0)


def _seconds(description: dict[str, object], name: str, default: float) -> float:
    found = description.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default
