"""A browser that a launcher started: started and stopped over the launcher's HTTP API, reached over a WebSocket.

Its process is not ours, so the launcher's status and the closed endpoint prove its end, not signals or a directory.
Everything else of the keeper (deadline, relay, evidence, report) is the same as for a child process.
"""

import os
import socket
import time
from urllib.parse import urlsplit

from leasekeeper.browsers.keeper.control import Control
from leasekeeper.browsers.keeper.directory import take_directory
from leasekeeper.browsers.keeper.fence_file import record_token
from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls
from leasekeeper.browsers.keeper.launcher_end import AGAIN_SECONDS, ASK_SECONDS, STOP_SECONDS, LauncherEnd, LeaseTime
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.reached import ReachedBrowser
from leasekeeper.browsers.keeper.reasons import BROWSER_LAUNCH_FAILED
from leasekeeper.browsers.keeper.websocket import NotReached, WebSocket, never_readable, without_query

CONNECT_SECONDS = 15.0
PROBE_SECONDS = 2.0


def start_attached(orders: Orders, control: Control | None = None) -> "AttachedBrowser":
    """Start the profile in its launcher and connect to it. Raises Refused, with a proof if it may still run."""
    lock, _ = take_directory(orders.user_data_dir, orders.token, orders.lease_id, orders.run_id)
    try:
        launcher = LauncherEnd(orders.launcher, LeaseTime(orders, control))
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
    """The WebSocket address of an endpoint. An http endpoint names it at `/json/version`. Raises NotReached."""
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


class AttachedBrowser(ReachedBrowser):
    """A launcher's browser while the keeper is connected to it."""

    ways = ("the launcher's stop", "cut off")
    outlives_lease = True

    def __init__(self, connection: WebSocket, orders: Orders, launcher: LauncherEnd, endpoint: str, lock: int) -> None:
        super().__init__(0, connection.to, connection.out, never_readable())
        self._connection = connection
        self._orders = orders
        self._launcher = launcher
        self._endpoint = endpoint
        self._lock = lock
        self._endpoint_gone = False

    @property
    def calm_seconds(self) -> float:
        return self._launcher.calm_seconds

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
        self._launcher.stop(STOP_SECONDS)

    def kill(self) -> None:
        """Close the connection, so that nothing more reaches the browser, and ask the launcher to stop it."""
        self._connection.close()
        self._launcher.stop(STOP_SECONDS)

    def all_gone(self, until: float) -> bool:  # noqa: ARG002 - launchers take longer than processes of our own
        """Stop it in the launcher, then wait until the profile is idle and nothing listens at its endpoint."""
        self._connection.close()
        end = time.monotonic() + self._launcher.idle_seconds
        self._launcher.stop(STOP_SECONDS)
        idle = self._launcher.wait_idle(end)
        self._endpoint_gone = self._launcher.endpoint_stays or _nobody_listens(self._endpoint, end)
        if idle and self._endpoint_gone:
            self.exit_code = 0
        return idle and self._endpoint_gone

    def prove(self, stopped_by: str, all_gone: bool) -> dict[str, object]:
        """Closed over DevTools; the launcher confirms the stop and says idle; nothing listens at the endpoint."""
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

    def clean_up(self, proof: dict[str, object], *, spoke: bool) -> bool:  # noqa: ARG002 - its files are the launcher's
        """Nothing: the files are the launcher's. Returns False, as nobody knows whether the browser changed them."""
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
