"""A store with a long past: a million finished jobs, written straight into the tables, beside a hundred thousand
queued ones. Made from one finished job that went the ordinary way, so that every column is what it would be."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg

_COPY_JOBS = """
INSERT INTO jobs (job_id, account_id, profile_id, task, payload, pool, attempt, max_attempts, body_hash, priority,
    mode, run_mode, risk_level, on_conflict, conflict_delay_seconds, created_at, labels, notes, state, detail, losses,
    approved, dropped, run_id, finished_at, version)
SELECT 'old-' || n, account_id, profile_id, task, payload, pool, attempt, max_attempts, body_hash, priority,
    mode, run_mode, risk_level, on_conflict, conflict_delay_seconds, created_at, labels, notes, state, detail, losses,
    approved, dropped, 'old-run-' || n, finished_at, version
FROM {numbers}, (SELECT * FROM jobs WHERE state = 'completed' ORDER BY seq LIMIT 1) one
"""

_COPY_RUNS = """
INSERT INTO runs (profile_id, token, lease_id, run_id, account_id, job_id, task, attempt, worker_id, incarnation, pool,
    routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms, lock_delay_ms, release_policy, status, purpose,
    unresolved, open, ended_at, expected, result)
SELECT 'profile_' || substr('0000' || (n % {profiles}), -5), -n, lease_id, 'old-run-' || n, account_id, 'old-' || n,
    task, attempt, worker_id, incarnation, pool, routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms,
    lock_delay_ms, release_policy, status, purpose, unresolved, open, ended_at, expected, result
FROM {numbers}, (SELECT * FROM runs WHERE status = 'released' ORDER BY run_id LIMIT 1) one
"""

_COPY_EVENTS = """
INSERT INTO events (at, type, account_id, profile_id, job_id, run_id, worker_id, actor, job_state, profile_state, data)
SELECT at, type, account_id, profile_id, 'old-' || n, 'old-run-' || n, worker_id, actor, job_state, profile_state, data
FROM {numbers}, (SELECT * FROM events WHERE type = 'run_settled' ORDER BY seq LIMIT 1) one
"""


def add_to_postgres(url: str, finished: int, profiles: int) -> None:
    """Write the past into a PostgreSQL store."""
    numbers = f"generate_series(1, {finished}) n"
    with psycopg.connect(
        url, autocommit=True, options="-c search_path=leasekeeper -c synchronous_commit=off"
    ) as connection:
        for statement in (_COPY_JOBS, _COPY_RUNS, _COPY_EVENTS):
            text = statement.format(numbers=numbers, profiles=profiles)
            connection.execute(
                text.replace("substr('0000' || (n % 2000), -5)", "lpad((n % 2000)::text, 5, '0')").encode()
            )
        connection.execute(b"VACUUM ANALYZE")
        connection.execute(b"CHECKPOINT")


def add_to_sqlite(path: Path, finished: int, profiles: int) -> None:
    """Write the past into an SQLite store."""
    numbers = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {finished}) SELECT n FROM s)"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in (_COPY_JOBS, _COPY_RUNS, _COPY_EVENTS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(statement.format(numbers=numbers, profiles=profiles))
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("ANALYZE")
    finally:
        connection.close()
