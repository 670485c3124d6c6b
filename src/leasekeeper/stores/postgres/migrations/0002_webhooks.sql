-- Schema 2. Webhooks are sent: each message has a state, where it goes, and what came of the last attempt.
DROP INDEX deliveries_due;
ALTER TABLE deliveries
    ADD COLUMN host TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN state TEXT NOT NULL DEFAULT 'pending',
    ADD COLUMN spent BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN attempted_at BIGINT,
    ADD COLUMN answer TEXT NOT NULL DEFAULT '',
    ADD COLUMN ended_at BIGINT;
-- Host and port: what stands between :// and the first /, ? or #.
UPDATE deliveries SET host = lower(substring(url FROM '://([^/?#]*)'));
UPDATE deliveries SET state = 'delivered', ended_at = delivered_at WHERE delivered_at IS NOT NULL;
ALTER TABLE deliveries DROP COLUMN delivered_at;
CREATE INDEX deliveries_due ON deliveries (host, due_at, seq) WHERE ended_at IS NULL;
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX deliveries_undelivered ON deliveries (state, seq) WHERE state <> 'delivered';
