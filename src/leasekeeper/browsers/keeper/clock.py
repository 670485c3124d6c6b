"""The keeper's clock: it counts suspend too, so that a laptop that slept through its lease finds it over."""

import time


def boot_time() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
