-- Schema 28. Snapshots of profiles' directories, which one is the newest, and whose workers a lane's jobs are kept for.
-- A claim reads the lanes that are kept for nobody, for its own machine, or for anyone (`*`).
CREATE TABLE snapshots (
    snapshot_id   TEXT PRIMARY KEY,
    profile_id    TEXT NOT NULL,
    account_id    TEXT NOT NULL,
    token         INTEGER NOT NULL,
    run_id        TEXT,
    task          TEXT,
    machine       TEXT,
    engine        INTEGER,
    created_at    INTEGER NOT NULL,
    size_bytes    INTEGER NOT NULL,
    packed_bytes  INTEGER NOT NULL,
    sha256        TEXT NOT NULL,
    contents_hash TEXT NOT NULL,
    place         TEXT NOT NULL,
    key_id        TEXT,
    clean         INTEGER NOT NULL,
    verdict       TEXT NOT NULL,
    restored_from INTEGER,
    discarded_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX snapshots_of ON snapshots (profile_id, token);
CREATE INDEX snapshots_of_profile ON snapshots (profile_id, snapshot_id);
CREATE INDEX snapshots_of_account ON snapshots (account_id, snapshot_id);
CREATE INDEX snapshots_discarded ON snapshots (snapshot_id) WHERE discarded_at IS NOT NULL;

CREATE TABLE fleet_settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE lanes ADD COLUMN kept_for TEXT NOT NULL DEFAULT '';
ALTER TABLE lanes ADD COLUMN snapshot INTEGER;
ALTER TABLE lanes ADD COLUMN saved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lanes ADD COLUMN unsaved_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE lanes ADD COLUMN size_bytes INTEGER;
UPDATE lanes SET kept_for = home;
ALTER TABLE retired_lanes ADD COLUMN snapshot INTEGER;
ALTER TABLE retired_lanes ADD COLUMN saved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE retired_lanes ADD COLUMN unsaved_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE profiles ADD COLUMN keep_snapshots INTEGER NOT NULL DEFAULT 10;
ALTER TABLE profiles ADD COLUMN max_size_mb INTEGER;
ALTER TABLE accounts ADD COLUMN canary_url TEXT;
ALTER TABLE accounts ADD COLUMN canary_selector TEXT;
DROP INDEX lanes_ready;
CREATE INDEX lanes_ready ON lanes (head_pool, head_task, kept_for, head_priority DESC, waiting_at, profile_id)
    WHERE blocked_by IS NULL AND head_job_id IS NOT NULL;
CREATE INDEX lanes_kept ON lanes (waiting_at, profile_id)
    WHERE saved AND kept_for <> '*' AND blocked_by IS NULL AND head_job_id IS NOT NULL;
