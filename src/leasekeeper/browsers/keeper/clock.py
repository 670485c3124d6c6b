"""The one clock of deadlines, for workers and keepers: it counts suspend, so that a laptop that slept through its lease
finds it over. Both processes compare the same numbers.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since boot, suspend included where the system counts it."""
    return time.clock_gettime(_CLOCK)
