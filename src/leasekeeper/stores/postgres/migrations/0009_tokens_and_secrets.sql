-- Schema 9. Tokens of the API (their hashes only), and secrets (encrypted only).
CREATE TABLE tokens (
    token_id   TEXT COLLATE "C" PRIMARY KEY,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    accounts   TEXT NOT NULL,
    pools      TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT,
    used_at    BIGINT,
    revoked_at BIGINT,
    hash       TEXT NOT NULL
);
CREATE INDEX tokens_created ON tokens (created_at, token_id);

CREATE TABLE secrets (
    name       TEXT COLLATE "C" PRIMARY KEY,
    key_id     TEXT NOT NULL,
    sealed     TEXT NOT NULL,
    version    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL
);
