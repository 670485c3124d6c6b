-- Schema 6. A worker whose machine cannot run jobs says why, and since when it has said so.
ALTER TABLE workers ADD COLUMN unwell_reason TEXT;
ALTER TABLE workers ADD COLUMN unwell_since INTEGER;
