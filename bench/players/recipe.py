"""The SET NX recipe as it is written: one list, one lock per profile with an expiry, GET and DEL to give it back.

In its best documented configuration: the lock lives longer than any job, a taken profile's job goes back with a delay,
and the client library retries lost connections. The worker that ends a job posts its webhook: that is the only record
of it.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from typing import Any

import redis

from bench.players import PACE_SECONDS, TTL_SECONDS, Log, Orders, grant_of, work_seconds

JOBS = "mlx:jobs"
LOCK = "mlx:lease:"


class Stop:
    """Set by SIGTERM: finish the job at hand."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))


def try_lock(client: Any, profile: str, worker: str) -> bool:
    return bool(client.set(LOCK + profile, worker, nx=True, px=int(TTL_SECONDS * 1000)))


def unlock(client: Any, profile: str, worker: str) -> None:
    if client.get(LOCK + profile) == worker:
        client.delete(LOCK + profile)


def work_once(client: Any, log: Log, chance: random.Random) -> None:
    answered = log.sent("claim", {"limit": 1})
    popped = client.brpop([JOBS], timeout=1)
    if popped is None:
        answered([])
        return
    job = json.loads(popped[1])
    profile, name = job["profile_id"], job["job_id"]
    if not try_lock(client, profile, log.who):
        client.lpush(JOBS, popped[1])
        answered([])
        time.sleep(PACE_SECONDS)
        return
    grant = grant_of(profile, name)
    answered([grant])
    time.sleep(work_seconds(chance))
    posted = log.sent("settle", {"profile": profile, "token": grant["token"], "job": name})
    unlock(client, profile, log.who)
    posted({"job_state": "completed"})


def submit(client: Any, log: Log, orders: Orders, stop: Stop) -> None:
    """Push each job until the server says that it has it."""
    waiting = list(orders.specs)
    while waiting and not stop.asked:
        job = {"job_id": waiting[0]["notes"], "profile_id": waiting[0]["profile_id"], "task": "buy", "attempt": 1}
        answered = log.sent("submit", {"jobs": 1})
        try:
            client.lpush(JOBS, json.dumps(job))
        except redis.RedisError:
            continue
        answered([{"job": job["job_id"], "key": None, "already": False}])
        del waiting[0]
        time.sleep(PACE_SECONDS)


def main(orders: Orders) -> None:
    stop, log, chance = Stop(), Log(orders), random.Random(orders.seed)
    client = redis.Redis.from_url(orders.url, decode_responses=True)
    if orders.role == "submitter":
        submit(client, log, orders, stop)
    while orders.role == "worker" and not stop.asked:
        try:
            work_once(client, log, chance)
        except redis.RedisError:
            time.sleep(PACE_SECONDS)  # as the supervisor would, that starts it again


if __name__ == "__main__":
    main(Orders.load(sys.argv[1]))
