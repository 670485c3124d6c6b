-- Schema 11. How often the holder of a lease said that it would renew it.
ALTER TABLE runs ADD COLUMN renew_ms bigint NOT NULL DEFAULT 60000;
