-- Schema 26. Notes on accounts and profiles, by people and by runs. `subject` is the id of what a note is on.
CREATE TABLE notes (
    note_id    TEXT PRIMARY KEY,
    about      TEXT NOT NULL,
    subject    TEXT NOT NULL,
    by_run     INTEGER NOT NULL,
    account_id TEXT NOT NULL,
    profile_id TEXT,
    job_id     TEXT,
    run_id     TEXT,
    author     TEXT NOT NULL,
    text       TEXT NOT NULL,
    written_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX notes_on ON notes (about, subject, by_run, note_id);
CREATE INDEX notes_of_account ON notes (account_id, note_id);
CREATE INDEX notes_of_profile ON notes (profile_id, note_id) WHERE profile_id IS NOT NULL;
CREATE INDEX notes_of_job ON notes (job_id, note_id) WHERE job_id IS NOT NULL;
CREATE INDEX notes_of_run ON notes (run_id, note_id) WHERE run_id IS NOT NULL;
