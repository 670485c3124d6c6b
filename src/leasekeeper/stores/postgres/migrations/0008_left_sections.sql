-- Schema 8. Which mutating section was left since the last safe step; how often in a row a job was given back; what must
-- outlive an account that was removed.
ALTER TABLE runs ADD COLUMN section_idempotent boolean NOT NULL DEFAULT FALSE;
ALTER TABLE runs ADD COLUMN left_section text;
ALTER TABLE jobs ADD COLUMN given_back bigint NOT NULL DEFAULT 0;
CREATE TABLE retired_accounts (
    account_id text PRIMARY KEY,
    paused     boolean NOT NULL,
    pause_note text NOT NULL,
    version    bigint NOT NULL
);
