"""Rate-limited logging of repeated failures: the first of each kind, then one every 30 s, and the recovery."""

import logging
import threading
from collections.abc import Callable

from leasekeeper.errors import StoreError, safe_str
from leasekeeper.runtime.clocks import boot_time

_LOG = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 30.0


class FailureLog:
    """Logs the failures of one process, mostly of its store. Thread-safe."""

    def __init__(self, now: Callable[[], float] = boot_time, *, level: int = logging.WARNING) -> None:
        self._now = now
        self._level = level
        self._lock = threading.Lock()
        self._logged: set[tuple[str, type[BaseException]]] = set()
        self._logged_at = 0.0

    def again(self, what: str, error: BaseException) -> None:
        """Log that this failed and will be retried: each kind of failure once, then one of them every 30 s."""
        now, kind = self._now(), (what, type(error))
        with self._lock:
            if kind in self._logged and now < self._logged_at + LOG_EVERY_SECONDS:
                return
            self._logged.add(kind)
            self._logged_at = now
        _LOG.log(self._level, "%s, retrying: %s", what, safe_str(error))

    def over(self, what: str) -> None:
        """Log the recovery, if this had failed. Other failures count as recovered too."""
        if not self._logged:
            return
        with self._lock:
            failed = [error for name, error in self._logged if name == what]
            if failed:
                self._logged.clear()
        if failed:
            store = any(issubclass(error, StoreError) for error in failed)
            _LOG.info("the store is reachable again" if store else f"this works again: {what}")
