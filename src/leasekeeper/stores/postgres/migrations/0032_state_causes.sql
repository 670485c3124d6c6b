-- Schema 32. Why a profile is in its state, or will be, as a code with its data: the sentence stays beside it.
-- Older rows have the sentence only.
ALTER TABLE lanes ADD COLUMN state_cause TEXT;
ALTER TABLE lanes ADD COLUMN state_data TEXT NOT NULL DEFAULT '{}';
ALTER TABLE lanes ADD COLUMN drain_cause TEXT;
ALTER TABLE lanes ADD COLUMN drain_data TEXT NOT NULL DEFAULT '{}';
ALTER TABLE lanes ADD COLUMN verdict_cause TEXT;
ALTER TABLE lanes ADD COLUMN verdict_data TEXT NOT NULL DEFAULT '{}';
ALTER TABLE retired_lanes ADD COLUMN state_cause TEXT;
ALTER TABLE retired_lanes ADD COLUMN state_data TEXT NOT NULL DEFAULT '{}';
