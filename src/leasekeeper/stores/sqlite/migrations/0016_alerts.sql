-- Schema 16. Registered endpoints get alerts, which need not be about a job. A worker that no longer reports is noticed.
CREATE TABLE endpoints (
    endpoint_id TEXT PRIMARY KEY,
    url         TEXT NOT NULL,
    events      TEXT NOT NULL,
    description TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    created_by  TEXT NOT NULL,
    changed_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE deliveries RENAME TO old_deliveries;
DROP INDEX deliveries_job;
DROP INDEX deliveries_due;
DROP INDEX deliveries_ended;
DROP INDEX deliveries_undelivered;
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY,
    delivery_id  TEXT NOT NULL UNIQUE,
    job_id       TEXT,
    endpoint_id  TEXT,
    type         TEXT NOT NULL,
    url          TEXT NOT NULL,
    host         TEXT NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    state        TEXT NOT NULL,
    due_at       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    spent        INTEGER NOT NULL,
    attempted_at INTEGER,
    answer       TEXT NOT NULL,
    ended_at     INTEGER
) STRICT;
INSERT INTO deliveries (
    seq, delivery_id, job_id, type, url, host, body, created_at, state, due_at, attempts, spent, attempted_at, answer,
    ended_at
) SELECT
    seq, delivery_id, job_id, type, url, host, body, created_at, state, due_at, attempts, spent, attempted_at, answer,
    ended_at
FROM old_deliveries;
DROP TABLE old_deliveries;
CREATE INDEX deliveries_job ON deliveries (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX deliveries_endpoint ON deliveries (endpoint_id, seq) WHERE endpoint_id IS NOT NULL;
CREATE INDEX deliveries_due ON deliveries (host, due_at, seq) WHERE ended_at IS NULL;
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX deliveries_undelivered ON deliveries (state, seq) WHERE state <> 'delivered';

ALTER TABLE workers ADD COLUMN silent_since INTEGER;
