"""What the machine can do at all: two durable commits per job, with no queue around them.

`*_two_commits` changes one row per commit: nothing that commits twice per job can be faster.
`*_two_commits_same_rows` writes the rows that any leasing queue has to write (lane, job, run, event)
in two transactions, with no reads, no decisions and no indexes but the primary keys.
PostgreSQL is driven by pgbench (one client, prepared statements), SQLite by the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

ROWS = 20_000
LANES = 2_000
STEP = 7_919
"""Prime to `ROWS`: stepping by it visits every row, in an order far from theirs on disk."""

LANE_BODY = "x" * 100
JOB_BODY = "x" * 200
RUN_BODY = "x" * 250
EVENT_BODY = "x" * 100

# PostgreSQL -------------------------------------------------------------------------------------

SCHEMA = "bench_limits"

BARE_TABLES = f"""\
CREATE TABLE item (id int PRIMARY KEY, version bigint NOT NULL, body text NOT NULL) WITH (fillfactor = 70);
INSERT INTO item SELECT n, 0, '{JOB_BODY}' FROM generate_series(1, {ROWS}) n;
VACUUM ANALYZE item
"""

BARE_SCRIPT = f"""\
\\set id random(1, {ROWS})
UPDATE item SET version = version + 1 WHERE id = :id;
UPDATE item SET version = version + 1 WHERE id = :id;
"""

SAME_ROWS_TABLES = f"""\
CREATE TABLE lane (id int PRIMARY KEY, state text NOT NULL, token bigint NOT NULL, expires timestamptz,
  body text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE job (id int PRIMARY KEY, lane int NOT NULL, state text NOT NULL, attempt int NOT NULL,
  body text NOT NULL) WITH (fillfactor = 70);
CREATE TABLE run (id bigint PRIMARY KEY, job int NOT NULL, state text NOT NULL, started timestamptz NOT NULL,
  ended timestamptz, body text NOT NULL) WITH (fillfactor = 70);
CREATE TABLE event (id bigserial PRIMARY KEY, at timestamptz NOT NULL, kind text NOT NULL, job int NOT NULL,
  body text NOT NULL);
INSERT INTO lane SELECT n, 'ready', 0, NULL, '{LANE_BODY}' FROM generate_series(1, {LANES}) n;
INSERT INTO job SELECT n, 1 + n % {LANES}, 'queued', 0, '{JOB_BODY}' FROM generate_series(1, {ROWS}) n;
VACUUM ANALYZE lane, job
"""

SAME_ROWS_NUMBERS = f"""\
\\set n :n + 1
\\set job 1 + (:n * {STEP}) % {ROWS}
\\set lane 1 + :job % {LANES}
"""

SAME_ROWS_CLAIM = f"""\
BEGIN;
UPDATE lane SET state = 'leased', token = :n, expires = now() + interval '1 min' WHERE id = :lane;
UPDATE job SET state = 'running', attempt = attempt + 1 WHERE id = :job;
INSERT INTO run (id, job, state, started, body) VALUES (:n, :job, 'running', now(), '{RUN_BODY}');
INSERT INTO event (at, kind, job, body) VALUES (now(), 'job.started', :job, '{EVENT_BODY}');
COMMIT;
"""

SAME_ROWS_SETTLE = f"""\
BEGIN;
UPDATE lane SET state = 'ready', expires = NULL WHERE id = :lane;
UPDATE run SET state = 'succeeded', ended = now() WHERE id = :n;
UPDATE job SET state = 'succeeded' WHERE id = :job;
INSERT INTO event (at, kind, job, body) VALUES (now(), 'job.succeeded', :job, '{EVENT_BODY}');
COMMIT;
"""


def postgres_two_commits(dsn_host: str, port: int, user: str, dbname: str, seconds: float) -> float:
    """Jobs/s of one connection that commits two single-row updates per job."""
    with _postgres_tables(dsn_host, port, user, dbname, BARE_TABLES):
        return _pgbench(dsn_host, port, user, dbname, BARE_SCRIPT, seconds)


def postgres_two_commits_same_rows(
    dsn_host: str, port: int, user: str, dbname: str, seconds: float, *, pipelined: bool = False
) -> float:
    """Jobs/s of one connection that writes a queue's rows in two transactions per job.

    Each statement waits for its answer as an ordinary client does; with `pipelined` a whole
    transaction is sent at once.
    """
    transactions = [SAME_ROWS_CLAIM, SAME_ROWS_SETTLE]
    if pipelined:
        transactions = [f"\\startpipeline\n{text}\\endpipeline\n" for text in transactions]
    script = SAME_ROWS_NUMBERS + "".join(transactions)
    with _postgres_tables(dsn_host, port, user, dbname, SAME_ROWS_TABLES):
        return _pgbench(dsn_host, port, user, dbname, script, seconds)


@contextlib.contextmanager
def _postgres_tables(host: str, port: int, user: str, dbname: str, statements: str) -> Iterator[None]:
    """Create the tables in a schema of their own and drop it; refuse a server that is not durable."""
    dsn = make_conninfo(host=host, port=port, user=user, dbname=dbname, options=f"-csearch_path={SCHEMA}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit"):
            row = connection.execute(f"SHOW {setting}").fetchone()
            if row is None or row[0] != "on":
                raise RuntimeError(f"the limit needs a durable server: {setting} is not on")
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        try:
            for statement in statements.split(";"):
                connection.execute(statement)
            yield
        finally:
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def _pgbench(host: str, port: int, user: str, dbname: str, script: str, seconds: float) -> float:
    """Run the script over and over for `seconds` (at least 1) and return how often per second."""
    program = shutil.which("pgbench")
    if program is None:
        raise RuntimeError("pgbench is not on the PATH: install PostgreSQL's client programs")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "job.sql"
        file.write_text(script)
        command = [program, "-n", "-M", "prepared", "-c", "1", "-D", "n=0", "-f", str(file)]
        command += ["-T", str(max(1, round(seconds)))]
        command += ["-h", host, "-p", str(port), "-U", user, dbname]
        environment = {**os.environ, "PGOPTIONS": f"-csearch_path={SCHEMA}"}
        result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    rate = re.search(r"^tps = ([0-9.]+)", result.stdout, re.MULTILINE)
    if result.returncode != 0 or rate is None:
        raise RuntimeError(f"pgbench failed: {result.stderr.strip()}")
    return float(rate[1])


# SQLite -----------------------------------------------------------------------------------------

SQLITE_BARE = {"limit_item": "id INTEGER PRIMARY KEY, version INTEGER, body TEXT"}

SQLITE_SAME_ROWS = {
    "limit_lane": "id INTEGER PRIMARY KEY, state TEXT, token INTEGER, expires REAL, body TEXT",
    "limit_job": "id INTEGER PRIMARY KEY, lane INTEGER, state TEXT, attempt INTEGER, body TEXT",
    "limit_run": "id INTEGER PRIMARY KEY, job INTEGER, state TEXT, started REAL, ended REAL, body TEXT",
    "limit_event": "id INTEGER PRIMARY KEY, at REAL, kind TEXT, job INTEGER, body TEXT",
}


def sqlite_two_commits(path: str | Path, jobs: int) -> float:
    """Jobs/s of one connection that commits two single-row updates per job."""
    with _sqlite_tables(path, SQLITE_BARE) as connection:
        _fill(connection, "INSERT INTO limit_item VALUES (?, 0, ?)", ROWS, JOB_BODY)

        def job(number: int) -> None:
            row = 1 + number * STEP % ROWS
            for _ in range(2):
                with _transaction(connection):
                    connection.execute("UPDATE limit_item SET version = version + 1 WHERE id = ?", (row,))

        return _rate(job, jobs)


def sqlite_two_commits_same_rows(path: str | Path, jobs: int) -> float:
    """Jobs/s of one connection that writes a queue's rows in two transactions per job."""
    with _sqlite_tables(path, SQLITE_SAME_ROWS) as connection:
        _fill(connection, "INSERT INTO limit_lane VALUES (?, 'ready', 0, NULL, ?)", LANES, LANE_BODY)
        _fill(connection, "INSERT INTO limit_job VALUES (?, 0, 'queued', 0, ?)", ROWS, JOB_BODY)

        def job(number: int) -> None:
            row = 1 + number * STEP % ROWS
            lane = 1 + row % LANES
            now = time.time()
            with _transaction(connection):
                connection.execute(
                    "UPDATE limit_lane SET state = 'leased', token = ?, expires = ? WHERE id = ?",
                    (number, now + 60, lane),
                )
                connection.execute(
                    "UPDATE limit_job SET state = 'running', attempt = attempt + 1 WHERE id = ?",
                    (row,),
                )
                connection.execute(
                    "INSERT INTO limit_run VALUES (?, ?, 'running', ?, NULL, ?)",
                    (number, row, now, RUN_BODY),
                )
                connection.execute(
                    "INSERT INTO limit_event VALUES (NULL, ?, 'job.started', ?, ?)",
                    (now, row, EVENT_BODY),
                )
            with _transaction(connection):
                connection.execute("UPDATE limit_lane SET state = 'ready', expires = NULL WHERE id = ?", (lane,))
                connection.execute(
                    "UPDATE limit_run SET state = 'succeeded', ended = ? WHERE id = ?",
                    (now, number),
                )
                connection.execute("UPDATE limit_job SET state = 'succeeded' WHERE id = ?", (row,))
                connection.execute(
                    "INSERT INTO limit_event VALUES (NULL, ?, 'job.succeeded', ?, ?)",
                    (now, row, EVENT_BODY),
                )

        return _rate(job, jobs)


@contextlib.contextmanager
def _sqlite_tables(path: str | Path, tables: dict[str, str]) -> Iterator[sqlite3.Connection]:
    """Open the file as durably as the store does, create the tables, and drop them at the end."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        for name, columns in tables.items():
            connection.execute(f"DROP TABLE IF EXISTS {name}")
            connection.execute(f"CREATE TABLE {name} ({columns})")
        try:
            yield connection
        finally:
            for name in tables:
                connection.execute(f"DROP TABLE {name}")


def _fill(connection: sqlite3.Connection, statement: str, rows: int, body: str) -> None:
    with _transaction(connection):
        connection.executemany(statement, ((number, body) for number in range(1, rows + 1)))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _rate(job: Callable[[int], None], jobs: int) -> float:
    start = time.perf_counter()
    for number in range(1, jobs + 1):
        job(number)
    return jobs / (time.perf_counter() - start)
