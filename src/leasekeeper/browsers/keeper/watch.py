"""Watches a running browser: relays its traffic until the deadline, a revocation or another cause ends that.

One poll loop. It reads the worker's messages and the clock before it forwards anything. So commands that were buffered
while the keeper or its worker was stopped past the deadline never reach the browser.
"""

import os
import select
import signal
import time

from leasekeeper.browsers.keeper import causes
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control
from leasekeeper.browsers.keeper.orders import FROM_PLAYWRIGHT, STALE_TOKEN, TO_PLAYWRIGHT, Orders, Refused
from leasekeeper.browsers.keeper.pages import Pages
from leasekeeper.browsers.keeper.reached import Channel, ReachedBrowser
from leasekeeper.browsers.keeper.reasons import LEASE_LOST
from leasekeeper.browsers.keeper.relay import Flow
from leasekeeper.browsers.keeper.status_file import remove_status, write_status

TYPE_CHECKING = False  # the typing module would cost each launch 5 ms
if TYPE_CHECKING:
    from leasekeeper.browsers.keeper.paused_commands import PausedCommands
    from leasekeeper.browsers.keeper.sharing import Sharing

# The deadline counts suspend, the kernel's timeouts do not: so wake up this often and read the clock.
MAX_POLL_SECONDS = 1.0
# How much may wait for a Playwright process that does not read, while other clients do.
ROOM_BYTES = 16 * 1024 * 1024
# How often the worker is told how many bytes came from the browser.
REPORT_EVERY_BYTES = 8 * 1024 * 1024
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Watch:
    """A browser while it is used. `run` returns why that ended; `ending` does the rest."""

    def __init__(self, orders: Orders, browser: ReachedBrowser, control: Control) -> None:
        self.orders = orders
        self.browser = browser
        self.control = control
        self.pages = Pages()
        self.close_requested = False
        self.evidence_wanted = True
        self.spoke = False
        self.revoke_reason = ""
        self.started_at = time.time()
        self._inward = Flow(Channel(FROM_PLAYWRIGHT), browser.to, self.pages.to_browser.feed)
        self._outward = Flow(browser.out, Channel(TO_PLAYWRIGHT), self.pages.from_browser.feed)
        self._reported_bytes = 0
        self._sharing: Sharing | None = None
        self._paused: PausedCommands | None = None
        self._signals = _catch_signals()
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        for descriptor in (FROM_PLAYWRIGHT, TO_PLAYWRIGHT):
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    @property
    def command_broken_off(self) -> bool:
        """Whether the last command to the browser was only partly written."""
        return not self._inward.between_messages or (self._sharing is not None and self._sharing.writing)

    def cut_clients(self, why: str) -> None:
        """Disconnect all clients except Playwright: no command of theirs reaches the browser any more."""
        if self._sharing is not None:
            self._sharing.remove_all(why)

    def run(self) -> str:
        """Relay until something ends it. Returns the cause for the report (`causes`)."""
        self.control.send({"started": self.browser.pid})
        write_status(self.orders)
        cause = ""
        while not cause:
            cause = self._turn(self._wait())
        return cause

    def _wait(self) -> dict[int, int]:
        """Wait until a descriptor is ready or the deadline has come. Returns the events by descriptor."""
        wanted = self._wanted()
        for descriptor in self._polled.keys() - wanted.keys():
            self._poll.unregister(descriptor)
        for descriptor, events in wanted.items():
            if self._polled.get(descriptor) != events:
                self._poll.register(descriptor, events)
        self._polled = wanted
        until = min(self.orders.deadline, self.orders.kill_at)
        return dict(self._poll.poll(min(max(0.0, until - boot_time()), MAX_POLL_SECONDS) * 1000 + 1))

    def _wanted(self) -> dict[int, int]:
        """The events to wait for, by descriptor. 0: only the end of a pipe, which poll always reports."""
        browser, control = self.browser, self.control
        wanted = dict.fromkeys((control.descriptor, control.worker, self._signals, browser.watch), select.POLLIN)
        for flow in (self._inward, self._outward):
            if not flow.ended:
                wanted[flow.source.descriptor] = 0 if flow.full else select.POLLIN
        wanted[TO_PLAYWRIGHT] = select.POLLOUT if self._outward.waiting else 0
        writes = bool(self._inward.waiting)
        if self._sharing is not None:
            writes = writes or (self._sharing.ready and self._inward.between_messages)
            for client in self._sharing.clients.values():
                reads, takes = client.wants
                wanted[client.descriptor] = (select.POLLIN if reads else 0) | (select.POLLOUT if takes else 0)
        if writes:
            wanted[browser.to.descriptor] = wanted.get(browser.to.descriptor, 0) | select.POLLOUT
        return wanted

    def _turn(self, ready: dict[int, int]) -> str:
        """Handle the ready descriptors. Returns the cause once the relaying is over, else an empty text."""
        cause = self._over(ready)
        if cause:
            return cause
        if self._outward.source.descriptor in ready:
            self._outward.take()
            self.spoke = self.spoke or bool(self._outward.waiting)
            self._report_bytes()
            if self._too_large():
                self._outward.drop()  # Playwright would keep the whole message in memory: it never gets the end
                return causes.MESSAGE_TOO_LARGE
        if self._inward.source.descriptor in ready:
            self._inward.take()
        if self._sharing is not None:
            self._serve_clients(self._sharing, ready)
        if self.pages.asked_to_close:
            # The task closes its browser, or Playwright does because its worker has just died. Take the evidence first.
            self._inward.drop()
            return causes.CLOSED
        self._outward.give()
        if boot_time() >= self.orders.deadline:
            return self._turn({})
        self._forward()
        return ""

    def _forward(self) -> None:
        """Write commands to the browser. A command is finished before another client's begins."""
        sharing = self._sharing
        if sharing is None or not sharing.writing:
            self._inward.give()
        if sharing is not None and self._inward.between_messages:
            sharing.give(self.browser.to)

    def _report_bytes(self) -> None:
        if self._outward.taken >= self._reported_bytes + REPORT_EVERY_BYTES:
            self._reported_bytes = self._outward.taken
            self.control.send({"relayed": self._reported_bytes})

    def _too_large(self) -> bool:
        if self._sharing is not None:
            return self._sharing.too_large
        return self.pages.from_browser.largest > self.orders.max_message_bytes

    @staticmethod
    def _serve_clients(sharing: "Sharing", ready: dict[int, int]) -> None:
        for descriptor in list(sharing.clients):
            events = ready.get(descriptor, 0)
            if events or sharing.clients[descriptor].wants[1]:
                readable = bool(events & (select.POLLIN | _GONE))
                sharing.serve(descriptor, readable=readable, writable=True)

    def _add_client(self, name: str) -> None:
        if self._sharing is None:
            from leasekeeper.browsers.keeper.sharing import Sharing

            inside = self.pages.from_browser.size
            self._sharing = Sharing(self.orders, self.pages, self.control.send, inside=inside)
            self._outward.share, self._outward.room = self._sharing.split, ROOM_BYTES
        self._sharing.add(name)

    def _over(self, ready: dict[int, int]) -> str:
        """Why the relaying is over; empty if it is not. Reads the worker's messages first: a waiting renewal counts."""
        # If this process was stopped meanwhile, `ready` is old. So before a deadline counts, the messages are read.
        late = self.orders.expired(boot_time())
        messages = self.control.read() if late or self.control.descriptor in ready else []
        for message in messages or ():
            self._obey(message)
        if self.revoke_reason:
            return causes.REVOKED
        if messages is None or self.control.worker in ready:
            return causes.WORKER_GONE
        if self.orders.expired(boot_time()):
            return causes.DEADLINE
        if self._signals in ready:
            return causes.TERMINATED
        if self.browser.watch in ready or self._outward.ended:
            self._flush_to_playwright()
            return causes.BROWSER_GONE
        if self._inward.ended or (ready.get(FROM_PLAYWRIGHT, 0) | ready.get(TO_PLAYWRIGHT, 0)) & _GONE:
            return causes.DRIVER_GONE
        return causes.CLOSED if self.close_requested else ""

    def _obey(self, message: dict[str, object]) -> None:
        """Execute one message of the worker."""
        if self.orders.take_renewal(message):
            write_status(self.orders)
        if "close" in message:
            self.close_requested, self.evidence_wanted = True, message["close"] == "with evidence"
            self.control.send({"closing": 1})
        if "revoke" in message:
            self.revoke_reason = self.revoke_reason or str(message["revoke"]) or "no reason given"
        if "client" in message:
            self._add_client(str(message["client"]))
        if "pause" in message:
            self._pause(str(message["pause"]))
        if "resume" in message:
            self._resume()
        lease = message.get("lease")
        if isinstance(lease, dict):
            self._hand_over(lease)

    def _pause(self, why: str) -> None:
        """Somebody else takes control: forward no acting command of Playwright, and disconnect all other clients."""
        if self._paused is None:
            from leasekeeper.browsers.keeper.paused_commands import PausedCommands

            waiting, inside = bytes(self._inward.waiting), not self._inward.between_messages
            self._paused = PausedCommands(inside=inside)
            if not inside or b"\0" in waiting:
                self.pages.to_browser.forget()
            self._inward.gate = self._paused.split
            self._inward.waiting = memoryview(self._paused.split(waiting))
        self.cut_clients(why)
        self.control.send({"paused": 1})

    def _resume(self) -> None:
        """Playwright has control again: forward the commands that waited."""
        if self._paused is not None:
            waited, self._paused, self._inward.gate = self._paused.end(), None, None
            self._inward.put(waited)

    def _hand_over(self, lease: dict[str, object]) -> None:
        """Put the open browser under a new lease. Refused after the deadline or once a close was requested."""
        try:
            if boot_time() >= self.orders.deadline or self.close_requested or self.revoke_reason:
                raise Refused(LEASE_LOST, "the browser is already being closed")
            token = lease.get("token")
            if not isinstance(token, int) or token <= self.orders.token:
                raise Refused(STALE_TOKEN, f"token {token} is not above {self.orders.token}")
            self.browser.take_lease(token, str(lease.get("lease_id")), str(lease.get("run_id")))
            before = self.orders.folder
            self.orders.take_lease(lease)
        except Refused as refused:
            self.control.send({"refused": refused.reason, "message": refused.message})
            return
        self.cut_clients("the browser went on under another lease")
        write_status(self.orders)
        remove_status(before)
        self.pages.commands.clear()
        self.started_at = time.time()
        self.control.send({"leased": self.orders.token})

    def _flush_to_playwright(self) -> None:
        """Forward what the browser sent before it ended, as much as Playwright takes without waiting."""
        while True:
            self._outward.give()
            if self._outward.waiting or self._outward.ended:
                return
            self._outward.take()
            if not self._outward.waiting:
                return


def _catch_signals() -> int:
    """A descriptor that becomes readable when the keeper gets a signal to stop."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    return read
