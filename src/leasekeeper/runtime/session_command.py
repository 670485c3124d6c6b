"""Runs a program that uses a leased browser: started, signalled and waited for as a shell does.

The program has a process group of its own, in the terminal's foreground if there is one: Ctrl-C goes to the program. A
signal that is sent to us is passed on. If the session ends and the program did not end it, the program is asked to end,
then killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from leasekeeper.errors import InputError
from leasekeeper.runtime.leased_browser import LeasedBrowser

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_command(
    command: Sequence[str],
    kill_after: timedelta,
    environment: Mapping[str, str],
    taken_away: Callable[[], Coroutine[Any, Any, bool]],
) -> int:
    """Run the program while the session is open. Returns its exit code, or 128 + the signal that ended it.

    `taken_away` waits for the session's end, and returns False if the program ended the session itself. `kill_after` is
    the time that the program has to end when it is asked to. Raises InputError if the program cannot be run.
    """
    try:
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment}, process_group=0)
    except FileNotFoundError:
        raise InputError(f"{command[0]} was not found") from None
    except PermissionError as error:
        raise InputError(f"{command[0]} cannot be run: {error.strerror}") from None
    with _foreground(process.pid), _passing_signals(process.pid):
        ended = asyncio.ensure_future(process.wait())
        over = asyncio.ensure_future(taken_away())
        try:
            await asyncio.wait({ended, over}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and await over:  # else it closed the browser itself
                await _end(process, ended, kill_after)
            code = await ended
        except BaseException:
            _signal_group(process.pid, signal.SIGKILL)
            raise
        finally:
            over.cancel()
    return code if code >= 0 else 128 - code


async def session_environment(browser: LeasedBrowser) -> Mapping[str, str]:
    """The environment variables of a program that uses the session."""
    lease = browser.lease
    return {
        "LEASEKEEPER_CDP_URL": await browser.cdp_url(),
        "LEASEKEEPER_PROFILE_ID": lease.profile_id,
        "LEASEKEEPER_RUN_ID": lease.run_id,
        "LEASEKEEPER_FENCING_TOKEN": str(lease.token),
    }


async def taken_away(browser: LeasedBrowser) -> bool:
    """Wait until the session is over; False if the program closed the browser itself."""
    return (await browser.wait_ended()).reason is not None


async def _end(process: asyncio.subprocess.Process, ended: "asyncio.Future[int]", kill_after: timedelta) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    await asyncio.wait({ended}, timeout=kill_after.total_seconds())
    if not ended.done():
        _signal_group(process.pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@contextmanager
def _passing_signals(pid: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in PASSED_ON:
        loop.add_signal_handler(number, _signal_group, pid, number)
    try:
        yield
    finally:
        for number in PASSED_ON:
            loop.remove_signal_handler(number)


@contextmanager
def _foreground(pid: int) -> Iterator[None]:
    """Give the program the terminal's foreground while it runs, as a shell does for a job."""
    terminal = sys.__stdin__.fileno() if sys.__stdin__ is not None and sys.__stdin__.isatty() else None
    if terminal is None or os.tcgetpgrp(terminal) != os.getpgrp():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # taking the terminal back would stop us
    with suppress(OSError):
        os.tcsetpgrp(terminal, pid)
    try:
        yield
    finally:
        with suppress(OSError):
            os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)
