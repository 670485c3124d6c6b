-- Schema 14. Launchers: programs of others that keep profiles and open their browsers. Written by `apply` alone.
CREATE TABLE launchers (
    launcher_id           TEXT PRIMARY KEY,
    driver                TEXT NOT NULL,
    url                   TEXT,
    api_token             TEXT,
    folder                TEXT,
    max_running           INTEGER,
    calls_per_minute      INTEGER,
    start_timeout_seconds INTEGER NOT NULL,
    calls                 TEXT NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE profiles ADD COLUMN launcher_id TEXT;
ALTER TABLE profiles ADD COLUMN launcher_profile TEXT;

-- When the next call to an API may be made, by whoever shares its limit.
CREATE TABLE call_turns (
    key     TEXT PRIMARY KEY,
    next_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
