"""The heartbeat thread: deadlines are kept whatever the store does, and any number of leases is renewed."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from leasekeeper.core.leases import Lease, Timing
from leasekeeper.errors import StoreUnavailable
from leasekeeper.ports import MAX_IN_BATCH, Renewal, Renewed, Store
from leasekeeper.runtime import heartbeat as heartbeat_module
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease
from tests.runtime.stage import until
from tests.unit.records import a_lease

TIMING = Timing(
    ttl=timedelta(seconds=2),
    renew_every=timedelta(seconds=0.05),
    holder_stops_after=timedelta(seconds=1),
    lock_delay=timedelta(0),
)

# Deadlines far away: a machine that stands still for seconds loses no lease.
PATIENT = replace(TIMING, ttl=timedelta(seconds=60), holder_stops_after=timedelta(seconds=40))


class Network:
    """A store at the far end of a network that may be slow or cut. Only what a heartbeat needs of it."""

    def __init__(self, *, hangs: bool = False, away: bool = False, hangs_once: bool = False) -> None:
        self.hangs, self.away, self.hangs_once = hangs, away, hangs_once
        self.batches: list[int] = []
        self.renewed: set[str] = set()
        self.opened = self.closed = 0

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        hangs, self.hangs_once = self.hangs or self.hangs_once, False
        if hangs:
            await asyncio.Event().wait()
        if self.away:
            raise StoreUnavailable("cut")
        self.batches.append(len(renewals))
        self.renewed |= {str(renewal.ref.lease_id) for renewal in renewals}
        return [Renewed(lease_id=renewal.ref.lease_id) for renewal in renewals]

    async def close(self) -> None:
        self.closed += 1

    async def open(self) -> Store:
        self.opened += 1
        return cast(Store, Connection(self))


class Connection:
    """A store of its own over that network."""

    def __init__(self, network: Network) -> None:
        self.renew, self.close = network.renew, network.close


def leases(count: int, timing: Timing) -> list[Lease]:
    ttl_ms = int(timing.ttl.total_seconds() * 1_000)
    made: list[Any] = [a_lease(lease_id=f"p{n}:1", profile_id=f"p{n}", ttl_ms=ttl_ms) for n in range(count)]
    return made


def refuse_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def losing(network: Network) -> list[str]:
    reported: list[str] = []
    heartbeat = Heartbeat(network.open, TIMING)
    (lease,) = leases(1, TIMING)
    heartbeat.keep(lease, boot_time(), reported.append)
    try:

        async def lost() -> bool:
            return bool(reported)

        await until(lost)
    finally:
        await asyncio.to_thread(heartbeat.close)
    return reported


async def test_a_renewal_that_hangs_does_not_hide_the_deadline() -> None:
    assert await losing(Network(hangs=True)) == ["no renewal was acknowledged for 1 s"]


async def test_a_store_that_is_away_costs_the_lease_at_the_deadline_and_not_the_thread() -> None:
    assert await losing(Network(away=True)) == ["no renewal was acknowledged for 1 s"]


async def test_a_renewal_that_hangs_costs_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its own, nor one that is due while it hangs."""
    monkeypatch.setattr(heartbeat_module, "PATIENCE", 0.001)
    network, lost = Network(hangs_once=True), list[str]()
    timing = replace(TIMING, ttl=timedelta(minutes=4), holder_stops_after=timedelta(minutes=3))
    heartbeat = Heartbeat(network.open, timing)
    one, two = leases(2, timing)
    granted_at = boot_time()
    kept = [heartbeat.keep(one, granted_at, lost.append)]
    try:

        async def hangs() -> bool:
            return not network.hangs_once

        await until(hangs)
        kept.append(heartbeat.keep(two, granted_at, lost.append))

        async def renewed() -> bool:
            return all(each.deadline > granted_at + 180 for each in kept)

        await until(renewed)
    finally:
        await asyncio.to_thread(heartbeat.close)
    assert lost == []
    assert network.opened == network.closed == 2


def test_an_acknowledgement_that_comes_late_shortens_no_deadline() -> None:
    timing = Timing()
    kept = KeptLease(lease=a_lease(), timing=timing, deadline=40.0, next_at=15.0, on_lost=lambda _: None)
    kept.renewed(25.0)
    kept.renewed(15.0)
    assert (kept.deadline, kept.next_at) == (65.0, 40.0)


async def test_more_leases_than_one_call_takes_are_renewed_in_several() -> None:
    network, lost = Network(), list[str]()
    timing = replace(TIMING, ttl=timedelta(minutes=4), holder_stops_after=timedelta(minutes=3))
    heartbeat = Heartbeat(network.open, timing)
    past = boot_time() - timing.renew_every.total_seconds()
    for lease in leases(MAX_IN_BATCH + 1, timing):
        heartbeat.keep(lease, past, lost.append)
    try:

        async def renewed() -> bool:
            return sum(network.batches) > MAX_IN_BATCH

        await until(renewed)
    finally:
        await asyncio.to_thread(heartbeat.close)
    assert max(network.batches) <= MAX_IN_BATCH
    assert lost == []


def test_a_long_lease_is_renewed_every_minute_and_its_holder_stops_long_before_it_expires() -> None:
    heartbeat = Heartbeat(Network().open, Timing())
    lost: list[str] = []
    granted_at = boot_time()
    kept = heartbeat.keep(a_lease(ttl_ms=900_000), granted_at, lost.append)
    try:
        assert (kept.next_at, kept.deadline) == (granted_at + 60, granted_at + 160)
    finally:
        heartbeat.close()


async def test_a_thread_that_was_started_before_the_first_lease_renews_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a lease is requested only once the thread runs: no thread has to be started for it."""
    network = Network()
    heartbeat = Heartbeat(network.open, TIMING)
    (lease,) = leases(1, TIMING)

    async def renewed() -> list[int]:
        return network.batches

    heartbeat.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse_thread)
            heartbeat.start()
            heartbeat.keep(lease, boot_time(), lambda _: None)
        await until(renewed)
    finally:
        await asyncio.to_thread(heartbeat.close)


async def test_a_thread_that_could_not_be_started_is_started_for_the_next_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network()
    heartbeat = Heartbeat(network.open, PATIENT)
    first, second = leases(2, PATIENT)

    async def renewed() -> list[int]:
        return network.batches

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            heartbeat.keep(first, boot_time(), lambda _: None)
    kept = heartbeat.keep(second, boot_time(), lambda _: None)
    try:
        await until(renewed)
        assert set(network.batches) == {1}, "the first one was never begun"
    finally:
        heartbeat.drop(kept)
        heartbeat.close()


async def test_a_thread_that_died_is_started_again_and_renews_all_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    heartbeat = Heartbeat(network.open, PATIENT)
    first, second = leases(2, PATIENT)
    died = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(heartbeat, "_main", died.set)
        kept = [heartbeat.keep(first, boot_time(), lambda _: None)]
    assert heartbeat._thread is not None
    heartbeat._thread.join()
    assert died.is_set()

    async def renewed() -> bool:
        return network.renewed == {str(first.lease_id), str(second.lease_id)}

    kept.append(heartbeat.keep(second, boot_time(), lambda _: None))
    try:
        await until(renewed)
    finally:
        for each in kept:
            heartbeat.drop(each)
        heartbeat.close()


async def test_a_thread_that_is_started_again_opens_a_connection_of_its_own() -> None:
    network = Network()
    heartbeat = Heartbeat(network.open, PATIENT)
    first, second = leases(2, PATIENT)

    async def renewed() -> list[int]:
        return network.batches

    kept = [heartbeat.keep(first, boot_time(), lambda _: None)]
    await until(renewed)
    heartbeat.close()
    assert heartbeat._thread is not None
    heartbeat._thread.join()
    assert (network.opened, network.closed) == (1, 1)
    heartbeat._closing = False  # as after a thread that ended by an error
    network.batches.clear()
    kept.append(heartbeat.keep(second, boot_time(), lambda _: None))
    try:
        await until(renewed)
        assert network.opened == 2
    finally:
        for each in kept:
            heartbeat.drop(each)
        heartbeat.close()
