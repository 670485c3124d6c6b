-- Schema 1. Times are microseconds since 1970 (UTC); structures are JSON text; keys sort by code point.

-- Configuration. Written by `apply` alone (but for accounts.paused, which is a person's decision).
CREATE TABLE accounts (
    account_id TEXT COLLATE "C" PRIMARY KEY,
    routing    TEXT NOT NULL,
    labels     TEXT NOT NULL,
    notes      TEXT NOT NULL,
    paused     BOOLEAN NOT NULL,
    pause_note TEXT NOT NULL,
    version    BIGINT NOT NULL
);

CREATE TABLE proxies (
    proxy_id    TEXT COLLATE "C" PRIMARY KEY,
    server      TEXT NOT NULL,
    region      TEXT,
    credentials TEXT
);

CREATE TABLE profiles (
    profile_id      TEXT COLLATE "C" PRIMARY KEY,
    account_id      TEXT COLLATE "C" NOT NULL,
    pool            TEXT COLLATE "C" NOT NULL,
    browser         TEXT NOT NULL,
    user_data_dir   TEXT,
    proxy_id        TEXT COLLATE "C",
    language        TEXT,
    timezone        TEXT,
    "window"        TEXT,
    max_active_runs BIGINT NOT NULL CHECK (max_active_runs >= 1),
    disposable      BOOLEAN NOT NULL,
    warm            BOOLEAN NOT NULL,
    release_policy  TEXT NOT NULL,
    manual_use      TEXT NOT NULL,
    labels          TEXT NOT NULL,
    notes           TEXT NOT NULL
);
CREATE INDEX profiles_account ON profiles (account_id, profile_id);

CREATE TABLE limits (
    pool       TEXT COLLATE "C" PRIMARY KEY,
    max_leases BIGINT NOT NULL CHECK (max_leases >= 1)
);

-- The running side of each profile. Its row is the profile's one lock.
CREATE TABLE lanes (
    profile_id     TEXT COLLATE "C" PRIMARY KEY,
    account_id     TEXT COLLATE "C" NOT NULL,
    state          TEXT NOT NULL,
    state_reason   TEXT NOT NULL,
    state_at       BIGINT NOT NULL,
    token          BIGINT NOT NULL,
    version        BIGINT NOT NULL,
    clean          BOOLEAN NOT NULL,
    drain          BOOLEAN NOT NULL,
    verdict        TEXT,
    verdict_reason TEXT NOT NULL,
    engine         BIGINT,
    head_job_id    TEXT COLLATE "C",
    head_pool      TEXT COLLATE "C",
    head_task      TEXT COLLATE "C",
    head_priority  BIGINT NOT NULL,
    head_shared    BOOLEAN NOT NULL,
    waiting_at     BIGINT NOT NULL,
    hold           TEXT,
    waits_on       TEXT COLLATE "C"
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX lanes_ready ON lanes (head_pool, head_task, head_priority DESC, waiting_at, profile_id)
    WHERE hold IS NULL AND head_job_id IS NOT NULL;
CREATE INDEX lanes_parked ON lanes (waits_on) WHERE waits_on IS NOT NULL;

-- What must outlive a profile that was removed: declared again, it goes on from here.
CREATE TABLE retired_lanes (
    profile_id   TEXT COLLATE "C" PRIMARY KEY,
    account_id   TEXT COLLATE "C" NOT NULL,
    token        BIGINT NOT NULL,
    state        TEXT NOT NULL,
    state_reason TEXT NOT NULL,
    clean        BOOLEAN NOT NULL
);

CREATE TABLE jobs (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id                 TEXT COLLATE "C" NOT NULL UNIQUE,
    account_id             TEXT COLLATE "C" NOT NULL,
    profile_id             TEXT COLLATE "C" NOT NULL,
    task                   TEXT COLLATE "C" NOT NULL,
    payload                TEXT NOT NULL,
    pool                   TEXT COLLATE "C" NOT NULL,
    attempt                BIGINT NOT NULL,
    max_attempts           BIGINT NOT NULL,
    idempotency_key        TEXT COLLATE "C",
    body_hash              TEXT NOT NULL,
    priority               BIGINT NOT NULL,
    run_at                 BIGINT,
    mode                   TEXT NOT NULL,
    allowed_actions        TEXT,
    expected_proxy_region  TEXT,
    expected_language      TEXT,
    expected_timezone      TEXT,
    proxy_id               TEXT COLLATE "C",
    run_mode               TEXT NOT NULL,
    risk_level             TEXT NOT NULL,
    lock_timeout_seconds   BIGINT,
    release_policy         TEXT,
    on_conflict            TEXT NOT NULL,
    conflict_delay_seconds BIGINT NOT NULL,
    retry                  TEXT,
    callback_url           TEXT,
    created_at             BIGINT NOT NULL,
    labels                 TEXT NOT NULL,
    notes                  TEXT NOT NULL,
    state                  TEXT NOT NULL,
    blocked_reason         TEXT,
    detail                 TEXT NOT NULL,
    losses                 BIGINT NOT NULL,
    approved               BOOLEAN NOT NULL,
    dropped                BOOLEAN NOT NULL,
    run_id                 TEXT COLLATE "C",
    stop_reason            TEXT,
    finished_at            BIGINT,
    version                BIGINT NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX jobs_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_lane ON jobs (profile_id, priority DESC, seq) WHERE state = 'queued';
CREATE INDEX jobs_due ON jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_blocked ON jobs (profile_id, seq) WHERE state = 'blocked';
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_waiting ON jobs (seq) WHERE state IN ('queued', 'blocked');
CREATE INDEX jobs_by_state ON jobs (state, seq) WHERE state <> 'queued' AND state <> 'blocked' AND state <> 'running';
CREATE INDEX jobs_by_profile ON jobs (profile_id, seq);

-- A run and its lease are one row: the lease is its live half. Open: live, or ended without an explanation.
CREATE TABLE runs (
    profile_id     TEXT COLLATE "C" NOT NULL,
    token          BIGINT NOT NULL,
    lease_id       TEXT COLLATE "C" NOT NULL,
    run_id         TEXT COLLATE "C" PRIMARY KEY,
    account_id     TEXT COLLATE "C" NOT NULL,
    job_id         TEXT COLLATE "C",
    task           TEXT COLLATE "C",
    attempt        BIGINT NOT NULL,
    worker_id      TEXT COLLATE "C" NOT NULL,
    incarnation    TEXT COLLATE "C" NOT NULL,
    proxy_id       TEXT COLLATE "C",
    pool           TEXT COLLATE "C" NOT NULL,
    routing_key    TEXT COLLATE "C" NOT NULL,
    mode           TEXT NOT NULL,
    acquired_at    BIGINT NOT NULL,
    heartbeat_at   BIGINT NOT NULL,
    expires_at     BIGINT NOT NULL,
    ttl_ms         BIGINT NOT NULL,
    lock_delay_ms  BIGINT NOT NULL,
    last_safe_step TEXT,
    last_safe_at   BIGINT,
    last_url       TEXT,
    open_section   TEXT,
    section_at     BIGINT,
    release_policy TEXT NOT NULL,
    status         TEXT NOT NULL,
    purpose        TEXT NOT NULL,
    priority       BIGINT,
    unresolved     BOOLEAN NOT NULL,
    open           BOOLEAN NOT NULL DEFAULT TRUE,
    ended_at       BIGINT,
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
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
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
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            BIGINT NOT NULL,
    type          TEXT NOT NULL,
    account_id    TEXT COLLATE "C",
    profile_id    TEXT COLLATE "C",
    job_id        TEXT COLLATE "C",
    run_id        TEXT COLLATE "C",
    worker_id     TEXT COLLATE "C",
    actor         TEXT NOT NULL,
    job_state     TEXT,
    profile_state TEXT,
    data          TEXT NOT NULL
);
CREATE INDEX events_profile ON events (profile_id, seq) WHERE profile_id IS NOT NULL;
CREATE INDEX events_job ON events (job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX events_notable ON events (type, seq)
    WHERE type <> 'job_submitted' AND type <> 'lease_granted' AND type <> 'run_settled' AND type <> 'checkpoint_saved'
      AND type <> 'job_due';

CREATE TABLE reviews (
    review_id  TEXT COLLATE "C" PRIMARY KEY,
    target     TEXT NOT NULL,
    subject    TEXT COLLATE "C" NOT NULL,
    account_id TEXT COLLATE "C" NOT NULL,
    profile_id TEXT COLLATE "C" NOT NULL,
    job_id     TEXT COLLATE "C",
    run_id     TEXT COLLATE "C",
    reason     TEXT NOT NULL,
    summary    TEXT NOT NULL,
    opened_at  BIGINT NOT NULL,
    decided_at BIGINT,
    decision   TEXT,
    note       TEXT NOT NULL,
    actor      TEXT NOT NULL
);
CREATE UNIQUE INDEX reviews_open ON reviews (target, subject) WHERE decided_at IS NULL;
CREATE INDEX reviews_profile ON reviews (profile_id, review_id);

CREATE TABLE workers (
    incarnation  TEXT COLLATE "C" PRIMARY KEY,
    worker_id    TEXT COLLATE "C" NOT NULL,
    pool         TEXT COLLATE "C" NOT NULL,
    tasks        TEXT NOT NULL,
    concurrency  BIGINT NOT NULL,
    engine       BIGINT,
    started_at   BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL,
    stopped_at   BIGINT
);

-- Every task that some worker of a pool has ever offered.
CREATE TABLE tasks (
    pool          TEXT COLLATE "C" NOT NULL,
    task          TEXT COLLATE "C" NOT NULL,
    first_seen_at BIGINT NOT NULL,
    PRIMARY KEY (pool, task)
);

-- The outbox: messages owed to webhooks, written in the commit that they tell of.
CREATE TABLE deliveries (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    delivery_id  TEXT COLLATE "C" NOT NULL UNIQUE,
    job_id       TEXT COLLATE "C" NOT NULL,
    type         TEXT NOT NULL,
    url          TEXT NOT NULL,
    body         TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    due_at       BIGINT NOT NULL,
    attempts     BIGINT NOT NULL,
    delivered_at BIGINT
);
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE delivered_at IS NULL;
CREATE INDEX deliveries_job ON deliveries (job_id);

CREATE TABLE schema_version (version INTEGER PRIMARY KEY);

-- One row, read in every transaction: how often the configuration changed (whoever changes it holds the row), the
-- schema, and until when expiry pauses because the clock jumped.
CREATE TABLE fleet_lock (
    only_row          BOOLEAN PRIMARY KEY CHECK (only_row),
    revision          BIGINT NOT NULL,
    schema            BIGINT NOT NULL,
    expiry_resumes_at BIGINT NOT NULL
);
INSERT INTO fleet_lock VALUES (TRUE, 0, 1, 0);

-- The last commit of each connection, by a name that only it knows: how a commit whose answer was lost is found out.
CREATE TABLE commits (
    nonce   TEXT COLLATE "C" PRIMARY KEY,
    barred  BOOLEAN NOT NULL DEFAULT FALSE,
    made_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
