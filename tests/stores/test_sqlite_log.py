"""SQLite's log: it moves into the file now and then, never while anybody commits, and what fails there harms nobody."""

import asyncio
import fcntl
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.core.jobs import Job
from leasekeeper.errors import StoreNotWritable, StoreUnavailable
from leasekeeper.ports import Store
from leasekeeper.stores import open_store
from leasekeeper.stores.sqlite import checkpoints
from leasekeeper.stores.sqlite.write_block import writes_blocked
from tests.conformance.world import fleet, profile, spec
from tests.stores.test_sqlite_file import no_file_beyond

FEW = 5


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoint after a few commits: what is tested is what happens then."""
    monkeypatch.setattr(checkpoints, "EVERY_COMMITS", FEW)


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def log_of(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


@contextmanager
def held(file: Path, how: int) -> Iterator[None]:
    """Hold the lock beside the file, as another process would."""
    lock = os.open(file.with_name(file.name + "-checkpoint"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, how)
    try:
        yield
    finally:
        os.close(lock)


async def test_the_log_moves_into_the_file_every_so_many_commits(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    store = await open_store(f"sqlite:///{file}")
    try:
        await store.apply(fleet(profile()), actor="ann")
        for _ in range(20 * FEW):
            await store.submit([spec(payload={"fill": "x" * 2_000})])
        assert size(file) > 200_000
        assert size(log_of(file)) < 1_000_000
    finally:
        await store.close()
    assert size(log_of(file)) == 0


async def test_a_commit_waits_for_a_checkpoint_and_a_checkpoint_for_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_TIMEOUT_SECONDS", 60.0)
    file = tmp_path / "leasekeeper.db"
    store = await open_store(f"sqlite:///{file}")
    try:
        await store.apply(fleet(profile()), actor="ann")
        with held(file, fcntl.LOCK_EX):
            asked = asyncio.create_task(store.submit([spec()]))
            assert await still_waiting(asked)
        assert len(await asked) == 1
        with held(file, fcntl.LOCK_SH):
            assert len(await store.submit([spec()])) == 1
            due = asyncio.create_task(until_due(store))
            assert await still_waiting(due)
        await due
    finally:
        await store.close()


async def test_a_new_file_that_somebody_else_begins_to_use_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(open_store(f"sqlite:///{file}"))
    assert await still_waiting(opening)
    other.execute("ROLLBACK")
    other.close()
    store = await opening
    await store.close()


async def test_who_is_stopped_in_a_checkpoint_or_a_commit_does_not_stop_the_others_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "COMMIT_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_TIMEOUT_SECONDS", 0.1)
    file = tmp_path / "leasekeeper.db"
    store = await open_store(f"sqlite:///{file}")
    try:
        await store.apply(fleet(profile()), actor="ann")
        with held(file, fcntl.LOCK_EX), pytest.raises(StoreUnavailable, match="was locked"):
            await store.submit([spec()])
        assert (await store.stats()).jobs == {}
        with held(file, fcntl.LOCK_SH):
            for _ in range(3 * FEW):
                assert len(await store.submit([spec()])) == 1
            assert size(log_of(file)) > 0
    finally:
        await store.close()
    assert size(log_of(file)) == 0


async def test_in_a_quiet_moment_nobody_is_in_the_middle_of_anything(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    store = await open_store(f"sqlite:///{file}")
    try:
        await store.apply(fleet(profile()), actor="ann")
        with writes_blocked(file):
            asked = asyncio.create_task(store.submit([spec()]))
            assert await still_waiting(asked)
            with pytest.raises(BlockingIOError), held(file, fcntl.LOCK_SH | fcntl.LOCK_NB):
                pass
        assert len(await asked) == 1
        with held(file, fcntl.LOCK_SH):
            waiting = asyncio.create_task(asyncio.to_thread(_pass_by, file))
            assert await still_waiting(waiting)
        await waiting
    finally:
        await store.close()


def _pass_by(file: Path) -> None:
    with writes_blocked(file):
        pass


async def until_due(store: Store) -> None:
    for _ in range(FEW):
        await store.submit([spec()])


async def still_waiting(task: "asyncio.Task[Any]") -> bool:
    done, _ = await asyncio.wait([task], timeout=0.3)
    return not done


async def test_a_checkpoint_that_fails_does_not_fail_what_was_committed(tmp_path: Path) -> None:
    """The file may not grow, its log may: commits go on, and what they said is true."""
    file = tmp_path / "leasekeeper.db"
    url = f"sqlite:///{file}"
    store = await open_store(url)
    await store.apply(fleet(profile()), actor="ann")
    await store.submit([spec(payload={"fill": "x" * 4_000}) for _ in range(500)])
    await store.close()
    full = size(file)
    assert full > 2_000_000
    store = await open_store(url)
    try:
        with no_file_beyond(full):
            for _ in range(3 * FEW):
                assert len(await store.submit([spec(payload={"fill": "x" * 20_000})])) == 1
        assert size(file) == full
        assert (await store.stats()).jobs == {"blocked": 500 + 3 * FEW}
        await store.submit([spec()])
    finally:
        await store.close()
    assert size(file) > full


WRITER = """
import asyncio, sys
from leasekeeper.stores import open_store
from leasekeeper.stores.sqlite import checkpoints
from tests.conformance.world import spec
checkpoints.EVERY_COMMITS = 3

async def main(url, name):
    store = await open_store(url)
    for number in range(120):
        await store.submit([spec(idempotency_key=f"{name}-{number}")])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_write_and_checkpoint_at_once_do_not_harm_the_file(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    url = f"sqlite:///{file}"
    store = await open_store(url)
    await store.apply(fleet(profile()), actor="ann")
    start = asyncio.create_subprocess_exec
    writers = [await start(sys.executable, "-c", WRITER, url, f"w{n}", env=environment()) for n in range(3)]
    try:
        assert [await writer.wait() for writer in writers] == [0, 0, 0]
        assert (await store.stats()).jobs == {"blocked": 360}
        assert len({job.idempotency_key for job in (await store.find(Job, limit=1000)).items}) == 360
    finally:
        await store.close()
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def environment() -> dict[str, str]:
    """Children import what this process does, from the same places."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def test_a_link_to_the_file_has_the_files_own_lock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file, link = tmp_path / "data" / "real.db", tmp_path / "leasekeeper.db"
    link.symlink_to(file)
    for place in (link, file):
        store = await open_store(f"sqlite:///{place}")
        await store.apply(fleet(profile("p1")), actor="ann")
        await store.close()
    assert file.with_name("real.db-checkpoint").exists()
    assert not link.with_name("leasekeeper.db-checkpoint").exists()


async def test_a_lock_that_cannot_be_used_is_reported_with_what_to_do(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/leasekeeper.db")
    await store.close()
    lock = tmp_path / "leasekeeper.db-checkpoint"
    lock.unlink()
    lock.mkdir()
    store = await open_store(f"sqlite:///{tmp_path}/leasekeeper.db")
    with pytest.raises(StoreNotWritable, match=r"leasekeeper.db-checkpoint cannot be used: Is a directory; check"):
        await store.apply(fleet(profile("p1")), actor="ann")
    lock.rmdir()
    await store.apply(fleet(profile("p1")), actor="ann")
    await store.close()


def test_a_lock_that_root_makes_belongs_to_the_owner_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    path = tmp_path / "leasekeeper.db"
    path.write_bytes(b"")
    owner = os.stat_result((0o600, 0, 0, 0, 4711, 4712, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    monkeypatch.setattr(Path, "stat", lambda _, **__: owner)
    locks = checkpoints.Checkpoints(path)
    with locks.committing():
        pass
    monkeypatch.undo()
    locks.close()
    assert given == [(4711, 4712)]
