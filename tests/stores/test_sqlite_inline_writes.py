"""Brief changes are made at once where nobody has to wait for that; else they go to the writer's thread."""

import asyncio
import fcntl
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Lease, LeaseRef, Purpose
from leasekeeper.core.profiles import Lane
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import ClaimRequest, LeaseRequest, Store
from leasekeeper.stores import open_store
from leasekeeper.stores.sql.store import MAX_BRIEF_BLOCKED
from leasekeeper.stores.sqlite import checkpoints, inline_writes
from tests.conformance.world import account, fleet, profile, spec
from tests.stores.test_sqlite_log import held, log_of, size, still_waiting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "leasekeeper.db"


@asynccontextmanager
async def opened(file: Path, threads: list[str]) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite:///{file}")
    await store.apply(fleet(profile()), actor="ann")
    threads.clear()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that committed."""
    seen: list[str] = []
    commit = checkpoints.Checkpoints.count
    committing = checkpoints.Checkpoints.committing

    def counted(self: Any) -> bool:
        seen.append("at once")
        return commit(self)

    def waited(self: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            seen.append(threading.current_thread().name)
        return committing(self)

    monkeypatch.setattr(checkpoints.Checkpoints, "count", counted)
    monkeypatch.setattr(checkpoints.Checkpoints, "committing", waited)
    monkeypatch.setattr(inline_writes, "SLOW_SECONDS", 60.0)
    return seen


async def lease(store: Store) -> LeaseRef:
    request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w", purpose=Purpose.API)
    return (await store.acquire(request)).lease.ref


async def test_a_brief_change_is_made_in_the_callers_thread(file: Path, threads: list[str]) -> None:
    async with opened(file, threads) as store:
        ref = await lease(store)
        await store.checkpoint(ref, "there")
        assert threads == ["at once", "at once"]
        await store.apply(fleet(profile(labels={"tier": "new"})), actor="ann")
        assert threads[2:] == ["leasekeeper-sqlite-writer-0"]


async def test_a_claim_that_meets_many_lanes_of_a_taken_key_parks_them_in_the_writers_thread(
    file: Path, threads: list[str]
) -> None:
    """To park thousands of them in the caller's thread stood in the way of its event loop for seconds."""
    names = [f"q{n:03}" for n in range(5 * MAX_BRIEF_BLOCKED)]
    request = ClaimRequest(worker_id=WorkerId("w"), incarnation="w", tasks=("visit",))
    async with opened(file, threads) as store:
        lanes = [profile(name, "wide") for name in names]
        await store.apply(fleet(account("wide", routing=Routing.ACCOUNT), *lanes), actor="ann")
        await store.report(WorkerReport(worker_id=WorkerId("w"), incarnation="w", pool="default", tasks=("visit",)))
        await store.submit([spec(name) for name in names])
        assert len(await store.claim(request)) == 1
        threads.clear()
        assert await store.claim(request) == []
        assert threads[:2] == ["at once", "leasekeeper-sqlite-writer-0"]
        assert threads.count("at once") == 1
        found = (await store.find(Lane, limit=1000)).items
        assert len([lane for lane in found if lane.waits_on is not None]) == len(names) - 1


async def test_while_somebody_writes_it_waits_in_the_writers_thread(file: Path, threads: list[str]) -> None:
    async with opened(file, threads) as store:
        ref = await lease(store)
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        asked = asyncio.create_task(store.checkpoint(ref, "there"))
        assert await still_waiting(asked)
        other.execute("ROLLBACK")
        other.close()
        await asked
        assert threads == ["at once", "leasekeeper-sqlite-writer-0"]


async def test_while_somebody_checkpoints_it_waits_in_the_writers_thread(file: Path, threads: list[str]) -> None:
    async with opened(file, threads) as store:
        ref = await lease(store)
        with held(file, fcntl.LOCK_EX):
            asked = asyncio.create_task(store.checkpoint(ref, "there"))
            assert await still_waiting(asked)
        await asked
        assert threads == ["at once", "leasekeeper-sqlite-writer-0"]


async def test_a_checkpoint_that_begins_in_its_middle_makes_it_wait_in_the_writers_thread(
    file: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(file, threads) as store:
        ref = await lease(store)
        monkeypatch.setattr(checkpoints.Checkpoints, "in_progress", lambda _self: False)
        with held(file, fcntl.LOCK_EX):
            asked = asyncio.create_task(store.checkpoint(ref, "there"))
            assert await still_waiting(asked)
        await asked
        assert (await store.get(Lease, ref.lease_id)).last_safe_step == "there"
        assert threads == ["at once", "leasekeeper-sqlite-writer-0"]


async def test_after_a_slow_one_the_next_go_to_the_writer_for_a_while(
    file: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(file, threads) as store:
        monkeypatch.setattr(inline_writes, "SLOW_SECONDS", 0.0)
        monkeypatch.setattr(inline_writes, "PAUSE_SECONDS", 60.0)
        ref = await lease(store)
        await store.checkpoint(ref, "there")
        assert threads == ["at once", "leasekeeper-sqlite-writer-0"]


async def test_what_fails_leaves_nothing_behind_and_the_next_works(file: Path, threads: list[str]) -> None:
    async with opened(file, threads) as store:
        ref = await lease(store)
        await store.checkpoint(ref, "there")
        stale = LeaseRef(**{**{name: getattr(ref, name) for name in ref.__slots__}, "token": 99})
        with pytest.raises(LeaseLost):
            await store.checkpoint(stale, "elsewhere")
        await store.checkpoint(ref, "on")
        assert set(threads) == {"at once"}


async def test_the_log_moves_into_the_file_also_when_all_changes_are_brief(
    file: Path, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(file, threads) as store:
        monkeypatch.setattr(checkpoints, "EVERY_COMMITS", 5)
        ref = await lease(store)
        for number in range(300):
            await store.checkpoint(ref, f"step {number}")
        assert threads.count("at once") > 100, "only while a checkpoint is under way it is not"
        assert size(log_of(file)) < 1_000_000
