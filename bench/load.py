"""The load: a fleet of profiles with jobs, and workers that claim and settle as fast as they can.

A worker is a loop as `runtime/worker.py` has it, without a browser: it claims as many jobs as it has free places (at
most `batch`), each job settles by itself, and a place that is free is claimed for at once.
Loops are spread evenly over processes (a process with several is a worker with that concurrency); measuring starts
when all are connected.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import leasekeeper.stores
from leasekeeper.core.accounts import Account
from leasekeeper.core.browsers import NULL
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Purpose
from leasekeeper.core.profiles import Profile
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import MAX_IN_BATCH, ClaimRequest, Grant, LeaseRequest, Store

TASK = "sync_orders"
HELD = "held"
# A worker always says where it is: a claim passes over profiles whose directory is on another machine.
MACHINE = "bench"
PAYLOAD = {"shop_id": "acme_vn", "day": "2026-01-31"}
CLOSED = EndFacts(browser=Browser.CLOSED, final_url="https://shop.example/orders")
SUBMITTERS = 2


@dataclass(frozen=True, slots=True)
class Rate:
    """How many jobs went through, in how long, and how the workers were spread; how long they used a core."""

    jobs: int
    seconds: float
    setup: str
    cpu_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds


async def make_world(url: str, profiles: int, jobs_per_profile: int, blocked: int) -> Rate:
    """A store with a fleet and jobs; `blocked` more of them wait behind one leased profile. Gives the submit rate."""
    await leasekeeper.stores.migrate(url)
    store = await leasekeeper.stores.open_store(url)
    try:
        names = [f"profile_{n:05}" for n in range(profiles)]
        await store.apply(_fleet([*names, HELD]), actor="bench")
        await report(store)
        if blocked:
            request = LeaseRequest(
                profile_id=ProfileId(HELD),
                worker_id=WorkerId("holder"),
                incarnation="holder",
                purpose=Purpose.API,
            )
            await store.acquire(request)
            await _submit(store, [_spec(HELD)] * blocked)
        # Round-robin, as jobs of many accounts come in.
        return await _submit(store, [_spec(name) for _ in range(jobs_per_profile) for name in names])
    finally:
        await store.close()


def _fleet(names: Sequence[str]) -> Fleet:
    return Fleet(
        accounts={name: Account(account_id=AccountId(name)) for name in names},
        profiles={name: _profile(name) for name in names},
    )


def _profile(name: str) -> Profile:
    return Profile(profile_id=ProfileId(name), account_id=AccountId(name), driver=NULL)


def _spec(profile: str) -> JobSpec:
    return JobSpec(task=TASK, profile_id=ProfileId(profile), payload=PAYLOAD)


async def report(store: Store) -> None:
    """A worker says that it is there, and for which task."""
    await store.report(
        WorkerReport(worker_id=WorkerId("bench"), incarnation="bench", pool="default", tasks=(TASK,), machine=MACHINE)
    )


async def _submit(store: Store, specs: Sequence[JobSpec]) -> Rate:
    batches = [specs[i : i + MAX_IN_BATCH] for i in range(0, len(specs), MAX_IN_BATCH)]
    started = time.perf_counter()

    async def submitter(first: int) -> None:
        for batch in batches[first::SUBMITTERS]:
            await store.submit(batch)

    await asyncio.gather(*(submitter(n) for n in range(SUBMITTERS)))
    return Rate(len(specs), time.perf_counter() - started, f"{SUBMITTERS} submitters, batches of {MAX_IN_BATCH}")


def run_workers(url: str, workers: int, batch: int, seconds: float, processes: int, token: str = "") -> Rate:
    """Let the workers run for a while (or until no job is left) and count the jobs they settled.

    With an address of a server for its URL they are remote workers, with this token.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.load", url, str(workers // processes), str(batch), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEASEKEEPER_TOKEN": token},
        )
        for _ in range(processes)
    ]
    for child in children:
        _line(child)
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(_line(child)) for child in children]
    for child in children:
        child.communicate()
    return Rate(
        jobs=sum(answer["jobs"] for answer in answers),
        seconds=max(answer["seconds"] for answer in answers),
        setup=f"{processes} process{'es' if processes > 1 else ''} × {workers // processes}",
        cpu_seconds=sum(answer["cpu_seconds"] for answer in answers),
    )


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"a bench worker died (exit {child.wait()})")
    return line


async def _work(url: str, workers: int, batch: int, seconds: float) -> None:
    store = await leasekeeper.stores.open_store(url, token=os.environ.get("LEASEKEEPER_TOKEN", ""))
    try:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        started, used = time.perf_counter(), time.process_time()
        until = started + seconds
        counts = await asyncio.gather(*(_loop(store, batch, until) for _ in range(workers)))
        took, cpu = time.perf_counter() - started, time.process_time() - used
        print(json.dumps({"jobs": sum(counts), "seconds": took, "cpu_seconds": cpu}), flush=True)
    finally:
        await store.close()


async def _loop(store: Store, batch: int, until: float) -> int:
    request = ClaimRequest(worker_id=WorkerId("bench"), incarnation="bench", tasks=(TASK,), machine=MACHINE)
    running: set[asyncio.Task[int]] = set()
    done = 0
    while time.perf_counter() < until:
        grants = await store.claim(replace(request, limit=batch - len(running)))
        running |= {asyncio.create_task(_settle(store, grant)) for grant in grants}
        if not running:
            break
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        done += sum(task.result() for task in ended)
    return done + sum(await asyncio.gather(*running))


async def _settle(store: Store, grant: Grant) -> int:
    (settled,) = await store.settle([Ending(ref=grant.lease.ref, facts=CLOSED)])
    return 1 if settled.refused is None else 0


if __name__ == "__main__":
    logging.getLogger("leasekeeper.store").setLevel(logging.ERROR)
    asyncio.run(_work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
