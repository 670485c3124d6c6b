"""What is SQLite's own: where the file may lie, whose it is, what it may hold, and what a full disk does."""

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasekeeper.core.jobs import Job
from leasekeeper.errors import (
    InputError,
    LeasekeeperError,
    NetworkFileSystem,
    SchemaTooNew,
    StoreError,
    StoreNotWritable,
    StoreUnavailable,
)
from leasekeeper.ports import Store
from leasekeeper.stores import inspect, migrate, open_store
from leasekeeper.stores.sqlite import schema
from tests.conformance.world import fleet, profile, spec


def at(file: Path) -> str:
    return f"sqlite:///{file}"


def modes_in(folder: Path) -> dict[str, int]:
    """The files in a folder, with their modes."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.fixture
def open_dir(short_dir: Path) -> Path:
    """A directory that every user may enter."""
    short_dir.chmod(0o755)
    return short_dir


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Be nobody for a while if we are root, whom no file mode stops."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setresuid(0, 0, 0)


def close_to_writers(folder: Path) -> None:
    folder.chmod(0o555)


def remove(file: Path) -> None:
    file.unlink()


async def refusal(url: str, error: type[LeasekeeperError]) -> str:
    with pytest.raises(error) as refused:
        await open_store(url)
    assert type(refused.value) is error
    return refused.value.message


async def test_a_new_file_is_made_private_and_brought_up_to_date(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    before = os.umask(0)
    try:
        store = await open_store(at(file))
        await store.apply(fleet(profile()), actor="ann")
        made = modes_in(tmp_path)
        await store.close()
    finally:
        os.umask(before)
    assert {"leasekeeper.db", "leasekeeper.db-wal"} <= set(made)
    assert set(made.values()) == {0o600}
    info = await inspect(at(file))
    assert (info.schema, info.newest_schema) == (schema.NEWEST, len(schema.MIGRATIONS))


async def test_a_file_is_migrated_when_it_is_opened_and_by_many_at_once(tmp_path: Path) -> None:
    url = at(tmp_path / "leasekeeper.db")
    infos = await asyncio.gather(*(migrate(url) for _ in range(5)))
    assert {info.schema for info in infos} == {schema.NEWEST}


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    file.touch(0o600)
    store = await open_store(at(file))
    try:
        assert (await store.check()).schema == schema.NEWEST
    finally:
        await store.close()


async def test_a_file_from_the_future_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "leasekeeper.db"
    await migrate(at(file))
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = file.read_bytes()
    message = await refusal(at(file), SchemaTooNew)
    assert "999" in message
    assert (await inspect(at(file))).schema == 999
    assert file.read_bytes() == before


async def test_what_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("remember the milk\n" * 500)
    before = file.read_bytes()
    assert "not a Leasekeeper store" in await refusal(at(file), StoreError)
    with pytest.raises(StoreError):
        await inspect(at(file))
    assert file.read_bytes() == before


async def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "cookies.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE moz_cookies (id INTEGER PRIMARY KEY, value TEXT)")
    connection.close()
    before = file.read_bytes()
    assert "not a Leasekeeper store" in await refusal(at(file), StoreError)
    with pytest.raises(StoreError, match="another program"):
        await inspect(at(file))
    assert file.read_bytes() == before


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    message = await refusal(at(tmp_path / "nowhere" / "leasekeeper.db"), StoreNotWritable)
    assert "nowhere" in message
    assert not (tmp_path / "nowhere").exists()


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in await refusal(at(tmp_path), StoreNotWritable)


async def test_a_file_that_is_not_there_cannot_be_inspected(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await inspect(at(tmp_path / "leasekeeper.db"))
    assert modes_in(tmp_path) == {}


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://x.db", "x.db", "", "mysql://h/d", "sqlite:x.db"])
async def test_an_address_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InputError) as refused:
        await open_store(url)
    assert "sqlite:///" in str(refused.value)


async def test_a_file_that_may_not_be_written_is_refused(open_dir: Path) -> None:
    file = open_dir / "leasekeeper.db"
    await migrate(at(file))
    file.chmod(0o444)
    with ordinary_user():
        message = await refusal(at(file), StoreNotWritable)
    assert "owner" in message


async def test_a_folder_that_may_not_be_written_is_refused(open_dir: Path) -> None:
    close_to_writers(open_dir)
    with ordinary_user():
        message = await refusal(at(open_dir / "leasekeeper.db"), StoreNotWritable)
    assert "cannot be created" in message
    assert modes_in(open_dir) == {}


async def test_a_folder_that_takes_no_log_is_refused(open_dir: Path) -> None:
    """The file itself may be written, but its log cannot be made beside it."""
    file = open_dir / "leasekeeper.db"
    await migrate(at(file))
    file.chmod(0o666)
    for name in modes_in(open_dir):
        if name != file.name:
            remove(open_dir / name)
    close_to_writers(open_dir)
    with ordinary_user():
        await refusal(at(file), StoreNotWritable)


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
server:/export /mnt/shared nfs4 rw,vers=4.2 0 0
//nas/with\\040space /mnt/with\\040space cifs rw 0 0
/dev/vdb /mnt/shared/local ext4 rw 0 0
/dev/vdc /mnt/twice ext4 rw 0 0
me@host:/ /mnt/twice fuse.sshfs rw 0 0
short line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/data", "ext4"),
        ("/", "ext4"),
        ("/mnt/shared", "nfs4"),
        ("/mnt/shared/deep/er", "nfs4"),
        ("/mnt/sharedother", "ext4"),
        ("/mnt/shared/local/x", "ext4"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/twice", "fuse.sshfs"),
        ("/run/x", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert schema.file_system(Path(folder), MOUNTS) == kind


def test_a_link_leads_to_the_file_system_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/run")
    assert schema.file_system(tmp_path / "link", MOUNTS) == "tmpfs"
    assert schema.file_system(tmp_path, "") == ""


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind that this folder has stands in for one that goes over a wire."""
    here = schema.file_system(tmp_path)
    assert here not in schema.NETWORK_FILE_SYSTEMS
    monkeypatch.setattr(schema, "NETWORK_FILE_SYSTEMS", frozenset({here}))
    message = await refusal(at(tmp_path / "leasekeeper.db"), NetworkFileSystem)
    assert here in message
    assert "PostgreSQL" in message
    assert modes_in(tmp_path) == {}


async def test_a_store_is_refused_in_a_forked_child(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    try:
        assert "fork" in answer_of_child(store)
        assert (await store.stats()).jobs == {}
    finally:
        await store.close()


def answer_of_child(store: Store) -> str:
    """What a child that was forked off hears when it uses its parent's store."""
    mine, childs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        text = "it was allowed"
        try:
            store.submit([spec()]).send(None)
        except LeasekeeperError as error:
            text = error.message
        except BaseException as error:  # noqa: BLE001 - the child of a test must never go on as one
            text = repr(error)
        os.write(childs, text.encode())
        os._exit(0)
    os.close(childs)
    with os.fdopen(mine, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(pid, 0)
    return text


async def submit_until_full(store: Store, limit: int = 200) -> int:
    """How many batches were accepted before the disk was full."""
    for accepted in range(limit):
        try:
            await store.submit([spec(payload={"fill": "x" * 20_000}) for _ in range(20)])
        except StoreNotWritable:
            return accepted
    raise AssertionError("the disk never became full")


async def test_a_full_disk_refuses_a_batch_whole_and_keeps_what_was_accepted(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    try:
        await store.apply(fleet(profile()), actor="ann")
        await limit_pages(store, 1_500)
        accepted = await submit_until_full(store)
        assert accepted > 0
        assert len((await store.find(Job, limit=1000)).items) == accepted * 20
        await limit_pages(store, 1_000_000)
        assert len(await store.submit([spec()])) == 1
    finally:
        await store.close()
    store = await open_store(sqlite_url)
    try:
        assert len((await store.find(Job, limit=1000)).items) == accepted * 20 + 1
    finally:
        await store.close()


async def limit_pages(store: Store, pages: int) -> None:
    """SQLite reports a file that may not grow as a full disk."""
    engine = store._engine  # type: ignore[attr-defined] # the port rightly has no such thing
    await engine.change(lambda tx: tx._cursor.execute(f"PRAGMA max_page_count = {pages}").fetchall())


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let the system refuse to write files beyond this size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_log_that_cannot_grow_refuses_a_batch_whole(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    try:
        await store.apply(fleet(profile()), actor="ann")
        with no_file_beyond(3_000_000):
            accepted = await submit_until_full(store)
        assert len((await store.find(Job, limit=1000)).items) == accepted * 20
        assert len(await store.submit([spec()])) == 1
    finally:
        await store.close()


def test_what_the_program_around_us_adapts_stays_as_it_is() -> None:
    """The registry of adapters belongs to the whole process."""
    program = """
import sqlite3
sqlite3.register_adapter(bool, lambda value: "yes" if value else "no")
import leasekeeper.stores.sqlite.engine
print(*sqlite3.connect(":memory:").execute("SELECT ?, ?", (True, None)).fetchone())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "yes None\n"
