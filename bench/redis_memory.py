"""What a Redis store keeps in memory: for a job that waits, for one that is done, and for one event, indexes included.

Figures of the server itself, with small payloads and each job run once; they are those of the page "run on Redis".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import redis

from bench import load
from leasekeeper.stores.redis.tables import PREFIX
from leasekeeper.stores.redis.urls import clean_url

PROFILES = 50
JOBS = 4_000


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: a job with its events, a finished one with its run too, and one event."""

    waiting: float
    finished: float
    event: float
    events_each: float


def measure(url: str) -> Memory:
    """On a server that has nothing yet."""
    asyncio.run(load.make_world(url, PROFILES, 0, 0))
    with redis.Redis.from_url(clean_url(url), decode_responses=True) as server:
        empty = _used(server)
        asyncio.run(load.make_world(url, PROFILES, JOBS // PROFILES, 0))
        waiting = _used(server)
        load.run_workers(url, 1, 16, 1800.0, 1)
        finished, events = _used(server), int(server.hlen(f"{PREFIX}events"))
        return Memory(
            waiting=(waiting - empty) / JOBS,
            finished=(finished - empty) / JOBS,
            event=_of_events(server) / events,
            events_each=events / JOBS,
        )


def _used(server: Any) -> int:
    return int(server.info("memory")["used_memory"])


def _of_events(server: Any) -> int:
    """The events themselves, and the indexes that they are found by."""
    keys = server.scan_iter(match=f"{PREFIX}events*", count=1_000)
    return sum(int(server.memory_usage(key, samples=0) or 0) for key in keys)
