"""Ctrl-C while the program starts and ends: it leaves at once, without a traceback.

Imported before everything else, so it imports next to nothing itself. While a command runs, Ctrl-C is a
KeyboardInterrupt as usual, and the command gives back what it holds.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


def _leave(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """From now on Ctrl-C ends the process: there is nothing to give back. Left alone if it is ignored (`nohup`)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt, if `leave_at_once` had taken that away."""
    ours = signal.getsignal(signal.SIGINT) is _leave
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)
