"""Programs that hold profiles, one per process: ours, the SET NX recipe, and procrastinate with `lock`.

Each is started by the chaos arena (`python -m bench.players.NAME ORDERS`) and writes the arena's log: each call when it
was sent, each answer when it came. A peer has no fencing tokens; its grants are numbered by time, so that the checker
can tell one from another.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.client import TTL_SECONDS, Orders, boot_time

CLOCK = "clock"
"""A file beside the logs: by how many seconds the store's clock has jumped."""
TASK = "buy"
BEAT_SECONDS = 0.3
PACE_SECONDS = 0.02

__all__ = ["BEAT_SECONDS", "CLOCK", "PACE_SECONDS", "TASK", "TTL_SECONDS", "Log", "Orders", "grant_of", "work_seconds"]


class Log:
    """The calls of one process, in the arena's form."""

    def __init__(self, orders: Orders) -> None:
        self.who = orders.who
        self._file = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = itertools.count(1)

    def sent(self, op: str, args: Mapping[str, Any] | None = None) -> Callable[[Any], None]:
        """A call is made; gives what to call with its answer. Without that it may have happened or not."""
        n = next(self._numbers)
        self._write({"who": self.who, "n": n, "op": op, "at": boot_time(), "args": dict(args or {})})
        return lambda answer: self._write({"who": self.who, "n": n, "at": boot_time(), "answer": answer})

    def _write(self, record: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(record) + "\n").encode())


def grant_of(profile: str, job: str) -> dict[str, Any]:
    """A profile is in use from now on."""
    key = f"profile:{profile}"
    return {
        "profile": profile,
        "token": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "job": job,
        "shared": False,
        "key": key,
        "pool": "",
    }


def work_seconds(chance: random.Random) -> float:
    """How long a job acts in its profile: always shorter than a lock lives."""
    return chance.choice([0.0, 0.05, 0.1, 0.6])


def jump_of(orders: Orders) -> float:
    """By how many seconds the store's clock is off."""
    file = Path(orders.log).parent / CLOCK
    return float(file.read_text()) if file.exists() else 0.0
