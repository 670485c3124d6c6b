"""Remote workers that wait for work: a change answers all, a poll one of each pool, a server that stops all."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx2

from leasekeeper import config
from leasekeeper.core.calls import LONG_POLL
from leasekeeper.service.long_polls import LongPolls
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.conformance.world import fleet, profile
from tests.runtime.stage import until
from tests.serving import Served

FAR, SOON = timedelta(seconds=600), timedelta(seconds=0.2)
PATIENCE = 60.0


def waiters(polls: LongPolls, *pools: str) -> "list[asyncio.Task[None]]":
    return [asyncio.create_task(polls.wait(pool, FAR), name=f"{pool}{number}") for number, pool in enumerate(pools)]


async def test_a_change_answers_all_who_wait(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    await store.apply(fleet(profile("p1")), actor="test")
    polls = LongPolls(store, FAR)
    waiting = waiters(polls, *["a"] * 100, "b")
    await asyncio.sleep(0)
    await store.submit(parse_jobs([{"task": "visit", "profile_id": "p1"}]))
    done, late = await asyncio.wait(waiting, timeout=PATIENCE)
    assert (len(done), late) == (101, set())
    await polls.close()
    await store.close()


async def test_without_a_change_one_of_each_pool_claims_at_each_poll(sqlite_url: str) -> None:
    """What nobody was notified of is found in time, and a thousand idle workers cost as few claims as one."""
    store = await open_store(sqlite_url)

    async def quiet() -> bool:
        """What was written when the file was opened counts as a change for a moment."""
        began = time.monotonic()
        await store.wait("", SOON)
        return time.monotonic() - began >= SOON.total_seconds()

    await until(quiet)
    polls = LongPolls(store, SOON)
    waiting = waiters(polls, "a", "a", "b", "a")
    names = []
    while waiting:
        done, left = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        names.append({task.get_name() for task in done})
        waiting = list(left)
    assert [name for group in names for name in sorted(group)] == ["a0", "b2", "a1", "a3"]
    await polls.close()
    await store.close()


def test_a_server_that_stops_answers_those_who_wait(served: Served) -> None:
    call: dict[str, Any] = {"version": 1, "arguments": {"pool": "default", "timeout": LONG_POLL.total_seconds()}}

    async def somebody_waits() -> bool:
        return bool(served.service.polls.waiting)

    stopping = threading.Event()

    def wait_again_and_again() -> int:
        """As a worker does: after a change, as there is one when the file was opened, it waits again."""
        while True:
            answer = httpx2.post(f"{served.url}/v1/store/wait", json=call, headers=served.headers, timeout=2 * PATIENCE)
            if stopping.is_set():
                return answer.status_code

    with ThreadPoolExecutor(1) as threads:
        answered = threads.submit(wait_again_and_again)
        served.run(until(somebody_waits, PATIENCE / 2))
        stopping.set()
        served.run(served.service.end_streams())
        assert answered.result(PATIENCE) == 200
    assert wait_again_and_again() == 200


def test_a_remote_worker_waits_longer_than_one_at_the_database() -> None:
    assert config.load({}).poll_every < LONG_POLL
    assert LONG_POLL.total_seconds() < 60, "proxies give up on silent requests after a minute"
