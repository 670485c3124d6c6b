"""The running browser: every command passes here or does not, and here it ends.

One poll loop. Before anything is forwarded it has heard the worker and looked at the clock, so what was buffered while
the keeper or its worker slept past the deadline goes nowhere.
"""

import os
import select
import signal
import time

from leasekeeper.browsers.keeper.browser import Browser, wait_readable
from leasekeeper.browsers.keeper.capture import Cdp, capture
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control
from leasekeeper.browsers.keeper.fence import clear_singletons, raise_fence
from leasekeeper.browsers.keeper.orders import FROM_PLAYWRIGHT, TO_PLAYWRIGHT, Orders, Refused, as_number, value_of
from leasekeeper.browsers.keeper.pages import Pages
from leasekeeper.browsers.keeper.proof import prove
from leasekeeper.browsers.keeper.relay import Flow
from leasekeeper.browsers.keeper.report import say, write_report, write_screenshot
from leasekeeper.browsers.keeper.stop import LINGER_SECONDS, stop

CAPTURE_SECONDS = 8.0
SINGLETON_EXIT = 21
# The kernel's timeouts do not count suspend, the deadline does: look at the clock every so often.
LONGEST_SLEEP = 1.0
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Watch:
    """A browser from its start to its report."""

    def __init__(self, orders: Orders, arguments: list[str], browser: Browser, control: Control, lock: int) -> None:
        self._orders = orders
        self._lock = lock
        self._profile_folder = _profile_folder(arguments)
        self._browser = browser
        self._control = control
        self._pages = Pages()
        self._inward = Flow(FROM_PLAYWRIGHT, browser.to, self._pages.to_browser.feed)
        self._outward = Flow(browser.out, TO_PLAYWRIGHT, self._pages.from_browser.feed)
        self._close_asked = False
        self._evidence_wanted = True
        self._spoke = False
        self._fence_reason = ""
        self._started_at = time.time()
        self._signals = _catch_signals()
        self._poll = select.poll()
        self._looked_at: dict[int, int | None] = {}
        for descriptor in (control.descriptor, control.worker, self._signals, browser.watch):
            self._poll.register(descriptor, select.POLLIN)
        for descriptor in (FROM_PLAYWRIGHT, TO_PLAYWRIGHT):
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def run(self) -> int:
        """Relay until something ends it, then end it. Returns the exit code."""
        self._control.say({"started": self._browser.pid})
        cause = ""
        while not cause:
            cause = self._turn(self._wait())
        return self._end(cause)

    def _wait(self) -> dict[int, int]:
        """Sleep until a descriptor is ready or the time is up. Ends of pipes are reported whether asked for or not."""
        for flow in (self._inward, self._outward):
            self._look_at(flow.source, None if flow.ended else 0 if flow.waiting else select.POLLIN)
        self._look_at(TO_PLAYWRIGHT, select.POLLOUT if self._outward.waiting else 0)
        self._look_at(self._browser.to, select.POLLOUT if self._inward.waiting else None)
        until = min(self._orders.deadline, self._orders.kill_at)
        return dict(self._poll.poll(min(max(0.0, until - boot_time()), LONGEST_SLEEP) * 1000 + 1))

    def _look_at(self, descriptor: int, events: int | None) -> None:
        """From now on wait for these events of the descriptor; None: for nothing, not even its end."""
        if self._looked_at.get(descriptor) == events:
            return
        self._looked_at[descriptor] = events
        if events is not None:
            self._poll.register(descriptor, events)
        else:
            self._poll.unregister(descriptor)

    def _turn(self, ready: dict[int, int]) -> str:
        """Act on what is ready; returns the cause once the relaying is over."""
        cause = self._over(ready)
        if cause:
            return cause
        if self._outward.source in ready:
            self._outward.take()
            self._spoke = self._spoke or bool(self._outward.waiting)
        if self._inward.source in ready:
            self._inward.take()
        if self._pages.asked_to_close:
            # The task closes its browser, or the driver does since its worker has just died: evidence comes first.
            self._inward.drop()
            return "closed"
        self._outward.give()
        if boot_time() >= self._orders.deadline:
            return self._turn({})
        self._inward.give()
        return ""

    def _over(self, ready: dict[int, int]) -> str:
        """Why the relaying is over, or nothing. The worker is heard first: a renewal that waited here still counts."""
        said = self._control.read() if self._control.descriptor in ready else []
        for message in said or ():
            self._heed(message)
        now = boot_time()
        if self._fence_reason:
            return "fenced"
        if said is None or self._control.worker in ready:
            return "worker_gone"
        if now >= min(self._orders.deadline, self._orders.kill_at):
            return "deadline"
        if self._signals in ready:
            return "told_to_stop"
        if self._browser.watch in ready or self._outward.ended:
            self._last_words()
            return "browser_gone"
        if self._inward.ended or (ready.get(FROM_PLAYWRIGHT, 0) | ready.get(TO_PLAYWRIGHT, 0)) & _GONE:
            return "driver_gone"
        return "closed" if self._close_asked else ""

    def _heed(self, message: dict[str, object]) -> None:
        deadline, kill_at = as_number(message.get("deadline")), as_number(message.get("kill_at"))
        if deadline is not None and kill_at is not None:
            self._orders.deadline, self._orders.kill_at = deadline, kill_at
        if "close" in message:
            self._close_asked, self._evidence_wanted = True, message["close"] == "with evidence"
            self._control.say({"closing": 1})
        if "fence" in message:
            self._fence_reason = self._fence_reason or str(message["fence"]) or "told to"
        lease = message.get("lease")
        if isinstance(lease, dict):
            self._hand_over(lease)

    def _hand_over(self, lease: dict[str, object]) -> None:
        """Put the open browser under a new lease. Past its deadline, or asked to close, it is not to be had."""
        try:
            if boot_time() >= self._orders.deadline or self._close_asked or self._fence_reason:
                raise Refused("LEASE_LOST", "the browser is already being closed")
            token = lease.get("token")
            if not isinstance(token, int) or token <= self._orders.token:
                raise Refused("STALE_TOKEN", f"token {token} is not above {self._orders.token}")
            raise_fence(self._orders.user_data_dir, token, str(lease.get("lease_id")), str(lease.get("run_id")))
            self._orders.take_lease(lease)
        except Refused as refused:
            self._control.say({"refused": f"{refused.reason}: {refused.message}"})
            return
        self._pages.commands.clear()
        self._started_at = time.time()
        self._control.say({"leased": self._orders.token})

    def _last_words(self) -> None:
        """What the browser said before it ended, for Playwright; as much as it takes without waiting."""
        while True:
            self._outward.give()
            if self._outward.waiting or self._outward.ended:
                return
            self._outward.take()
            if not self._outward.waiting:
                return

    def _end(self, cause: str) -> int:
        if not self._close_asked:  # else Playwright knows, and clears up when the pipe ends with this process
            os.close(FROM_PLAYWRIGHT)
            os.close(TO_PLAYWRIGHT)
        browser, orders = self._browser, self._orders
        cdp = Cdp(browser, broken_off=not self._inward.between_messages)
        url, picture = self._pages.last_url, None
        if cause != "browser_gone" and (cause != "closed" or self._evidence_wanted):
            now = boot_time()
            budget = min(CAPTURE_SECONDS, (orders.kill_at - now) * 0.4)
            seen, picture = capture(cdp, self._pages.last_used, now + budget)
            url = seen or url
            if cause in ("closed", "driver_gone") and self._worker_gone_too():
                cause = "worker_gone"
        stopped_by = stop(browser, cdp, orders, by_itself=cause == "browser_gone")
        now = boot_time()
        processes_gone = browser.family_gone(min(now + LINGER_SECONDS, max(now, orders.kill_at)))
        proof = prove(
            orders.user_data_dir, self._profile_folder, stopped_by, browser.exit_code, browser.signal, processes_gone
        )
        if processes_gone:
            clear_singletons(orders.user_data_dir)
        self._report(cause=cause, stopped_by=stopped_by, proof=proof, url=url, picture=picture)
        if processes_gone:
            os.close(self._lock)  # whoever hears of the end may open the directory at once
        self._control.say({"ended": 1})
        return browser.exit_code if browser.exit_code is not None else 128 + (browser.signal or 0)

    def _worker_gone_too(self) -> bool:
        """When both are killed at once the driver may be seen first; the worker is the one that mattered."""
        wait_readable(self._control.descriptor, self._control.worker, seconds=0.02)
        return wait_readable(self._control.worker, seconds=0) or self._control.read() is None

    def _report(
        self, *, cause: str, stopped_by: str, proof: dict[str, object], url: str | None, picture: bytes | None
    ) -> None:
        orders, browser = self._orders, self._browser
        try:
            screenshot = write_screenshot(orders.folder, picture) if picture is not None else None
        except OSError as error:
            say(f"cannot write the screenshot: {error}")
            screenshot = None
        commands = [{"at": at, "method": method, "url": url} for at, method, url in self._pages.commands]
        try:
            write_report(
                orders.folder,
                **orders.identity(),
                refused=self._failed_start(cause),
                cause=cause,
                stopped_by=stopped_by,
                exit_code=browser.exit_code,
                signal=browser.signal,
                proof=proof,
                final_url=url,
                screenshot=screenshot,
                commands=commands,
                started_at=self._started_at,
                fence_reason=self._fence_reason,
            )
        except OSError as error:
            say(f"cannot write the report: {error}")

    def _failed_start(self, cause: str) -> dict[str, object] | None:
        """Why there was no browser to use: it ended by itself without a word. The proof says what it left behind."""
        browser = self._browser
        if cause != "browser_gone" or self._spoke:
            return None
        if browser.exit_code == SINGLETON_EXIT:
            message = "the browser found its profile directory in use by another one"
            return {"reason": "PROFILE_IN_USE_ELSEWHERE", "message": message}
        ended = f"signal {browser.signal}" if browser.signal is not None else f"code {browser.exit_code}"
        return {"reason": "BROWSER_LAUNCH_FAILED", "message": f"the browser ended at once ({ended})"}


def _profile_folder(arguments: list[str]) -> str:
    named = [value_of(argument) for argument in arguments if argument.startswith("--profile-directory=")]
    return named[-1] if named else "Default"


def _catch_signals() -> int:
    """A descriptor that becomes readable when the keeper is told to stop."""
    ear, bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    return ear
