-- Schema 10. Schedules: what is declared, how far each has come, and the job that each made last in a profile.

-- Written by `apply` alone. `profiles` says which, `job` is the template, `since` is when the times last changed.
CREATE TABLE schedules (
    schedule_id    TEXT COLLATE "C" PRIMARY KEY,
    cron           TEXT NOT NULL,
    timezone       TEXT NOT NULL,
    jitter_seconds BIGINT NOT NULL,
    profiles       TEXT NOT NULL,
    on_overlap     TEXT NOT NULL,
    catch_up       TEXT NOT NULL,
    job            TEXT NOT NULL,
    since          BIGINT NOT NULL
);

-- The running side. A schedule that nobody has handled yet has no row.
CREATE TABLE schedule_states (
    schedule_id  TEXT COLLATE "C" PRIMARY KEY,
    last_at      BIGINT NOT NULL,
    next_at      BIGINT,
    since        BIGINT,
    fired_at     BIGINT,
    firing_at    BIGINT,
    firing_after TEXT NOT NULL,
    run_at       BIGINT,
    run_after    TEXT NOT NULL,
    run_by       TEXT NOT NULL,
    paused       BOOLEAN NOT NULL,
    pause_note   TEXT NOT NULL,
    version      BIGINT NOT NULL
);

-- `place` is schedule_id:profile_id. Ids hold no colon.
CREATE TABLE schedule_jobs (
    place  TEXT COLLATE "C" PRIMARY KEY,
    job_id TEXT COLLATE "C" NOT NULL
);
