"""Ends a browser, in this order: no more commands, evidence, stop, proof, report. Every step is always reached."""

import os

from leasekeeper.browsers.keeper import causes
from leasekeeper.browsers.keeper.capture import Cdp, capture
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control, wait_readable
from leasekeeper.browsers.keeper.orders import FROM_PLAYWRIGHT, TO_PLAYWRIGHT
from leasekeeper.browsers.keeper.report import log, write_report, write_screenshot
from leasekeeper.browsers.keeper.status_file import remove_status
from leasekeeper.browsers.keeper.stop import LINGER_SECONDS, stop
from leasekeeper.browsers.keeper.watch import Watch

CAPTURE_SECONDS = 8.0


def end(watch: Watch, cause: str) -> int:
    """End the browser and report. Returns the keeper's exit code: the browser's own."""
    watch.cut_clients(watch.revoke_reason or cause)
    if not watch.close_requested:  # else Playwright expects the end, and the pipe closes when this process exits
        os.close(FROM_PLAYWRIGHT)
        os.close(TO_PLAYWRIGHT)
    browser, orders, control = watch.browser, watch.orders, watch.control
    cdp = Cdp(browser, broken_off=watch.command_broken_off, inside=watch.pages.from_browser.size > 0)
    url, picture = watch.pages.last_url, None
    now = boot_time()
    too_late = browser.outlives_lease and now >= orders.kill_at
    if not too_late and cause != causes.BROWSER_GONE and (cause != causes.CLOSED or watch.evidence_wanted):
        budget = min(CAPTURE_SECONDS, (orders.kill_at - now) * 0.4)
        seen, picture = capture(cdp, watch.pages.last_used, now + budget)
        url = seen or url
        if cause in (causes.CLOSED, causes.DRIVER_GONE) and _worker_gone_too(control):
            cause = causes.WORKER_GONE
    by_itself = cause == causes.BROWSER_GONE
    stopped_by = stop(browser, cdp, orders, by_itself=by_itself, visited=watch.pages.visited)
    now = boot_time()
    all_gone = browser.all_gone(min(now + LINGER_SECONDS, max(now, orders.kill_at)))
    proof = browser.prove(stopped_by, all_gone)
    failed_start = by_itself and not watch.spoke
    untouched = all_gone and browser.clean_up(proof, spoke=not failed_start)
    reason, message = browser.failed_start() if failed_start else ("", "")
    _report(
        watch,
        refused={"reason": reason, "message": message} if failed_start else None,
        cause=cause,
        stopped_by=stopped_by,
        proof=proof,
        untouched=untouched,
        retry_after_seconds=browser.calm_seconds,
        final_url=url,
        screenshot=_screenshot(orders.folder, picture),
    )
    if all_gone:
        remove_status(orders.folder)
        browser.release()  # before the message: who receives it may open the directory at once
    control.send({"ended": 1})
    return browser.exit_code if browser.exit_code is not None else 128 + (browser.signal or 0)


def _worker_gone_too(control: Control) -> bool:
    """Whether the worker has ended as well. If both are killed at once, Playwright's end may be seen first."""
    wait_readable(control.descriptor, control.worker, seconds=0.02)
    return wait_readable(control.worker, seconds=0) or control.read() is None


def _screenshot(folder: str, picture: bytes | None) -> str | None:
    try:
        return write_screenshot(folder, picture) if picture is not None else None
    except OSError as error:
        log(f"cannot write the screenshot: {error}")
        return None


def _report(watch: Watch, **found: object) -> None:
    try:
        write_report(
            watch.orders.folder,
            **watch.orders.identity(),
            **found,
            exit_code=watch.browser.exit_code,
            signal=watch.browser.signal,
            commands=[{"at": at, "method": method, "url": url} for at, method, url in watch.pages.commands],
            started_at=watch.started_at,
            revoke_reason=watch.revoke_reason,
        )
    except OSError as error:
        log(f"cannot write the report: {error}")
