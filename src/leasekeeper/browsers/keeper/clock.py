"""The clock for deadlines. It counts suspend, so a lease also expires while a laptop sleeps. Worker and keeper both use
it, so they can compare each other's times.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since boot, suspend included where the system counts it."""
    return time.clock_gettime(_CLOCK)
