-- Schema 27. When the launcher of a lost run is asked again that did not say whether its browser still runs.
ALTER TABLE runs ADD COLUMN ask_at BIGINT;
