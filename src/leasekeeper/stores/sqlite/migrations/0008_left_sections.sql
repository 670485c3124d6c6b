-- Schema 8. Which mutating section was left since the last safe step; how often in a row a job was given back; what must
-- outlive an account that was removed.
ALTER TABLE runs ADD COLUMN section_idempotent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN left_section TEXT;
ALTER TABLE jobs ADD COLUMN given_back INTEGER NOT NULL DEFAULT 0;
CREATE TABLE retired_accounts (
    account_id TEXT PRIMARY KEY,
    paused     INTEGER NOT NULL,
    pause_note TEXT NOT NULL,
    version    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
