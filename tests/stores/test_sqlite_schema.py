"""How SQLite finds what a claim needs, and that both dialects have the same schema."""

import asyncio
import re
import sqlite3
from importlib import resources
from pathlib import Path

import psycopg
import pytest

from leasekeeper.core.events import EventType
from leasekeeper.stores import migrate
from leasekeeper.stores.sql.reading import _COMMON_EVENTS
from leasekeeper.stores.sql.statements import load
from leasekeeper.stores.sqlite.prepared import STATEMENTS
from tests.stores.earlier import OWED_AFTER, OWED_BEFORE, OWED_NOW

# SQLite keeps the version in the file's header, and no answer to a commit is lost on a wire.
POSTGRES_ALONE = {"schema_version", "fleet_lock.schema", "commits"}


def test_the_claim_finds_ready_lanes_and_heads_by_their_indexes(tmp_path: Path) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    try:
        ready = plan(
            connection,
            "lock_ready",
            pool="default",
            worker="w",
            tasks=["visit", "pay"],
            homes=["", "rack1"],
            engine=None,
            limit=2,
        )
        assert "USING INDEX lanes_ready (head_pool=? AND head_task=? AND reserved_for=?)" in ready
        assert "SCAN l " not in ready + " "
        heads = plan(connection, "heads", ids=["p1", "p2"])
        assert "q USING INDEX jobs_lane (profile_id=?)" in heads
        assert "SCAN j " not in heads
        for ids in (["p1"], ["p1", "p2"]):
            for name in ("open_runs", "moving_runs", "running_jobs"):
                assert "USING INDEX runs_open (profile_id=?)" in plan(connection, name, ids=ids)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("list_", "index"),
    [
        ("find_job+find_job__state", "j USING INDEX jobs_by_state (state=?)"),
        ("find_job+find_job__account_id", "j USING INDEX jobs_by_profile (profile_id=?)"),
        ("find_job+find_job__run_id", "j USING INDEX sqlite_autoindex_jobs_1 (job_id=?)"),
        ("find_event+find_event__type+find_event__notable", "t USING INDEX events_notable (type=?)"),
        ("find_event+find_event__of_run+find_event__run_id", "e USING INDEX events_profile (profile_id=?)"),
        ("find_event+find_event__of_run+find_event__run_id", "e USING INDEX events_notable (type=?)"),
        ("find_lease+find_lease__live", "r USING INDEX runs_open"),
        ("find_lease+find_lease__result+find_lease__failed", "t USING INDEX runs_failed"),
        ("find_lease+find_lease__status+find_lease__lost", "t USING INDEX runs_lost"),
        ("find_lease+find_lease__account_id", "t USING INDEX runs_lease (profile_id=?)"),
        (
            "find_delivery+find_delivery__state+find_delivery__undelivered",
            "t USING INDEX deliveries_undelivered (state=?)",
        ),
    ],
)
def test_rare_records_are_found_by_their_index(tmp_path: Path, list_: str, index: str) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    values = dict.fromkeys(("state", "account_id", "run_id", "run_profile", "type", "result", "status"), "x")
    facts = {
        "full": [],
        "gone": ["default/pay"],
        "unserved": 1,
        "newer": [],
        "served": [],
        "paused": [],
        "all_paused": 0,
        "limit": 100,
    }
    try:
        prefix = list_.split("+", maxsplit=1)[0]
        assert index in plan(connection, f"{list_}+{prefix}__order", **values, **facts)
    finally:
        connection.close()


def test_the_events_that_have_no_index_are_the_same_everywhere() -> None:
    """A type that the statement leaves out, but whose list uses it, would never be listed."""
    finds = load("leasekeeper.stores.sql", "finds.sql")
    schemas = [
        resources.files(f"leasekeeper.stores.{dialect}").joinpath("migrations/0001_start.sql").read_text()
        for dialect in ("sqlite", "postgres")
    ]
    for text in (finds["find_event__notable"], finds["find_event__of_run"], *schemas):
        assert set(re.findall(r"type <> '(\w+)'", text)) == _COMMON_EVENTS
    assert set(EventType) > _COMMON_EVENTS


def test_pruning_finds_the_runs_of_a_job_by_their_index(tmp_path: Path) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    try:
        assert "runs USING INDEX runs_job (job_id=?)" in plan(connection, "prune_job_runs", job_id="x")
        finished = plan(connection, "finished_jobs", before=1, limit=10)
        assert "r USING INDEX runs_unresolved" in finished
        assert "jobs USING INDEX jobs_finished (finished_at<?)" in finished
    finally:
        connection.close()


def test_due_webhooks_are_found_host_by_host(tmp_path: Path) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    try:
        due = plan(connection, "due_deliveries", after="", now=1, hosts=500, each=4, callbacks=1, endpoints=1)
        for step in (
            "SEARCH deliveries USING INDEX deliveries_due (host>?)",
            "SEARCH q USING INDEX deliveries_due (host>?)",
            "SEARCH q USING INDEX deliveries_due (host=? AND due_at<?)",
            "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)",
        ):
            assert step in due
        assert "TEMP B-TREE" not in due
        assert "INDEX deliveries_ended (ended_at<?)" in plan(connection, "old_deliveries", before=1, limit=10)
    finally:
        connection.close()


def test_messages_that_were_owed_before_webhooks_were_sent_are_owed_still(tmp_path: Path) -> None:
    path = tmp_path / "leasekeeper.db"
    connection = sqlite3.connect(path)
    old = resources.files("leasekeeper.stores.sqlite").joinpath("migrations/0001_start.sql").read_text()
    connection.executescript(f"{old}; PRAGMA user_version = 1;")
    insert = "INSERT INTO deliveries VALUES (NULL, ?, 'j', 'job.completed', ?, '{}', 1, 1, 0, ?)"
    connection.executemany(insert, OWED_BEFORE)
    connection.commit()
    connection.close()
    asyncio.run(migrate(f"sqlite:///{path}"))
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(OWED_NOW.format("deliveries")).fetchall()
    finally:
        connection.close()
    assert found == OWED_AFTER


def test_lists_of_jobs_by_state_walk_no_finished_jobs(tmp_path: Path) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    facts = {
        "full": [],
        "gone": ["default/pay"],
        "unserved": 1,
        "newer": [],
        "served": [],
        "paused": [],
        "all_paused": 0,
        "limit": 100,
    }
    try:
        for state in ("queued", "blocked"):
            waiting = plan(connection, f"find_job+find_job__state_{state}+find_job__order", **facts)
            assert "SCAN j USING INDEX jobs_waiting" in waiting
            assert "TEMP B-TREE" not in waiting
        running = plan(connection, "find_job+find_job__state_running+find_job__order", **facts)
        assert "SEARCH j USING INDEX sqlite_autoindex_jobs_1 (job_id=?)" in running
    finally:
        connection.close()


def test_ids_that_begin_alike_are_found_along_their_index(tmp_path: Path) -> None:
    asyncio.run(migrate(f"sqlite:///{tmp_path}/leasekeeper.db"))
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    facts = {"full": [], "gone": [], "unserved": 0, "newer": [], "served": []}
    facts |= {"paused": [], "all_paused": 0, "limit": 9}
    facts |= {"prefix_from": "a", "prefix_to": "b", "of_profile": 0, "token_prefix": "%"}
    try:
        for name, piece, walk in (
            ("find_job", "prefix", "SEARCH b USING COVERING INDEX sqlite_autoindex_jobs_1 (job_id>? AND job_id<?)"),
            ("find_lease", "lease_prefix", "SEARCH b USING INDEX runs_open (profile_id>? AND profile_id<?)"),
            ("find_delivery", "prefix", "SEARCH b USING COVERING INDEX"),
            ("find_review", "prefix", "SEARCH b USING "),
        ):
            steps = plan(connection, f"{name}+{name}__{piece}+{name}__order", **facts)
            assert walk in steps, steps
            assert not [step for step in steps.splitlines() if step.startswith("SCAN") and "json_each" not in step]
    finally:
        connection.close()


def plan(connection: sqlite3.Connection, name: str, **params: object) -> str:
    statement, values = STATEMENTS[name].prepared(params)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values).fetchall()
    return "\n".join(row[3] for row in rows)


async def test_both_dialects_have_the_same_tables_columns_and_indexes(tmp_path: Path, postgres_url: str) -> None:
    await migrate(postgres_url)
    await migrate(f"sqlite:///{tmp_path}/leasekeeper.db")
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    try:
        here = {
            table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not table.startswith("sqlite_")
        }
        indexes = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE%INDEX%'")
        }
    finally:
        connection.close()
    with psycopg.connect(postgres_url) as there:
        columns = there.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'leasekeeper'"
        ).fetchall()
        names = there.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'leasekeeper'").fetchall()
    tables: dict[str, set[str]] = {}
    for table, column in columns:
        if f"{table}.{column}" not in POSTGRES_ALONE and table not in POSTGRES_ALONE:
            tables.setdefault(table, set()).add(column)
    assert here == tables
    assert indexes <= {name for (name,) in names}
