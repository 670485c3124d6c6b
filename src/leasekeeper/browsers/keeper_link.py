"""The worker's side of a keeper: writes its orders, sends it messages, reads its report. Knows no store, no Playwright.

One thread per browser owns the socket. So a renewed deadline or a revocation is sent at once even while a task blocks
the event loop, and a keeper that does not read never delays the caller.
"""

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from leasekeeper.browsers.keeper.orders import ENV_NAME, VERSION, Orders
from leasekeeper.browsers.keeper_clients import ClientSocket, KeeperClient
from leasekeeper.browsers.keeper_reports import LaunchRefused, read_report
from leasekeeper.browsers.keeper_socket import Connection, Message
from leasekeeper.core.browsers import BrowserReport, LeaseTerms
from leasekeeper.core.failures import Reason
from leasekeeper.driver_port import ClientRefused
from leasekeeper.threads import run_in_thread

ORDERS_NAME: Final = "keeper.json"
# Removed from the orders file once the keeper has said hello: clients of its browser could read the file.
_SECRET_FIELDS: Final = ("control", "launcher", "secret")
MAX_WAITING: Final = 1000
ANSWER_SECONDS: Final = 10.0

T = TypeVar("T")


class KeeperLink:
    """One browser, from before its launch to its report. `extend` and `revoke` may be called from any thread."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        orders.secret = secrets.token_hex(16)
        orders.control = f"leasekeeper-{os.getpid()}-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._outbox: list[Message] = []
        self._started: Future[int] = Future()
        self._over: Future[None] = Future()
        self._closing: Future[None] = Future()
        self._leased: Future[None] | None = None
        self._paused: Future[None] | None = None
        self._close_asked: Future[None] = Future()
        self._clients: dict[str, KeeperClient] = {}
        self._disconnect_reasons: dict[str, str] = {}
        self._keeper_pid: int | None = None
        self.relayed_bytes = 0
        """How many bytes the browser has sent, as the keeper last reported."""
        self._connection = Connection(orders.secret, self._take_messages, self._on_message, self._on_end)
        self._connection.listen(orders.control)
        try:
            self._write_orders()
            self._connection.start()
        except BaseException:
            self._connection.close()
            raise

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for Playwright to start the keeper with. The browser does not get them."""
        return {ENV_NAME: str(Path(self._orders.folder) / ORDERS_NAME)}

    @property
    def orders(self) -> Orders:
        """The orders of the present run."""
        return self._orders

    @property
    def keeper_pid(self) -> int | None:
        """The keeper's process, once it has connected."""
        return self._keeper_pid

    @property
    def browser_pid(self) -> int | None:
        """The browser's process, once the keeper has started it. It leads a session of its own."""
        started = self._started
        return started.result() if started.done() and started.exception() is None else None

    @property
    def over(self) -> bool:
        """True once the keeper has reported its end, or is gone without a report."""
        return self._over.done()

    def extend(self, deadline: float, kill_at: float) -> None:
        """The lease was renewed: the keeper may forward until `deadline`. Never blocks, never raises."""
        self._orders.deadline, self._orders.kill_at = deadline, kill_at
        self._send({"deadline": deadline, "kill_at": kill_at})

    def revoke(self, why: str) -> None:
        """End the browser now; `why` goes into the report. Never blocks, never raises, cannot be undone."""
        self._send({"revoke": why[:2000]})

    def request_close(self, *, with_evidence: bool = False) -> None:
        """Ask the keeper to close the browser. `with_evidence`: it takes the evidence first. Never blocks or raises."""
        self._send({"close": "with evidence" if with_evidence else "now"})

    async def closing(self, timeout: float) -> None:
        """Wait until the keeper has read the request to close, or has ended: Playwright's own close does nothing."""
        await _settled(self._closing, timeout)

    async def started(self, timeout: float = 30.0) -> int:
        """The browser's process id. Raises LaunchRefused if there is no browser; call it beside or after the launch."""
        if await _settled(self._started, timeout):
            return self._started.result()
        raise self.refusal() or LaunchRefused(Reason.BROWSER_LAUNCH_FAILED, "the keeper did not answer")

    def refusal(self) -> LaunchRefused | None:
        """Why the keeper refused to start the browser, from its report; None if it did not refuse."""
        report = read_report(self._orders.folder)
        if report is None or report.refused is None:
            return None
        return LaunchRefused(report.refused.reason, report.refused.message, report.refused.retry_after)

    async def hand_over(self, terms: LeaseTerms, timeout: float = ANSWER_SECONDS) -> None:
        """Put the open browser under a new lease. When it returns, the fence file has the new token.

        Stop renewing the old lease first: a deadline of the old lease that is sent later would apply to the new one.
        Raises LaunchRefused if the keeper refused, or did not answer in time: the browser must then be ended.
        """
        answer: Future[None] = Future()
        with self._lock:
            self._leased = answer
        await run_in_thread(_private_folder, Path(terms.folder))
        self._send({"lease": asdict(terms)})
        if self._over.done():
            raise LaunchRefused(Reason.LEASE_LOST, "the keeper has ended, there is no browser to hand over")
        if not await _settled(answer, timeout):
            raise LaunchRefused(Reason.LEASE_LOST, f"the keeper did not answer within {timeout:g} s")
        answer.result()
        self._orders.take_lease(asdict(terms))

    async def pause(self, why: str, timeout: float = ANSWER_SECONDS) -> None:
        """A person takes control: no acting command reaches the browser any more, and its clients are disconnected.

        Raises LaunchRefused if the keeper did not answer.
        """
        with self._lock:
            answer = self._paused = Future()
        self._send({"pause": why[:2000] or "control passed"})
        if self._over.done() or not await _settled(answer, timeout):
            raise LaunchRefused(Reason.LEASE_LOST, f"the keeper did not answer within {timeout:g} s")
        answer.result()

    def resume(self) -> None:
        """Playwright has control again. The commands that it sent meanwhile are executed now. Never blocks."""
        self._send({"resume": 1})

    async def add_client(self, timeout: float = ANSWER_SECONDS) -> KeeperClient:
        """Connect one more DevTools client to the browser. Raises ClientRefused if the keeper does not accept it."""
        if self._keeper_pid is None or self._over.done():
            raise ClientRefused("the browser has ended" if self._over.done() else "the browser has not started")
        socket = ClientSocket()
        try:
            self._send({"client": socket.name})
            async with asyncio.timeout(timeout):
                client = await socket.accept(self._keeper_pid)
        except TimeoutError:
            why = self._disconnect_reasons.pop(socket.name, "")
            raise ClientRefused(why or "the keeper did not answer") from None
        finally:
            socket.close()
        client.why = self._disconnect_reasons.pop(client.name, "")
        self._clients[client.name] = client
        return client

    async def close_asked(self) -> None:
        """Wait until a client sends Browser.close, which the keeper only reports to its worker, or the keeper ends."""
        await _settled(self._close_asked, timeout=None)

    async def ended(self, timeout: float) -> BrowserReport | None:
        """Wait for the keeper's report. None after the timeout, or if the keeper ended without one (then `over`)."""
        return read_report(self._orders.folder) if await _settled(self._over, timeout) else None

    def close(self) -> None:
        """Close the connection. A keeper that still runs ends its browser then, as if the worker had died."""
        self._connection.close()

    def _write_orders(self, *, without: Collection[str] = ()) -> None:
        folder = Path(self._orders.folder)
        _private_folder(folder)
        fields = {name: value for name, value in self._orders.fields().items() if name not in without}
        path = folder / ORDERS_NAME
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **fields}, file)

    def _send(self, message: Message) -> None:
        with self._lock:
            if "deadline" in message and self._outbox and "deadline" in self._outbox[-1]:
                self._outbox[-1] = message  # a keeper that reads slowly needs only the newest deadline
            elif len(self._outbox) < MAX_WAITING:
                self._outbox.append(message)
        self._connection.wake()

    def _take_messages(self) -> list[Message]:
        with self._lock:
            taken, self._outbox = self._outbox, []
        return taken

    def _on_message(self, message: Mapping[str, Any]) -> None:
        """Handle one message of the keeper. Runs in the connection's thread."""
        if "hello" in message:
            self._keeper_pid = int(message["pid"])
            with suppress(OSError):  # the disk is full: then the file is only removed
                self._write_orders(without=_SECRET_FIELDS)
        elif "started" in message:
            _resolve(self._started, int(message["started"]))
        elif "closing" in message:
            _resolve(self._closing, None)
        elif "relayed" in message:
            self.relayed_bytes = int(message["relayed"])
        elif "cut" in message:
            self._on_disconnect(str(message["cut"]), str(message["why"]))
        elif "close_asked" in message:
            _resolve(self._close_asked, None)
        elif "paused" in message and self._paused is not None:
            _resolve(self._paused, None)
        elif "leased" in message and self._leased is not None:
            _resolve(self._leased, None)
        elif "refused" in message and self._leased is not None:
            _fail(self._leased, LaunchRefused(str(message["refused"]), str(message["message"])))

    def _on_disconnect(self, name: str, why: str) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            client.why = why
        elif len(self._disconnect_reasons) < MAX_WAITING:
            self._disconnect_reasons[name] = why

    def _on_end(self) -> None:
        """The keeper reported its end, or its connection was closed. Runs in the connection's thread."""
        refused: Exception
        try:
            refused = self.refusal() or LaunchRefused(Reason.BROWSER_LAUNCH_FAILED, "the keeper ended without a report")
        except Exception as error:  # noqa: BLE001 - whoever waits gets any problem with the report
            refused = error
        _fail(self._started, refused)
        if self._leased is not None:
            _fail(self._leased, LaunchRefused(Reason.LEASE_LOST, "the keeper ended before it answered"))
        if self._paused is not None:
            _fail(self._paused, LaunchRefused(Reason.LEASE_LOST, "the keeper has ended"))
        _resolve(self._closing, None)
        _resolve(self._close_asked, None)
        _resolve(self._over, None)


async def _settled(future: Future[T], timeout: float | None) -> bool:
    """Wait for the future; returns whether it is done. Does not cancel it at the timeout: others may wait for it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits there any more
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), timeout)
    return future.done()


def _resolve(future: Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
