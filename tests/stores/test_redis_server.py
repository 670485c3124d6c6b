"""What only the Redis store has: servers that lose writes, restarts, lost answers, its schema, and its tables."""

import asyncio
import json
import logging
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from leasekeeper.cli.hints import hint_of
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import RunRecord, Timing
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.profiles import Lane, ProfileState, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import (
    InputError,
    SchemaTooNew,
    SchemaTooOld,
    StoreError,
    StoreNotDurable,
    StoreNotWritable,
    StoreUnavailable,
)
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Resolution, Store
from leasekeeper.stores import inspect, migrate, open_store
from leasekeeper.stores.redis import scripts
from leasekeeper.stores.redis.engine import RedisEngine
from leasekeeper.stores.redis.loads import names
from leasekeeper.stores.redis.scripts import COMMIT
from leasekeeper.stores.redis.tables import PREFIX, TABLES, index_key
from leasekeeper.stores.redis.urls import clean_url
from leasekeeper.stores.redis.writes import WRITES
from leasekeeper.stores.sql.statements import load
from leasekeeper.stores.sqlite.scratch import NEWEST, Scratch
from tests.conformance.world import fleet, profile, spec
from tests.redis_store import DurableRedis, redis_server

CLAIM = ClaimRequest(worker_id=WorkerId("w"), incarnation="w", tasks=("visit",), limit=1)
DONE = EndFacts(browser=Browser.CLOSED, final_url="https://site.test/done")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[DurableRedis]:
    """A Redis that this test may kill."""
    with redis_server(tmp_path) as server:
        yield server


def client(url: str) -> Any:
    return redis.Redis.from_url(clean_url(url), decode_responses=True)


async def ready(url: str, profiles: int = 1, jobs: int = 1, **options: Any) -> Store:
    """An open store with a fleet and jobs, whose task a worker offers."""
    await migrate(url)
    store = await open_store(url, **options)
    await store.apply(fleet(*(profile(f"p{n}") for n in range(profiles))), actor="ann")
    await store.report(WorkerReport(worker_id=WorkerId("w"), incarnation="w", pool="default", tasks=("visit",)))
    if jobs:
        await store.submit([spec(f"p{n % profiles}") for n in range(jobs)])
    return store


@contextmanager
def lost_writes(server: DurableRedis) -> Iterator[None]:
    """The server dies, and comes back without what was written meanwhile: with the append-only file of before."""
    own, before = server.directory / "appendonlydir", server.directory / "before"
    shutil.copytree(own, before)
    yield
    server.kill()
    shutil.rmtree(own)
    before.rename(own)
    server.start()


async def looked_after(store: Store, forgotten: Grant) -> None:
    """Its holder came back and nobody knows what it did: the profile waits for a person, who clears it."""
    profile_id = forgotten.lease.profile_id
    lane = await store.get(Lane, profile_id)
    assert (lane.state, forgotten.lease.run_id in lane.state_reason) == (ProfileState.REVIEW_REQUIRED, True)
    assert await store.claim(CLAIM) == []
    note = "looked inside"
    await store.decide(Decision(target=Target.PROFILE, id=profile_id, action=Action.CLEAR, note=note, actor="ann"))


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


# Restarts


async def test_a_killed_server_has_everything_again_and_tokens_do_not_repeat(own_server: DurableRedis) -> None:
    store = await ready(own_server.url, profiles=2, jobs=4)
    grants = await store.claim(CLAIM)
    await store.settle([Ending(ref=grants[0].lease.ref, facts=DONE)])
    (held,) = await store.claim(CLAIM)
    own_server.kill()
    own_server.start()
    (renewed,) = await store.renew([Renewal(ref=held.lease.ref)])
    assert renewed.refused is None
    (settled,) = await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
    assert settled.refused is None
    (again,) = await store.claim(CLAIM)
    assert again.lease.token > held.lease.token + 1_000_000, "a token that the server may have forgotten comes again"
    assert again.lease.token < 2**53
    jobs = (await store.find(Job, {}, limit=10)).items
    assert sorted(job.state for job in jobs) == sorted(["completed", "completed", "queued", "running"])
    await store.close()


async def test_a_server_that_lost_its_last_writes_grants_nothing_that_somebody_may_still_hold(
    tmp_path: Path,
) -> None:
    """The append-only file of a moment ago: the grant after it is forgotten, and its token and job must not be given
    to another while its holder does not know that."""
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url)
        with lost_writes(server):
            (held,) = await store.claim(CLAIM)
        assert await store.claim(CLAIM) == []
        (renewed,) = await store.renew([Renewal(ref=held.lease.ref)])
        assert renewed.refused is not None
        other = await open_store(server.url)
        assert await other.claim(CLAIM) == []
        client(server.url).hset(f"{PREFIX}server", "grants_resume_at", "1")
        await other.close()
        other = await open_store(server.url)
        await looked_after(other, held)
        (granted,) = await other.claim(CLAIM)
        assert granted.job is not None
        assert held.job is not None
        assert granted.job.job_id == held.job.job_id
        assert granted.lease.token > held.lease.token
        assert granted.lease.run_id != held.lease.run_id
        runs = (await other.find(RunRecord, {}, limit=10)).items
        assert [run.run_id for run in runs] == [granted.lease.run_id]
        for each in (store, other):
            await each.close()


async def test_a_run_whose_section_and_ending_were_lost_is_not_repeated(tmp_path: Path) -> None:
    later = timedelta(0)
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url, jobs=0, clock=lambda real: real + later)
        await store.apply(fleet(replace(profile("p0"), release_policy=ReleasePolicy.RECOVER)), actor="ann")
        await store.submit([spec("p0")])
        (held,) = await store.claim(CLAIM)
        await store.checkpoint(held.lease.ref, "cart", url="https://site.test/cart")
        with lost_writes(server):
            await store.enter_section(held.lease.ref, "order")
            await store.leave_section(held.lease.ref, "order")
            (settled,) = await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
            assert settled.job_state is JobState.COMPLETED
        later = timedelta(minutes=5)
        (lost,) = await store.expire()
        later = timedelta(minutes=10)
        facts = LostFacts(final_url="https://site.test/done", browser_dead=True, reported_by="keeper")
        (resolved,) = await store.resolve([Resolution(lease_id=lost.lease_id, facts=facts)])
        assert (resolved.job_state, resolved.profile_state) == (JobState.REVIEW, ProfileState.REVIEW_REQUIRED)
        (job,) = (await store.find(Job, {})).items
        assert "lost its last writes" in job.detail
        await store.close()


async def test_who_meets_a_restarted_server_first_need_not_know_how_long_leases_are(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        long = timedelta(minutes=5)
        await (await ready(server.url, policy=Policy(timing=Timing(ttl=long)))).close()
        server.kill()
        server.start()
        await inspect(server.url)
        with client(server.url) as connection:
            resume = int(connection.hget(f"{PREFIX}server", "grants_resume_at"))
            left = resume / 1000 - connection.time()[0]
        assert long.total_seconds() - 60 < left <= long.total_seconds() + 1


async def test_what_a_server_lost_goes_by_the_settings_that_it_had_before_its_restart(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url)
        server.kill()
        server.fsync = "always"
        server.start()
        assert await store.claim(CLAIM) == []
        with client(server.url) as connection:
            connection.hset(f"{PREFIX}server", "grants_resume_at", "1")
        server.kill()
        server.start()
        assert len(await store.claim(CLAIM)) == 1
        await store.close()


async def test_a_restart_waits_for_the_longest_lease_that_was_granted(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url, jobs=0)
        await store.submit([replace(spec("p0"), lock_timeout_seconds=900)])
        assert len(await store.claim(CLAIM)) == 1
        await store.close()
        server.kill()
        server.start()
        await inspect(server.url)
        with client(server.url) as connection:
            resume = int(connection.hget(f"{PREFIX}server", "grants_resume_at"))
            left = resume / 1000 - connection.time()[0]
    assert 840 < left <= 901


async def test_a_server_that_forgot_everything_gives_no_token_again(own_server: DurableRedis) -> None:
    """It may, with durability=none. Fence files of profiles still know the highest token that was launched."""
    url = f"{own_server.url}?durability=none"
    tokens = []
    for _ in range(2):
        store = await ready(url)
        tokens += [grant.lease.token for grant in await store.claim(CLAIM)]
        await store.close()
        own_server.kill()
        shutil.rmtree(own_server.directory / "appendonlydir")
        own_server.start()
    assert tokens[0] < tokens[1] < 2**53


async def test_a_replica_that_takes_over_grants_nothing_that_somebody_may_still_hold(tmp_path: Path) -> None:
    """The link to the replica was cut before a grant. That both wait for their disks does not help: it never came."""
    with redis_server(tmp_path) as primary, redis_server(tmp_path) as replica:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        primary.call("CONFIG", "SET", "port", port)
        primary.call("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        store = await ready(primary.url)
        replica.call("REPLICAOF", "127.0.0.1", port)
        with client(primary.url) as original:
            original.set("copied", 1)
            assert original.wait(1, 12_000) == 1
        replica.call("REPLICAOF", "127.0.0.1", "1")
        (held,) = await store.claim(CLAIM)
        await store.close()
        primary.kill()
        replica.call("REPLICAOF", "NO", "ONE")
        other = await open_store(replica.url)
        assert await other.claim(CLAIM) == []
        (renewed,) = await other.renew([Renewal(ref=held.lease.ref)])
        assert renewed.refused is not None
        await other.close()
        client(replica.url).hset(f"{PREFIX}server", "grants_resume_at", "1")
        other = await open_store(replica.url)
        await looked_after(other, held)
        (granted,) = await other.claim(CLAIM)
        assert granted.lease.token > held.lease.token
        await other.close()


async def test_a_server_that_is_gone_is_an_error_that_says_so(own_server: DurableRedis) -> None:
    store = await ready(own_server.url)
    own_server.kill()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.stats()
    own_server.start()
    assert (await store.stats()).jobs == {"queued": 1}
    await store.close()


async def test_scripts_that_a_server_forgot_are_sent_again(redis_url: str) -> None:
    store = await ready(redis_url)
    client(redis_url).script_flush()
    assert len(await store.claim(CLAIM)) == 1
    await store.close()


async def test_a_server_that_is_full_or_a_replica_cannot_be_written(own_server: DurableRedis) -> None:
    store = await ready(own_server.url, jobs=0)
    own_server.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreNotWritable, match="memory"):
        await store.submit([spec("p0")])
    own_server.call("CONFIG", "SET", "maxmemory", "0")
    own_server.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreNotWritable, match="replica"):
        await store.submit([spec("p0")])
    own_server.call("REPLICAOF", "NO", "ONE")
    assert len(await store.submit([spec("p0")])) == 1
    assert (await store.stats()).jobs == {"queued": 1}
    await store.close()


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


# Under load


async def test_what_meets_many_records_is_done_while_they_change_all_the_time(own_server: DurableRedis) -> None:
    """Retention and a new configuration rest on many lanes, of which one is always being claimed or settled: whoever
    loses too many races has the turn."""
    stores = [await ready(own_server.url, profiles=6, jobs=0)]
    stores += [await open_store(own_server.url) for _ in range(3)]
    load = Load(stores)
    running = [asyncio.ensure_future(each) for each in (load.submit(), load.work(stores[1]), load.work(stores[2]))]
    for _ in range(20):
        await load.ended.acquire()
    for n in range(3):
        assert await stores[3].prune(Retention(jobs=timedelta(0), events=timedelta(0)))
        await stores[3].apply(fleet(*(profile(f"p{i}", tier=f"t{n}") for i in range(6 + 80 * n))), actor="ann")
    for _ in range(20):
        await load.ended.acquire()
    load.over.set()
    await asyncio.gather(*running)
    with client(own_server.url) as connection:
        assert connection.exists(f"{PREFIX}turn") == 0
    for store in stores:
        await store.close()


async def test_a_server_that_is_killed_under_load_loses_nothing_that_it_acknowledged(own_server: DurableRedis) -> None:
    await kill_under_load(own_server, 3)


@pytest.mark.release
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_under_load(own_server: DurableRedis) -> None:
    await kill_under_load(own_server, 200)


class Load:
    """Jobs that are submitted, claimed and settled, and what was answered."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores
        self.submitted: set[str] = set()
        self.settled: set[str] = set()
        self.tokens: list[tuple[str, int]] = []
        self.over = asyncio.Event()
        self.ended = asyncio.Semaphore(0)

    async def submit(self) -> None:
        while not self.over.is_set():
            try:
                answers = await self.stores[0].submit([spec(f"p{n}") for n in range(6)])
                self.submitted.update(answer.job.job_id for answer in answers)
            except StoreError:
                await asyncio.sleep(0.05)  # waits: as a program would before it tries again

    async def work(self, store: Store) -> None:
        while not self.over.is_set():
            try:
                for grant in await store.claim(CLAIM):
                    self.tokens.append((grant.lease.profile_id, grant.lease.token))
                    (answer,) = await store.settle([Ending(ref=grant.lease.ref, facts=DONE)])
                    if answer.refused is None and grant.job is not None:
                        self.settled.add(grant.job.job_id)
                        self.ended.release()
            except StoreError:
                await asyncio.sleep(0.05)  # waits: as a program would before it tries again


async def kill_under_load(server: DurableRedis, rounds: int) -> None:
    """The server dies and comes back while it is used: what was answered is so."""
    stores = [await ready(server.url, profiles=6, jobs=0)]
    stores += [await open_store(server.url) for _ in range(2)]
    load = Load(stores)
    running = [asyncio.ensure_future(each) for each in (load.submit(), load.work(stores[1]), load.work(stores[2]))]
    for _ in range(rounds):
        for _ in range(10):
            await load.ended.acquire()
        server.kill()
        await asyncio.to_thread(server.start)
    load.over.set()
    await asyncio.gather(*running)
    known = await all_jobs(stores[0])
    assert load.submitted <= known.keys(), "a job that was acknowledged is lost"
    assert {known[job] for job in load.settled} <= {JobState.COMPLETED}, "an ending that was acknowledged is lost"
    assert len(load.tokens) == len(set(load.tokens)), "a token came twice"
    live = (await stores[0].find(RunRecord, {"live": "true"}, limit=200)).items
    assert len({run.profile_id for run in live}) == len(live), "two live leases of one profile"
    for store in stores:
        await store.close()


async def all_jobs(store: Store) -> dict[str, JobState]:
    known: dict[str, JobState] = {}
    after = None
    while True:
        page = await store.find(Job, {}, after=after, limit=200)
        known.update((job.job_id, job.state) for job in page.items)
        if (after := page.after) is None:
            return known
