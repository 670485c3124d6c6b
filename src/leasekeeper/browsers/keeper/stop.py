"""Stops a browser in the time that is left: `Browser.close`, then SIGINT, then SIGKILL. A launcher's browser gets the
launcher's own stop in place of signals."""

from leasekeeper.browsers.keeper.capture import Cdp
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.reached import ReachedBrowser

KILL_MARGIN = 0.25
# Child processes outlive the main process for a moment, also after a clean close.
LINGER_SECONDS = 3.0


def stop(browser: ReachedBrowser, cdp: Cdp, orders: Orders, *, by_itself: bool, visited: bool) -> str:
    """Stop the browser. Returns what ended it: `itself`, `Browser.close` or one of `browser.ways`.

    `by_itself`: it is ending or has ended. `visited`: a page was at an address that can store something.
    """
    stopped_by = "itself" if by_itself or browser.gone() else "Browser.close"
    if stopped_by == "Browser.close":
        if browser.outlives_lease and boot_time() >= orders.kill_at:
            browser.kill()
            return browser.ways[1]
        now = boot_time()
        browser.before_close(cdp, now + (orders.kill_at - now) * 0.3, visited=visited)
        cdp.send("Browser.close")
    last = orders.kill_at - KILL_MARGIN
    now = boot_time()
    # With little time left each step is shorter, but none is left out.
    if _ended(browser, cdp, min(now + orders.close_seconds, now + (last - now) * 0.6)):
        return stopped_by
    browser.interrupt()
    if _ended(browser, cdp, min(boot_time() + orders.interrupt_seconds, last)):
        return browser.ways[0]
    browser.kill()
    _ended(browser, cdp, boot_time() + 5.0)
    return browser.ways[1]


def _ended(browser: ReachedBrowser, cdp: Cdp, until: float) -> bool:
    """Wait for the end; returns whether it came. Reads the pipe meanwhile: a full one would block the close."""
    while not browser.gone():
        if boot_time() >= until:
            return False
        cdp.step(until)
    return True
