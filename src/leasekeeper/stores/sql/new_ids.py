"""Ids of new records, made by the process that writes them."""

import os
import threading
import time


class Ids:
    """UUIDs of version 7: random, but sorted by the time they were made, so that newest-first lists need no other key.

    Within a millisecond a counter of 12 bits keeps the order. If it overflows, it continues in the next millisecond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        chance = int.from_bytes(os.urandom(9))
        fresh = (time.time_ns() // 1_000_000) << 12 | chance >> 64
        with self._lock:
            order = self._last = max(fresh, self._last + 1)
        low = 0b10 << 62 | (chance & 0x3FFF_FFFF_FFFF_FFFF)
        text = f"{(order >> 12) << 80 | 0x7 << 76 | (order & 0xFFF) << 64 | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


new_id = Ids()
