"""Ending a browser: the stop order, in the time that is left. `Browser.close`, then SIGINT, then SIGKILL; or, where the
process is not ours, what its launcher has in their place."""

from leasekeeper.browsers.keeper.capture import Cdp
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.reached import ReachedBrowser

KILL_MARGIN = 0.25
# Children outlive the main process for a moment even when all is well.
LINGER_SECONDS = 3.0


def stop(browser: ReachedBrowser, cdp: Cdp, orders: Orders, *, by_itself: bool, visited: bool) -> str:
    """End the browser and return what it took. `by_itself`: it is about to end, or has ended. `visited`: a page of it
    was somewhere."""
    way = "itself" if by_itself or browser.gone() else "Browser.close"
    if way == "Browser.close":
        if browser.outlives_lease and boot_time() >= orders.kill_at:
            browser.kill()
            return browser.ways[1]
        now = boot_time()
        browser.before_close(cdp, now + (orders.kill_at - now) * 0.3, visited=visited)
        cdp.send("Browser.close")
    last = orders.kill_at - KILL_MARGIN
    now = boot_time()
    # With little time left each step gets less of it, but gets some.
    if _ended(browser, cdp, min(now + orders.close_seconds, now + (last - now) * 0.6)):
        return way
    browser.interrupt()
    if _ended(browser, cdp, min(boot_time() + orders.interrupt_seconds, last)):
        return browser.ways[0]
    browser.kill()
    _ended(browser, cdp, boot_time() + 5.0)
    return browser.ways[1]


def _ended(browser: ReachedBrowser, cdp: Cdp, until: float) -> bool:
    """Whether it ended in time. Its pipe is read meanwhile: a browser that cannot write cannot close."""
    while not browser.gone():
        if boot_time() >= until:
            return False
        cdp.step(until)
    return True
