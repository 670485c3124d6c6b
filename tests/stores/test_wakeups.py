"""A wake-up that is lost between two commits: nothing breaks, and `heal` finds who was forgotten."""

import asyncio
import os
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from leasekeeper.core.accounts import Routing
from leasekeeper.ports import Store
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.sql import settling
from leasekeeper.stores.sql.store import SqlStore
from leasekeeper.stores.sqlite import engine, file_watch, waiters
from leasekeeper.stores.sqlite.inline_writes import InlineWrites
from leasekeeper.stores.sqlite.waiters import Waiters
from tests.conformance.places import Place
from tests.conformance.world import POLICY, Clock, World, account, end, fleet, profile, spec

_LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN %'"
)


async def forget_a_wake_up(url: str) -> None:
    """End a run as a process does that dies right after the commit which frees the account's key."""
    clock = Clock()
    store = await open_store(url, policy=POLICY, clock=clock)
    assert isinstance(store, SqlStore)
    world = World(url, store, clock, POLICY, Place(url=url))
    try:
        await world.declare(account(routing=Routing.ACCOUNT), *(profile(f"p{n}") for n in range(3)))
        await world.offer("visit")
        await world.submit(*(spec(f"p{n}") for n in range(3)))
        grant = await world.take()
        assert await world.claim(3) == []
        context = store._ctx
        await store._engine.change(lambda tx: settling.settle(tx, context, [end(grant.lease.ref)]))
        assert await world.claim(3) == []
        assert await world.store.heal() == 1
        woken = await world.take()
        assert woken.lease.profile_id != grant.lease.profile_id
        await world.finish(woken)
        assert len(await world.claim(3)) == 1
    finally:
        await store.close()


async def test_a_wake_up_that_was_lost_is_healed_on_sqlite(sqlite_url: str) -> None:
    await forget_a_wake_up(sqlite_url)


async def test_a_wake_up_that_was_lost_is_healed_on_postgresql(postgres_url: str) -> None:
    await migrate(postgres_url)
    await forget_a_wake_up(postgres_url)


async def at_rest(store: Store) -> None:
    """What was changed before is no news any more."""
    await store.wait("default", timedelta(seconds=0.2))
    await asyncio.sleep(0.1)  # waits: longer than a change counts as news


async def listening(url: str) -> None:
    """Return when somebody listens to the server. A file needs no such time: who waits has looked at it at once."""
    if not url.startswith("postgresql:"):
        return
    with psycopg.connect(url, autocommit=True) as watching:
        while not watching.execute(_LISTENERS).fetchall():  # noqa: ASYNC110 - what is waited for happens on a server
            await asyncio.sleep(0.02)  # waits: for the thread that listens to be there


async def test_one_change_wakes_all_who_wait_on_a_store(store_url: str) -> None:
    waiting = await open_store(store_url, policy=POLICY)
    changing = await open_store(store_url, policy=POLICY)
    try:
        await at_rest(waiting)
        waits = [asyncio.create_task(waiting.wait("default", timedelta(minutes=5))) for _ in range(3)]
        await listening(store_url)
        await asyncio.sleep(0.2)  # waits: nobody is woken by nothing
        assert not any(wait.done() for wait in waits)
        await changing.apply(fleet(profile("p1")), actor="ann")
        await asyncio.wait_for(asyncio.gather(*waits), 60)
    finally:
        await waiting.close()
        await changing.close()


def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not say when a file is written to."""
    monkeypatch.setattr(file_watch, "_watch", lambda _path: None)


CHANGE = """
import asyncio, sys
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile

async def change():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    await store.apply(fleet(profile("p1")), actor="ann")
    print("done", flush=True)
    sys.stdin.readline()
    await store.close()

asyncio.run(change())
"""


@pytest.mark.parametrize("watched", [True, False])
async def test_a_change_of_another_process_wakes_who_waits(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    if watched:
        monkeypatch.setattr(engine, "WATCHED_CHECK_EVERY", timedelta(minutes=5))
    else:
        unwatched(monkeypatch)
    waiting = await open_store(sqlite_url, policy=POLICY)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CHANGE, sqlite_url, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"open\n"
        await at_rest(waiting)
        waits = asyncio.create_task(waiting.wait("default", timedelta(minutes=5)))
        await asyncio.sleep(0.2)  # waits: nobody is woken by nothing
        assert not waits.done()
        process.stdin.write(b"\n")
        await asyncio.wait_for(waits, 60)
        assert await process.stdout.readline() == b"done\n"
    finally:
        await waiting.close()
        process.stdin.write(b"\n")
        await process.wait()


@pytest.mark.parametrize("watched", [True, False])
async def test_a_file_that_nobody_writes_to_is_checked_rarely(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """At most half as often as a busy file: a late notice of the opening's own writes costs a few checks."""
    if not watched:
        unwatched(monkeypatch)
    store = await open_store(sqlite_url, policy=POLICY)
    checks = 0

    def others_wrote(writes: InlineWrites) -> bool:
        nonlocal checks
        checks += 1
        return real(writes)

    real = InlineWrites.others_wrote
    try:
        await at_rest(store)
        monkeypatch.setattr(InlineWrites, "others_wrote", others_wrote)
        waited = timedelta(seconds=2)
        await store.wait("default", waited)
        assert 2 <= checks <= waited / engine.CHECK_EVERY / 2
    finally:
        await store.close()


def write(text: str, path: Path) -> None:
    path.write_text(text)


async def test_several_loops_may_wait_for_one_file(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is woken by the kernel, and none keeps watching when it has stopped waiting."""
    monkeypatch.setattr(engine, "WATCHED_CHECK_EVERY", timedelta(minutes=5))
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    heard: list[str] = []
    watch = file_watch.FileWatch(path, lambda: heard.append(threading.current_thread().name))
    write("", path)

    async def hear(ready: threading.Barrier) -> None:
        assert watch.begin()
        try:
            await asyncio.to_thread(ready.wait)
            name = threading.current_thread().name
            while name not in heard:
                write("news", path)
                await asyncio.sleep(0.01)  # waits: for the kernel to tell
        finally:
            watch.end()

    ready = threading.Barrier(2)
    threads = [threading.Thread(target=lambda: asyncio.run(hear(ready)), name=f"loop {n}") for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert {"loop 0", "loop 1"} <= set(heard)
    assert watch._waiting == {}
    watch.close()
    assert not watch.begin()


async def test_a_change_in_another_thread_is_heard_without_reading_the_file(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwatched(monkeypatch)
    for name in ("CHECK_EVERY", "IDLE_CHECK_EVERY"):
        monkeypatch.setattr(engine, name, timedelta(minutes=5))
    waiting = await open_store(sqlite_url, policy=POLICY)

    async def change() -> None:
        changing = await open_store(sqlite_url, policy=POLICY)
        await changing.apply(fleet(profile("p1")), actor="ann")
        await changing.close()

    try:
        await at_rest(waiting)
        waits = asyncio.create_task(waiting.wait("default", timedelta(minutes=5)))
        await asyncio.sleep(0.2)  # waits: nobody is woken by nothing
        assert not waits.done()
        await asyncio.to_thread(asyncio.run, change())
        await asyncio.wait_for(waits, 60)
    finally:
        await waiting.close()


def test_stores_that_are_closed_or_of_a_parent_are_not_notified(tmp_path: Path) -> None:
    one, other = Waiters(tmp_path / "a.db"), Waiters(tmp_path / "a.db")
    elsewhere = Waiters(tmp_path / "b.db")
    one.notify()
    assert (one.changes, other.changes, elsewhere.changes) == (1, 1, 0)
    other.close()
    one.notify()
    assert (one.changes, other.changes) == (2, 1)
    one.close()
    elsewhere.close()
    assert not {tmp_path / "a.db", tmp_path / "b.db"} & waiters._OPEN.keys()
    kept = Waiters(tmp_path / "c.db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(len(waiters._OPEN))
    assert os.waitpid(child, 0)[1] == 0
    kept.close()
