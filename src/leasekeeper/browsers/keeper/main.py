"""The keeper's whole life: take the orders, fence the directory, start the browser, relay, end it, report.

Playwright launches it in place of Chromium. What it does not know: stores, jobs, other browsers, why a lease is lost.
"""

import os
import sys

from leasekeeper.browsers.keeper.browser import launch, wait_readable
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.control import Control
from leasekeeper.browsers.keeper.fence import enclose
from leasekeeper.browsers.keeper.orders import (
    ENV_NAME,
    FROM_PLAYWRIGHT,
    TO_PLAYWRIGHT,
    Orders,
    Refused,
    as_number,
    check_arguments,
    read_orders,
)
from leasekeeper.browsers.keeper.report import say, write_report

REFUSED_EXIT = 78
# How long a worker may take to say that a lease was renewed whose orders are older than its deadline.
HEAR_SECONDS = 5.0


def main() -> None:
    """The wrapper's entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Returns the exit code: that of the browser, or 78 if there was none."""
    path = os.environ.pop(ENV_NAME, "")
    try:
        _leave_group()
        orders = read_orders(path)
    except Refused as refused:
        return _refuse(refused, os.path.dirname(path), None)  # noqa: PTH120 - pathlib would cost the launch 5 ms
    control: Control | None = None
    try:
        check_arguments(arguments, orders.user_data_dir)
        control = Control(orders)
        _hear_renewals(control, orders)
        if boot_time() >= min(orders.deadline, orders.kill_at):
            raise Refused("LEASE_LOST", f"the deadline of lease {orders.lease_id} passed before the browser started")
        lock = enclose(orders.user_data_dir, orders.token, orders.lease_id, orders.run_id)
        browser = launch(orders.browser, arguments, lock, orders.user_data_dir)
    except Refused as refused:
        return _refuse(refused, orders.folder, orders, control)
    # The browser needs a third of a second to start: time to load the rest.
    from leasekeeper.browsers.keeper.watch import Watch

    return Watch(orders, arguments, browser, control, lock).run()


def _hear_renewals(control: Control, orders: Orders) -> None:
    """Orders may wait long for a slow launch: what was renewed meanwhile, the worker says as soon as we are there."""
    until = boot_time() + HEAR_SECONDS
    while boot_time() >= min(orders.deadline, orders.kill_at):
        if not wait_readable(control.descriptor, seconds=until - boot_time()):
            return
        said = control.read()
        if said is None:
            raise Refused("LEASE_LOST", f"the worker (process {orders.worker_pid}) is gone")
        for message in said:
            deadline, kill_at = as_number(message.get("deadline")), as_number(message.get("kill_at"))
            if deadline is not None and kill_at is not None:
                orders.deadline, orders.kill_at = deadline, kill_at
            if "fence" in message:
                raise Refused("LEASE_LOST", str(message["fence"]))


def _refuse(refused: Refused, folder: str, orders: Orders | None, control: Control | None = None) -> int:
    known = {} if orders is None else orders.identity()
    try:
        reason: dict[str, object] = {"reason": refused.reason, "message": refused.message}
        if folder:
            write_report(folder, refused=reason, **known)
    except OSError as error:
        say(f"cannot write the report: {error}")
    if control is not None:
        control.say({"ended": 1})
    say(f"{refused.reason}: {refused.message}")
    return REFUSED_EXIT


def _leave_group() -> None:
    """Playwright kills the process group that it started; the keeper must outlive that to do its duty."""
    try:
        os.fstat(FROM_PLAYWRIGHT)
        os.fstat(TO_PLAYWRIGHT)
    except OSError:
        raise Refused(
            "BAD_ORDERS", "there is no debugging pipe: a keeper is launched by Playwright, not by hand"
        ) from None
    if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
        os.setsid()
