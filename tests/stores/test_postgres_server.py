"""What is PostgreSQL's own: its schema, its plans, its restarts, its wake-ups, and its addresses."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.policy import Retention
from leasekeeper.core.profiles import Profile
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import SchemaTooNew, SchemaTooOld, StoreError, StoreUnavailable
from leasekeeper.ports import ClaimRequest, LeaseRequest
from leasekeeper.stores import inspect, migrate, open_store
from leasekeeper.stores.postgres import connections, engine, schema, transaction
from tests.conformance.world import Clock, end, fleet, profile, spec
from tests.servers import PostgresServer, closed_port, drop_database, new_database, postgres_server
from tests.stores.earlier import OWED_AFTER, OWED_BEFORE, OWED_NOW

CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i", tasks=("visit",))

REPORT = WorkerReport(worker_id=WorkerId("w1"), incarnation="i", pool="default", tasks=("visit",))


def shape(url: str) -> list[tuple[object, ...]]:
    """Everything that a schema is made of."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
            "WHERE table_schema = 'leasekeeper' ORDER BY 1, 2"
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'leasekeeper' ORDER BY 1"
        ).fetchall()
    return [*columns, *indexes]


async def test_a_database_without_the_schema_is_refused(postgres_url: str) -> None:
    with pytest.raises(SchemaTooOld, match="migrate it") as refused:
        await open_store(postgres_url)
    assert refused.value.code == "SCHEMA_TOO_OLD"
    assert "has schema 0" in refused.value.message
    assert (await inspect(postgres_url)).schema == 0
    assert shape(postgres_url) == []


async def test_a_schema_from_the_future_is_refused_by_all(postgres_url: str) -> None:
    await migrate(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO leasekeeper.schema_version VALUES (999)")
    before = shape(postgres_url)
    for opens in (open_store, migrate):
        with pytest.raises(SchemaTooNew, match="999") as refused:
            await opens(postgres_url)
        assert refused.value.code == "SCHEMA_TOO_NEW"
    assert (await inspect(postgres_url)).schema == 999
    assert shape(postgres_url) == before


async def test_a_fresh_migration_is_the_newest_and_a_second_one_changes_nothing(postgres_url: str) -> None:
    info = await migrate(postgres_url)
    assert info.schema == info.newest_schema == schema.NEWEST == len(schema.MIGRATIONS)
    before = shape(postgres_url)
    assert len(before) > 50
    await migrate(postgres_url)
    assert shape(postgres_url) == before
    store = await open_store(postgres_url)
    await store.close()


async def test_a_migration_keeps_what_is_there(postgres_url: str) -> None:
    await migrate(postgres_url)
    store = await open_store(postgres_url)
    try:
        await store.apply(fleet(profile()), actor="ann")
        await store.submit([spec()])
        await migrate(postgres_url)
        assert len((await store.find(Job)).items) == 1
    finally:
        await store.close()


async def test_many_who_migrate_at_once_do_it_once(postgres_url: str) -> None:
    infos = await asyncio.gather(*(migrate(postgres_url) for _ in range(6)))
    assert {info.schema for info in infos} == {schema.NEWEST}
    with psycopg.connect(postgres_url) as connection:
        versions = connection.execute("SELECT version FROM leasekeeper.schema_version ORDER BY 1").fetchall()
    assert versions == [(number + 1,) for number in range(schema.NEWEST)]


async def test_migrations_are_numbered_without_gaps() -> None:
    assert [file.name[:4] for file in schema.MIGRATIONS] == [f"{n + 1:04}" for n in range(schema.NEWEST)]


def plan(url: str, name: str, *, options: str = engine._WRITER_OPTIONS, **params: str) -> str:
    """How the server runs a statement for a writer of the store, or with other options for a reader."""
    statement = transaction.STATEMENTS[name]
    values = ", ".join(params[each] for each in statement.names)
    with connections.connect(url, options) as connection:
        connection.execute(b"PREPARE asked AS " + statement.text)
        rows = connection.execute(f"EXPLAIN EXECUTE asked ({values})".encode()).fetchall()
    return "\n".join(row["QUERY PLAN"] for row in rows)


@pytest.mark.parametrize("machines", [None, 0, 150], ids=["when_empty", "when_full", "of_many_machines"])
async def test_the_claim_finds_ready_lanes_and_heads_by_their_indexes(postgres_url: str, machines: int | None) -> None:
    await migrate(postgres_url)
    if machines is not None:
        await fill(postgres_url, machines)
    ready = plan(
        postgres_url,
        "lock_ready",
        pool="'default'",
        worker="'w'",
        tasks="'{visit,pay}'",
        homes="'{\"\",rack1}'",
        engine="NULL",
        limit="2",
        window="16",
    )
    assert "Index Cond: ((head_pool = $1) AND (head_task = offered.task) AND (reserved_for = here.home))" in ready
    assert "Seq Scan on lanes" not in ready
    heads = plan(postgres_url, "heads", ids="'{p1,p2}'")
    assert "jobs_lane" in heads
    assert "Seq Scan on jobs" not in heads
    for name in ("open_runs", "moving_runs", "running_jobs"):
        for form, ids in ((name, "'{p1,p2}'"), (f"{name}=1", "'p1'")):
            assert "Index Cond: (profile_id = l.profile_id)" in plan(postgres_url, form, ids=ids)
            assert "Index Scan using runs_open" in plan(postgres_url, form, ids=ids)


async def test_due_webhooks_are_found_host_by_host(postgres_url: str) -> None:
    await migrate(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO leasekeeper.deliveries "
            "(delivery_id, job_id, type, url, host, body, created_at, due_at, attempts) "
            "SELECT n, n, 't', 'u', 'h' || n % 7, '{}', n, n, 0 FROM generate_series(1, 20000) n"
        )
        connection.execute("ANALYZE")
    due = plan(
        postgres_url,
        "due_deliveries",
        after="''",
        now="20000",
        hosts="500",
        each="4",
        callbacks="1",
        endpoints="1",
        options=engine._READER_OPTIONS,
    )
    assert "Index Scan using deliveries_due on deliveries q " in due
    assert "Sort" not in due
    assert "Seq Scan on deliveries" not in due


async def test_messages_that_were_owed_before_webhooks_were_sent_are_owed_still(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA leasekeeper")
        connection.execute("SET search_path = leasekeeper")
        connection.execute(schema.MIGRATIONS[0].read_text().encode())
        connection.execute("INSERT INTO schema_version VALUES (1)")
        insert = (
            "INSERT INTO deliveries (delivery_id, job_id, type, url, body, created_at, due_at, attempts, delivered_at) "
            "VALUES (%s, 'j', 'job.completed', %s, '{}', 1, 1, 0, %s)"
        )
        for row in OWED_BEFORE:
            connection.execute(insert, row)
    with pytest.raises(SchemaTooOld, match="migrate it"):
        await open_store(postgres_url)
    await migrate(postgres_url)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(OWED_NOW.format("leasekeeper.deliveries").encode()).fetchall()
    assert found == OWED_AFTER


async def fill(url: str, machines: int = 0) -> None:
    """Jobs on 300 profiles; with `machines`, each of these is the home of some."""
    store = await open_store(url)
    try:
        await store.apply(fleet(*(profile(f"p{n}") for n in range(300))), actor="ann")
        for _ in range(3):
            await store.submit([spec(f"p{n}") for n in range(300)])
    finally:
        await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        if machines:
            spread = (
                "UPDATE leasekeeper.lanes SET reserved_for = 'rack' || (CAST(substr(profile_id, 2) AS integer) %% %s)"
            )
            connection.execute(spread, [machines])
        connection.execute("ANALYZE")


async def test_a_restart_between_two_operations_is_not_noticed() -> None:
    with postgres_server() as server:
        url = new_database(server)
        await migrate(url)
        store = await open_store(url, clock=Clock())  # its lease lasts, however long the server takes to come back
        try:
            await store.apply(fleet(profile("p1"), profile("p2")), actor="ann")
            await store.report(REPORT)
            (first,) = await store.submit([spec("p1")])
            server.stop()
            server.start()
            assert (await store.find(Job)).items[0].job_id == first.job.job_id
            assert len(await store.submit([spec("p2")])) == 1
            grants = await store.claim(CLAIM)
            server.stop()
            with pytest.raises(StoreUnavailable) as down:
                await store.claim(CLAIM)
            assert down.value.code == "STORE_UNAVAILABLE"
            with pytest.raises(StoreUnavailable):
                await store.stats()
            with pytest.raises(StoreUnavailable):
                await open_store(url)
            server.start()
            (settled,) = await store.settle([end(grants[0].lease.ref)])
            assert settled.refused is None
        finally:
            await store.close()


async def test_a_server_that_is_down_is_named_without_its_password() -> None:
    with closed_port() as port:
        url = f"postgresql://shop:hunter2@127.0.0.1:{port}/leasekeeper?connect_timeout=2"
        for opens in (open_store, migrate, inspect):
            with pytest.raises(StoreUnavailable) as down:
                await opens(url)
            assert "hunter2" not in down.value.message
            assert f"127.0.0.1:{port}/leasekeeper" in down.value.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@[::1/leasekeeper",
        "postgresql://shop:hunter2@127.0.0.1:notaport/leasekeeper",
        "postgresql://shop:hunter2%zz@127.0.0.1/leasekeeper",
        "postgresql://shop:hunter2@127.0.0.1:1/leasekeeper?nonsense=1",
        "postgresql://127.0.0.1:1/leasekeeper?user=shop&password=hunter2&nonsense=1",
    ],
)
async def test_an_address_that_makes_no_sense_is_an_error_without_its_password(url: str) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(url)
    assert "hunter2" not in refused.value.message


async def test_a_fault_in_the_middle_of_a_write_shows_no_data(postgres_url: str) -> None:
    """What the server says about a row that it cannot take is full of that row."""
    await migrate(postgres_url)
    store = await open_store(postgres_url)
    try:
        await store.apply(fleet(profile()), actor="ann")
        with psycopg.connect(postgres_url) as connection:
            connection.execute("ALTER TABLE leasekeeper.jobs ADD CHECK (priority < 5)")
        with pytest.raises(StoreError) as refused:
            await store.submit([spec(priority=7, payload={"password": "hunter2"}, notes="hunter3")])
        assert "hunter" not in refused.value.message
        assert len(await store.submit([spec(priority=4)])) == 1
    finally:
        await store.close()


async def test_work_that_comes_from_another_process_wakes_who_waits(postgres_url: str) -> None:
    await migrate(postgres_url)
    waiting, working = await open_store(postgres_url), await open_store(postgres_url)
    try:
        await working.apply(fleet(profile()), actor="ann")
        woken = asyncio.create_task(waiting.wait("default", timedelta(seconds=120)))
        async with asyncio.timeout(60):
            while not woken.done():
                await working.submit([spec()])
                await asyncio.wait([woken], timeout=0.5)
    finally:
        await waiting.close()
        await working.close()


async def test_who_waits_hears_again_after_the_server_was_away() -> None:
    with postgres_server() as server:
        url = new_database(server)
        await migrate(url)
        store = await open_store(url)
        try:
            await store.apply(fleet(profile()), actor="ann")
            await store.wait("default", timedelta(milliseconds=300))
            server.stop()
            await store.wait("default", timedelta(milliseconds=10))
            server.start()
            woken = asyncio.create_task(store.wait("default", timedelta(seconds=120)))
            async with asyncio.timeout(60):
                while not woken.done():
                    await store.submit([spec()])
                    await asyncio.wait([woken], timeout=0.5)
        finally:
            await store.close()


async def test_a_database_whose_text_sorts_by_language_pages_and_claims_the_same(postgres: PostgresServer) -> None:
    """Keys are compared by code point, whatever order the database has for people's text."""
    names = ["b", "A", "a.b", "B", "_x", "a-b", "ab", "a"]
    url = new_database(postgres, collation="en-US")
    await migrate(url)
    store = await open_store(url)
    try:
        await store.apply(fleet(*(profile(name) for name in names)), actor="ann")
        await store.report(REPORT)
        found: list[str] = []
        after = None
        while True:
            page = await store.find(Profile, after=after, limit=3)
            found += [each.profile_id for each in page.items]
            if (after := page.after) is None:
                break
        assert found == sorted(names)
        await store.submit([spec(name) for name in names])
        grants = await store.claim(ClaimRequest(worker_id=WorkerId("w1"), incarnation="i", tasks=("visit",), limit=99))
        assert len(grants) == len(names)
    finally:
        await store.close()
        drop_database(postgres, url)


async def test_a_job_whose_lane_somebody_holds_is_not_pruned(postgres_url: str) -> None:
    """Whoever holds it may be about to retry the job."""
    await migrate(postgres_url)
    passed = timedelta(0)
    store = await open_store(postgres_url, clock=lambda real: real + passed)
    try:
        await store.apply(fleet(profile()), actor="ann")
        (answer,) = await store.submit([spec()])
        await store.decide(
            Decision(target=Target.JOB, id=answer.job.job_id, action=Action.CANCEL, note="not needed", actor="ann")
        )
        passed = timedelta(days=2)
        retention = Retention(jobs=timedelta(days=1), events=None)
        with psycopg.connect(postgres_url) as somebody:
            somebody.execute("SELECT 1 FROM leasekeeper.lanes FOR UPDATE")
            assert await store.prune(retention) == 0
        assert await store.prune(retention) == 1
    finally:
        await store.close()


async def test_an_account_that_became_one_key_meanwhile_is_locked_after_all(postgres_url: str) -> None:
    """Whoever asks for a profile waits for its lane while somebody applies another routing."""
    await migrate(postgres_url)
    store = await open_store(postgres_url)
    request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1")
    try:
        await store.apply(fleet(profile("p1")), actor="ann")
        with psycopg.connect(postgres_url) as deciding:
            with psycopg.connect(postgres_url) as applying:
                applying.execute("SELECT 1 FROM leasekeeper.lanes FOR UPDATE")
                asked = asyncio.create_task(store.acquire(request))
                await _wait_for_locks(postgres_url, 1)
                applying.execute("UPDATE leasekeeper.accounts SET routing = 'account'")
                applying.execute("UPDATE leasekeeper.fleet_lock SET revision = revision + 1")
                # The whole table, since its locks are given in the order of asking: for the row, the two would race.
                first = asyncio.create_task(
                    asyncio.to_thread(deciding.execute, "LOCK TABLE leasekeeper.accounts IN EXCLUSIVE MODE")
                )
                await _wait_for_locks(postgres_url, 2)
                applying.commit()
                await first
            done, _ = await asyncio.wait({asked}, timeout=1.0)
            assert not done, "it must wait for the account"
        assert (await asked).lease.routing_key == "account:shop"
    finally:
        await store.close()


async def _wait_for_locks(url: str, waiting: int) -> None:
    """Return when so many transactions of this database wait for a lock."""
    with psycopg.connect(url, autocommit=True) as watching:
        while True:
            found = watching.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            if found == (waiting,):
                return
            await asyncio.sleep(0.02)  # waits: for other connections to come that far


async def test_a_server_that_only_reads_is_an_error_of_the_store(postgres_url: str) -> None:
    await migrate(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
            "current_database()); END $$"
        )
    store = await open_store(postgres_url)
    try:
        with pytest.raises(StoreError, match="read-only transaction"):
            await store.claim(ClaimRequest(worker_id=WorkerId("w"), incarnation="w-1", tasks=("visit",)))
    finally:
        await store.close()
