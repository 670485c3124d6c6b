-- Schema 16. Registered endpoints get alerts, which need not be about a job. A worker that no longer reports is noticed.
CREATE TABLE endpoints (
    endpoint_id TEXT COLLATE "C" PRIMARY KEY,
    url         TEXT NOT NULL,
    events      TEXT NOT NULL,
    description TEXT NOT NULL,
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    created_by  TEXT NOT NULL,
    changed_at  BIGINT NOT NULL
);

ALTER TABLE deliveries ALTER COLUMN job_id DROP NOT NULL;
ALTER TABLE deliveries ADD COLUMN endpoint_id TEXT COLLATE "C";
CREATE INDEX deliveries_endpoint ON deliveries (endpoint_id, seq) WHERE endpoint_id IS NOT NULL;

ALTER TABLE workers ADD COLUMN silent_since BIGINT;
