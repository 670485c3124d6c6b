"""The keeper's entry point: read the orders, start the browser, relay its traffic, end it, report.

Playwright launches it in place of Chromium. It does not know stores, jobs, other browsers, or why a lease is lost.
"""

import os
import sys
import time

from leasekeeper.browsers.keeper.child import start_child
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control, wait_readable
from leasekeeper.browsers.keeper.orders import (
    BAD_ORDERS,
    ENV_NAME,
    FROM_PLAYWRIGHT,
    TO_PLAYWRIGHT,
    Orders,
    Refused,
    read_orders,
)
from leasekeeper.browsers.keeper.reached import ReachedBrowser
from leasekeeper.browsers.keeper.reasons import LEASE_LOST
from leasekeeper.browsers.keeper.report import log, write_report

REFUSED_EXIT = 78
# How long to wait for the worker's renewal if the deadline in the orders has passed already.
RENEWAL_SECONDS = 5.0


def main() -> None:
    """The wrapper's entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the keeper until its browser has ended. Returns the browser's exit code, or 78 if none was started."""
    path = os.environ.pop(ENV_NAME, "")
    try:
        _leave_group()
        orders = read_orders(path)
        if orders.launcher:
            os.unlink(path)  # noqa: PTH108 - pathlib is not loaded. It holds the launcher's token, and nobody reads it again
    except Refused as refused:
        return _refuse(refused, os.path.dirname(path), None)  # noqa: PTH120 - pathlib would cost the launch 5 ms
    control: Control | None = None
    try:
        control = Control(orders)
        _wait_for_renewal(control, orders)
        if orders.expired(boot_time()):
            raise Refused(LEASE_LOST, f"the deadline of lease {orders.lease_id} passed before the browser started")
        browser = _start_browser(orders, arguments, control)
    except Refused as refused:
        return _refuse(refused, orders.folder, orders, control)
    # Load the rest now: the browser itself needs a third of a second to start.
    from leasekeeper.browsers.keeper.ending import end
    from leasekeeper.browsers.keeper.watch import Watch

    watch = Watch(orders, browser, control)
    return end(watch, watch.run())


def _start_browser(orders: Orders, arguments: list[str], control: Control) -> ReachedBrowser:
    if not orders.launcher:
        return start_child(orders, arguments)
    from leasekeeper.browsers.keeper.attached import start_attached  # a local launch does not need it

    return start_attached(orders, control)


def _wait_for_renewal(control: Control, orders: Orders) -> None:
    """If the deadline in the orders has passed, read the renewals that the worker sent since: launches may be slow."""
    until = boot_time() + RENEWAL_SECONDS
    while orders.expired(boot_time()):
        if not wait_readable(control.descriptor, seconds=until - boot_time()):
            return
        messages = control.read()
        if messages is None:
            raise Refused(LEASE_LOST, f"the worker (process {orders.worker_pid}) is gone")
        for message in messages:
            orders.take_renewal(message)
            if "revoke" in message:
                raise Refused(LEASE_LOST, str(message["revoke"]))


def _refuse(refused: Refused, folder: str, orders: Orders | None, control: Control | None = None) -> int:
    identity = {} if orders is None else orders.identity()
    try:
        reason: dict[str, object] = {
            "reason": refused.reason,
            "message": refused.message,
            "retry_after_seconds": refused.retry_after,
        }
        # With a proof: a launcher may have started a browser all the same.
        maybe_started = {"proof": refused.proof, "started_at": time.time(), "untouched": False} if refused.proof else {}
        if folder:
            write_report(folder, refused=reason, **identity, **maybe_started)
    except OSError as error:
        log(f"cannot write the report: {error}")
    if control is not None:
        control.send({"ended": 1})
    log(f"{refused.reason}: {refused.message}")
    return REFUSED_EXIT


def _leave_group() -> None:
    """Leave the process group that Playwright started and may kill: the keeper has to close the browser and report.

    Raises Refused if Playwright did not start this process.
    """
    try:
        os.fstat(FROM_PLAYWRIGHT)
        os.fstat(TO_PLAYWRIGHT)
    except OSError:
        raise Refused(
            BAD_ORDERS, "there is no debugging pipe: a keeper is launched by Playwright, not by hand"
        ) from None
    if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
        os.setsid()
