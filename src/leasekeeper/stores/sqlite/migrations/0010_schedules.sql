-- Schema 10. Schedules: what is declared, how far each has come, and the job that each made last in a profile.

-- Written by `apply` alone. `profiles` says which, `job` is the template, `since` is when the times last changed.
CREATE TABLE schedules (
    schedule_id    TEXT PRIMARY KEY,
    cron           TEXT NOT NULL,
    timezone       TEXT NOT NULL,
    jitter_seconds INTEGER NOT NULL,
    profiles       TEXT NOT NULL,
    on_overlap     TEXT NOT NULL,
    catch_up       TEXT NOT NULL,
    job            TEXT NOT NULL,
    since          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The running side. A schedule that nobody has handled yet has no row.
CREATE TABLE schedule_states (
    schedule_id  TEXT PRIMARY KEY,
    last_at      INTEGER NOT NULL,
    next_at      INTEGER,
    since        INTEGER,
    fired_at     INTEGER,
    firing_at    INTEGER,
    firing_after TEXT NOT NULL,
    run_at       INTEGER,
    run_after    TEXT NOT NULL,
    run_by       TEXT NOT NULL,
    paused       INTEGER NOT NULL,
    pause_note   TEXT NOT NULL,
    version      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `place` is schedule_id:profile_id. Ids hold no colon.
CREATE TABLE schedule_jobs (
    place  TEXT PRIMARY KEY,
    job_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;
