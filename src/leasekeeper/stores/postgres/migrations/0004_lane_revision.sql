-- Schema 4. Every write of a lane counts. Keys of accounts are found by their open runs: what a key looks like is for
-- core to know.
ALTER TABLE lanes ADD COLUMN revision bigint NOT NULL DEFAULT 0;
ALTER TABLE retired_lanes ADD COLUMN revision bigint NOT NULL DEFAULT 0;
DROP INDEX runs_keys;
