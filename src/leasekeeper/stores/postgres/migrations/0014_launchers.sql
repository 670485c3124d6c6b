-- Schema 14. Launchers: programs of others that keep profiles and open their browsers. Written by `apply` alone.
CREATE TABLE launchers (
    launcher_id           TEXT COLLATE "C" PRIMARY KEY,
    driver                TEXT NOT NULL,
    url                   TEXT,
    api_token             TEXT,
    folder                TEXT,
    max_running           BIGINT,
    calls_per_minute      BIGINT,
    start_timeout_seconds BIGINT NOT NULL,
    calls                 TEXT NOT NULL
);

ALTER TABLE profiles ADD COLUMN launcher_id TEXT;
ALTER TABLE profiles ADD COLUMN launcher_profile TEXT;

-- When the next call to an API may be made, by whoever shares its limit.
CREATE TABLE call_turns (
    key     TEXT COLLATE "C" PRIMARY KEY,
    next_at BIGINT NOT NULL
);
