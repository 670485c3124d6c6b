-- Schema 9. Tokens of the API (their hashes only), and secrets (encrypted only).
CREATE TABLE tokens (
    token_id   TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    accounts   TEXT NOT NULL,
    pools      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER,
    revoked_at INTEGER,
    hash       TEXT NOT NULL
) STRICT;
CREATE INDEX tokens_created ON tokens (created_at, token_id);

CREATE TABLE secrets (
    name       TEXT PRIMARY KEY,
    key_id     TEXT NOT NULL,
    sealed     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
) STRICT;
