"""How a worker is asked to stop: once politely, twice at once."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta


class Stop:
    """`asked`: no new work, running tasks may come to their end or a safe step. `now`: their time is over.

    The second request, or the end of the grace, is `now`. Browsers are closed cleanly either way. `on_asked` is called
    at the first request.
    """

    def __init__(self, grace: timedelta) -> None:
        self.on_asked: Callable[[], None] = lambda: None
        self.asked = asyncio.Event()
        self.now = asyncio.Event()
        self._grace = grace.total_seconds()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """A request to stop, from a signal or from a program."""
        if self.asked.is_set():
            self.now.set()
            return
        self.asked.set()
        self._timer = asyncio.get_running_loop().call_later(self._grace, self.now.set)
        self.on_asked()

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as requests."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def done(self) -> None:
        """Everything has ended: give the signals and the timer back."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(RuntimeError, ValueError):
                loop.remove_signal_handler(number)
        if self._timer is not None:
            self._timer.cancel()
