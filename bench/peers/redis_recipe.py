"""The widespread Redis recipe: one list of jobs, `SET NX EX` per profile, push back if it is taken.

A worker pops a job, tries the profile's lease key, and on failure pushes the job back to the other end
of the list: blocked jobs are popped and pushed for ever. Release is "get, compare, delete".
Nothing is durable or fenced: a popped job dies with its worker. The job itself does nothing.
Blocked jobs are mixed evenly into the list; the rate falls with their number per open job.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

import redis

from bench.peers import Result

PREFIX = "bench-recipe:"
JOBS = PREFIX + "jobs"
LEASE = PREFIX + "lease:"
HELD = "held"
LEASE_SECONDS = 900
POP_SECONDS = 1
BATCH = 1_000
GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Finished:
    """What one worker did: number of jobs, when it finished its first and its last, for how long it used a core."""

    count: int
    first: float
    last: float
    cpu_seconds: float


def run(
    redis_url: str,
    profiles: int,
    jobs_per_profile: int,
    workers: int,
    blocked: int,
    seconds_cap: float,
) -> Result:
    """Let `workers` processes empty the list, or work for `seconds_cap`; leaves no keys behind."""
    with redis.Redis.from_url(redis_url) as client:
        _clear(client)
        try:
            _fill(client, profiles, jobs_per_profile, blocked)
            finished = _work(redis_url, workers, profiles * jobs_per_profile, seconds_cap)
        finally:
            _clear(client)
    done = sum(each.count for each in finished)
    busy = [each for each in finished if each.count]
    if done < 2:
        raise RuntimeError(f"the recipe finished {done} jobs in {seconds_cap} s")
    seconds = max(each.last for each in busy) - min(each.first for each in busy)
    return Result((done - 1) / seconds, done, seconds, setup=f"processes={workers}")


def spin(redis_url: str, workers: int, blocked: int, seconds: float) -> float:
    """How many cores the workers use while nothing is left but jobs of a taken profile."""
    with redis.Redis.from_url(redis_url) as client:
        _clear(client)
        try:
            _fill(client, 0, 0, blocked)
            finished = _work(redis_url, workers, 1, seconds)
        finally:
            _clear(client)
    return sum(each.cpu_seconds for each in finished) / seconds


def _clear(client: redis.Redis) -> None:
    client.delete(JOBS)
    for key in client.scan_iter(match=LEASE + "*", count=BATCH):
        client.delete(key)


def _fill(client: redis.Redis, profiles: int, jobs_per_profile: int, blocked: int) -> None:
    """Push the open jobs in rounds over the profiles, with the blocked ones spread among them."""
    if blocked:
        client.set(LEASE + HELD, "another worker", ex=LEASE_SECONDS)
    names = _mixed([f"profile-{n}" for n in range(profiles)] * jobs_per_profile, [HELD] * blocked)
    bodies = [_job(number, name) for number, name in enumerate(names)]
    for start in range(0, len(bodies), BATCH):
        client.lpush(JOBS, *bodies[start : start + BATCH])


def _mixed(some: list[str], others: list[str]) -> Iterator[str]:
    """Merge two lists evenly at random, each in its own order, the same way every time."""
    turns = [0] * len(some) + [1] * len(others)
    random.Random(1).shuffle(turns)
    sources = (iter(some), iter(others))
    return (next(sources[turn]) for turn in turns)


def _job(number: int, profile: str) -> str:
    return json.dumps(
        {
            "job_id": f"job-{number}",
            "profile_id": profile,
            "task": "noop",
            "payload": {"shop": "example"},
            "attempt": 1,
            "max_attempts": 3,
            "callback_url": "",
        }
    )


def _work(redis_url: str, workers: int, total: int, seconds_cap: float) -> list[Finished]:
    """Start the workers, let them begin together, and collect what each finished."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers)
    left = context.Value("q", total)
    pipes = [context.Pipe(duplex=False) for _ in range(workers)]
    processes = []
    for number, (_, sender) in enumerate(pipes):
        args = (redis_url, f"worker-{number}", seconds_cap, barrier, left, sender)
        processes.append(context.Process(target=_worker, args=args, daemon=True))
        processes[-1].start()
        sender.close()
    finished = [_receive(receiver, seconds_cap + GRACE_SECONDS) for receiver, _ in pipes]
    for process in processes:
        process.join()
    return finished


def _receive(receiver: Connection, timeout: float) -> Finished:
    if not receiver.poll(timeout):
        raise RuntimeError("a worker of the recipe did not end")
    finished = receiver.recv()
    assert isinstance(finished, Finished)
    return finished


def _worker(
    redis_url: str,
    name: str,
    seconds_cap: float,
    barrier: Barrier,
    left: Synchronized[int],
    sender: Connection,
) -> None:
    count, first, last = 0, 0.0, 0.0
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.ping()
        barrier.wait(GRACE_SECONDS)
        used = time.process_time()
        deadline = time.monotonic() + seconds_cap
        while left.value > 0 and time.monotonic() < deadline:
            popped = client.brpop([JOBS], timeout=POP_SECONDS)
            if popped is None:
                continue
            body = popped[1]
            profile = json.loads(body)["profile_id"]
            if not _try_lease(client, profile, name):
                client.lpush(JOBS, body)
                continue
            _release(client, profile, name)
            with left.get_lock():
                left.value -= 1
            last = time.monotonic()
            first = first or last
            count += 1
    sender.send(Finished(count, first, last, time.process_time() - used))


def _try_lease(client: redis.Redis, profile: str, worker: str) -> bool:
    return bool(client.set(LEASE + profile, worker, nx=True, ex=LEASE_SECONDS))


def _release(client: redis.Redis, profile: str, worker: str) -> None:
    if client.get(LEASE + profile) == worker:
        client.delete(LEASE + profile)
