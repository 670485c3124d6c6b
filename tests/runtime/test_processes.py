"""Holders that are stopped or killed: what the others see, and what the holder sees when it wakes up."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from leasekeeper import Lane, connect
from leasekeeper.client import Client
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.settle import LostFacts
from leasekeeper.runtime.sweeper import Sweeper
from tests.runtime.stage import TIMES, furnish, state_of, stop, until


@contextmanager
def holder(url: str, *, lock_delay: float = TIMES["lock_delay"]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.runtime.held", url, str(lock_delay)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def sweep_until(client: Client, state: ProfileState, facts: LostFacts | None = None) -> Lane:
    async def known(_lease: Lease) -> LostFacts:
        return facts or LostFacts()

    sweeper = Sweeper(client.store, client.config, known)

    async def reached() -> Lane | None:
        await sweeper.tick()
        lane = await client.get(Lane, "p1")
        return lane if lane.state is state else None

    lane = await until(reached)
    assert lane is not None
    return lane


async def test_a_killed_holder_never_frees_its_profile_by_expiry(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client)
        with holder(store_url) as process:
            process.send_signal(signal.SIGKILL)
            lane = await sweep_until(client, ProfileState.QUARANTINED)
        assert "no heartbeat of worker held reached the store" in lane.state_reason


async def test_a_killed_holder_is_recovered_when_everything_is_known(store_url: str) -> None:
    known = LostFacts(browser_dead=True, final_url="https://site.test/")
    async with connect(store_url, **TIMES) as client:
        await furnish(client, release_policy="recover")
        with holder(store_url) as process:
            process.send_signal(signal.SIGKILL)
            lane = await sweep_until(client, ProfileState.REVIEW_REQUIRED, known)
        assert "no safe step is known" in lane.state_reason


async def test_a_stopped_holder_wakes_up_to_a_lost_lease_and_a_refused_ending(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client)
        with holder(store_url) as process:
            stop(store_url, process.pid)
            await sweep_until(client, ProfileState.QUARANTINED)
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate(timeout=90)
        lost, refused = said.splitlines()
        assert lost.startswith("lost lease p1:1 is lost")
        assert refused.startswith("refused lease p1:1: the lease is expired")
        assert await state_of(client) is ProfileState.QUARANTINED


async def test_a_holder_that_renews_keeps_its_lease_past_its_ttl(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client)
        with holder(store_url):
            sweeper = Sweeper(client.store, client.config)
            start = (await client.store.check()).now

            async def two_lifetimes() -> bool:
                await sweeper.tick()
                return (await client.store.check()).now > start + timedelta(seconds=2 * TIMES["lease_ttl"])

            await until(two_lifetimes)
            assert await state_of(client) is ProfileState.LEASED
