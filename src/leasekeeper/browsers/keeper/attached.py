"""A browser that somebody else's program started: asked for over HTTP, reached over a WebSocket, stopped the same way.

Its process is not ours, so neither signals nor a directory say how it ended: the launcher does, and its endpoint.
Everything else of the keeper (deadline, relay, evidence, report) is the same as for a child process.
"""

import os
import socket
import time
from urllib.parse import urlsplit

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.directory import take_directory
from leasekeeper.browsers.keeper.fence_file import record_token
from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls, fill_quoted
from leasekeeper.browsers.keeper.orders import Orders, Refused
from leasekeeper.browsers.keeper.reached import ReachedBrowser
from leasekeeper.browsers.keeper.reasons import (
    BROWSER_LAUNCH_FAILED,
    LAUNCHER_UNAVAILABLE,
    PROFILE_IN_USE_ELSEWHERE,
)
from leasekeeper.browsers.keeper.websocket import NotReached, WebSocket, never_readable, without_query

CONNECT_SECONDS = 15.0
STOP_SECONDS = 20.0
ASK_SECONDS = 10.0
AGAIN_SECONDS = 0.5
MAX_AGAIN_SECONDS = 5.0
PROBE_SECONDS = 2.0


def start_attached(orders: Orders) -> "AttachedBrowser":
    """Start the profile in its launcher and connect to it. Raises Refused; then it was stopped again, or never ran."""
    lock, _ = take_directory(orders.user_data_dir, orders.token, orders.lease_id, orders.run_id)
    try:
        launcher = LauncherEnd(orders.launcher)
        endpoint = launcher.start()
        try:
            return AttachedBrowser(_reach(orders, endpoint, CONNECT_SECONDS), orders, launcher, endpoint, lock)
        except NotReached as error:
            raise launcher.failed_after_start(str(error)) from None
    except BaseException:
        os.close(lock)
        raise


def _reach(orders: Orders, endpoint: str, seconds: float, *, again: bool = False) -> WebSocket:
    until = time.monotonic() + seconds
    url, packages = devtools_url(endpoint, until), str(orders.launcher.get("packages", ""))
    return WebSocket(url, packages, orders.max_message_bytes, until, again=again)


def devtools_url(endpoint: str, until: float) -> str:
    """The WebSocket of an endpoint: itself, or what it names at `/json/version` where it is an http address."""
    parts = urlsplit(endpoint)
    if parts.scheme in ("ws", "wss"):
        return endpoint
    asked = LauncherCalls({"url": f"{parts.scheme}://{parts.netloc}", "status": {"path": "/json/version"}})
    while True:
        try:
            found = asked.call("status", ASK_SECONDS).at("webSocketDebuggerUrl")
            if isinstance(found, str):
                named = urlsplit(found)
                return f"{named.scheme}://{parts.netloc}{named.path}" + (f"?{named.query}" if named.query else "")
            problem = "it names no webSocketDebuggerUrl"
        except CallFailed as error:
            problem = str(error)
        if time.monotonic() + 0.2 >= until:
            raise NotReached(f"no DevTools at {without_query(endpoint)}: {problem}")
        time.sleep(0.2)


class LauncherEnd:
    """What the keeper asks of a launcher for one profile: start it, stop it, is it idle? Remembers what it heard."""

    def __init__(self, description: dict[str, object]) -> None:
        self._calls = LauncherCalls(description)
        self._start_seconds = _seconds(description, "start_seconds", 90.0)
        self._idle_seconds = _seconds(description, "idle_seconds", 30.0)
        self._confirm_seconds = _seconds(description, "confirm_seconds", 0.0)
        self.endpoint_stays = description.get("endpoint_stays") is True
        self.stopped = not self._calls.has("stop")
        self.idle: bool | None = None
        self.problem = ""

    @property
    def can_say(self) -> bool:
        """Whether the launcher can say that a profile is idle."""
        return self._calls.has("status")

    def start(self) -> str:
        """Start the profile and return its endpoint. One that runs already is never adopted. Raises Refused."""
        self._refuse_running()
        if not self._calls.has("start"):
            # The address of a browser that runs already. A token in it is not in the fleet file.
            return fill_quoted(str(self._calls.values.get("profile", "")), self._calls.values)
        try:
            endpoint, busy = self._calls.start(self._start_seconds)
        except CallFailed as error:
            if error.sent or (error.server_failed and self._runs_all_the_same()):
                raise self.failed_after_start(str(error)) from None
            raise _refused(error) from None
        if busy:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, "the launcher says that the profile is running already")
        return endpoint

    def _refuse_running(self) -> None:
        try:
            running = self._calls.running(ASK_SECONDS)
        except CallFailed as error:
            raise _refused(error) from None
        if running:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, "the profile is running in its launcher: stop it there first")

    def _runs_all_the_same(self) -> bool:
        """Whether a start that was answered with an error (a gateway's timeout, for instance) has worked."""
        try:
            return self._calls.running(ASK_SECONDS) is True
        except CallFailed:
            return False

    def failed_after_start(self, problem: str) -> Refused:
        """The profile may be running, and nobody can use it: stop it, and see that it is idle."""
        problem = self._calls.without_secrets(problem)
        self.stop(STOP_SECONDS)
        if self.wait_idle(time.monotonic() + self._idle_seconds):
            return Refused(BROWSER_LAUNCH_FAILED, f"{problem}; the profile was stopped again")
        return Refused(
            PROFILE_IN_USE_ELSEWHERE,
            f"{problem}; whether the profile runs is not known ({self.problem}): stop it there",
        )

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
        if self.stopped:
            return False
        try:
            self._calls.stop(seconds)
            self.stopped = True
        except CallFailed as error:
            self.problem = str(error)
            return error.sent
        return False

    def wait_idle(self, until: float) -> bool:
        """Ask until the launcher says idle, twice where its answers lag. Where it cannot say, its stop has to do."""
        if not self.can_say:
            return self.stopped
        pause, since = AGAIN_SECONDS, 0.0
        while True:
            try:
                running = self._calls.running(ASK_SECONDS)
                self.problem = "the launcher says that it runs" if running else ""
            except CallFailed as error:
                running, self.problem = True, str(error)
                pause = max(pause, min(error.retry_after or 0.0, MAX_AGAIN_SECONDS * 2))
            now = time.monotonic()
            if running:
                since = 0.0
            elif (since and now - since >= self._confirm_seconds) or not self._confirm_seconds:
                self.idle = True
                return True
            else:
                since = since or now
            if now + pause > until:
                self.idle = False
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, MAX_AGAIN_SECONDS)
            if running:
                self.stopped = self.stopped and not self._calls.has("stop")
                self.stop(STOP_SECONDS)

    def without_secrets(self, text: str) -> str:
        """The text without the launcher's token."""
        return self._calls.without_secrets(text)

    @property
    def idle_seconds(self) -> float:
        """How long a profile may take to become idle."""
        return self._idle_seconds


class AttachedBrowser(ReachedBrowser):
    """A launcher's browser while the keeper is connected to it."""

    ways = ("the launcher's stop", "cut off")

    def __init__(self, connection: WebSocket, orders: Orders, launcher: LauncherEnd, endpoint: str, lock: int) -> None:
        super().__init__(0, connection.to, connection.out, never_readable())
        self._connection = connection
        self._orders = orders
        self._launcher = launcher
        self._endpoint = endpoint
        self._lock = lock
        self._endpoint_gone = False

    def break_off(self) -> bytes:
        """Cut the connection, so that the rest of the command is never sent, and open a new one."""
        self._connection.close()
        try:
            self._connection = _reach(self._orders, self._endpoint, PROBE_SECONDS, again=True)
        except NotReached:
            return b""
        self.to, self.out = self._connection.to, self._connection.out
        return b""

    def take_lease(self, token: int, lease_id: str, run_id: str) -> None:
        record_token(self._orders.user_data_dir, token, lease_id, run_id)

    def gone(self) -> bool:
        return self._connection.closed

    def interrupt(self) -> None:
        self._launcher.stop(min(STOP_SECONDS, max(1.0, self._orders.kill_at - boot_time())))

    def kill(self) -> None:
        """The connection is cut: nothing reaches the browser through this keeper any more."""
        self._connection.close()
        self._launcher.stop(STOP_SECONDS)

    def all_gone(self, until: float) -> bool:  # noqa: ARG002 - this launcher takes longer than processes of our own
        """Stop it in the launcher too, then ask until it is idle and nobody listens at its endpoint."""
        self._connection.close()
        end = time.monotonic() + self._launcher.idle_seconds
        self._launcher.stop(STOP_SECONDS)
        idle = self._launcher.wait_idle(end)
        self._endpoint_gone = self._launcher.endpoint_stays or _nobody_listens(self._endpoint, end)
        if idle and self._endpoint_gone:
            self.exit_code = 0
        return idle and self._endpoint_gone

    def prove(self, stopped_by: str, all_gone: bool) -> dict[str, object]:
        """Closed over DevTools, stopped and idle as the launcher says, and its endpoint gone."""
        launcher = self._launcher
        graceful = stopped_by == "Browser.close"
        clauses = {"graceful": graceful, "processes_gone": all_gone, "launcher_stopped": launcher.stopped}
        failing = "" if graceful else f"the browser did not close when asked ({stopped_by})"
        if launcher.can_say:
            clauses["launcher_idle"] = launcher.idle is True
        if not launcher.endpoint_stays:
            clauses["endpoint_gone"] = self._endpoint_gone
        if not launcher.stopped:
            failing = f"the launcher did not confirm the stop: {launcher.problem}"
        elif launcher.can_say and not launcher.idle:
            failing = f"the launcher does not say that the profile is idle: {launcher.problem}"
        elif not launcher.endpoint_stays and not self._endpoint_gone:
            failing = f"something still listens at {launcher.without_secrets(without_query(self._endpoint))}"
        return {"clauses": clauses, "failing_clause": failing}

    def failed_start(self) -> tuple[str, str]:
        return BROWSER_LAUNCH_FAILED, "the launcher's browser closed the connection before its first message"

    def clean_up(self, proof: dict[str, object], *, spoke: bool) -> bool:  # noqa: ARG002 - nothing of it is here
        """Nothing: what the launcher keeps is its own. Whether it changed anything cannot be known."""
        return False

    def release(self) -> None:
        os.close(self._lock)


def _nobody_listens(endpoint: str, until: float) -> bool:
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme in ("wss", "https") else 80)
    while True:
        try:
            socket.create_connection((parts.hostname or "", port), PROBE_SECONDS).close()
        except OSError:
            return True
        if time.monotonic() + AGAIN_SECONDS > until:
            return False
        time.sleep(AGAIN_SECONDS)


def _refused(error: CallFailed) -> Refused:
    """A call that was not carried out: the launcher is away, has enough, or will not start this profile. A token that
    it does not accept is no fault of the profile either."""
    away = error.status is None or error.rate_limited or error.unauthorized or error.server_failed
    return Refused(LAUNCHER_UNAVAILABLE if away else BROWSER_LAUNCH_FAILED, str(error), error.retry_after or 0.0)


def _seconds(description: dict[str, object], name: str, default: float) -> float:
    found = description.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default
