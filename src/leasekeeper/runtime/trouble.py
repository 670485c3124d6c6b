"""What fails again and again, in few words: once at first, every so often while it lasts, and once when it is over."""

import logging
import threading
from collections.abc import Callable

from leasekeeper.errors import StoreError, told
from leasekeeper.runtime.clocks import boot_time

_LOG = logging.getLogger(__name__)

TELL_EVERY_SECONDS = 30.0


class Trouble:
    """The troubles of one process with its store. Any thread may report to it."""

    def __init__(self, now: Callable[[], float] = boot_time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._told: set[tuple[str, type[BaseException]]] = set()
        self._told_at = 0.0

    def again(self, what: str, error: BaseException) -> None:
        """This failed, and will be tried again. Each kind of failure is told once, then one of them now and then."""
        now, kind = self._now(), (what, type(error))
        with self._lock:
            if kind in self._told and now < self._told_at + TELL_EVERY_SECONDS:
                return
            self._told.add(kind)
            self._told_at = now
        _LOG.warning("%s, trying again: %s", what, told(error))

    def over(self, what: str) -> None:
        """This works. If it had failed, then what else had may be expected to work too."""
        if not self._told:
            return
        with self._lock:
            failed = [error for name, error in self._told if name == what]
            if failed:
                self._told.clear()
        if failed:
            store = any(issubclass(error, StoreError) for error in failed)
            _LOG.info("the store is reachable again" if store else f"this works again: {what}")
