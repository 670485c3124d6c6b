"""The holder's own clock. It counts suspend too, so a laptop that slept through its lease knows it."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Seconds since boot, suspend included where the system can tell."""
    return time.clock_gettime(_CLOCK)
