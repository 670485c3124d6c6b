"""Graceful shutdown of a worker: the first request lets tasks finish, the second stops them immediately."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta


class Shutdown:
    """`asked`: no new jobs; running tasks may finish or reach a safe step. `now`: stop them immediately.

    `now` is set by the second request or at the end of the grace period. Browsers are closed cleanly either way.
    `on_asked` is called at the first request.
    """

    def __init__(self, grace: timedelta) -> None:
        self.on_asked: Callable[[], None] = lambda: None
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        self._grace = grace.total_seconds()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Request a stop, from a signal handler or from a program."""
        if self.asked.is_set():
            self.now.set()
            return
        self.asked.set()
        self._timer = asyncio.get_running_loop().call_later(self._grace, self.now.set)
        self.on_asked()

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT as requests to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def done(self) -> None:
        """Everything has ended: remove the signal handlers and the timer."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(RuntimeError, ValueError):
                loop.remove_signal_handler(number)
        if self._timer is not None:
            self._timer.cancel()
