-- Schema 23. Answers to calls that changed something, written in the same commit, so that a call whose answer was lost
-- is answered as the first time. One row a caller's slot: its next call replaces it, and no lower number can.
CREATE TABLE answers (
    slot      TEXT PRIMARY KEY,
    sequence  INTEGER NOT NULL CONSTRAINT answers_in_order CHECK (sequence >= 0),
    operation TEXT NOT NULL,
    body      TEXT NOT NULL,
    answer    TEXT,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
