-- Schema 1. Times are microseconds since 1970 (UTC); structures are JSON text.
-- What a partial index leaves out is said with <>, one value at a time: for a list SQLite builds a table at every write.
-- It uses such an index only for statements that say the same.

-- Configuration. Written by `apply` alone (but for accounts.paused, which is a person's decision).
CREATE TABLE accounts (
    account_id TEXT PRIMARY KEY,
    routing    TEXT NOT NULL,
    labels     TEXT NOT NULL,
    notes      TEXT NOT NULL,
    paused     INTEGER NOT NULL,
    pause_note TEXT NOT NULL,
    version    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE proxies (
    proxy_id    TEXT PRIMARY KEY,
    server      TEXT NOT NULL,
    region      TEXT,
    credentials TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE profiles (
    profile_id      TEXT PRIMARY KEY,
    account_id      TEXT NOT NULL,
    pool            TEXT NOT NULL,
    browser         TEXT NOT NULL,
    user_data_dir   TEXT,
    proxy_id        TEXT,
    language        TEXT,
    timezone        TEXT,
    "window"        TEXT,
    max_active_runs INTEGER NOT NULL CHECK (max_active_runs >= 1),
    disposable      INTEGER NOT NULL,
    warm            INTEGER NOT NULL,
    release_policy  TEXT NOT NULL,
    manual_use      TEXT NOT NULL,
    labels          TEXT NOT NULL,
    notes           TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX profiles_account ON profiles (account_id, profile_id);

CREATE TABLE limits (
    pool       TEXT PRIMARY KEY,
    max_leases INTEGER NOT NULL CHECK (max_leases >= 1)
) STRICT, WITHOUT ROWID;

-- The running side of each profile. Its row is the profile's one lock.
CREATE TABLE lanes (
    profile_id     TEXT PRIMARY KEY,
    account_id     TEXT NOT NULL,
    state          TEXT NOT NULL,
    state_reason   TEXT NOT NULL,
    state_at       INTEGER NOT NULL,
    token          INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    clean          INTEGER NOT NULL,
    drain          INTEGER NOT NULL,
    verdict        TEXT,
    verdict_reason TEXT NOT NULL,
    engine         INTEGER,
    head_job_id    TEXT,
    head_pool      TEXT,
    head_task      TEXT,
    head_priority  INTEGER NOT NULL,
    head_shared    INTEGER NOT NULL,
    waiting_at     INTEGER NOT NULL,
    hold           TEXT,
    waits_on       TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_ready ON lanes (head_pool, head_task, head_priority DESC, waiting_at, profile_id)
    WHERE hold IS NULL AND head_job_id IS NOT NULL;
CREATE INDEX lanes_parked ON lanes (waits_on) WHERE waits_on IS NOT NULL;

-- What must outlive a profile that was removed: declared again, it goes on from here.
CREATE TABLE retired_lanes (
    profile_id   TEXT PRIMARY KEY,
    account_id   TEXT NOT NULL,
    token        INTEGER NOT NULL,
    state        TEXT NOT NULL,
    state_reason TEXT NOT NULL,
    clean        INTEGER NOT NULL
) STRICT;

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    job_id                 TEXT NOT NULL UNIQUE,
    account_id             TEXT NOT NULL,
    profile_id             TEXT NOT NULL,
    task                   TEXT NOT NULL,
    payload                TEXT NOT NULL,
    pool                   TEXT NOT NULL,
    attempt                INTEGER NOT NULL,
    max_attempts           INTEGER NOT NULL,
    idempotency_key        TEXT,
    body_hash              TEXT NOT NULL,
    priority               INTEGER NOT NULL,
    run_at                 INTEGER,
    mode                   TEXT NOT NULL,
    allowed_actions        TEXT,
    expected_proxy_region  TEXT,
    expected_language      TEXT,
    expected_timezone      TEXT,
    proxy_id               TEXT,
    run_mode               TEXT NOT NULL,
    risk_level             TEXT NOT NULL,
    lock_timeout_seconds   INTEGER,
    release_policy         TEXT,
    on_conflict            TEXT NOT NULL,
    conflict_delay_seconds INTEGER NOT NULL,
    retry                  TEXT,
    callback_url           TEXT,
    created_at             INTEGER NOT NULL,
    labels                 TEXT NOT NULL,
    notes                  TEXT NOT NULL,
    state                  TEXT NOT NULL,
    blocked_reason         TEXT,
    detail                 TEXT NOT NULL,
    losses                 INTEGER NOT NULL,
    approved               INTEGER NOT NULL,
    dropped                INTEGER NOT NULL,
    run_id                 TEXT,
    stop_reason            TEXT,
    finished_at            INTEGER,
    version                INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX jobs_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_lane ON jobs (profile_id, priority DESC, seq) WHERE state = 'queued';
CREATE INDEX jobs_due ON jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_blocked ON jobs (profile_id, seq) WHERE state = 'blocked';
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
-- Lists decide by these columns; they pass over rows that do not belong without fetching them.
CREATE INDEX jobs_waiting ON jobs (seq, state, profile_id, pool, task) WHERE state IN ('queued', 'blocked');
CREATE INDEX jobs_by_state ON jobs (state, seq) WHERE state <> 'queued' AND state <> 'blocked' AND state <> 'running';
CREATE INDEX jobs_by_profile ON jobs (profile_id, seq);

-- A run and its lease are one row: the lease is its live half. Open: live, or ended without an explanation.
CREATE TABLE runs (
    profile_id     TEXT NOT NULL,
    token          INTEGER NOT NULL,
    lease_id       TEXT NOT NULL,
    run_id         TEXT PRIMARY KEY,
    account_id     TEXT NOT NULL,
    job_id         TEXT,
    task           TEXT,
    attempt        INTEGER NOT NULL,
    worker_id      TEXT NOT NULL,
    incarnation    TEXT NOT NULL,
    proxy_id       TEXT,
    pool           TEXT NOT NULL,
    routing_key    TEXT NOT NULL,
    mode           TEXT NOT NULL,
    acquired_at    INTEGER NOT NULL,
    heartbeat_at   INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    ttl_ms         INTEGER NOT NULL,
    lock_delay_ms  INTEGER NOT NULL,
    last_safe_step TEXT,
    last_safe_at   INTEGER,
    last_url       TEXT,
    open_section   TEXT,
    section_at     INTEGER,
    release_policy TEXT NOT NULL,
    status         TEXT NOT NULL,
    purpose        TEXT NOT NULL,
    priority       INTEGER,
    unresolved     INTEGER NOT NULL,
    open           INTEGER NOT NULL DEFAULT 1,
    ended_at       INTEGER,
    run_mode       TEXT,
    expected       TEXT NOT NULL,
    actual         TEXT NOT NULL DEFAULT '{}',
    result         TEXT NOT NULL DEFAULT 'started',
    stop_reason    TEXT,
    message        TEXT NOT NULL DEFAULT '',
    belongs_to     TEXT,
    final_url      TEXT,
    evidence       TEXT NOT NULL DEFAULT '{}',
    output         TEXT,
    timings        TEXT NOT NULL DEFAULT '{}'
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX runs_lease ON runs (profile_id, token);
CREATE INDEX runs_open ON runs (profile_id, token) WHERE open;
CREATE INDEX runs_live ON runs (pool, expires_at) WHERE ended_at IS NULL;
CREATE INDEX runs_keys ON runs (account_id, routing_key) WHERE ended_at IS NULL AND routing_key LIKE 'account:%';
CREATE INDEX runs_unresolved ON runs (ended_at) WHERE unresolved;
CREATE INDEX runs_failed ON runs (run_id) WHERE result <> 'completed' AND result <> 'started';
CREATE INDEX runs_lost ON runs (run_id) WHERE status <> 'running' AND status <> 'releasing' AND status <> 'released';
CREATE INDEX runs_job ON runs (job_id) WHERE ended_at IS NOT NULL AND job_id IS NOT NULL;
CREATE INDEX runs_without_job ON runs (ended_at) WHERE job_id IS NULL;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at            INTEGER NOT NULL,
    type          TEXT NOT NULL,
    account_id    TEXT,
    profile_id    TEXT,
    job_id        TEXT,
    run_id        TEXT,
    worker_id     TEXT,
    actor         TEXT NOT NULL,
    job_state     TEXT,
    profile_state TEXT,
    data          TEXT NOT NULL
) STRICT;
CREATE INDEX events_profile ON events (profile_id, seq) WHERE profile_id IS NOT NULL;
CREATE INDEX events_job ON events (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX events_notable ON events (type, seq)
    WHERE type <> 'job_submitted' AND type <> 'lease_granted' AND type <> 'run_settled' AND type <> 'checkpoint_saved'
      AND type <> 'job_due';

CREATE TABLE reviews (
    review_id  TEXT PRIMARY KEY,
    target     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    account_id TEXT NOT NULL,
    profile_id TEXT NOT NULL,
    job_id     TEXT,
    run_id     TEXT,
    reason     TEXT NOT NULL,
    summary    TEXT NOT NULL,
    opened_at  INTEGER NOT NULL,
    decided_at INTEGER,
    decision   TEXT,
    note       TEXT NOT NULL,
    actor      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX reviews_open ON reviews (target, subject) WHERE decided_at IS NULL;
CREATE INDEX reviews_profile ON reviews (profile_id, review_id);

CREATE TABLE workers (
    incarnation  TEXT PRIMARY KEY,
    worker_id    TEXT NOT NULL,
    pool         TEXT NOT NULL,
    tasks        TEXT NOT NULL,
    concurrency  INTEGER NOT NULL,
    engine       INTEGER,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    stopped_at   INTEGER
) STRICT, WITHOUT ROWID;

-- Every task that some worker of a pool has ever offered.
CREATE TABLE tasks (
    pool          TEXT NOT NULL,
    task          TEXT NOT NULL,
    first_seen_at INTEGER NOT NULL,
    PRIMARY KEY (pool, task)
) STRICT, WITHOUT ROWID;

-- The outbox: messages owed to webhooks, written in the commit that they tell of.
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY,
    delivery_id  TEXT NOT NULL UNIQUE,
    job_id       TEXT NOT NULL,
    type         TEXT NOT NULL,
    url          TEXT NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    delivered_at INTEGER
) STRICT;
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE delivered_at IS NULL;
CREATE INDEX deliveries_job ON deliveries (job_id);

-- One row, read in every transaction: how often the configuration changed, and until when expiry pauses because the
-- clock jumped.
CREATE TABLE fleet_lock (
    only_row          INTEGER PRIMARY KEY CHECK (only_row = 1),
    revision          INTEGER NOT NULL,
    expiry_resumes_at INTEGER NOT NULL
) STRICT;
INSERT INTO fleet_lock VALUES (1, 0, 0);
