-- Schema 18. What a person paused: everything, a pool, a worker by its name, or an account that resumes by itself.
CREATE TABLE pauses (
    pause_id TEXT PRIMARY KEY,
    scope    TEXT NOT NULL,
    name     TEXT NOT NULL,
    note     TEXT NOT NULL,
    actor    TEXT NOT NULL,
    since    INTEGER NOT NULL,
    until    INTEGER
) STRICT, WITHOUT ROWID;
