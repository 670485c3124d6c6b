"""What only the Redis store has: servers that are refused, lost answers, its schema, and its tables."""

import json
import logging
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper.cli.hints import hint_of
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.policy import Retention
from leasekeeper.core.settle import Ending
from leasekeeper.errors import InputError, SchemaTooNew, SchemaTooOld, StoreNotDurable
from leasekeeper.stores import inspect, migrate, open_store
from leasekeeper.stores.redis import scripts
from leasekeeper.stores.redis.engine import RedisEngine
from leasekeeper.stores.redis.loads import names
from leasekeeper.stores.redis.scripts import COMMIT
from leasekeeper.stores.redis.tables import PREFIX, TABLES, index_key
from leasekeeper.stores.redis.writes import WRITES
from leasekeeper.stores.sql.statements import load
from leasekeeper.stores.sqlite.scratch import NEWEST, Scratch
from tests.conformance.world import fleet, spec
from tests.redis_store import DurableRedis
from tests.stores.redis_steps import CLAIM, DONE, client, ready

# Servers that lose writes


@pytest.mark.parametrize(
    ("setting", "value", "found", "wanted"),
    [
        ("appendonly", "no", "appendonly no", ("appendonly yes", "appendfsync always")),
        ("appendfsync", "no", "appendfsync no", ("appendfsync always",)),
        ("no-appendfsync-on-rewrite", "yes", "no-appendfsync-on-rewrite yes", ("no-appendfsync-on-rewrite no",)),
        ("maxmemory-policy", "allkeys-lru", "allkeys-lru", ("maxmemory-policy noeviction",)),
    ],
)
async def test_a_server_that_loses_writes_is_refused_unless_told(
    own_server: DurableRedis,
    setting: str,
    value: str,
    found: str,
    wanted: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await migrate(own_server.url)
    own_server.call("CONFIG", "SET", setting, value)
    with pytest.raises(StoreNotDurable, match=found) as refused:
        await open_store(own_server.url)
    assert refused.value.wanted == wanted
    assert "CONFIG" not in str(refused.value)
    assert "durability=none" in str(hint_of(refused.value))
    with caplog.at_level(logging.WARNING):
        store = await open_store(f"{own_server.url}?durability=none")
        await store.close()
    assert found in caplog.text


async def test_a_second_that_may_be_lost_is_a_warning(
    own_server: DurableRedis, caplog: pytest.LogCaptureFixture
) -> None:
    await migrate(own_server.url)
    own_server.call("CONFIG", "SET", "appendfsync", "everysec")
    with caplog.at_level(logging.WARNING):
        await (await open_store(own_server.url)).close()
    assert "the last second" in caplog.text
    own_server.call("CONFIG", "SET", "appendfsync", "always")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await (await open_store(own_server.url)).close()
    assert caplog.text == ""


async def test_a_durability_that_is_not_known_is_refused(redis_url: str) -> None:
    with pytest.raises(InputError, match="durability"):
        await open_store(f"{redis_url}?durability=maybe")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:mine]s3cr[s3cret@h:1/0",
        "redis://:s3cret@h:port/0",
        "redis://:s3cret@h/0?db=no",
        "redis://h/0?s3cret=1",
    ],
)
async def test_a_url_that_is_not_understood_is_refused_without_its_password(url: str) -> None:
    for use in (open_store, migrate, inspect):
        with pytest.raises(InputError, match="not usable") as refused:
            await use(url)
        assert "s3c" not in str(refused.value)
        assert refused.value.__suppress_context__


# Lost answers


class Deaf:
    """Passes on everything to the server and back, but for the answer to the next commit: then it hangs up."""

    def __init__(self, server: DurableRedis, directory: Path, *, deliver: bool) -> None:
        self.path, self._server, self._deliver = directory / "deaf.sock", server, deliver
        self.armed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis+unix://{self.path}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._server.socket))
            cut = threading.Event()
            for ends in ((near, far, cut, True), (far, near, cut, False)):
                self._threads.append(threading.Thread(target=self._pass, args=ends, daemon=True))
                self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, cut: threading.Event, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if asks and self.armed.is_set() and COMMIT.hash.encode() in data:
                    self.armed.clear()
                    cut.set()
                    if not self._deliver:
                        break
                elif not asks and cut.is_set():
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@pytest.mark.parametrize("deliver", [True, False], ids=["was made", "never came"])
async def test_a_commit_whose_answer_is_lost_is_made_once(
    own_server: DurableRedis, tmp_path: Path, deliver: bool
) -> None:
    await (await ready(own_server.url, jobs=0)).close()
    deaf = Deaf(own_server, tmp_path, deliver=deliver)
    try:
        store = await open_store(deaf.url)
        deaf.armed.set()
        (submitted,) = await store.submit([spec("p0")])
        assert not deaf.armed.is_set(), "no answer was lost"
        jobs = (await store.find(Job, {}, limit=10)).items
        assert [job.job_id for job in jobs] == [submitted.job.job_id]
        await store.close()
    finally:
        deaf.close()


async def test_a_lost_commit_that_is_done_again_is_seen(
    own_server: DurableRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail: whoever does not ask does it twice."""
    monkeypatch.setattr(RedisEngine, "_committed", lambda *_: False)
    await (await ready(own_server.url, jobs=0)).close()
    deaf = Deaf(own_server, tmp_path, deliver=True)
    try:
        store = await open_store(deaf.url)
        deaf.armed.set()
        await store.submit([spec("p0")])
        assert len((await store.find(Job, {}, limit=10)).items) == 2
        await store.close()
    finally:
        deaf.close()


# The schema


async def test_a_store_is_made_by_migrate_and_an_unknown_schema_is_refused(redis_url: str) -> None:
    assert (await inspect(redis_url)).schema == 0
    with pytest.raises(SchemaTooOld):
        await open_store(redis_url)
    assert (await migrate(redis_url)).schema == NEWEST
    assert (await migrate(redis_url)).schema == NEWEST
    store = await open_store(redis_url)
    client(redis_url).set(f"{PREFIX}schema", NEWEST + 1)
    with pytest.raises(SchemaTooNew):
        await store.submit([spec()])
    with pytest.raises(SchemaTooNew):
        await store.stats()
    await store.close()
    with pytest.raises(SchemaTooNew):
        await open_store(redis_url)


async def test_an_older_store_is_migrated_by_the_same_migrations(redis_url: str) -> None:
    """Written again as schema 24 had it, with a column fewer: migrated, it is as before, and works."""
    store = await ready(redis_url, profiles=2, jobs=4)
    grants = await store.claim(CLAIM)
    before, counts = (await store.find(Job, {}, limit=10)).items, (await store.stats()).jobs
    await store.close()
    older, newest = Scratch(24), Scratch()
    with client(redis_url) as connection:
        for table in TABLES.keys() & older.columns.keys():
            assert set(older.columns[table]) <= set(newest.columns[table])
            places = [newest.columns[table].index(name) for name in older.columns[table]]
            for key, packed in connection.hgetall(f"{PREFIX}{table}").items():
                revision, _, values = packed.partition("|")
                rows = json.loads(values)
                connection.hset(f"{PREFIX}{table}", key, f"{revision}|{json.dumps([rows[n] for n in places])}")
        connection.delete(index_key("jobs", "groups"))
        connection.set(f"{PREFIX}schema", 24)
    with pytest.raises(SchemaTooOld):
        await open_store(redis_url)
    assert (await migrate(redis_url)).schema == NEWEST
    store = await open_store(redis_url)
    assert (await store.find(Job, {}, limit=10)).items == before
    assert (await store.stats()).jobs == counts
    (settled,) = await store.settle([Ending(ref=grants[0].lease.ref, facts=DONE)])
    assert settled.refused is None
    assert len(await store.claim(CLAIM)) == 1
    await store.close()


# Tables and statements


def test_every_statement_says_which_records_it_meets() -> None:
    pieces = load("leasekeeper.stores.sql", "queries.sql", "schedules.sql")
    dialect = load("leasekeeper.stores.sqlite", "reads.sql", "writes.sql", "schedules.sql")
    wanted = {name for name in (*pieces, *dialect) if not name.startswith("find_")}
    assert wanted == {*names(), *WRITES, "insert_events"}


def test_every_table_is_known_with_the_columns_of_its_indexes() -> None:
    columns = Scratch().columns
    assert {*TABLES, "events"} == set(columns)
    for table in TABLES.values():
        used = {name for index in table.indexes for name in (*index.by, *(column for column, _ in index.order))}
        assert used | set(table.key) <= set(columns[table.name]), table.name


async def test_very_many_arguments_of_a_script_come_packed_into_few(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis before 7.0 refuses a command of more than a million: a fleet of 20,000 profiles came to more."""
    assert len(COMMIT.call((), range(scripts.MANY * 2))) < 1_000
    monkeypatch.setattr(scripts, "MANY", 20)
    monkeypatch.setattr(scripts, "IN_ONE", 7)
    payload = {"text": 'ü "quoted" \\ \n \u2028 \U0001f600', "[1]": "null"}
    store = await ready(redis_url, profiles=2, jobs=0)
    await store.submit([replace(spec("p0"), payload=payload)])
    (held,) = await store.claim(CLAIM)
    assert held.job is not None
    assert held.job.payload == payload
    (settled,) = await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
    assert settled.job_state is JobState.COMPLETED
    (job,) = (await store.find(Job, {})).items
    assert job.payload == payload
    await store.close()


async def test_what_is_deleted_leaves_nothing_behind(redis_url: str) -> None:
    """Retention, removal and endings clear every index: memory is bounded by what is there."""
    store = await ready(redis_url, profiles=3, jobs=30)
    while grants := await store.claim(CLAIM):
        await store.settle([Ending(ref=grant.lease.ref, facts=DONE) for grant in grants])
    nothing = Retention(jobs=timedelta(0), events=timedelta(0))
    while await store.prune(nothing):
        pass
    await store.apply(fleet(), actor="ann", prune=True)
    while await store.prune(nothing):
        pass
    with client(redis_url) as connection:
        left = {key.removeprefix(PREFIX) for key in connection.keys("*")}
        kept = {"schema", "revision", "server", "commits", "locks", "fleet_lock", "jobs:last", "events:last"}
        of_workers = {
            "workers",
            "workers:all",
            "workers:started",
            "workers:live",
            "workers:worker:1:w",
            "tasks",
            "tasks:all",
        }
        retired = {key for key in left if key.startswith(("retired_", "accounts", "events"))}
        assert left - kept - of_workers - retired == set()
        assert connection.hlen(f"{PREFIX}events") <= 3
    await store.close()


async def test_commits_of_connections_that_vanished_are_forgotten_after_a_day(redis_url: str) -> None:
    """A process that is killed leaves the number of its last commit. For an hour somebody may ask for it."""
    store = await ready(redis_url)
    with client(redis_url) as connection:
        now = connection.time()[0]
        old = {f"killed-{n}": f"{n}:{now - 90_000}" for n in range(9)} | {"barred": f"7:{now - 90_000}:barred"}
        connection.hset(f"{PREFIX}commits", mapping={**old, "recent": f"7:{now - 3_600}"})
        before = set(connection.hkeys(f"{PREFIX}commits"))
        await inspect(redis_url)  # a new connection
        assert before - set(connection.hkeys(f"{PREFIX}commits")) == set(old)
    assert len(await store.claim(CLAIM)) == 1
    await store.close()
