-- Schema 28. Snapshots of profiles' directories, which one is the newest, and whose workers a lane's jobs are kept for.
-- A claim reads the lanes that are kept for nobody, for its own machine, or for anyone (`*`).
CREATE TABLE snapshots (
    snapshot_id   TEXT COLLATE "C" PRIMARY KEY,
    profile_id    TEXT COLLATE "C" NOT NULL,
    account_id    TEXT COLLATE "C" NOT NULL,
    token         BIGINT NOT NULL,
    run_id        TEXT COLLATE "C",
    task          TEXT,
    machine       TEXT,
    engine        BIGINT,
    created_at    BIGINT NOT NULL,
    size_bytes    BIGINT NOT NULL,
    packed_bytes  BIGINT NOT NULL,
    sha256        TEXT NOT NULL,
    contents_hash TEXT NOT NULL,
    place         TEXT NOT NULL,
    key_id        TEXT,
    clean         BOOLEAN NOT NULL,
    verdict       TEXT NOT NULL,
    restored_from BIGINT,
    discarded_at  BIGINT
);
CREATE UNIQUE INDEX snapshots_of ON snapshots (profile_id, token);
CREATE INDEX snapshots_of_profile ON snapshots (profile_id, snapshot_id);
CREATE INDEX snapshots_of_account ON snapshots (account_id, snapshot_id);
CREATE INDEX snapshots_discarded ON snapshots (snapshot_id) WHERE discarded_at IS NOT NULL;

CREATE TABLE fleet_settings (
    name  TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);

ALTER TABLE lanes ADD COLUMN kept_for TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE lanes ADD COLUMN snapshot BIGINT;
ALTER TABLE lanes ADD COLUMN saved BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE lanes ADD COLUMN unsaved_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE lanes ADD COLUMN size_bytes BIGINT;
UPDATE lanes SET kept_for = home;
ALTER TABLE retired_lanes ADD COLUMN snapshot BIGINT;
ALTER TABLE retired_lanes ADD COLUMN saved BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE retired_lanes ADD COLUMN unsaved_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE profiles ADD COLUMN keep_snapshots BIGINT NOT NULL DEFAULT 10;
ALTER TABLE profiles ADD COLUMN max_size_mb BIGINT;
ALTER TABLE accounts ADD COLUMN canary_url TEXT;
ALTER TABLE accounts ADD COLUMN canary_selector TEXT;
DROP INDEX lanes_ready;
CREATE INDEX lanes_ready ON lanes (head_pool, head_task, kept_for, head_priority DESC, waiting_at, profile_id)
    WHERE blocked_by IS NULL AND head_job_id IS NOT NULL;
CREATE INDEX lanes_kept ON lanes (waiting_at, profile_id)
    WHERE saved AND kept_for <> '*' AND blocked_by IS NULL AND head_job_id IS NOT NULL;
