"""Random histories on every store. LEASEKEEPER_MODEL_SECONDS=1200 makes a test as long as that many seconds.

LEASEKEEPER_MODEL_SHRINK=0 shows the first history that fails as it is, without looking for a shorter one.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis
import psycopg
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test
from psycopg import sql

from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres.schema import SCHEMA
from tests.model.machine import Clock, Machine

SECONDS = float(os.environ.get("LEASEKEEPER_MODEL_SECONDS", "0"))
SHRINK = [] if os.environ.get("LEASEKEEPER_MODEL_SHRINK") == "0" else [Phase.shrink]
KEPT = ("schema_version", "fleet_lock")
TIME_RUNS = "UPDATE fleet_lock SET expiry_resumes_at = 0"


def run_histories(url: str, empty: Callable[[], None], *, examples: int) -> None:
    """One store and one loop for all histories; its tables are emptied before each."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        clock = Clock()
        runner.run(migrate(url))
        store = runner.run(open_store(url, clock=clock))

        def machine() -> Machine:
            empty()
            return Machine(store, clock, loop)

        settings = hypothesis.settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, *SHRINK],
        )
        until = time.monotonic() + SECONDS
        try:
            while True:
                run_state_machine_as_test(machine, settings=settings)  # type: ignore[arg-type]  # it also takes factories
                if time.monotonic() >= until:
                    break
        finally:
            runner.run(store.close())


@pytest.mark.timeout(SECONDS + 600)
def test_sqlite_does_what_the_model_does(sqlite_url: str, tmp_path: Path) -> None:
    def empty() -> None:
        with sqlite3.connect(tmp_path / "leasekeeper.db") as connection:
            found = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            )
            for (table,) in found.fetchall():
                if table not in KEPT:
                    connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are the schema's own
            connection.execute(TIME_RUNS)
        connection.close()

    run_histories(sqlite_url, empty, examples=100)


@pytest.mark.timeout(SECONDS + 600)
def test_postgres_does_what_the_model_does(postgres_url: str) -> None:
    def empty() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (SCHEMA,)).fetchall()
            tables = [sql.Identifier(SCHEMA, name) for (name,) in found if name not in KEPT]
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(SCHEMA)))
            connection.execute(TIME_RUNS)

    run_histories(postgres_url, empty, examples=40)
